"""What a server knows of its engine's adapters, and what it tells one that has been started again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ramet.core.adapters import AdapterInfo
from ramet.engine.wire import AdapterChange, Command, LoadAdapter, UnloadAdapter
from ramet.errors import EngineDead, InvalidRequest, Unavailable, UnknownAdapter
from ramet.server.adapters import ServedAdapters


class Engine:
    """Obeys at once; ``error`` is what it answers instead."""

    def __init__(self, *names: str) -> None:
        self.names = dict.fromkeys(names)
        self.heard: list[Command] = []
        self.error: tuple[str, bool] | None = None
        self.served = ServedAdapters(self.take, lambda: None)
        self.served.on_ready(self.infos())

    def infos(self) -> tuple[AdapterInfo, ...]:
        return tuple(AdapterInfo(name, i, 4, 100) for i, name in enumerate(self.names, start=1))

    def take(self, command: Command) -> None:
        assert isinstance(command, LoadAdapter | UnloadAdapter)
        self.heard.append(command)
        if self.error is None:
            if isinstance(command, LoadAdapter):
                self.names[command.name] = None
            else:
                del self.names[command.name]
        change = AdapterChange(command.number, self.infos(), *(self.error or ()))
        asyncio.get_running_loop().call_soon(self.served.on_change, change)

    def started_again(self, *names: str) -> list[Command]:
        """What it hears then; it has the adapters of its configuration."""
        self.names, self.heard = dict.fromkeys(names), []
        self.served.on_ready(self.infos())
        return self.heard


def run(work: Callable[[Engine], Awaitable[None]], *names: str) -> None:
    async def main() -> None:
        await work(Engine(*names))

    asyncio.run(main())


def test_an_engine_that_is_started_again_is_told_what_has_changed() -> None:
    async def work(engine: Engine) -> None:
        await engine.served.unload("old")
        await engine.served.load("new", "p", replaces=False)
        await engine.served.load("brief", "q", replaces=False)
        await engine.served.unload("brief")
        assert [info.name for info in engine.served.listed()] == ["kept", "new"]
        heard = engine.started_again("old", "kept")
        assert [(type(c), c.name) for c in heard] == [(UnloadAdapter, "old"), (LoadAdapter, "new")]  # type: ignore[union-attr]
        await asyncio.sleep(0)
        assert "new" in engine.served
        assert "old" not in engine.served

    run(work, "old", "kept")


def test_what_took_the_place_of_a_configured_one_leaves_nothing_when_it_goes() -> None:
    async def work(engine: Engine) -> None:
        await engine.served.load("old", "p", replaces=True)
        await engine.served.unload("old")
        assert [type(command) for command in engine.started_again("old")] == [UnloadAdapter]

    run(work, "old")


def test_what_cannot_be_loaded_again_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def work(engine: Engine) -> None:
        await engine.served.load("new", "p", replaces=False)
        engine.error = ("there is no adapter at p", True)
        engine.started_again()
        await asyncio.sleep(0)
        assert "new" not in engine.served

    run(work)
    assert "a change of adapters failed: there is no adapter at p" in caplog.text


def test_the_engine_says_why_not() -> None:
    async def work(engine: Engine) -> None:
        for error, kind in ((("a", True), UnknownAdapter), (("b", False), InvalidRequest)):
            engine.error = error
            with pytest.raises(kind, match=error[0]):
                await engine.served.load("x", "p", replaces=False)
            with pytest.raises(kind, match=error[0]):
                await engine.served.unload("kept")
        assert engine.started_again("kept") == []

    run(work, "kept")


def test_a_change_ends_with_the_engine() -> None:
    async def work(engine: Engine) -> None:
        silent = ServedAdapters(lambda command: None, lambda: None)
        tasks = [asyncio.ensure_future(silent.load(f"x{i}", "p", replaces=False)) for i in range(16)]
        await asyncio.sleep(0)
        with pytest.raises(InvalidRequest, match="16 changes"):
            await silent.unload("x")
        silent.lose(lambda: EngineDead("gone"))
        assert all(isinstance(one, EngineDead) for one in await asyncio.gather(*tasks, return_exceptions=True))

    run(work)


def test_without_an_engine_nothing_is_sent() -> None:
    def no_engine() -> None:
        raise Unavailable("not ready")

    async def work(engine: Engine) -> None:
        served = ServedAdapters(engine.heard.append, no_engine)
        with pytest.raises(Unavailable):
            await served.load("x", "p", replaces=False)
        assert engine.heard == []

    run(work)


def test_a_change_counts_though_nobody_waits_for_it_any_more() -> None:
    async def work(engine: Engine) -> None:
        asked = [
            asyncio.ensure_future(engine.served.load("new", "p", replaces=False)),
            asyncio.ensure_future(engine.served.unload("old")),
        ]
        await asyncio.sleep(0)
        for one in asked:
            one.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        assert engine.started_again("old") == [UnloadAdapter(3, "old"), LoadAdapter(4, "new", "p", replaces=True)]

    run(work, "old")
