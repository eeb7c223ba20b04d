"""A server's view of its engine's adapters: which there are, what is being changed, what an engine started anew must be told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from ramet.core.adapters import AdapterInfo
from ramet.engine.wire import AdapterChange, Command, LoadAdapter, UnloadAdapter
from ramet.errors import InvalidRequest, RametError, UnknownAdapter

__all__ = ["ServedAdapters"]

_log = logging.getLogger("ramet.server")

_MOST_CHANGES = 16


class ServedAdapters:
    """``send`` gives the engine a command, ``check_ready`` raises where there is none. An engine begins with the adapters of its
    configuration; what has been loaded and unloaded since is done again when it has been started again.
    """

    def __init__(self, send: Callable[[Command], None], check_ready: Callable[[], object]) -> None:
        self._send = send
        self._check_ready = check_ready
        self._infos: dict[str, AdapterInfo] = {}
        self._paths: dict[str, str] = {}  # of those that were loaded while it ran
        self._configured: frozenset[str] = frozenset()
        self._gone: set[str] = set()  # of those of its configuration: unloaded since
        self._changes: dict[int, asyncio.Future[None]] = {}
        self._num_changes = 0

    def __contains__(self, name: object) -> bool:
        return name in self._infos

    def listed(self) -> list[AdapterInfo]:
        return list(self._infos.values())

    async def load(self, name: str, path: str, *, replaces: bool) -> None:
        """Have the engine load one; nobody waits for it but the caller. Raises ``InvalidRequest`` with the engine's reason,
        and ``Unavailable`` without one."""
        await self._changed(lambda number: LoadAdapter(number, name, path, replaces))
        self._paths[name] = path

    async def unload(self, name: str) -> None:
        """No further request may name it; those that run go on. Raises ``UnknownAdapter``."""
        await self._changed(lambda number: UnloadAdapter(number, name))
        self._paths.pop(name, None)
        if name in self._configured:  # also where another load had taken its place
            self._gone.add(name)

    async def _changed(self, command: Callable[[int], Command]) -> None:
        self._check_ready()
        if len(self._changes) >= _MOST_CHANGES:
            raise InvalidRequest(f"{_MOST_CHANGES} changes of adapters are being made; wait for them")
        number = self._next()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changes[number] = future
        self._send(command(number))
        try:
            await future
        finally:
            self._changes.pop(number, None)

    def _next(self) -> int:
        self._num_changes += 1
        return self._num_changes

    # ---- what the engine says

    def on_ready(self, infos: Iterable[AdapterInfo]) -> None:
        """An engine has started, with these."""
        self._list(infos)
        self._configured = frozenset(self._infos)
        for name in self._gone & self._configured:
            self._send(UnloadAdapter(self._next(), name))
        for name, path in self._paths.items():
            self._send(LoadAdapter(self._next(), name, path, replaces=True))

    def on_change(self, change: AdapterChange) -> None:
        self._list(change.adapters)
        future = self._changes.get(change.number)
        if future is None or future.done():
            if change.error is not None:  # as when an engine that was started again cannot load what the last one had
                _log.warning("a change of adapters failed: %s", change.error)
            return
        if change.error is None:
            future.set_result(None)
        else:
            kind = UnknownAdapter if change.is_unknown else InvalidRequest
            future.set_exception(kind(change.error))

    def lose(self, loss: Callable[[], RametError]) -> None:
        """The engine is gone. Each change that is waited for is told by an error of its own."""
        for future in self._changes.values():
            if not future.done():
                future.set_exception(loss())

    def _list(self, infos: Iterable[AdapterInfo]) -> None:
        self._infos = {info.name: info for info in infos}
