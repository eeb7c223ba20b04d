"""A histogram of Prometheus's for values that come with each token."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import Metric
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.utils import floatToGoString

__all__ = ["Histogram"]


class Histogram:
    """Counts of values up to each of ``bounds``, which rise, and above the last. For one thread.

    prometheus_client's own is for many: with its locks a value takes five times as long, and a step has one for each stream.
    """

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._bounds = tuple(map(float, bounds))
        self._counts = [0] * (len(self._bounds) + 1)  # each its own; they are summed up where they are told
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterator[Metric]:
        """What is told: one family."""
        names = map(floatToGoString, (*self._bounds, float("inf")))
        buckets = list(zip(names, map(float, accumulate(self._counts)), strict=True))
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=self._sum)
