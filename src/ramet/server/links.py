"""Ways to an engine: a process of its own, or a thread of this one."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Protocol

from ramet.config import EngineConfig
from ramet.engine.engine import Engine
from ramet.engine.loop import EngineLoop
from ramet.engine.wire import BEAT_S, Beat, Command, Event, Failed, Frames, Ready, Start, decode_event, frame
from ramet.errors import shown

__all__ = ["Link", "OnEvent", "OnGone", "ProcessLink", "ThreadLink"]

OnEvent = Callable[[Event], None]
OnGone = Callable[[], None]


class Link(Protocol):
    """A way to one engine, from its start to its end. All calls, and both callbacks, are on the event loop's thread."""

    async def open(self, on_event: OnEvent, on_gone: OnGone) -> None:
        """Start the engine. ``on_event`` takes what it says, in order; ``on_gone`` is called once, at its end."""
        ...

    def send(self, command: Command) -> None:
        """Give a command. Lost without a word where the engine is gone: ``on_gone`` tells."""
        ...

    async def close(self) -> None:
        """End the engine now and wait until it is gone."""
        ...


class ProcessLink:
    """An engine in a process of its own, over a socket pair that only the two hold. It survives neither end of the other."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._process: asyncio.subprocess.Process | None = None
        self._transport: asyncio.Transport | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def open(self, on_event: OnEvent, on_gone: OnGone) -> None:
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_connection(lambda: _Receiver(on_event, on_gone), sock=ours)
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "ramet.server.engine_process",
                str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C in the terminal is the server's to hear
            )
        self.send(Start(self._config))

    def send(self, command: Command) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(command))

    async def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        if self._process is not None:
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()


class _Receiver(asyncio.Protocol):
    """Puts the stream's pieces together into events. What is not an event ends the connection."""

    def __init__(self, on_event: OnEvent, on_gone: OnGone) -> None:
        self._on_event = on_event
        self._on_gone = on_gone
        self._frames = Frames()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for body in self._frames.feed(data):
            self._on_event(decode_event(body))

    def connection_lost(self, error: Exception | None) -> None:
        self._on_gone()


class ThreadLink:
    """An engine in a thread of this process: for tests and for whoever has an engine of his own making.

    ``make`` builds it, in that thread. Messages go through the same encoding as between processes.
    """

    def __init__(self, make: Callable[[], tuple[Engine, Ready]]) -> None:
        self._make = make
        self._inbox: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def open(self, on_event: OnEvent, on_gone: OnGone) -> None:
        loop = asyncio.get_running_loop()

        def emit(event: Event) -> None:
            data = Frames().feed(frame(event))
            loop.call_soon_threadsafe(on_event, decode_event(data[0]))

        def run() -> None:
            try:
                self._run(emit)
            except Exception as error:
                emit(Failed(f"the engine failed: {shown(error, 200)}", traceback.format_exc()))
            loop.call_soon_threadsafe(on_gone)

        self._thread = threading.Thread(target=run, name="engine", daemon=True)
        self._thread.start()

    def _run(self, emit: OnEvent) -> None:
        engine, ready = self._make()
        emit(ready)
        engine_loop = EngineLoop(engine, emit)
        while True:
            commands = []
            with contextlib.suppress(queue.Empty):
                if not engine_loop.has_work:
                    commands.append(self._inbox.get(timeout=BEAT_S))
                while True:
                    commands.append(self._inbox.get_nowait())
            if None in commands:
                return
            if commands or engine_loop.has_work:
                engine_loop.turn([command for command in commands if command is not None])
            else:
                emit(Beat())

    def send(self, command: Command) -> None:
        self._inbox.put(command)

    async def close(self) -> None:
        self._inbox.put(None)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
