"""H9: clients that leave at any byte of what they send or read, in every state of their requests; nothing of them is left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.http import Served, call
from support.serve_process import ServeProcess

IS_FULL = os.environ.get("RAMET_FAULT") == "full"
NUM_REQUESTS = 20_000 if IS_FULL else 160
AT_ONCE = 12  # three times what runs at once: the others wait
LONG = 1500  # tokens: a request that nobody ends takes seconds
_RESET = struct.pack("ii", 1, 0)

_CHAT = [{"role": "user", "content": "hello there"}]
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "decode", "max_tokens": LONG, "ignore_eos": True, "stream": True}),
    ("/v1/completions", {"prompt": "decode", "max_tokens": LONG, "ignore_eos": True, "n": 4, "stream": True}),
    ("/v1/completions", {"prompt": ["whole", "answers"], "max_tokens": LONG, "ignore_eos": True, "n": 4}),
    ("/v1/completions", {"prompt": "prefill " * 200, "max_tokens": 9, "ignore_eos": True, "logprobs": 2, "echo": True}),
    ("/v1/completions", {"prompt": "grammar", "max_tokens": LONG, "guided_regex": "[ab]{1000,1400}", "n": 4, "stream": True}),
    ("/v1/chat/completions", {"messages": _CHAT, "max_tokens": LONG, "ignore_eos": True, "stream": True, "n": 4}),
    ("/v1/responses", {"input": "hello", "max_output_tokens": LONG, "ignore_eos": True, "stream": True}),
    ("/v1/messages", {"messages": _CHAT, "max_tokens": LONG, "ignore_eos": True, "stream": True}),
    ("/generate", {"text": ["a", "b"], "sampling_params": {"max_new_tokens": LONG, "ignore_eos": True, "n": 2}}),
    ("/generate", {"text": "a", "sampling_params": {"max_new_tokens": LONG, "ignore_eos": True}, "stream": True}),
    ("/tokenize", {"prompt": "a" * 50_000}),
]


def leave_midway(server: ServeProcess, seed: int) -> None:
    """Send a request up to some byte, or all of it and read up to some byte, and go, politely or not."""
    rng = random.Random(seed)
    path, body = rng.choice(BODIES)
    content = json.dumps(body | {"seed": seed}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    data = head.encode() + content
    num_sent = rng.randrange(len(data)) if rng.random() < 0.3 else len(data)
    num_read = rng.choice((0, 1, 200, 400, rng.randrange(20_000))) if num_sent == len(data) else 0
    with socket.create_connection(("127.0.0.1", server.port), timeout=rng.choice((0.02, 0.2, 1.0))) as client:
        if rng.random() < 0.5:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        with contextlib.suppress(OSError):  # a server that refuses closes first; one that is slow is not waited for
            client.sendall(data[:num_sent])
            while num_read > 0 and (piece := client.recv(min(num_read, 4096))):
                num_read -= len(piece)


def num_fds(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def good(server: ServeProcess) -> str:
    status, _, body = server.ask("/v1/completions", {"prompt": "steady", "max_tokens": 20, "seed": 7, "ignore_eos": True})
    assert status == 200, body
    text: str = json.loads(body)["choices"][0]["text"]
    return text


def test_h9_clients_that_leave_at_a_random_byte(process: ServeProcess) -> None:
    before = good(process)
    for seed in range(1, 9):
        leave_midway(process, -seed)  # what is opened once is open from here on
    process.until_idle()
    fds = num_fds(process.pid), num_fds(process.engine_pid)
    with ThreadPoolExecutor(AT_ONCE) as clients:
        list(clients.map(lambda seed: leave_midway(process, seed), range(NUM_REQUESTS)))
    left = time.monotonic()
    process.until_idle(5)
    assert time.monotonic() - left < 5, "what nobody waits for went on"
    info = process.info()
    assert (info["num_open_requests"], info["num_waiting_requests"], info["num_engine_starts"]) == (0, 0, 1)
    stats = info["engine"]["stats"]
    assert (stats["num_open_requests"], stats["scheduler"]["num_running"], stats["scheduler"]["num_waiting"]) == (0, 0, 0)
    pages = stats["kv"]
    assert pages["num_private_pages"] == pages["num_locked_pages"] == 0
    assert pages["num_free_pages"] + pages["num_evictable_pages"] == pages["num_pages"]
    assert good(process) == before
    until = time.monotonic() + 5
    while (num_fds(process.pid), num_fds(process.engine_pid)) > fds and time.monotonic() < until:
        time.sleep(0.05)
    assert (num_fds(process.pid), num_fds(process.engine_pid)) <= fds
    assert "Traceback" not in process.log.read_text()


@pytest.mark.parametrize("num_answers", [1, 4])
def test_h9_the_engine_ends_what_nobody_waits_for_within_two_steps(tools_server: Served, num_answers: int) -> None:
    server = tools_server
    client = server.services.client

    async def leave(path: str, body: dict[str, Any], pieces: int) -> int:
        """Steps from the moment that the client is gone to the end of its request."""
        asking = asyncio.create_task(call(server.app, path, body, leave_after=pieces))
        while not client.generations:
            await asyncio.sleep(0)
        generations = client.generations
        while not any(generation.is_aborted for generation in generations):
            await asyncio.sleep(0)
        assert client.stats is not None
        first = client.stats.scheduler.num_steps
        while client.generations:
            await asyncio.sleep(0)
        last = client.stats.scheduler.num_steps
        await asking
        return last - first

    body = {"max_tokens": LONG, "ignore_eos": True, "stream": True, "n": num_answers}
    for pieces in (1, 2, 5, 30):
        for path, start in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": _CHAT})):
            assert server.run(leave(path, body | start, pieces)) <= 2 + 1, "the one that ran when the abort came may end"
    server.until_idle()
    assert (client._open, client._num_waiting, client._assembler.open_ids()) == ({}, 0, ())


def test_h9_b050_a_client_that_leaves_before_it_is_begun(process: ServeProcess) -> None:
    """While others run, requests that wait are ended without having run."""
    long = {"prompt": "busy", "max_tokens": LONG, "ignore_eos": True, "n": 8, "stream": True}
    with process.open_stream(long) as busy:
        busy.recv(1000)
        waiting = [process.open_stream(long | {"prompt": f"waits {i}"}) for i in range(8)]
        until = time.monotonic() + 5
        while process.metrics()["ramet:waiting_sequences"] < 8 and time.monotonic() < until:
            time.sleep(0.01)
        assert process.metrics()["ramet:waiting_sequences"] >= 8
        computed = process.info()["engine"]["stats"]["scheduler"]["num_computed_tokens"]
        for client in waiting:
            client.close()
        while process.metrics()["ramet:waiting_sequences"] > 0 and time.monotonic() < until:
            time.sleep(0.01)
        assert process.info()["num_open_requests"] == 1
        busy.close()
    process.until_idle(5)
    assert process.info()["engine"]["stats"]["scheduler"]["num_computed_tokens"] - computed < LONG
