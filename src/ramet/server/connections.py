"""What the HTTP connections of one server share: limits, places, and one clock that goes round them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = [
    "ClientTransport",
    "Connection",
    "Connections",
    "HttpLimits",
    "connection_limit",
    "watch_peer",
]

_MOST_CONNECTIONS = 4096  # by default: some 20 KiB each
_KEEPALIVE = (15, 5, 3)  # s idle, s between probes, probes: 30 s until a silent peer is given up


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one connection may take. Each time is counted from a fixed moment; no byte that arrives starts it again.

    A deadline is kept to within a second, or a quarter of the shortest of them if that is less.
    """

    first_byte_s: float = 10.0
    """Seconds from the connection to its first byte."""
    head_s: float = 10.0
    """From the first byte of a request to the end of its headers."""
    body_s: float = 60.0
    """From the end of the headers to the end of the body; extended while the server itself does not read."""
    keep_alive_s: float = 75.0
    """From an answer to the next request. Longer than the 60 s of common proxies: they close first, so no request of theirs
    meets our close."""
    linger_s: float = 5.0
    """How long a refused client may go on sending, unheard: to close at once would take the answer from it."""
    stall_s: float = 25.0
    """How long what is written may wait for a client that reads less than ``max_write_bytes`` in that time."""
    unacked_s: float = 30.0
    """How long the kernel keeps trying a peer that has vanished (TCP_USER_TIMEOUT)."""
    max_head_bytes: int = 64 * 1024
    max_headers: int = 128
    max_target_bytes: int = 8 * 1024
    max_pipelined: int = 8
    """Requests that wait behind the one being answered on their connection."""
    max_write_bytes: int = 64 * 1024
    """What waits here for a slow reader, if no message is longer than half of it; as much again may wait in the kernel."""
    max_connections: int | None = None
    """None: what ``connection_limit`` says."""

    @property
    def round_s(self) -> float:
        """Time from one look at the deadlines to the next."""
        return min(1.0, min(self.first_byte_s, self.head_s, self.body_s, self.linger_s, self.stall_s) / 4)


def connection_limit(open_files: int) -> int:
    """How many connections fit under a limit of open files, leaving a quarter (32 to 256) to the rest of the process.

    >>> connection_limit(128), connection_limit(1024), connection_limit(1_000_000)
    (96, 768, 4096)
    """
    return max(1, min(open_files - min(max(open_files // 4, 32), 256), _MOST_CONNECTIONS))


def _open_files() -> int:
    if sys.platform == "win32":
        return 512  # what select() takes there
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


class Connection(Protocol):
    """What ``Connections`` asks of each of them."""

    loop: asyncio.AbstractEventLoop

    def look_at_clock(self, now: float) -> None:
        """Acts on deadlines that have passed; ``now`` is the loop's time in seconds."""

    def let_go(self) -> None:
        """Ends a connection that has no request."""

    def hang_up(self) -> None:
        """Closes. Called once."""


class Connections:
    """What the connections of one server share. Belongs to the thread of its event loop."""

    def __init__(self, limits: HttpLimits) -> None:
        self.limits = limits
        self.max_connections = limits.max_connections or connection_limit(_open_files())
        self.served: set[Connection] = set()
        self.refused: set[Connection] = set()
        self.quiet: dict[Connection, None] = {}  # of those served, the ones without a request; longest first
        self._round: asyncio.TimerHandle | None = None

    def admit(self, connection: Connection) -> bool:
        """Takes a connection in, at the cost of the longest idle one if there is no room. False if all are busy."""
        has_room = len(self.served) < self.max_connections
        if not has_room and self.quiet:
            next(iter(self.quiet)).let_go()
            has_room = True
        (self.served if has_room else self.refused).add(connection)
        if self._round is None:
            self._round = connection.loop.call_later(self.limits.round_s, self._go_round, connection.loop)
        return has_room

    def leave(self, connection: Connection) -> None:
        self.served.discard(connection)
        self.refused.discard(connection)
        self.quiet.pop(connection, None)

    def _go_round(self, loop: asyncio.AbstractEventLoop) -> None:
        self._round = None
        if not (self.served or self.refused):
            return
        self._round = loop.call_later(self.limits.round_s, self._go_round, loop)
        now = loop.time()
        for connection in [*self.served, *self.refused]:
            connection.look_at_clock(now)


class ClientTransport(asyncio.Transport):
    """The transport as uvicorn sees it: ``close`` is the connection's to carry out, the rest passes through."""

    def __init__(self, wire: asyncio.Transport, connection: Connection) -> None:
        super().__init__()
        self._wire = wire
        self._connection = connection
        self.is_hung_up = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._wire.write(data)

    def close(self) -> None:
        if not self.is_closing():
            self.is_hung_up = True
            self._connection.hang_up()

    def is_closing(self) -> bool:
        return self.is_hung_up or self._wire.is_closing()

    def pause_reading(self) -> None:
        self._wire.pause_reading()

    def resume_reading(self) -> None:
        self._wire.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._wire.get_extra_info(name, default)


def watch_peer(sock: socket.socket, limits: HttpLimits) -> None:
    """Has the kernel find out when a peer has vanished, and hold little for one that does not read.

    Options that the platform lacks are left out.
    """
    idle, interval, probes = _KEEPALIVE
    options = [
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPALIVE" if sys.platform == "darwin" else "TCP_KEEPIDLE", idle),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", interval),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", probes),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", int(limits.unacked_s * 1000)),
        (socket.IPPROTO_TCP, "TCP_NOTSENT_LOWAT", limits.max_write_bytes),
    ]
    direct = socket.socket(sock.family, sock.type, sock.proto, fileno=sock.fileno())  # the loop's own makes one for each call
    for level, name, value in options:
        if hasattr(socket, name):
            with contextlib.suppress(OSError):  # a Unix socket has no TCP options
                direct.setsockopt(level, getattr(socket, name), value)
    direct.detach()
