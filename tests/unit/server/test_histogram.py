"""Our histogram tells what prometheus_client's own would."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from prometheus_client import Histogram as TheirHistogram
from prometheus_client import Metric, generate_latest
from prometheus_client.registry import Collector

from ramet.server.histogram import Histogram


class Told(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self.families = list(families)
        for family in self.families:
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]

    def collect(self) -> Iterable[Metric]:
        return self.families


@pytest.mark.parametrize("bounds", [(0.001, 0.25, 1, 160), (1, 2, 4, 131072)])
def test_it_tells_the_same_bytes_for_values_on_between_and_beyond_the_bounds(bounds: tuple[float, ...]) -> None:
    rng = random.Random(7)
    ours = Histogram("ramet:some_seconds", "Some", bounds)
    theirs = TheirHistogram("ramet:some_seconds", "Some", buckets=bounds, registry=None)
    for number in range(300):
        if number in (0, 299):
            assert generate_latest(Told(ours.collect())) == generate_latest(Told(theirs.collect()))
        value = rng.choice([*bounds, 0.0, rng.random(), 200 * rng.random(), 1e9])
        ours.observe(value)
        theirs.observe(value)
