"""The two ports of the engine, time and device, and the face of a cache lock that a sequence carries."""

from __future__ import annotations

from typing import Protocol

from ramet.core.batch import Batch
from ramet.core.output import StepOutput

__all__ = ["CacheLock", "Clock", "Runner"]


class Clock(Protocol):
    """Where time comes from: monotonic seconds."""

    def now(self) -> float: ...


class CacheLock(Protocol):
    """A hold on cached pages; ``num_pages`` of the sequence's page table belong to the cache."""

    @property
    def num_pages(self) -> int: ...


class Runner(Protocol):
    """Computes batches. ``launch`` starts a step, ``collect`` waits for the oldest launched one and gives its result.

    Between the two nothing that the batch reads or writes may be given to anyone else. ``launch`` does the batch's page
    copies first. Raises ``EngineDead`` only; a fault of one row is reported in ``StepOutput.errors``.
    """

    def launch(self, batch: Batch) -> None: ...

    def collect(self) -> StepOutput: ...
