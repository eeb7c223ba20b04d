"""A measured figure beside the limit that it is held against."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, TypeVar

from ramet.cli.measure.limits import Limits, Rates, Work

__all__ = ["Figure", "as_json", "bracketed", "rate_figure", "time_figure"]

T = TypeVar("T")
_PER_SECOND = {"s": 1.0, "ms": 1e3, "µs": 1e6}


@dataclass(frozen=True, slots=True)
class Figure:
    """``values`` are those of the single runs, all in ``unit``; ``limit`` is what the figure would be at the machine's limit.

    ``bound`` says which limit that is, ``details`` are further numbers by their units, ``note`` says what else to know.
    """

    name: str
    unit: str
    values: tuple[float, ...]
    limit: float | None = None
    bound: str = ""
    details: Mapping[str, float] = field(default_factory=dict)
    note: str = ""

    @property
    def value(self) -> float:
        return median(self.values)

    @property
    def fraction(self) -> float | None:
        """How much of the limit is reached: 1 is all of it."""
        if self.limit is None:
            return None
        return self.limit / self.value if self.unit in _PER_SECOND else self.value / self.limit


def bracketed(limits: Limits, measure: Callable[[], T]) -> tuple[T, Rates]:
    """What ``measure`` gives, and the mean of the limits right before and after it: a machine's speed drifts."""
    before = limits.now()
    found = measure()
    return found, Rates.mean((before, limits.now()))


def time_figure(name: str, unit: str, seconds: Sequence[float], work: Work, rates: Rates, calls: int = 1) -> Figure:
    """The time that ``work`` took, of one of its ``calls``, with the bandwidth and the arithmetic that this comes to."""
    took, scale = median(seconds), _PER_SECOND[unit] / calls
    return Figure(
        name,
        unit,
        tuple(scale * s for s in seconds),
        scale * rates.seconds(work),
        rates.bound(work),
        {"GB/s": work.num_bytes / took / 1e9, "GOP/s": work.num_ops / took / 1e9},
    )


def rate_figure(name: str, unit: str, count: float, seconds: Sequence[float], work: Work, rates: Rates) -> Figure:
    """``count`` things a second, where the same runs did ``work``."""
    took = median(seconds)
    return Figure(
        name,
        unit,
        tuple(count / s for s in seconds),
        count / rates.seconds(work),
        rates.bound(work),
        {"GB/s": work.num_bytes / took / 1e9, "GOP/s": work.num_ops / took / 1e9},
    )


def as_json(figure: Figure) -> dict[str, Any]:
    """Everything, rounded to five digits."""
    return {
        "name": figure.name,
        "unit": figure.unit,
        "value": _rounded(figure.value),
        "values": [_rounded(value) for value in figure.values],
        "limit": _rounded(figure.limit),
        "fraction": _rounded(figure.fraction),
        "bound": figure.bound,
        **{name: _rounded(value) for name, value in figure.details.items()},
        "note": figure.note,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
