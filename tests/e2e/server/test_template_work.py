"""T07 over HTTP: templates are the model's alone, and a slow one is its own requests' trouble."""

from __future__ import annotations

import threading
import time
from typing import Any

from support.http import Served, chunks, texts
from support.serve_process import ServeProcess

CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
USER = [{"role": "user", "content": "hi"}]

BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": USER},
    MESSAGES: {"messages": USER},
    RESPONSES: {"input": "hi"},
    "/tokenize": {"messages": USER},
    "/v1/messages/count_tokens": {"messages": USER},
}


def test_t07_a_request_brings_no_template(tools_server: Served) -> None:
    template = "{% for i in range(10) %}x{% endfor %}"
    for path, body in BODIES.items():
        more = {"max_tokens": 1} if path in (CHAT, MESSAGES) else {}
        for name in ("chat_template", "messages", "tools", "bos_token", "add_generation_prompt", "_x", "a b"):
            answer = tools_server.call(path, body | more | {"chat_template_kwargs": {name: template}})
            assert answer.status == 400, (path, name)
            assert "chat_template_kwargs" in answer.json()["error"]["message"]
        brought = tools_server.call(path, body | more | {"chat_template": template, "max_output_tokens": 1, "temperature": 0})
        if path in (CHAT, "/tokenize"):
            assert brought.status == 400
        else:
            assert "chat_template" in brought.headers["x-ramet-ignored"]


def test_t07_a_slow_template_moves_nobody_elses_stream(process: ServeProcess) -> None:
    """Times are of the server's processor, so that they are the same whoever else has the machine."""
    body = {"prompt": "steady", "max_tokens": 1000, "ignore_eos": True, "seed": 1, "stream": True}
    expected = texts(chunks(process.ask(TEXT, body)[2].decode()))
    slow: list[int] = []

    def ask_slowly() -> None:
        slow.append(process.ask(CHAT, {"messages": [{"role": "user", "content": "slow"}]})[0])

    threads = [threading.Thread(target=ask_slowly) for _ in range(2)]
    with process.open_stream(body) as stream:
        data, lags = stream.recv(4096), []
        for thread in threads:
            thread.start()
        began = cpu_seconds(process.pid)
        while any(thread.is_alive() for thread in threads):  # what needs the event loop alone: an engine may wait for a core
            before = cpu_seconds(process.pid)
            assert process.ask("/v1/models")[0] == 200
            lags.append(cpu_seconds(process.pid) - before)
        while not data.endswith(b"0\r\n\r\n"):
            data += stream.recv(65536)
    for thread in threads:
        thread.join()
    assert slow == [400, 400]
    assert cpu_seconds(process.pid) - began < 6, "each may take one second of a thread's own"
    assert max(lags) < 0.3, "a template on the event loop's thread lets nothing else go on for 0.75 s"
    assert texts(chunks(unchunked(data))) == expected


def cpu_seconds(pid: int) -> float:
    """What all threads of a process have run, by the clock that Linux's clock_getcpuclockid(3) names; stat counts in ticks."""
    return time.clock_gettime(~pid << 3 | 2)


def unchunked(data: bytes) -> str:
    """The body of an answer that came in chunks."""
    rest, found = data.partition(b"\r\n\r\n")[2], b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        found, rest = found + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return found.decode()
