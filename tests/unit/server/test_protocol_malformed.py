"""What is no request of HTTP/1.1 is refused with a 4xx or a close, at once, and harms nobody else."""

from __future__ import annotations

import json
import os
import random
import re

import pytest
from support.edge_server import GOOD, read_all, serving

from ramet.server.connections import HttpLimits

HOST = b"Host: localhost\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
NUM_MUTATIONS = 100_000 if os.environ.get("RAMET_FAULT") == "full" else 300


def get(target=b"/echo", headers=b"", version=b"HTTP/1.1"):
    return b"GET " + target + b" " + version + b"\r\n" + HOST + headers + b"\r\n"


def post(headers, body=b"abcde"):
    return b"POST /echo HTTP/1.1\r\n" + HOST + headers + b"\r\n" + body


SMUGGLED = get(b"/smuggled")
MALFORMED = {
    # lengths
    "length and chunked": post(b"Content-Length: 5\r\n" + CHUNKED, b"0\r\n\r\n" + SMUGGLED),
    "chunked and length": post(CHUNKED + b"Content-Length: 5\r\n", b"0\r\n\r\n" + SMUGGLED),
    "two equal lengths": post(b"Content-Length: 5\r\nContent-Length: 5\r\n"),
    "two lengths": post(b"Content-Length: 0\r\nContent-Length: 5\r\n", SMUGGLED),
    "list of lengths": post(b"Content-Length: 5, 5\r\n"),
    "signed length": post(b"Content-Length: +5\r\n"),
    "negative length": post(b"Content-Length: -5\r\n"),
    "hexadecimal length": post(b"Content-Length: 0x5\r\n"),
    "empty length": post(b"Content-Length: \r\n"),
    "length of 2^64": post(b"Content-Length: 18446744073709551616\r\n"),
    "length with a gap": post(b"Content-Length: 1 0\r\n"),
    "space before the colon": post(b"Content-Length : 5\r\n"),
    # transfer encodings
    "gzip, chunked": post(b"Transfer-Encoding: gzip, chunked\r\n", b"5\r\nabcde\r\n0\r\n\r\n"),
    "chunked, gzip": post(b"Transfer-Encoding: chunked, gzip\r\n", b"5\r\nabcde\r\n0\r\n\r\n"),
    "identity": post(b"Transfer-Encoding: identity\r\n"),
    "xchunked": post(b"Transfer-Encoding: xchunked\r\n"),
    "chunked twice": post(CHUNKED + CHUNKED, b"5\r\nabcde\r\n0\r\n\r\n"),
    "chunked after a vertical tab": post(b"Transfer-Encoding: \x0bchunked\r\n"),
    "quoted chunked": post(b'Transfer-Encoding: "chunked"\r\n'),
    "empty encoding": post(b"Transfer-Encoding:\r\n"),
    "folded encoding": post(b"Transfer-Encoding:\r\n chunked\r\n", b"0\r\n\r\n"),
    "chunked with HTTP/1.0": b"POST /echo HTTP/1.0\r\n" + CHUNKED + b"\r\n5\r\nabcde\r\n0\r\n\r\n",
    # chunks
    "chunk without its end": post(CHUNKED, b"5\r\nabcdeXX0\r\n\r\n"),
    "LF after a size": post(CHUNKED, b"5\nabcde\r\n0\r\n\r\n"),
    "LF after a chunk": post(CHUNKED, b"5\r\nabcde\n0\r\n\r\n"),
    "CR after a chunk": post(CHUNKED, b"5\r\nabcde\r0\r\n\r\n"),
    "LF at the end": post(CHUNKED, b"5\r\nabcde\r\n0\n\n"),
    "size 0x5": post(CHUNKED, b"0x5\r\nabcde\r\n0\r\n\r\n"),
    "size -5": post(CHUNKED, b"-5\r\nabcde\r\n0\r\n\r\n"),
    "size with a space": post(CHUNKED, b"5 \r\nabcde\r\n0\r\n\r\n"),
    "size of 2^68": post(CHUNKED, b"f" * 17 + b"\r\nabcde"),
    "no size": post(CHUNKED, b"\r\nabcde"),
    "LF in an extension": post(CHUNKED, b"5;a\nabcde\r\n0\r\n\r\n"),
    "CR in an extension": post(CHUNKED, b"5;a\rb\r\nabcde\r\n0\r\n\r\n"),
    "open quote in an extension": post(CHUNKED, b'5;a="b\r\n"\r\nabcde\r\n0\r\n\r\n'),
    "5,000 chunks of a byte": post(CHUNKED, b"1\r\na\r\n" * 5000 + b"0\r\n\r\n"),
    "extensions without end": post(CHUNKED, b"5;" + b"a" * 400_000),
    "trailers without end": post(CHUNKED, b"5\r\nabcde\r\n0\r\n" + b"X: y\r\n" * 100_000),
    "a trailer without end": post(CHUNKED, b"5\r\nabcde\r\n0\r\nX: " + b"y" * 600_000),
    "a trailer with LF": post(CHUNKED, b"5\r\nabcde\r\n0\r\nX: y\n\r\n"),
    "a trailing length": post(CHUNKED, b"5\r\nabcde\r\n0\r\nContent-Length: 9\r\n\r\n"),
    # lines
    "LF alone": b"GET /echo HTTP/1.1\nHost: localhost\n\n",
    "LF after the request line": b"GET /echo HTTP/1.1\n" + HOST + b"\r\n",
    "LF after a header": get(headers=b"X: y\nZ: a\r\n"),
    "LF before the body": b"GET /echo HTTP/1.1\r\n" + HOST + b"\n",
    "CR in a header": get(headers=b"X: y\rZ: a\r\n"),
    "CR CR LF": b"GET /echo HTTP/1.1\r\r\n" + HOST + b"\r\n",
    "folded header": get(headers=b"X: y\r\n z\r\n"),
    "header folded by a tab": get(headers=b"X: y\r\n\tz\r\n"),
    "fold after the request line": b"GET /echo HTTP/1.1\r\n " + HOST + b"\r\n",
    "NUL in a value": get(headers=b"X: y\0z\r\n"),
    "NUL in a name": get(headers=b"X\0: y\r\n"),
    "NUL in the target": get(b"/ec\0ho"),
    "NUL first": b"\0" + GOOD,
    "escape in a value": get(headers=b"X: \x1b[31m\r\n"),
    "header without a colon": get(headers=b"Nonsense\r\n"),
    "header without a name": get(headers=b": y\r\n"),
    "parenthesis in a name": get(headers=b"(X): y\r\n"),
    "no Host": b"GET /echo HTTP/1.1\r\n\r\n",
    "two Hosts": get(headers=HOST),
    # request lines
    "HTTP/0.9 without version": b"GET /echo\r\n\r\n",
    "HTTP/0.9": get(version=b"HTTP/0.9"),
    "HTTP/1.2": get(version=b"HTTP/1.2"),
    "HTTP/2.0": get(version=b"HTTP/2.0"),
    "HTTP/1.10": get(version=b"HTTP/1.10"),
    "lower-case version": get(version=b"http/1.1"),
    "space after the version": get(version=b"HTTP/1.1 "),
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "RTSP": b"SETUP /echo RTSP/1.0\r\n" + HOST + b"\r\n",
    "ICE": b"SOURCE /echo ICE/1.0\r\n" + HOST + b"\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    "unknown method": GOOD.replace(b"GET", b"FROB"),
    "lower-case method": GOOD.replace(b"GET", b"get"),
    "CONNECT": b"CONNECT localhost:80 HTTP/1.1\r\n" + HOST + b"\r\n",
    "@x": get(b"@x"),
    "x": get(b"x"),
    "?x": get(b"?x"),
    "**": get(b"**"),
    "fragment": get(b"/echo#x"),
    "absolute URI without a path": get(b"http://localhost"),
    "absolute URI without a host": get(b"http:///echo"),
    "space in the target": get(b"/ec ho"),
    "bare UTF-8 in the target": get("/é".encode()),
    # sizes
    "10,000 headers": get(headers=b"X: y\r\n" * 10_000),
    "129 headers": get(headers=b"X: y\r\n" * 128),
    "header of 1 MB": get(headers=b"X: " + b"y" * 1_000_000 + b"\r\n"),
    "header of 66 KB": get(headers=b"X: " + b"y" * 66_000 + b"\r\n"),
    "name of 1 MB": get(headers=b"x" * 1_000_000 + b": y\r\n"),
    "target of 1 MB": get(b"/" + b"x" * 1_000_000),
    "target of 8,193 bytes": get(b"/" + b"x" * 8192),
    "CR LF without end": b"\r\n" * 200_000,
}  # fmt: skip
STATUS = {"10,000 headers": 431, "129 headers": 431, "header of 1 MB": 431, "header of 66 KB": 431, "name of 1 MB": 431}
STATUS |= {"target of 1 MB": 414, "target of 8,193 bytes": 414, "CR LF without end": 431, "trailers without end": 431}


@pytest.fixture(scope="module")
def edge():
    with serving() as running:
        yield running


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_malformed_is_refused_at_once(edge, name):
    edge.app.scopes.clear()
    reply = edge.ask(MALFORMED[name])
    assert reply.status == STATUS.get(name, 400)
    assert reply.seconds < 5
    assert b"\r\nconnection: close" in reply.head
    assert sorted(reply.json["error"]) == ["code", "message", "param", "type"]
    assert all(scope["path"] == "/echo" for scope in edge.app.scopes)
    assert edge.is_well()


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (get(b"//v1"), {"path": "//v1", "raw": "//v1"}),
        (get(b"/v1%2fmodels?a=%2f"), {"path": "/v1/models", "raw": "/v1%2fmodels", "query": "a=%2f"}),
        (get(b"/v1/..;/x/../y"), {"path": "/v1/..;/x/../y"}),
        (get(b"/V1/models/"), {"path": "/V1/models/"}),
        (get(b"/@x"), {"path": "/@x"}),
        (get(b"*"), {"path": "*"}),
        (get(b"http://elsewhere:1/v1/x?y"), {"path": "/v1/x", "query": "y"}),
        (get(b"http://elsewhere//v1"), {"path": "//v1"}),
        (get().replace(b"Host: localhost", b"Host: a/?x="), {"path": "/echo", "query": ""}),
        (get().replace(b"Host: localhost", b"Host:"), {"path": "/echo"}),
        (get(headers=b"Range: bytes=" + b",".join([b"1-2"] * 10_000) + b"\r\n"), {"path": "/echo"}),
        (b"\r\n\r\n" + get(), {"path": "/echo"}),
        (get(version=b"HTTP/1.0"), {"path": "/echo"}),
        (b"GET /echo HTTP/1.0\r\n\r\n", {"path": "/echo"}),
        (get(headers=b"X: \xff\xfe\r\n"), {"path": "/echo"}),
        (get(headers=b"X: y\r\n" * 126), {"path": "/echo"}),
        (get(b"/" + b"x" * 8000), {"method": "GET"}),
        (post(b"Content-Length: \t 5 \r\n"), {"body": "abcde"}),
        (post(b"Transfer-Encoding: Chunked \r\n", b"3;x=y\r\nabc\r\n002\r\nde\r\n0\r\nAuthorization: x\r\n\r\n"),
         {"body": "abcde"}),
        (post(CHUNKED, b"".join(b"1\r\na\r\n" for _ in range(900)) + b"0\r\n\r\n"), {"body": "a" * 900}),
        (get(headers=b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"), {"method": "GET"}),
        (post(b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 5\r\n"), {"body": "abcde"}),
        (post(b"Connection: Upgrade\r\nUpgrade: h2c\r\n" + CHUNKED, b"5\r\nabcde\r\n0\r\n\r\n"), {"body": "abcde"}),
        (post(b"Expect: nonsense\r\nContent-Length: 5\r\n"), {"body": "abcde"}),
    ],
)  # fmt: skip
def test_what_is_odd_but_right_is_told_as_it_was_sent(edge, request_, told):
    edge.app.scopes.clear()
    head, _, rest = request_.partition(b"HTTP/1.")
    if b"Connection:" not in rest:  # the answer shall be the last
        rest = rest.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        reply = edge.ask(head + b"HTTP/1." + rest)
    else:
        reply = edge.ask(request_ + GOOD)
    assert reply.status == 200
    body = reply.data.partition(b"\r\n\r\n")[2].partition(b"HTTP/1.1 ")[0]
    assert told.items() <= json.loads(body).items()
    (scope, *others) = edge.app.scopes
    assert not any(name == b"authorization" for name, _ in scope["headers"])
    assert len(others) == (b"Connection: Upgrade" in request_)


def test_the_body_behind_an_upgrade_is_not_taken_for_a_request(edge):
    for framing, body in (
        (b"Content-Length: %d\r\n" % len(SMUGGLED), SMUGGLED),
        (CHUNKED, b"%x\r\n%s\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED)),
    ):
        edge.app.scopes.clear()
        with edge.connect() as client:
            client.sendall(post(b"Connection: Upgrade\r\nUpgrade: h2c\r\n" + framing, b""))
            client.sendall(body + GOOD)
            while client.recv(65536):
                pass
        assert [scope["path"] for scope in edge.app.scopes] == ["/echo", "/echo"]


def mutated(rng, data):
    """``data`` with one to four pieces deleted, doubled, overwritten or swapped for something that means something."""
    tokens = (
        b"\r\n",
        b"\n",
        b"\r",
        b"\0",
        b" ",
        b":",
        b"\t",
        b"0",
        b"\xff",
        CHUNKED,
        b"Content-Length: 3\r\n",
        b"HTTP/1.1",
        b";",
        b"/",
    )
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice((0, 1, 1, 2, 8)))
        piece = rng.choice((b"", data[at:end] * 2, rng.choice(tokens), rng.randbytes(1)))
        data = data[:at] + piece + data[end:]
    return data


def test_mutated_requests_are_answered_refused_or_closed():
    """Seeded. A mutation that is a request after all is answered, and one that is half a request meets its deadline."""
    rng = random.Random(15)
    seeds = [post(b"Content-Length: 5\r\n"), post(CHUNKED, b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nX: y\r\n\r\n"), GOOD]
    seeds += [seed for seed in MALFORMED.values() if len(seed) < 1000]
    answered = 0
    with serving(HttpLimits(first_byte_s=0.1, head_s=0.1, body_s=0.1, keep_alive_s=0.1, linger_s=0.1)) as edge:
        for _ in range(NUM_MUTATIONS // 100):
            sent = [(edge.connect(), mutated(rng, rng.choice(seeds))) for _ in range(100)]
            for client, data in sent:
                client.sendall(data)
            for client, data in sent:
                with client:
                    replies = read_all(client)
                statuses = {int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", replies.data)}
                assert statuses <= {200, 400, 408, 414, 431}, (data, replies)
                assert replies.seconds < 5, (data, replies)
                answered += 200 in statuses
        assert 0 < answered < NUM_MUTATIONS
        assert edge.is_well()
