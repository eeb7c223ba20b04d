"""From what was seen of each request to the figures of a run. Arithmetic only: no clock, no network.

Definitions (``docs/design/bench.md`` has the reasons):

* **TTFT**: from when a request was due to the first chunk with text.
* **ITL**: between two chunks with text. Chunks that came in one read have 0 between them.
* **TPOT**: (last chunk - first chunk) / (output tokens - 1), a request; needs two chunks.
* **E2E**: from when a request was due to the end of its answer.
* **Goodput**: answered requests a second that meet every bound that was given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

__all__ = ["Bounds", "Figures", "Record", "Spread", "figures", "percentile"]


@dataclass(slots=True)
class Record:
    """What was seen of one request; all times are of one clock, in seconds.

    ``due_s`` is when it should have been sent: its program's arrival, or the end of the answer that it continues. ``end_s`` is
    None while it runs. ``cached_tokens`` is None where the server does not tell it.
    """

    due_s: float
    sent_s: float
    chunk_s: list[float] = field(default_factory=list)
    end_s: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    error: str | None = None
    error_text: str = ""

    @property
    def is_answered(self) -> bool:
        """It ran to its end without an error."""
        return self.end_s is not None and self.error is None

    @property
    def num_output_tokens(self) -> int:
        """As the server counts them, or the chunks with text where it does not."""
        return len(self.chunk_s) if self.output_tokens is None else self.output_tokens

    @property
    def ttft_ms(self) -> float | None:
        """None for an answer without text."""
        return (self.chunk_s[0] - self.due_s) * 1000 if self.chunk_s else None

    @property
    def tpot_ms(self) -> float | None:
        """None for an answer of one token, or in one chunk, which says nothing of the time between tokens."""
        if len(self.chunk_s) < 2 or self.num_output_tokens < 2:
            return None
        return (self.chunk_s[-1] - self.chunk_s[0]) * 1000 / (self.num_output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a request must keep to count as good; None is no bound."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def __bool__(self) -> bool:
        return self.ttft_ms is not None or self.tpot_ms is not None

    def holds(self, record: Record) -> bool:
        """An answer without text misses a bound on TTFT; one of a single token keeps any bound on TPOT."""
        ttft_ms, tpot_ms = record.ttft_ms, record.tpot_ms
        return (self.ttft_ms is None or (ttft_ms is not None and ttft_ms <= self.ttft_ms)) and (
            self.tpot_ms is None or tpot_ms is None or tpot_ms <= self.tpot_ms
        )


@dataclass(frozen=True, slots=True)
class Spread:
    """How a quantity is spread over ``num`` values."""

    p50: float
    p90: float
    p99: float
    mean: float
    max: float
    num: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None of no values."""
        if not values:
            return None
        ordered = sorted(values)
        p50, p90, p99 = (percentile(ordered, percent) for percent in (50, 90, 99))
        return cls(p50, p90, p99, sum(ordered) / len(ordered), ordered[-1], len(ordered))


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a run. Latencies and tokens are of answered requests; ``lag_ms``, how late requests were sent, is of all.

    ``cached_tokens`` is None where the server never tells it; ``num_good`` is None without bounds. ``unsent`` requests depended
    on an answer that never came; ``unfinished`` ones were cut off with the run. ``is_estimated``: some answers came without
    usage, and their chunks were counted instead.
    """

    duration_s: float
    num_planned: int
    num_answered: int
    num_unfinished: int
    errors: dict[str, int]
    error_texts: dict[str, str]
    ttft_ms: Spread | None
    tpot_ms: Spread | None
    itl_ms: Spread | None
    e2e_ms: Spread | None
    lag_ms: Spread | None
    prompt_tokens: int
    cached_tokens: int | None
    output_tokens: int
    num_good: int | None
    is_estimated: bool

    @property
    def num_failed(self) -> int:
        """Requests that ended in an error."""
        return sum(self.errors.values())

    @property
    def num_unsent(self) -> int:
        """Requests that were planned and not sent."""
        return self.num_planned - self.num_answered - self.num_failed - self.num_unfinished

    @property
    def hit_rate(self) -> float | None:
        """Cached prompt tokens of all; None where the server does not tell."""
        return self.cached_tokens / self.prompt_tokens if self.cached_tokens is not None and self.prompt_tokens else None

    def per_s(self, amount: float) -> float:
        """``amount`` a second of the run."""
        return amount / self.duration_s if self.duration_s > 0 else 0.0


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The least value that at least ``percent`` in 100 of the sorted values do not exceed: a value that was measured, so of
    fewer than 100 values p99 is the largest.
    """
    return ordered[-(-percent * len(ordered) // 100) - 1]


def figures(records: Sequence[Record], *, num_planned: int, duration_s: float, bounds: Bounds) -> Figures:
    """The figures of a run of ``duration_s`` that made ``records`` of ``num_planned`` requests."""
    answered = [record for record in records if record.is_answered]
    failed = [record for record in records if record.error is not None]
    told = [record.cached_tokens for record in answered if record.cached_tokens is not None]
    return Figures(
        duration_s=duration_s,
        num_planned=num_planned,
        num_answered=len(answered),
        num_unfinished=len(records) - len(answered) - len(failed),
        errors=dict(Counter(record.error for record in failed if record.error is not None).most_common()),
        error_texts={record.error: record.error_text for record in reversed(failed) if record.error is not None},
        ttft_ms=Spread.of([record.ttft_ms for record in answered if record.ttft_ms is not None]),
        tpot_ms=Spread.of([record.tpot_ms for record in answered if record.tpot_ms is not None]),
        itl_ms=Spread.of([gap for record in answered for gap in _gaps_ms(record.chunk_s)]),
        e2e_ms=Spread.of([(record.end_s - record.due_s) * 1000 for record in answered if record.end_s is not None]),
        lag_ms=Spread.of([(record.sent_s - record.due_s) * 1000 for record in records]),
        prompt_tokens=sum(record.prompt_tokens or 0 for record in answered),
        cached_tokens=sum(told) if told else None,  # some servers leave the field out where it is 0
        output_tokens=sum(record.num_output_tokens for record in answered),
        num_good=sum(map(bounds.holds, answered)) if bounds else None,
        is_estimated=any(record.output_tokens is None for record in answered),
    )


def _gaps_ms(times_s: Sequence[float]) -> list[float]:
    return [(after - before) * 1000 for before, after in pairwise(times_s)]
