"""Clients in a crowd: each asks, reads and checks, or leaves in the midst of it in one of the ways that clients leave."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from fault.cases import Case, Unwhole, read_answer

from ramet.cli.load.connection import Address, HttpClient

_RESET = struct.pack("ii", 1, 0)  # linger for 0 s: a close is a reset
WAYS = ("fin", "reset", "silent, then fin", "silent, then reset")


@dataclass
class Tally:
    """What became of the requests. ``wrong`` has what no client should ever see; ``unwhole`` counts answers that were refused
    or broken off, by their codes; ``seconds`` are those of whole answers.
    """

    num_equal: int = 0
    num_tokens: int = 0
    left: Counter[str] = field(default_factory=Counter)
    unwhole: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


@dataclass
class _Answer:
    """Keeps a body. It is looked at when it is whole, so that a crowd of clients takes little from the server beside it."""

    pieces: list[bytes] = field(default_factory=list)

    def on_body(self, status: int, piece: bytes, now_s: float) -> None:
        self.pieces.append(bytes(piece))


class Crowd:
    """Clients of one server that ask ``cases`` at random. ``leaving`` is the share of requests whose client does not stay."""

    def __init__(self, port: int, cases: Sequence[Case], *, leaving: float = 0.0, seed: int = 1) -> None:
        self.tally = Tally()
        self._port = port
        self._cases = cases
        self._leaving = leaving
        self._random = random.Random(seed)
        self._http = HttpClient(Address.parse(f"http://127.0.0.1:{port}"), None, time.monotonic)
        self._usual_s = 0.2  # of an answer, lately

    async def storm(self, num_clients: int, seconds: float) -> None:
        """``num_clients`` at all times, for so long; then what runs is read to its end."""
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for _ in range(num_clients):
                group.create_task(self._client(until))
        self._http.close()

    async def rush(self, rate: float, seconds: float) -> None:
        """``rate`` new requests a second, come what may of those before; then what runs is read to its end."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        until = due + seconds
        async with asyncio.TaskGroup() as group:
            while (due := due + self._random.expovariate(rate)) < until:
                await asyncio.sleep(due - loop.time())
                group.create_task(self.once())
        self._http.close()

    async def burst(self, num_clients: int) -> None:
        """As many requests at once."""
        await asyncio.gather(*(self.once() for _ in range(num_clients)))
        self._http.close()

    async def _client(self, until: float) -> None:
        while time.monotonic() < until:
            await self.once()

    async def once(self) -> None:
        """One request of one client."""
        case, is_stream = self._random.choice(self._cases), self._random.random() < 0.7
        if self._random.random() < self._leaving:
            await self._leave(case, is_stream)
        else:
            await self.ask(case, is_stream=is_stream)

    async def ask(self, case: Case, *, is_stream: bool) -> None:
        """Ask, read all and compare."""
        tally, answer = self.tally, _Answer()
        began = time.monotonic()
        try:
            status = await self._http.request("POST", case.path, case.encoded(stream=is_stream), answer)
            found = read_answer(status, b"".join(answer.pieces), is_stream=is_stream)
        except Unwhole as error:
            tally.unwhole[str(error)] += 1
            await asyncio.sleep(0.05)
            return
        except OSError as error:
            tally.unwhole[type(error).__name__] += 1
            await asyncio.sleep(0.05)
            return
        took = time.monotonic() - began
        self._usual_s += 0.1 * (took - self._usual_s)
        if found == case.answer:
            tally.num_equal += 1
            tally.num_tokens += sum(len(one["token_ids"]) for one in found)
            tally.seconds.append(took)
        else:
            tally.wrong.append(f"{case.path} {case.body}, stream {is_stream}: {found}, alone {case.answer}")

    async def _leave(self, case: Case, is_stream: bool) -> None:
        way = self._random.choice(WAYS)
        with contextlib.suppress(OSError):  # the server was faster
            await leave(self._port, case.path, case.encoded(stream=is_stream), way, self._random.uniform(0, 1.5 * self._usual_s))
        self.tally.left[way] += 1


async def leave(port: int, path: str, body: bytes, way: str, after_s: float) -> None:
    """Send a request and leave after so long: by an orderly close or a reset, having read what came, or nothing of it."""
    loop = asyncio.get_running_loop()
    is_silent = way.startswith("silent")
    with socket.socket() as sock:
        sock.setblocking(False)
        if is_silent:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await loop.sock_connect(sock, ("127.0.0.1", port))
        head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        await loop.sock_sendall(sock, head.encode() + body)
        if is_silent:
            await asyncio.sleep(after_s)
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(after_s):
                    while await loop.sock_recv(sock, 65536):
                        pass
        if way.endswith("reset"):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
