"""H11: bodies too large, and memory that one request does not get."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from support.http import Called, Served, call
from support.loop_probe import resident_bytes
from support.serve_process import ServeProcess

from ramet.server.client import EngineClient

TEXT = "/v1/completions"


def send_large(server: ServeProcess, size: int, *, is_told: bool) -> bytes:
    """A body of ``size`` bytes, its length told first or not; gives the status line."""
    length = b"Content-Length: %d" % size if is_told else b"Transfer-Encoding: chunked"
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n%s\r\n\r\n" % length
    piece = b"x" * 65536
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=20)) as client:
        try:
            client.sendall(head)
            for _ in range(size // len(piece)):
                client.sendall(piece if is_told else b"10000\r\n" + piece + b"\r\n")
        except OSError:
            pass  # refused before all was sent
        try:
            return client.recv(4096).partition(b"\r\n")[0]
        except ConnectionError:
            return b""


def test_h11_twenty_bodies_of_50_mb(process: ServeProcess) -> None:
    assert process.ask(TEXT, {"prompt": "a", "max_tokens": 1})[0] == 200
    before, engine_before = resident_bytes(process.pid), resident_bytes(process.engine_pid)
    lines: list[bytes] = []
    threads = [
        threading.Thread(target=lambda told=told: lines.append(send_large(process, 50_000_000, is_told=told)))  # type: ignore[misc]
        for told in (True, False) * 10
    ]
    for thread in threads:
        thread.start()
    most = before
    while any(thread.is_alive() for thread in threads):
        most = max(most, resident_bytes(process.pid))
        time.sleep(0.01)
    assert len(lines) == 20
    assert set(lines) <= {b"HTTP/1.1 413 Content Too Large", b"HTTP/1.1 413 Request Entity Too Large"}
    assert most - before < 120 << 20, "twenty bodies of 4 MiB at once are the most that is held"
    assert resident_bytes(process.engine_pid) - engine_before < 4 << 20
    assert process.ask(TEXT, {"prompt": "a", "max_tokens": 1})[0] == 200
    assert process.info()["num_engine_starts"] == 1


def test_h11_no_memory_for_one_request_is_that_requests_alone(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [{"prompt": f"memory {i}", "max_tokens": 20, "seed": i, "ignore_eos": True} for i in range(8)]
    alone = [server.call(TEXT, body).json()["choices"] for body in bodies]
    submit: Callable[..., Any] = EngineClient.submit

    def short_of_memory(self: EngineClient, prompts: Any, request_id: str) -> Any:
        if prompts[0].text == "memory 3":
            raise MemoryError
        return submit(self, prompts, request_id)

    monkeypatch.setattr(EngineClient, "submit", short_of_memory)

    async def at_once() -> list[Called]:
        return await asyncio.gather(*(call(server.app, TEXT, body) for body in bodies))

    answers = server.run(at_once())
    assert [answer.status for answer in answers] == [200, 200, 200, 500, 200, 200, 200, 200]
    assert [answer.json().get("choices") for answer in answers] == [*alone[:3], None, *alone[4:]]
    monkeypatch.undo()
    assert server.call(TEXT, bodies[3]).json()["choices"] == alone[3]
