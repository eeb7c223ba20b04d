"""The banner, the status line, and a writer that waits for nobody (H14)."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from ramet.config import CacheConfig, EngineConfig, ModelConfig, ServerConfig
from ramet.engine.admission import Limits
from ramet.engine.assemble import Usage
from ramet.engine.wire import Ready
from ramet.server.client import EngineState
from ramet.server.metrics import Reading
from ramet.server.status import StatusLine, StatusWriter, banner, log_request, printable, setup_logging, status_text

READY = Ready(
    limits=Limits(50000, 8192, 8192), eos_ids=(2,), num_pages=4096, page_size=16, page_bytes=368640, threads=2, isa="avx512"
)
BEFORE = Reading(100.0, 0, 0, 1000, 500, 200, 3, 1.0, 0.2)
NOW = Reading(101.0, 4, 0, 2800, 2066, 296, 5, 1.076, 0.29)


class Pipe:
    """A pipe with little room, and what has been written into it."""

    def __init__(self) -> None:
        self.read_fd, self.fd = os.pipe()

    def close(self) -> None:
        for fd in (self.read_fd, self.fd):
            os.close(fd)

    def read(self) -> str:
        return os.read(self.read_fd, 1 << 20).decode()

    def until(self, text: str, seconds: float = 5.0) -> str:
        """All that is read up to ``text``."""
        got, deadline = "", time.monotonic() + seconds
        os.set_blocking(self.read_fd, False)
        while text not in got:
            assert time.monotonic() < deadline, f"{text!r} did not come: {got[-200:]!r}"
            try:
                got += self.read()
            except BlockingIOError:
                time.sleep(0.005)
        return got


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


@pytest.fixture
def log_kept() -> Iterator[None]:
    """Puts the process's log back as it was."""
    names = [None, "uvicorn", "uvicorn.error", "uvicorn.access", "asyncio"]
    kept = [(logger, logger.handlers[:], logger.level, logger.propagate) for logger in map(logging.getLogger, names)]
    yield
    for logger, handlers, level, propagate in kept:
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate


# ---- the writer


def test_lines_come_whole_and_in_order(pipe: Pipe) -> None:
    writer = StatusWriter(pipe.fd)
    for i in range(100):
        writer.line(f"line {i} \N{SNOWMAN} \ud800")
    writer.status("never seen: a pipe is no terminal")
    writer.close()
    assert pipe.read() == "".join(f"line {i} \N{SNOWMAN} \\ud800\n" for i in range(100))


def test_a_pipe_that_nobody_reads_stops_nobody(pipe: Pipe) -> None:
    fcntl.fcntl(pipe.fd, fcntl.F_SETPIPE_SZ, 4096)
    writer = StatusWriter(pipe.fd)
    slowest = 0.0
    for i in range(3000):
        put = time.monotonic()
        writer.line(f"{i} " + "x" * 200)
        slowest = max(slowest, time.monotonic() - put)
    assert slowest < 0.5
    told = pipe.until("\n900 ")
    writer.line("after")  # room has come: what was lost is told, in its place
    told += pipe.until("after\n")
    position = 0
    for number, dropped in re.findall(r"^(?:(\d+) x|\((\d+) lines were dropped)", told, re.MULTILINE):
        assert not number or int(number) == position
        position += 1 if number else int(dropped)
    assert position == 3000
    assert told.count("dropped") >= 1
    writer.close()


def test_a_broken_stderr_raises_nothing_and_the_writer_goes_on() -> None:
    pipe = Pipe()
    writer = StatusWriter(pipe.fd)
    os.close(pipe.read_fd)
    for _ in range(5000):
        writer.line("x" * 200)
        if not writer._thread.is_alive():
            break
    assert writer._thread.is_alive()
    writer.close()
    assert not writer._thread.is_alive(), "it has come to the end of the queue"
    os.close(pipe.fd)


def test_a_stderr_that_does_not_block_loses_nothing_while_it_is_read(pipe: Pipe) -> None:
    os.set_blocking(pipe.fd, False)
    fcntl.fcntl(pipe.fd, fcntl.F_SETPIPE_SZ, 4096)
    writer = StatusWriter(pipe.fd)
    texts = [f"{i} " + "x" * 6000 for i in range(50)]  # longer than what the pipe takes at once
    for text in texts:
        writer.line(text)
    assert pipe.until(f"\n{texts[-1]}\n").splitlines() == texts
    writer.close()


def test_without_a_stderr_number_two_is_left_alone() -> None:
    """Descriptor 2 is then the first one opened: here a file, in a server perhaps a client's connection."""
    code = """
import os, sys
from ramet.server.status import StatusWriter
os.open(os.devnull, os.O_RDONLY)
read, write = os.pipe()
os.dup2(write, 2)
writer = StatusWriter()
writer.line("for nobody")
writer.close()
os.set_blocking(read, False)
try:
    os.read(read, 100)
except BlockingIOError:
    print("untouched")
"""
    done = subprocess.run(["sh", "-c", f'exec "{sys.executable}" -c "$0" 2>&-', code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "untouched\n"


def test_a_process_ends_although_its_stderr_is_stuck() -> None:
    code = """
import fcntl, sys
from ramet.server.status import StatusWriter
fcntl.fcntl(2, fcntl.F_SETPIPE_SZ, 4096)
writer = StatusWriter()
for i in range(500):
    writer.line("x" * 200)
writer.close()
print("done", flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()


def test_on_a_terminal_the_status_stays_under_the_log(pipe: Pipe) -> None:
    writer = StatusWriter(pipe.fd, is_terminal=True)
    writer.status("1 running")
    writer.line("a line of the log")
    writer.status("y" * 200)
    writer.close()
    clear = "\r\x1b[K"
    expected = [f"{clear}1 running", f"{clear}a line of the log\n1 running", clear + "y" * 79, clear]
    assert pipe.read() == "".join(expected)


# ---- the log


def test_the_log_goes_through_the_writer_and_fakes_no_lines(pipe: Pipe, log_kept: None) -> None:
    writer = StatusWriter(pipe.fd)
    setup_logging("info", writer)
    log = logging.getLogger("ramet.server")
    log.info("path %s", "/a\nERROR faked \x1b[31m\x9b\u202e")
    log.debug("not at this level")
    log.info("broken %d", "not a number")
    logging.getLogger("uvicorn.error").info("Started server process")
    logging.getLogger("uvicorn.error").warning("uvicorn's own")
    try:
        raise ValueError("two\nlines \x1b[2J")
    except ValueError:
        log.error("request r met a defect", exc_info=True)
    writer.close()
    lines = pipe.read().splitlines()
    assert lines[0].endswith("INFO    path /a\\u000aERROR faked \\u001b[31m\\u009b\\u202e")
    assert lines[1] == "a record of ramet.server cannot be shown"
    assert lines[2].endswith("WARNING uvicorn's own")
    assert lines[3].endswith("ERROR   request r met a defect")
    assert lines[4] == "Traceback (most recent call last):"
    assert lines[-1] == "lines \\u001b[2J"


def test_the_line_of_a_request(pipe: Pipe, log_kept: None) -> None:
    writer = StatusWriter(pipe.fd)
    setup_logging("info", writer)
    usage = Usage(prompt_tokens=1604, cached_tokens=1536, completion_tokens=96)
    log_request("req-1", "POST", "/v1/completions", 200, 0.1204, usage)
    log_request("req-2", "GET", "/" + "a" * 999, 404, 0.0011)
    setup_logging("warning", writer)
    log_request("req-3", "GET", "/health", 200, 0.0)
    writer.close()
    first, second = pipe.read().splitlines()
    assert first.endswith("req-1 POST /v1/completions 200 in 120 ms, 1604 tokens in, 1536 reused, 96 out")
    assert second.endswith(f"req-2 GET /{'a' * 199} 404 in 1 ms")


@pytest.mark.parametrize("text", ["plain ü \N{SNOWMAN}", "  spaces  "])
def test_printable_text_is_left_alone(text: str) -> None:
    assert printable(text) == text


# ---- the banner


def lines(engine: EngineConfig | None = None, ready: Ready = READY, **server: Any) -> list[str]:
    return banner(
        ready,
        engine or EngineConfig(),
        ServerConfig(**server),
        description="SmolLM2-135M-Instruct.Q4_1 (llama, 93 MiB)",
        version="0.4.0",
        port=8123,
    )


def test_banner_of_the_demo_model() -> None:
    assert lines() == [
        "ramet 0.4.0  SmolLM2-135M-Instruct.Q4_1 (llama, 93 MiB)  demo model  avx512, 2 threads",
        "KV pool 1.4 GiB = 4096 pages of 16 tokens (25 % of free memory, at most 4 GiB; --kv-cache-memory)",
        "context 8192 tokens; longer prompts are refused, never cut",
        "cache radix",
        "http://127.0.0.1:8123/v1   no key (this machine only)",
        "try  curl 127.0.0.1:8123/v1/chat/completions -H 'content-type: application/json' "
        '-d \'{"messages":[{"role":"user","content":"hi"}]}\'',
    ]


@pytest.mark.parametrize(
    ("server", "access", "address"),
    [
        ({"api_key": ("k1",)}, "1 key", "127.0.0.1"),
        ({"api_key": ("k1", "k2"), "admin_api_key": "a"}, "2 keys, admin key", "127.0.0.1"),
        ({"host": "0.0.0.0", "allow_unauthenticated": True}, "NO KEY: whoever reaches this address may use it", "0.0.0.0"),
        ({"host": "::1"}, "no key (this machine only)", "[::1]"),
    ],
)
def test_banner_says_who_may_come_and_tells_no_key(server: dict[str, Any], access: str, address: str) -> None:
    told = lines(**server)
    assert told[4] == f"http://{address}:8123/v1   {access}"
    assert ("Bearer KEY" in told[5]) == ("api_key" in server)
    assert not re.search(r"\bk[12]\b", "\n".join(told))
    assert len(told) <= 7


def test_banner_gives_the_reasons_of_the_sizes() -> None:
    small = replace_limits(READY, 4000)
    for cache, reason in [
        (CacheConfig(kv_cache_memory="1GiB"), "(--kv-cache-memory)"),
        (CacheConfig(mem_fraction=0.4), "(40 % of free memory; --mem-fraction)"),
        (CacheConfig(max_total_tokens=4000), "(--max-total-tokens)"),
    ]:
        told = lines(EngineConfig(cache=cache, model=ModelConfig(model="m")), small)
        assert told[1].endswith(reason)
        assert told[2] == "context 8192 tokens, of which the pool holds 4000; longer prompts are refused, never cut"
        assert "demo model" not in told[0]
    assert lines(EngineConfig(cache=CacheConfig(prefix_cache="none")))[3] == "cache none: every prompt is computed whole"
    assert lines(api_key=("k",))[3] == "cache radix, one for each key"
    assert lines(api_key=("k",), share_cache=True)[3] == "cache radix, one for all keys"


def replace_limits(ready: Ready, max_total_tokens: int) -> Ready:
    return msgspec.structs.replace(ready, limits=replace(ready.limits, max_total_tokens=max_total_tokens))


# ---- the status line


def test_status_text_is_what_the_page_on_use_shows() -> None:
    expected = "4 running, 0 waiting | in 1.8k tok/s, 87 % reused | out 96 tok/s | pages 29 % | TTFT 38 ms"
    assert status_text(BEFORE, NOW) == expected


@pytest.mark.parametrize(
    ("rate", "shown"),
    [
        (0, "0"),
        (96.4, "96"),
        (999.4, "999"),
        (999.9, "1.0k"),
        (1849, "1.8k"),
        (9960, "10k"),
        (18_200, "18k"),
        (2_500_000, "2.5M"),
    ],
)
def test_rates_are_short(rate: float, shown: str) -> None:
    now = replace(BEFORE, at_s=BEFORE.at_s + 10, output_tokens=BEFORE.output_tokens + int(rate * 10))
    assert f"out {shown} tok/s" in status_text(BEFORE, now)
    assert "reused" not in status_text(BEFORE, now)
    assert "TTFT" not in status_text(BEFORE, now)


@dataclass
class Client:
    state: EngineState = EngineState.READY
    num_starts: int = 1
    num_waiting: int = 0


class Metrics:
    """Readings as the test sets them."""

    def __init__(self) -> None:
        self.now = BEFORE

    def reading(self, client: Any) -> Reading:
        return self.now

    def advance(self, **changes: Any) -> None:
        self.now = replace(self.now, at_s=self.now.at_s + 1, **changes)


class Written:
    """A writer that keeps what it is given."""

    def __init__(self, *, is_terminal: bool) -> None:
        self.is_terminal = is_terminal
        self.lines: list[str] = []
        self.statuses: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)

    def status(self, text: str) -> None:
        self.statuses.append(text)


def made(*, is_terminal: bool) -> tuple[Any, Any, Any, StatusLine]:
    client, metrics, written = Client(), Metrics(), Written(is_terminal=is_terminal)
    return client, metrics, written, StatusLine(client, metrics, written, max_queued_requests=8)  # type: ignore[arg-type]


def test_a_plain_status_comes_each_ten_seconds_while_there_is_work() -> None:
    _, metrics, written, line = made(is_terminal=False)
    for _ in range(25):
        metrics.advance()
        line.tick()
    assert written.lines == [], "silent when idle"
    for _ in range(20):
        metrics.advance(num_running=1, output_tokens=metrics.now.output_tokens + 50)
        line.tick()
    assert len(written.lines) == 2
    assert written.lines[1].startswith("1 running, 0 waiting | in 0 tok/s | out 50 tok/s")
    for _ in range(30):
        metrics.advance(num_running=0)
        line.tick()
    assert len(written.lines) == 3, "the last of the work, then silence"
    assert written.statuses == []


def test_on_a_terminal_the_status_is_rewritten_each_second() -> None:
    _, metrics, written, line = made(is_terminal=True)
    line.tick()
    for _ in range(9):
        metrics.advance(num_running=1, output_tokens=metrics.now.output_tokens + 50)
        line.tick()
    assert written.statuses[0] == "idle | pages 20 %"
    assert written.statuses[-1] == "1 running, 0 waiting | in 0 tok/s | out 50 tok/s | pages 20 %"
    assert (len(written.statuses), written.lines) == (10, [])


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ({"state": EngineState.RESTARTING, "num_starts": 2}, "starts again (start 2)"),
        ({"state": EngineState.HUNG}, "says nothing"),
        ({"state": EngineState.FAILED}, "cannot be started"),
        ({"num_waiting": 8}, "queue is full"),
    ],
)
def test_trouble_replaces_the_status_and_is_logged_once(
    trouble: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ramet.server")
    client, _, written, line = made(is_terminal=True)
    for name, value in trouble.items():
        setattr(client, name, value)
    for _ in range(3):
        line.tick()
    client.state, client.num_waiting = EngineState.READY, 0
    line.tick()
    assert all(status.startswith("! ") and words in status for status in written.statuses[:3])
    assert written.statuses[3] == "idle | pages 20 %"
    began, ended = (record.getMessage() for record in caplog.records)
    assert words in began
    assert ended == f"this is over now: {began}"
