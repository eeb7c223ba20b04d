"""The engine's process: ``python -m ramet.server.engine_process FD``, with FD one end of a socket pair.

It ends when the other end is gone, whatever the engine is doing then. One thread reads commands, one tells that the process runs,
and the main one has the engine to itself.
"""

from __future__ import annotations

import gc
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback

from ramet.engine.build import EngineParts, build_engine
from ramet.engine.loop import EngineLoop
from ramet.engine.wire import BEAT_S, Beat, Command, Event, Failed, Frames, Loading, Ready, Start, decode_command, frame
from ramet.errors import ConfigError, EngineDead, ModelError, shown

__all__ = ["main", "ready_event"]

_READ_BYTES = 1 << 18


class _Wire:
    """The socket, for several threads. Whoever finds it broken ends the process: its server is gone."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self.inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()

    def send(self, event: Event) -> None:
        data = frame(event)
        with self._lock:
            try:
                self._sock.sendall(data)
            except OSError:
                os._exit(0)

    def beat(self) -> None:
        """Tell that the process runs, for ever."""
        while True:
            self.send(Beat())
            time.sleep(BEAT_S)

    def read(self) -> None:
        """Put commands into the inbox until the server is gone, which ends the process."""
        frames = Frames()
        try:
            while data := self._sock.recv(_READ_BYTES):
                for body in frames.feed(data):
                    self.inbox.put(decode_command(body))
        except OSError:
            pass
        except Exception:
            self.send(Failed("the engine was told nonsense", traceback.format_exc()))
        os._exit(0)


def ready_event(parts: EngineParts) -> Ready:
    """What a server has to know of a built engine."""
    return Ready(
        limits=parts.engine.limits,
        eos_ids=tuple(sorted(parts.eos_ids)),
        num_pages=parts.engine.stats().kv.num_pages,
        page_size=parts.page_size,
        page_bytes=parts.page_bytes,
        threads=parts.backend.threads,
        isa=parts.backend.isa,
        adapters=parts.engine.adapters.listed(),
    )


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the server drains; its end is the end of this process
    wire = _Wire(socket.socket(fileno=int(sys.argv[1])))
    threading.Thread(target=wire.read, name="commands", daemon=True).start()
    threading.Thread(target=wire.beat, name="beat", daemon=True).start()
    try:
        start = wire.inbox.get()
        if not isinstance(start, Start):
            raise EngineDead(f"the first command was {shown(start)}")
        parts = build_engine(start.config, progress=lambda what, done, total: wire.send(Loading(what, done, total)))
        wire.send(ready_event(parts))
        gc.collect()
        gc.freeze()  # what is loaded stays: no collection has to look at it again
        _run(EngineLoop(parts.engine, wire.send), wire.inbox)
    except (ModelError, ConfigError) as error:
        wire.send(Failed(str(error)))
    except Exception as error:
        wire.send(Failed(f"the engine failed: {shown(error, 200)}", traceback.format_exc()))
    os._exit(1)  # no thread is waited for


def _run(loop: EngineLoop, inbox: queue.SimpleQueue[Command]) -> None:
    while True:
        commands = [] if loop.has_work else [inbox.get()]
        while not inbox.empty():
            commands.append(inbox.get())
        loop.turn(commands)


if __name__ == "__main__":
    main()
