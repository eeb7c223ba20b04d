"""A server of a test's making: what it writes to each request, byte for byte, is the test's own. It speaks enough HTTP to be
asked, and is otherwise as wrong as it is told to be.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

__all__ = [
    "DONE",
    "MODELS",
    "Asked",
    "Script",
    "Step",
    "StepKind",
    "answers",
    "chunk",
    "event",
    "json_reply",
    "served",
    "served_in_thread",
    "stream",
    "usage",
]


class StepKind(Enum):
    """What a script does besides writing."""

    BREAK = "close the connection"
    HANG = "say nothing more, for ever"


Step = bytes | StepKind


@dataclass
class Asked:
    """One request, as it came."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


Script = Callable[[Asked], Sequence[Step]]


@dataclass
class _Server:
    script: Script
    asked: list[Asked] = field(default_factory=list)
    num_connections: int = 0
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while True:
                request = await self._read(reader)
                self.asked.append(request)
                for step in self.script(request):
                    match step:
                        case StepKind.BREAK:
                            return
                        case StepKind.HANG:
                            await reader.read()
                        case bytes() as data:
                            writer.write(data)
                            await writer.drain()
                            await asyncio.sleep(0)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            return  # the client is gone, or the test is over
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Asked:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().rstrip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        return Asked(first.split()[1], headers, json.loads(body) if body else {})


@asynccontextmanager
async def served(script: Script) -> AsyncIterator[_Server]:
    """The server, in the running loop, at ``url``."""
    state = _Server(script)
    server = await asyncio.start_server(state.serve, "127.0.0.1", 0)
    state.url = "http://{}:{}".format(*server.sockets[0].getsockname())
    try:
        yield state
    finally:
        server.close()


@contextmanager
def served_in_thread(script: Script) -> Iterator[_Server]:
    """The server in a loop of its own, for clients that block."""
    ready, found = threading.Event(), []

    async def main() -> None:
        stop = asyncio.Event()
        async with served(script) as state:
            found.extend([state, asyncio.get_running_loop(), stop])
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    try:
        assert ready.wait(10)
        state, loop, stop = found
        yield state
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
    assert not thread.is_alive()


# --- what servers say ---


def event(data: object) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def chunk(text: str, finish_reason: str | None = None) -> bytes:
    """A chunk of the chat endpoint."""
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}]})


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int | None) -> bytes:
    """The last chunk: usage and no choices."""
    details = {} if cached_tokens is None else {"prompt_tokens_details": {"cached_tokens": cached_tokens}}
    return event({"choices": [], "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens} | details})


DONE = b"data: [DONE]\n\n"
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def stream(*pieces: bytes) -> list[Step]:
    """Pieces of a body, each a chunk of HTTP's, and the end of it."""
    return [_STREAM_HEAD, *(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces), b"0\r\n\r\n"]


def json_reply(status: int, body: object, *headers: str) -> list[Step]:
    """A whole answer of any status."""
    data = json.dumps(body).encode()
    head = [f"HTTP/1.1 {status} Told", "content-type: application/json", f"content-length: {len(data)}", *headers]
    return ["\r\n".join(head).encode() + b"\r\n\r\n" + data]


MODELS = json_reply(200, {"object": "list", "data": [{"id": "tiny", "object": "model"}, {"id": "other", "object": "model"}]})


def answers(*scripts: Sequence[Step], models: Sequence[Step] = MODELS) -> Script:
    """A first token for the client's check, then one script a request; the last goes on for ever."""
    rest = [stream(chunk("Hi"), usage(1, 1, 0), DONE), *scripts]

    def script(request: Asked) -> Sequence[Step]:
        if request.path == "/v1/models":
            return models
        return rest.pop(0) if len(rest) > 1 else rest[0]

    return script
