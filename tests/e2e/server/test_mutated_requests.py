"""H15 through the whole server: requests with something wrong on the wire are refused or closed, and let nobody in."""

from __future__ import annotations

import json
import os
import random
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import pytest
from support.edge_server import eventually
from support.http import write_tiny
from support.serve_process import ServeProcess, serving

KEY = "key-of-a-user"
NUM_MUTATIONS = 100_000 if os.environ.get("RAMET_FAULT") == "full" else 600
BODY = json.dumps({"prompt": "hi", "max_tokens": 1, "seed": 1}).encode()
JSON = b"Content-Type: application/json\r\n"
PIECES = (
    b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b";", b",", b"/", b"%00", b"%2f", b"?", b"#", b"@", b"..", b"\xff", b"0",
    b"-1", b"99999999999999999999", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 3\r\n", b"Content-Length: 0\r\n",
    b"HTTP/1.1", b"HTTP/1.0", b"Expect: 100-continue\r\n", b"Connection: close\r\n", b"Upgrade: h2c\r\nConnection: Upgrade\r\n",
    b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", b"Host: evil.example\r\n",
    b"Range: bytes=" + b"0-1," * 999 + b"2-3\r\n",
)  # fmt: skip
KNOWN = {200, 400, 401, 403, 404, 405, 408, 413, 414, 415, 421, 431}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    folder = tmp_path_factory.mktemp("mutated")
    with serving(write_tiny(folder / "model"), folder / "log", "--threads", "1", "--api-key", KEY) as made:
        yield made


def requests(key: bytes) -> list[bytes]:
    """Good ones, for whoever has the key."""
    head = b"Host: localhost\r\nConnection: close\r\n" + key
    length = b"Content-Length: %d\r\n" % len(BODY)
    chunked = b"Transfer-Encoding: chunked\r\n"
    return [
        b"GET /v1/models HTTP/1.1\r\n" + head + b"\r\n",
        b"POST /v1/completions HTTP/1.1\r\n" + head + JSON + length + b"\r\n" + BODY,
        b"POST /v1/completions HTTP/1.1\r\n" + head + JSON + chunked + b"\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY),
        b"POST /tokenize HTTP/1.1\r\n" + head + JSON + length + b"\r\n" + BODY + b"GET /version HTTP/1.1\r\n" + head + b"\r\n",
    ]


def mutated(rng: random.Random, data: bytes) -> bytes:
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice((0, 0, 1, 2, 8, 30)))
        data = data[:at] + rng.choice((b"", data[at:end] * 2, rng.choice(PIECES), rng.randbytes(1))) + data[end:]
    return data


def exchange(server: ServeProcess, data: bytes, limit_s: float = 10) -> bytes:
    """What comes until the server closes, or ``limit_s`` long: it waits some time for the rest of what is half a request."""
    found = b""
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=limit_s)) as client, suppress(OSError):
        client.sendall(data)
        while piece := client.recv(65536):
            found += piece
    return found


def statuses(reply: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3}) ", reply) if found != b"100"]


def test_h15_mutated_requests_are_refused_or_closed(guarded: ServeProcess) -> None:
    """Seeded; half of them have the key. Nobody without one reads anything."""
    keys = (b"Authorization: Bearer " + KEY.encode() + b"\r\n", b"")
    good = [exchange(guarded, one) for one in requests(keys[0])]
    assert [statuses(reply)[0] for reply in good[:3]] == [200, 200, 200]

    def attack(seed: int) -> tuple[bytes, bool, bytes]:
        rng = random.Random(seed)
        has_key = seed % 2 == 0
        data = mutated(rng, rng.choice(requests(keys[0 if has_key else 1])))
        return data, has_key, exchange(guarded, data, 0.2)

    with ThreadPoolExecutor(16) as clients:
        replies = list(clients.map(attack, range(NUM_MUTATIONS)))
    answered = 0
    for data, has_key, reply in replies:
        found = statuses(reply)
        assert set(found) <= KNOWN, (data, reply)
        assert has_key or 200 not in found, (data, reply)
        assert b"Traceback" not in reply
        answered += 200 in found
    assert 0 < answered < NUM_MUTATIONS / 2
    again = [exchange(guarded, one) for one in requests(keys[0])]
    assert [statuses(reply) for reply in again] == [statuses(reply) for reply in good]
    assert eventually(lambda: guarded.info(authorization=f"Bearer {KEY}")["num_open_requests"] == 0)
    assert guarded.info(authorization=f"Bearer {KEY}")["num_engine_starts"] == 1
    assert "Traceback" not in guarded.log.read_text()
