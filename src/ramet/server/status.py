"""What a person at the server's terminal reads: the banner, the log, and one line of status under it.

All of it goes to stderr through one thread that may block, or fail, in place of the event loop: a terminal that is stopped, a
pipe that nobody reads and a disk that is full cost lines, never an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import re
import select
import sys
import threading
from collections import deque
from collections.abc import Iterable

from ramet.config import CacheConfig, EngineConfig, LogLevel, ServerConfig
from ramet.engine.assemble import Usage
from ramet.engine.wire import Ready
from ramet.server.client import EngineClient, EngineState
from ramet.server.metrics import Metrics, Reading, recent

__all__ = ["StatusLine", "StatusWriter", "banner", "log_prompts", "log_request", "printable", "setup_logging", "status_text"]

_log = logging.getLogger("ramet.server")
_access_log = logging.getLogger("ramet.access")

_MAX_QUEUED = 1000
_MAX_PROMPT_CHARS = 10_000
_WRITE_WAIT_S = 1.0
_CLOSE_WAIT_S = 1.0
_TICK_S = 1.0
_PLAIN_EVERY = 10  # ticks between two status lines where they are not rewritten in place
_WINDOW = 5  # ticks that the rates of a rewritten line are taken over
_COLUMNS = 80  # of a terminal that does not say
_ANY_ADDRESS = ("0.0.0.0", "::", "")
# Control characters, which could move a terminal's cursor or fake a line, and marks that turn the direction of text around.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


# ---- the thread that writes


class StatusWriter:
    """Lines on stderr, and on a terminal a line of status that stays under them. No call waits or raises; any thread may call.

    What comes faster than it is read is dropped, and the number of dropped lines told once there is room again.
    """

    def __init__(self, fd: int | None = None, *, is_terminal: bool | None = None) -> None:
        """``fd`` is duplicated; left out, it is stderr's, or none at all where the process has no stderr."""
        self._fd = _stderr_fd() if fd is None else os.dup(fd)
        self.is_terminal = (self._fd is not None and os.isatty(self._fd)) if is_terminal is None else is_terminal
        self._queue: queue.Queue[tuple[str, bool] | None] = queue.Queue(_MAX_QUEUED)
        self._num_dropped = 0
        self._status = ""
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)
        self._thread.start()

    def line(self, text: str) -> None:
        """A line for good."""
        self._put((text, False))

    def status(self, text: str) -> None:
        """What the line of status says from now on; nothing where this is no terminal."""
        if self.is_terminal:
            self._put((text, True))

    def close(self) -> None:
        """Write what is left, for two seconds at most, and take the status line away."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=_CLOSE_WAIT_S)
            self._thread.join(_CLOSE_WAIT_S)

    def _put(self, item: tuple[str, bool]) -> None:
        try:
            if self._num_dropped:
                lost = f"({self._num_dropped} lines were dropped here: nobody read them as fast as they came)"
                self._queue.put_nowait((lost, False))
                self._num_dropped = 0
            self._queue.put_nowait(item)
        except queue.Full:
            self._num_dropped += 1

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            text, is_status = item
            if is_status:
                self._status = text
                self._write(self._cleared(self._cut(text)))
            else:
                self._write(self._cleared(f"{text}\n{self._cut(self._status)}"))
        self._write(self._cleared(""))

    def _cleared(self, text: str) -> str:
        return f"\r\x1b[K{text}" if self.is_terminal else text

    def _cut(self, text: str) -> str:
        """To the terminal's width: a line that wraps could not be taken back."""
        if self._fd is None or not text:
            return ""
        try:
            columns = os.get_terminal_size(self._fd).columns or _COLUMNS
        except OSError:
            columns = _COLUMNS
        while len(text) >= columns and " | " in text:
            text = text.rpartition(" | ")[0]  # the least of it goes first, and whole
        return text[: columns - 1]

    def _write(self, text: str) -> None:
        if self._fd is None:
            return
        left = text.encode("utf-8", "backslashreplace")
        with contextlib.suppress(OSError, ValueError):
            while left:
                try:
                    left = left[os.write(self._fd, left) :]
                except BlockingIOError:  # whoever started the process has set its stderr so
                    if not select.select([], [self._fd], [], _WRITE_WAIT_S)[1]:
                        return


def _stderr_fd() -> int | None:
    """A copy of stderr's descriptor. Where stderr is closed, number 2 may be anything by now, a client's connection too."""
    try:
        return None if sys.stderr is None else os.dup(sys.stderr.fileno())
    except (OSError, ValueError):
        return None


# ---- the log


class _LineHandler(logging.Handler):
    """Log records as lines of a writer."""

    def __init__(self, writer: StatusWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
        except Exception:  # a record that cannot be told must not end what told it
            text = f"a record of {record.name} cannot be shown"
        self._writer.line(text)


class _PlainFormatter(logging.Formatter):
    """One line a record, and a trace where there is one. What is no printable text is shown as a number."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        return printable(super().formatMessage(record))

    def formatException(self, info: object) -> str:  # noqa: N802
        return "\n".join(printable(line) for line in super().formatException(info).split("\n"))  # type: ignore[arg-type]


def printable(text: str) -> str:
    """The text with every character that a terminal could take for a command written as its number."""
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def setup_logging(level: LogLevel, writer: StatusWriter) -> None:
    """Send the log of the whole process, uvicorn's and asyncio's with it, through ``writer``."""
    handler = _LineHandler(writer)
    handler.setFormatter(_PlainFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    is_debug = level == "debug"
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        if name != "uvicorn.error":
            logger.setLevel("NOTSET" if is_debug else max(logging.WARNING, root.level))


def log_request(request_id: str, method: str, path: str, status: int, seconds: float, usage: Usage | None = None) -> None:
    """The one line of the log that each request has. ``usage`` is of those that came as far as an engine."""
    if not _access_log.isEnabledFor(logging.INFO):
        return
    tokens = ""
    if usage is not None:
        tokens = f", {usage.prompt_tokens} tokens in, {usage.cached_tokens} reused, {usage.completion_tokens} out"
    _access_log.info("%s %s %s %d in %.0f ms%s", request_id, method, path[:200], status, seconds * 1000, tokens)


def log_prompts(request_id: str, prompts: Iterable[str]) -> None:
    """The texts of a request, for --log-requests. Of a long one the log has the beginning."""
    for prompt in prompts:
        _access_log.info("%s asked: %s", request_id, prompt[:_MAX_PROMPT_CHARS])


# ---- the banner


def banner(ready: Ready, engine: EngineConfig, server: ServerConfig, *, description: str, version: str, port: int) -> list[str]:
    """What a server says once it is up, in lines. ``port`` is the one it listens on, ``description`` the model's."""
    demo = "  demo model" if engine.model.model is None else ""
    host = f"[{server.host}]" if ":" in server.host else server.host
    near = "127.0.0.1" if server.host in _ANY_ADDRESS else host
    key = " -H 'authorization: Bearer KEY'" if server.api_key else ""
    body = '{"messages":[{"role":"user","content":"hi"}]}'
    return [
        f"ramet {version}  {description}{demo}  {ready.isa}, {ready.threads} {_plural('thread', ready.threads)}",
        f"KV pool {_bytes(ready.num_pages * ready.page_bytes)} = {ready.num_pages} pages of {ready.page_size} tokens "
        f"({_pool_reason(engine.cache)})",
        _context(ready),
        _cache(engine.cache, server),
        f"http://{host}:{port}/v1   {_access(server)}",
        f"try  curl {near}:{port}/v1/chat/completions -H 'content-type: application/json'{key} -d '{body}'",
    ]


def _context(ready: Ready) -> str:
    limits = ready.limits
    pool = f", of which the pool holds {limits.max_total_tokens}" if limits.max_total_tokens < limits.max_model_len else ""
    return f"context {limits.max_model_len} tokens{pool}; longer prompts are refused, never cut"


def _pool_reason(cache: CacheConfig) -> str:
    if cache.max_total_tokens is not None:
        return "--max-total-tokens"
    if cache.kv_cache_memory is not None:
        return "--kv-cache-memory"
    if cache.mem_fraction is not None:
        return f"{cache.mem_fraction:.0%} of free memory; --mem-fraction".replace("%", " %", 1)
    return "25 % of free memory, at most 4 GiB; --kv-cache-memory"


def _cache(cache: CacheConfig, server: ServerConfig) -> str:
    if cache.prefix_cache == "none":
        return "cache none: every prompt is computed whole"
    shared = "one for all keys" if server.share_cache else "one for each key"
    return f"cache {cache.prefix_cache}" + (f", {shared}" if server.api_key else "")


def _access(server: ServerConfig) -> str:
    admin = ", admin key" if server.admin_api_key is not None else ""
    if server.api_key:
        return f"{len(server.api_key)} {_plural('key', len(server.api_key))}{admin}"
    return ("no key (this machine only)" if server.is_local else "NO KEY: whoever reaches this address may use it") + admin


def _plural(word: str, count: int) -> str:
    return word if count == 1 else word + "s"


def _bytes(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"


# ---- the status line


def status_text(before: Reading, now: Reading) -> str:
    """The line of two readings: sequences and pages now, rates and times since the earlier one."""
    lately = recent(before, now)
    parts = [f"{now.num_running} running, {now.num_waiting} waiting"]
    reused = "" if lately.reused is None else f", {lately.reused * 100:.0f} % reused"
    parts.append(f"in {_rate(lately.prompt_rate)} tok/s{reused}")
    parts.append(f"out {_rate(lately.output_rate)} tok/s")
    parts.append(f"pages {now.pages_used * 100:.0f} %")
    if lately.first_token_s is not None:
        parts.append(f"TTFT {lately.first_token_s * 1000:.0f} ms")
    return " | ".join(parts)


def _rate(value: float) -> str:
    """``96``, ``1.8k``, ``18k``, ``1.8M``."""
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * unit:
            scaled = value / unit
            return f"{scaled:.1f}{name}" if scaled < 9.95 else f"{scaled:.0f}{name}"
    return f"{value:.0f}"


class StatusLine:
    """Keeps the line of status: rewritten each second on a terminal, otherwise a plain line each 10 s while there is work.

    Trouble replaces it while it lasts, and has a line of the log where it begins and where it ends.
    """

    def __init__(self, client: EngineClient, metrics: Metrics, writer: StatusWriter, *, max_queued_requests: int) -> None:
        self._client = client
        self._metrics = metrics
        self._writer = writer
        self._max_queued_requests = max_queued_requests
        self._readings: deque[Reading] = deque([metrics.reading(client)], maxlen=_WINDOW + 1 if writer.is_terminal else 2)
        self._num_ticks = 0
        self._trouble: str | None = None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(_TICK_S)
            self.tick()

    def tick(self) -> None:
        """What is to be done each second."""
        self._num_ticks += 1
        self._tell_trouble()
        if self._writer.is_terminal:
            now = self._take()
            self._writer.status(f"! {self._trouble}" if self._trouble else self._text(now))
        elif self._num_ticks % _PLAIN_EVERY == 0:
            now = self._take()
            if self._is_busy(now) and self._trouble is None:
                self._writer.line(self._text(now))

    def _take(self) -> Reading:
        now = self._metrics.reading(self._client)
        self._readings.append(now)
        return now

    def _text(self, now: Reading) -> str:
        return status_text(self._readings[0], now) if self._is_busy(now) else f"idle | pages {now.pages_used * 100:.0f} %"

    def _is_busy(self, now: Reading) -> bool:
        before = self._readings[0]
        is_moving = (now.prompt_tokens, now.output_tokens) != (before.prompt_tokens, before.output_tokens)
        return is_moving or now.num_running + now.num_waiting > 0

    def _tell_trouble(self) -> None:
        trouble, self._trouble = self._trouble, self._find_trouble()
        if self._trouble is not None and self._trouble != trouble:
            _log.warning("%s", self._trouble)
        elif self._trouble is None and trouble is not None:
            _log.info("this is over now: %s", trouble)

    def _find_trouble(self) -> str | None:
        client = self._client
        match client.state:
            case EngineState.RESTARTING:
                return f"the engine has died and starts again (start {client.num_starts}); requests are answered with 503"
            case EngineState.HUNG:
                return "the engine runs and says nothing; requests wait for it"
            case EngineState.FAILED:
                return "the engine cannot be started again"
        if client.num_waiting >= self._max_queued_requests:
            return "the queue is full; further requests are answered with 429 (--max-queued-requests)"
        return None
