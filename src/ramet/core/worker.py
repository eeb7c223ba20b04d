"""Work that is done on the spot: the ``Worker`` of who has no other thread, or no core to spare for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["InPlace", "Made"]

T = TypeVar("T")


class Made(Generic[T]):
    """``Pending`` that is there."""

    def __init__(self, value: T) -> None:
        self._value = value

    def done(self) -> bool:
        return True

    def wait(self, seconds: float) -> None:
        pass

    def result(self) -> T:
        return self._value


class InPlace:
    """``Worker`` that does everything at once, on the caller's thread."""

    def start(self, work: Callable[[], T]) -> Made[T]:
        return Made(work())
