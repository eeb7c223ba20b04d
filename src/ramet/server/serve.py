"""The server's process: start, serve, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from ramet.config import EngineConfig, ServerConfig
from ramet.engine.build import TextParts, build_text
from ramet.engine.clock import MonotonicClock
from ramet.errors import ConfigError
from ramet.model.source import open_model, pinned
from ramet.model.spec import Progress
from ramet.server.app import build_app
from ramet.server.client import EngineClient
from ramet.server.gate import Gate, Keys
from ramet.server.links import ProcessLink
from ramet.server.metrics import Metrics
from ramet.server.protocol import bounded_http
from ramet.server.services import Services
from ramet.server.status import StatusLine, StatusWriter, banner, setup_logging
from ramet.server.translate import Translator

__all__ = ["Loading", "run"]

_log = logging.getLogger("ramet.server")

Loading = Callable[[], AbstractContextManager[Progress]]

_NO_LIMIT = 2**31  # the client bounds the queue, so the engine need not
_DRAIN_TICK_S = 0.05
_EXIT_INTERRUPTED = 130


def run(engine: EngineConfig, server: ServerConfig, loading: Loading) -> int:
    """Serve until told to stop; the exit code. ``loading`` shows progress while it is open.

    Raises ``ModelError``, ``ConfigError`` and ``EngineDead`` where it cannot start.
    """
    with contextlib.closing(_listen(server.host, server.port)) as listener, contextlib.ExitStack() as shown:
        progress = shown.enter_context(loading())
        engine = replace(engine, model=pinned(engine.model, progress))
        text = build_text(open_model(engine.model, progress))  # the weights are the engine's
        return uvloop.run(_Process(engine, server, text, listener, progress, shown).run())


class _Process:
    """One server from its start to its end."""

    def __init__(
        self,
        engine: EngineConfig,
        server: ServerConfig,
        text: TextParts,
        listener: socket.socket,
        progress: Progress,
        shown: contextlib.ExitStack,
    ) -> None:
        self._shown = shown
        self._writer = StatusWriter()
        setup_logging(server.log_level, self._writer)
        self._engine = engine
        self._description = text.description
        self._config = server
        self._listener = listener
        names = _model_names(engine, server, text)
        self._metrics = Metrics(compat=server.metrics_compat, model_name=names[0])
        config = replace(engine, scheduler=replace(engine.scheduler, max_queued_requests=_NO_LIMIT))
        self._client = EngineClient(
            lambda: ProcessLink(config),
            text.tokenizer,
            MonotonicClock(),
            max_queued_requests=engine.scheduler.max_queued_requests,
            seed=engine.seed,
            observer=self._metrics,
            progress=progress,
        )
        self._services = Services(
            client=self._client,
            translator=Translator(text, tool_call_parser=server.tool_call_parser, reasoning_parser=server.reasoning_parser),
            metrics=self._metrics,
            config=server,
            model_names=names,
            created=int(time.time()),
            version=version("ramet"),
            aliases=frozenset({engine.model.model} if engine.model.model else ()),
        )
        keys = Keys(server.api_key, server.admin_api_key, share_cache=server.share_cache)
        self._gate = build_app(self._services, keys)
        self._http = _http_server(self._gate)
        self._num_signals = 0

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)
        engine = asyncio.create_task(self._client.run())
        http = asyncio.create_task(self._http.serve(sockets=[self._listener]))
        beside = [asyncio.create_task(_logged(work)) for work in (self._greet(), self._metrics.watch_loop(self._client))]
        try:
            ended, _ = await asyncio.wait([engine, http], return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()  # raises what ended it
            await http  # where the engine was closed by the end of a drain
            return _EXIT_INTERRUPTED if self._http.force_exit else 0
        finally:
            for task in beside:
                task.cancel()
            self._http.should_exit = self._http.force_exit = True
            await self._client.close()
            await asyncio.gather(engine, http, *beside, return_exceptions=True)
            self._services.translator.close()
            self._writer.close()

    async def _greet(self) -> None:
        """Say where the server is once it can be used, and from then on how it is."""
        await self._client.until_ready()
        self._shown.close()
        gc.collect()
        gc.freeze()  # what has been loaded stays: no collection has to look at it again
        if self._client.ready is not None:
            for line in banner(
                self._client.ready,
                self._engine,
                self._config,
                description=self._description + self._served_as(),
                version=self._services.version,
                port=self._listener.getsockname()[1],
            ):
                self._writer.line(line)
        await StatusLine(
            self._client, self._metrics, self._writer, max_queued_requests=self._engine.scheduler.max_queued_requests
        ).run()

    def _served_as(self) -> str:
        names = self._config.served_model_name
        return f", served as {', '.join(names)}" if names else ""

    def _on_signal(self, number: int) -> None:
        """The first signal drains, the second ends the process."""
        self._num_signals += 1
        if self._num_signals == 1:
            self._gate.is_draining = True
            self._drain = asyncio.create_task(self._drained())
        else:
            self._http.should_exit = self._http.force_exit = True

    async def _drained(self) -> None:
        """Let what runs finish, within its time; then stop."""
        deadline_s = time.monotonic() + self._config.drain_timeout_s
        if self._gate.num_running:
            running = _requests(self._gate.num_running, "runs", "run")
            _log.info("stopping: %s, %g s more at most; a second signal stops now", running, self._config.drain_timeout_s)
        while self._gate.num_running and time.monotonic() < deadline_s:
            await asyncio.sleep(_DRAIN_TICK_S)
        if num_left := len(self._client.generations):
            _log.warning("%s: the time to drain (--drain-timeout-s) is over", _requests(num_left, "is cut off", "are cut off"))
        await self._client.close()  # tells those that are left
        self._http.should_exit = True


async def _logged(work: Coroutine[Any, Any, None]) -> None:
    """What is done beside serving may fail without ending it, but not in silence."""
    try:
        await work
    except Exception:
        _log.exception("a part of the server has ended; requests go on")


def _requests(count: int, one: str, many: str) -> str:
    return f"1 request {one}" if count == 1 else f"{count} requests {many}"


class _Http(uvicorn.Server):
    """uvicorn's server, whose signals are handled here."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _http_server(gate: Gate) -> _Http:
    config = uvicorn.Config(
        gate,
        http=bounded_http(),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )
    return _Http(config)


def _listen(host: str, port: int) -> socket.socket:
    """A bound socket, before anything is loaded: a port that is taken is said at once."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot listen on {host} port {port}: {reason}; choose another (--host, --port)") from None
    return listener


def _model_names(engine: EngineConfig, server: ServerConfig, text: TextParts) -> tuple[str, ...]:
    """Those given, or the model's own: a hub id as it is, a file or folder by its name."""
    asked = engine.model.model
    return server.served_model_name or (text.description.split()[0] if asked is None else _own_name(asked),)


def _own_name(model: str) -> str:
    path = Path(model).expanduser()
    return path.resolve().name.removesuffix(".gguf") if path.exists() else model
