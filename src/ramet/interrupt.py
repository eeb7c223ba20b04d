"""Ctrl-C held back for as long as something must not be broken off."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["held_interrupt"]


@contextmanager
def held_interrupt() -> Iterator[Callable[[], None]]:
    """Ctrl-C does what it does at the end of the block, or when what this gives is called. Python raises it on the main thread
    alone; elsewhere nothing is held.
    """
    handler = signal.getsignal(signal.SIGINT)
    frames: list[FrameType | None] = []

    def let_through() -> None:
        if frames and callable(handler):
            frame = frames[-1]
            frames.clear()
            handler(signal.SIGINT, frame)

    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield let_through
        return
    signal.signal(signal.SIGINT, lambda number, frame: frames.append(frame))
    try:
        yield let_through
    finally:
        signal.signal(signal.SIGINT, handler)
        let_through()
