"""A thread for work that others need not wait for: grammars, and layers while masks are made."""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures
from typing import Generic, TypeVar

__all__ = ["WorkerThread"]

T = TypeVar("T")


class WorkerThread:
    """``Worker`` with a thread of its own, which ends with it."""

    def __init__(self, name: str) -> None:
        self._thread = futures.ThreadPoolExecutor(1, name)

    def start(self, work: Callable[[], T]) -> _Pending[T]:
        return _Pending(self._thread.submit(work))


class _Pending(Generic[T]):
    def __init__(self, future: futures.Future[T]) -> None:
        self._future = future

    def done(self) -> bool:
        return self._future.done()

    def wait(self, seconds: float) -> None:
        futures.wait([self._future], seconds)

    def result(self) -> T:
        return self._future.result()
