"""HTTP/1.1 as a load generator needs it: connections that are kept, and pieces of the answer with the time they came.

A client that shares its cores with the server it measures takes time from it. This one spends less than half of what the leanest
of the usual clients spends on a streamed chunk (``docs/design/bench.md``), because httptools parses inside the event loop's
callback: no task wakes up for a chunk.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

from ramet.errors import ConfigError, shown

__all__ = ["Address", "HttpClient", "Sink"]

_BUFFER_BYTES = 64 << 10
_VISIBLE = re.compile(r"[\x21-\x7e]+")


class Sink(Protocol):
    """Takes the answer to one request as it comes."""

    def on_body(self, status: int, piece: bytes, now_s: float) -> None:
        """``piece`` of the body came at ``now_s``, by the client's clock. Must not raise."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is: ``path`` is what stands before ``/v1``, usually nothing."""

    host: str
    port: int
    path: str
    is_tls: bool

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read ``http://host:port``, with or without ``/v1`` at its end. Raises ``ConfigError``."""
        wrong = ConfigError(f"--url {shown(url, 80)} is no http:// or https:// address; the usual form is http://127.0.0.1:8000")
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
        except ValueError:
            raise wrong from None
        host, path = parts.hostname, parts.path.rstrip("/").removesuffix("/v1")
        is_fit = host is not None and _VISIBLE.fullmatch(host + path) and not (parts.query or parts.fragment or parts.username)
        if parts.scheme not in ("http", "https") or host is None or not is_fit:
            raise wrong
        is_tls = parts.scheme == "https"
        return cls(host, port or (443 if is_tls else 80), path, is_tls)

    @property
    def authority(self) -> str:
        """``host:port``, as the Host header has it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The address as a person types it."""
        return f"{'https' if self.is_tls else 'http'}://{self.authority}{self.path}"


class HttpClient:
    """Sends requests over as many connections as there are requests at once, and keeps those that can be kept.

    No proxy, no redirect, no decompression: each would stand between the server and the figures.
    """

    def __init__(self, address: Address, api_key: str | None, clock: Callable[[], float]) -> None:
        if api_key is not None and not _VISIBLE.fullmatch(api_key):
            raise ConfigError("the API key has spaces, line ends or letters outside ASCII; give it as the server's owner did")
        key = f"authorization: Bearer {api_key}\r\n" if api_key is not None else ""
        self._head = f"host: {address.authority}\r\nuser-agent: ramet-bench\r\n{key}content-type: application/json\r\n"
        self._address = address
        self._clock = clock
        self._idle: list[_Connection] = []

    async def request(self, method: str, path: str, body: bytes, sink: Sink) -> int:
        """Send one request, feed its answer to ``sink``, and return the status. Raises ``OSError`` when the server cannot be
        reached, ``ConnectionError`` when the answer breaks off. Cancelling closes the connection, which the server can notice.
        """
        head = f"{method} {self._address.path}{path} HTTP/1.1\r\n{self._head}content-length: {len(body)}\r\n\r\n"
        data = head.encode("ascii") + body
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                try:
                    return await self._exchange(connection, data, sink)
                except ConnectionError:
                    if connection.has_received:
                        raise
                    # the server closed it while it lay idle: not this request's fault
        return await self._exchange(await self._connect(), data, sink)

    def close(self) -> None:
        """Close the connections that lie idle."""
        while self._idle:
            self._idle.pop().abort()

    async def _connect(self) -> _Connection:
        context = ssl.create_default_context() if self._address.is_tls else None
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: _Connection(self._clock), self._address.host, self._address.port, ssl=context
        )
        return connection

    async def _exchange(self, connection: _Connection, data: bytes, sink: Sink) -> int:
        try:
            status = await connection.send(data, sink)
        except BaseException:
            connection.abort()
            raise
        if connection.is_open:
            self._idle.append(connection)
        return status


class _Connection(asyncio.BufferedProtocol):
    """One connection, one request at a time. It brings its own buffer, for asyncio would make one of 256 KiB for each read."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._answered: asyncio.Future[int] | None = None
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._status = 0
        self._is_until_close = True
        self.is_open = False
        self.has_received = False  # anything, of the present answer

    async def send(self, data: bytes, sink: Sink) -> int:
        if not self.is_open:
            raise ConnectionError("the server closed the connection")
        self._answered = asyncio.get_running_loop().create_future()
        self._status = 0
        self._is_until_close = True
        self.has_received = False
        self._parser = httptools.HttpResponseParser(self)
        self._sink = sink
        self._transport.write(data)
        return await self._answered

    def abort(self) -> None:
        self.is_open = False
        self._transport.abort()

    # --- from asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by what it does, not by its class
        self.is_open = True

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._answered is None or self._answered.done():  # nobody asked
            self.abort()
            return
        self._now_s = self._clock()
        self.has_received = True
        try:
            self._parser.feed_data(self._buffer[:nbytes])
        except httptools.HttpParserError as error:
            self._fail(f"the answer is not HTTP/1.1: {error}")
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._status and self._is_until_close and exc is None:
            self._settle()
        else:
            self._fail(f"the server closed the connection{f': {exc}' if exc else ''}")

    # --- from httptools ---

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._is_until_close = False

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._sink.on_body(self._status, body, self._now_s)

    def on_message_complete(self) -> None:
        if self._status < 200:  # an interim answer: the real one follows
            return
        if not self._parser.should_keep_alive():
            self.abort()
        self._settle()

    def _settle(self) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(self._status)

    def _fail(self, why: str) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(ConnectionError(why))
