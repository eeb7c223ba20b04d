"""A uvicorn server with our protocol in a thread, a tiny application, and clients that are bare sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from ramet.server.connections import HttpLimits
from ramet.server.protocol import BoundedHttpProtocol, bounded_http

GOOD = b"GET /echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@dataclass
class App:
    """``/echo`` reads and tells; ``/early`` answers 413 unread; ``/stream`` and ``/wait`` go on until the client leaves;
    ``/count`` streams for a second."""

    scopes: list[dict[str, Any]] = field(default_factory=list)
    num_left: int = 0
    num_running: int = 0
    num_chunks: int = 0
    is_held: bool = False  # /echo reads nothing while it is
    chunk: bytes = b"x" * 1000
    pause_s: float = 0.001  # between chunks

    async def __call__(self, scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        self.scopes.append(scope)
        self.num_running += 1
        try:
            match scope["path"]:
                case "/stream":
                    await self._stream(receive, send)
                case "/wait":
                    while (await receive())["type"] != "http.disconnect":
                        pass
                    self.num_left += 1
                case "/early":
                    await answer(send, 413, b"too much")
                case "/big":
                    await answer(send, 200, b"x" * 4_000_000)
                case "/count":
                    await send({"type": "http.response.start", "status": 200, "headers": []})
                    for number in range(20):
                        await asyncio.sleep(0.05)
                        await send({"type": "http.response.body", "body": b"%d " % number, "more_body": number < 19})
                case _:
                    await self._echo(scope, receive, send)
        finally:
            self.num_running -= 1

    async def _echo(self, scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        while self.is_held:
            await asyncio.sleep(0.01)
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.num_left += 1
                return
            body += message["body"]
            if not message["more_body"]:
                break
        told = {"path": scope["path"], "raw": scope["raw_path"].decode("ascii"), "query": scope["query_string"].decode("ascii")}
        told |= {"method": scope["method"], "body": body.decode("latin-1") if len(body) < 1000 else len(body)}
        await answer(send, 200, json.dumps(told).encode())

    async def _stream(self, receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        await receive()
        gone = asyncio.ensure_future(receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not gone.done():
            await send({"type": "http.response.body", "body": self.chunk, "more_body": True})
            self.num_chunks += 1
            await asyncio.sleep(self.pause_s)
        self.num_left += (await gone)["type"] == "http.disconnect"


async def answer(send: Callable[..., Any], status: int, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


def connect(port: int, *, receive_buffer: int | None = None) -> socket.socket:
    client = socket.socket()
    client.settimeout(5)
    if receive_buffer is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    client.connect(("127.0.0.1", port))
    return client


@dataclass
class Edge:
    """A server that listens on ``port`` of the loopback."""

    app: App
    server: uvicorn.Server
    protocol: type[BoundedHttpProtocol]

    @property
    def port(self) -> int:
        return int(self.server.servers[0].sockets[0].getsockname()[1])

    def stop(self) -> None:
        self.server.should_exit = True

    def connect(self, **options: int) -> socket.socket:
        return connect(self.port, **options)

    def ask(self, data: bytes) -> Reply:
        """Sends ``data`` and reads until the server closes."""
        start = time.monotonic()
        with self.connect() as client:
            with contextlib.suppress(ConnectionError):  # the server may have hung up before all was sent
                client.sendall(data)
            return read_all(client, start)

    def is_well(self) -> bool:
        return self.ask(GOOD).status == 200


@dataclass(frozen=True)
class Reply:
    """All that came until the server closed; ``status`` is None if that is nothing."""

    data: bytes
    seconds: float

    @property
    def status(self) -> int | None:
        return int(self.data[9:12]) if self.data else None

    @property
    def head(self) -> bytes:
        return self.data.partition(b"\r\n\r\n")[0].lower()

    @property
    def json(self) -> dict[str, Any]:
        return dict(json.loads(self.data.partition(b"\r\n\r\n")[2]))


def read_all(client: socket.socket, start: float | None = None) -> Reply:
    start = time.monotonic() if start is None else start
    data = b""
    with contextlib.suppress(ConnectionError):
        while piece := client.recv(65536):
            data += piece
    return Reply(data, time.monotonic() - start)


def read_until(client: socket.socket, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        piece = client.recv(65536)
        assert piece, data
        data += piece
    return data


def eventually(holds: Callable[[], bool], seconds: float = 3.0) -> bool:
    end = time.monotonic() + seconds
    while not (is_held := holds()) and time.monotonic() < end:
        time.sleep(0.01)
    return is_held


@contextlib.contextmanager
def serving(limits: HttpLimits | None = None, host: str = "127.0.0.1") -> Iterator[Edge]:
    app = App()
    protocol = bounded_http(limits)
    options = {"lifespan": "off", "log_config": None, "access_log": False, "ws": "none", "loop": "uvloop"}
    server = uvicorn.Server(uvicorn.Config(app, host=host, port=0, http=protocol, timeout_graceful_shutdown=2, **options))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        assert eventually(lambda: server.started)
        yield Edge(app, server, protocol)
    finally:
        server.should_exit = True
        thread.join(10)
    assert not thread.is_alive()
