"""Clocks that a test sets."""

from __future__ import annotations


class Seconds:
    """``per_look`` seconds pass with each look."""

    def __init__(self, per_look: float = 0.0) -> None:
        self.time = 0.0
        self.per_look = per_look

    def now(self) -> float:
        self.time += self.per_look
        return self.time
