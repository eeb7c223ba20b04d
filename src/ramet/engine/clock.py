"""Real times, for the composition root. Nothing else in the engine's core may ask what time it is."""

from __future__ import annotations

import time

__all__ = ["MonotonicClock", "ThreadClock"]


class MonotonicClock:
    """A ``Timer`` that never runs backwards, whatever happens to the time of day."""

    def now(self) -> float:
        return time.monotonic()

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)


class ThreadClock:
    """A ``Clock`` of the processor time that its caller's thread has had."""

    def now(self) -> float:
        return time.thread_time()
