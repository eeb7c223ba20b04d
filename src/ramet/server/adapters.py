"""A server's view of its engine's adapters: which there are, what is being changed, what an engine started anew must be told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ramet.core.adapters import AdapterInfo
from ramet.engine.wire import AdapterChange, Command, LoadAdapter, UnloadAdapter
from ramet.errors import InvalidRequest, RametError, UnknownAdapter

__all__ = ["ServedAdapters"]

_log = logging.getLogger("ramet.server")

_MOST_CHANGES = 16


class _Change(NamedTuple):
    """One that the engine was told to make: who waits for it may have left, and what it has ``made`` counts all the same."""

    waits: asyncio.Future[None]
    made: Callable[[], None]


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
        self._changes: dict[int, _Change] = {}
        self._num_changes = 0

    def __contains__(self, name: object) -> bool:
        return name in self._infos

    def listed(self) -> list[AdapterInfo]:
        return list(self._infos.values())

    async def load(self, name: str, path: str, *, replaces: bool) -> None:
        """Have the engine load one; nobody waits for it but the caller. Raises ``InvalidRequest`` with the engine's reason,
        and ``Unavailable`` without one."""

        def loaded() -> None:
            self._paths[name] = path

        await self._changed(lambda number: LoadAdapter(number, name, path, replaces), loaded)

    async def unload(self, name: str) -> None:
        """No further request may name it; those that run go on. Raises ``UnknownAdapter``."""

        def unloaded() -> None:
            self._paths.pop(name, None)
            if name in self._configured:  # also where another load had taken its place
                self._gone.add(name)

        await self._changed(lambda number: UnloadAdapter(number, name), unloaded)

    async def _changed(self, command: Callable[[int], Command], made: Callable[[], None]) -> None:
        self._check_ready()
        if len(self._changes) >= _MOST_CHANGES:
            raise InvalidRequest(f"{_MOST_CHANGES} changes of adapters are being made; wait for them")
        number = self._next()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changes[number] = _Change(future, made)
        self._send(command(number))
        await future

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
        asked = self._changes.pop(change.number, None)
        if asked is not None and change.error is None:
            asked.made()
        if asked is None or asked.waits.done():
            if change.error is not None:  # as when an engine that was started again cannot load what the last one had
                _log.warning("a change of adapters failed: %s", change.error)
        elif change.error is None:
            asked.waits.set_result(None)
        else:
            kind = UnknownAdapter if change.is_unknown else InvalidRequest
            asked.waits.set_exception(kind(change.error))

    def lose(self, loss: Callable[[], RametError]) -> None:
        """The engine is gone. Each change that is waited for is told by an error of its own."""
        for asked in self._changes.values():
            if not asked.waits.done():
                asked.waits.set_exception(loss())
        self._changes.clear()

    def _list(self, infos: Iterable[AdapterInfo]) -> None:
        self._infos = {info.name: info for info in infos}
