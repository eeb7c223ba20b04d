"""What a server is made to suffer in a soak: one fault at a time, each over within some ten seconds.

H3 and H4 end the server and are tests of their own, as are H5 (faults planted in the code) and H8 (needs a network of its own).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import resource
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence

from fault.cases import Case
from fault.crowd import WAYS, Crowd, leave
from support.serve_process import ServeProcess, children

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
MALFORMED = (
    b"GET / HTTP/9.9\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    HEAD + b"Content-Length: -1\r\n\r\n",
    b"GET /\x00 HTTP/1.1\r\n\r\n",
    b"A" * 100_000,
    HEAD + b"X: y\r\n" * 5000 + b"\r\n",
)
BODIES = (
    b"",
    b"{",
    b'{"prompt": NaN}',
    b'{"prompt": "\\ud800"}',
    b"[" * 50_000,
    b'{"prompt": "a", "max_tokens": 1e400}',
    b'{"prompt": "a", "logit_bias": {"999999": 5}}',
    b'{"prompt": [[]], "n": -1}',
    b'{"prompt": "a", "n": 1000000}',
)


class Troubles:
    """Makes trouble for one server. ``faults`` are answers that no trouble may get."""

    def __init__(self, server: ServeProcess, cases: Sequence[Case], seed: int = 1) -> None:
        self.faults: list[str] = []
        self._server, self._cases = server, cases
        self._random = random.Random(seed)
        self._bodies = [case.encoded(stream=True) for case in cases]

    @property
    def all(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """By their numbers."""
        return {
            "H1": self.killed,
            "H2": self.stopped,
            "H6": self.slow_heads,
            "H7": self.slow_readers,
            "H9": self.disconnects,
            "H10": self.no_files,
            "H11": self.large_bodies,
            "H12": self.burst,
            "H15": self.malformed_http,
            "H16": self.malformed_json,
        }

    async def killed(self) -> None:
        """The engine's process is killed."""
        for pid in children(self._server.pid):
            os.kill(pid, signal.SIGKILL)

    async def stopped(self) -> None:
        """It hangs for longer than is taken for a hang."""
        pids = children(self._server.pid)
        with contextlib.suppress(ProcessLookupError):
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(6)
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    async def slow_heads(self) -> None:
        """Sixty clients send a byte of a head a second."""

        async def one() -> None:
            async with self._connected() as sock:
                for byte in HEAD[:7]:
                    await asyncio.get_running_loop().sock_sendall(sock, bytes([byte]))
                    await asyncio.sleep(1)

        await _together(one() for _ in range(60))

    async def slow_readers(self) -> None:
        """Forty streams that nobody reads."""
        await _together(self._leave("silent, then reset", self._random.uniform(4, 8)) for _ in range(40))

    async def disconnects(self) -> None:
        """Three hundred clients leave, at once or soon; a third in the midst of their request."""
        await _together(
            self._cut() if number % 3 == 0 else self._leave(self._random.choice(WAYS), self._random.uniform(0, 0.5))
            for number in range(300)
        )

    async def no_files(self) -> None:
        """The server has files for a few more connections, and a hundred clients come."""
        _, hard = resource.prlimit(self._server.pid, resource.RLIMIT_NOFILE)
        usual = resource.prlimit(self._server.pid, resource.RLIMIT_NOFILE)
        num_open = len(os.listdir(f"/proc/{self._server.pid}/fd"))
        resource.prlimit(self._server.pid, resource.RLIMIT_NOFILE, (num_open + 8, hard))
        try:
            await _together(self._leave("fin", 2.0) for _ in range(100))
        finally:
            resource.prlimit(self._server.pid, resource.RLIMIT_NOFILE, usual)

    async def large_bodies(self) -> None:
        """Twenty bodies of 50 MB."""
        await _together(self._refused(413, b"Content-Length: 52428800\r\n\r\n", b" " * (1 << 20)) for _ in range(20))

    async def burst(self) -> None:
        """More requests at once than may wait."""
        crowd = Crowd(self._server.port, self._cases)
        await crowd.burst(200)
        self.faults += crowd.tally.wrong

    async def malformed_http(self) -> None:
        """What is not HTTP/1.1."""
        for data in MALFORMED:
            answer = await self._talk(data)
            if answer and not answer.startswith(b"HTTP/1.1 4"):
                self.faults.append(f"{data[:60]!r} is answered by {answer[:60]!r}")

    async def malformed_json(self) -> None:
        """What is no request."""
        await _together(self._refused(400, b"Content-Length: %d\r\n\r\n" % len(body), body) for body in BODIES)

    # ---- means

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[socket.socket]:
        """A connection; that the server ends it, or takes none, is no fault."""
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self._server.port))
            yield sock

    async def _leave(self, way: str, after_s: float) -> None:
        with contextlib.suppress(OSError):
            await leave(self._server.port, "/v1/completions", self._random.choice(self._bodies), way, after_s)

    async def _cut(self) -> None:
        """A request that ends at a random byte."""
        body = self._random.choice(self._bodies)
        data = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
        async with self._connected() as sock:
            await asyncio.get_running_loop().sock_sendall(sock, data[: self._random.randrange(len(data))])
            await asyncio.sleep(self._random.uniform(0, 0.2))

    async def _talk(self, data: bytes) -> bytes:
        """Send, and read until the other end closes or has nothing to say for a while."""
        answer = b""
        async with self._connected() as sock:
            loop = asyncio.get_running_loop()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(3):
                    await loop.sock_sendall(sock, data)
                    while piece := await loop.sock_recv(sock, 65536):
                        answer += piece
        return answer

    async def _refused(self, status: int, head: bytes, body: bytes) -> None:
        answer = await self._talk(HEAD + b"Connection: close\r\n" + head + body)
        expected = b"HTTP/1.1 %d" % status
        is_restarting = answer.startswith(b"HTTP/1.1 503")
        if answer and not answer.startswith(expected) and not is_restarting:
            self.faults.append(f"{body[:60]!r} is answered by {answer[:200]!r}")
        if answer.startswith(expected) and "error" not in json.loads(answer.rpartition(b"\r\n\r\n")[2]):
            self.faults.append(f"{body[:60]!r} is refused in no known shape: {answer[-200:]!r}")


async def _together(work: Iterable[Awaitable[None]]) -> None:
    await asyncio.gather(*work)
