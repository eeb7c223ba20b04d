"""How costs grow: each curve is one cost against one size, with the exponent that fits it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ramet.cli.measure.books import VOCAB_SIZE, Books
from ramet.cli.measure.engine import LeftOut, Subject
from ramet.cli.measure.report import round_to
from ramet.config import PolicyName
from ramet.core.ids import Int32

__all__ = ["BOOK_CURVES", "ENGINE_CURVES", "Curve", "exponent"]

_PAGE_SIZE = 16
_PROMPT_LENS = (250, 500, 1000, 2000, 4000, 8000)
_STREAMS = (1, 2, 4, 8, 16, 32, 64)
_DECODED = 16
_KV_TOKENS = (1000, 2000, 4000, 8000, 16_000)
_STEP_TOKENS = 200  # of a prompt that fills the cache
_QUEUES = (10, 100, 1000, 10_000)
_TREES = (10_000, 100_000, 1_000_000)
_RUNNING = 64
_SHORT, _LONG = (16, 16), (100, 400)  # prompts: tokens in common, tokens of their own
_WARM_STEPS, _STEPS = 5, 60
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Curve:
    """``ys`` of ``y_unit`` against ``xs``, which are ``x_name``. ``expected`` says which exponent is right, and why."""

    name: str
    x_name: str
    y_unit: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    expected: str

    @property
    def exponent(self) -> float:
        return exponent(self.xs, self.ys)

    @property
    def last_exponent(self) -> float:
        """Of the last two points: what has not yet outgrown its fixed part shows here."""
        return exponent(self.xs[-2:], self.ys[-2:])

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "x_name": self.x_name,
            "y_unit": self.y_unit,
            "points": [[x, round_to(y)] for x, y in zip(self.xs, self.ys, strict=True)],
            "exponent": round_to(self.exponent, 3),
            "last_exponent": round_to(self.last_exponent, 3),
            "expected": self.expected,
        }


def exponent(xs: Iterable[float], ys: Iterable[float]) -> float:
    """e of the best fit y = a x^e: least squares of the logarithms."""
    slope, _ = np.polyfit(np.log(list(xs)), np.log(list(ys)), 1)
    return float(slope)


# ---- of an engine


def _memory(subject: Subject) -> Curve:
    """Resident memory that cached tokens take. Memory is not given back, so this has to be measured first."""
    totals = _fitting(_KV_TOKENS, _pool_tokens(subject))
    prompts = iter(subject.prompts(totals[-1] // _STEP_TOKENS + 1, _STEP_TOKENS))
    subject.seconds([next(prompts)], 1)  # what the first step allocates is no token's
    before, held, ys = _resident_bytes(), 0, []
    for total in totals:
        while held < total:
            subject.seconds([next(prompts)], 1)
            held += _STEP_TOKENS
        ys.append(max(1, _resident_bytes() - before) / 1e6)
    expected = f"1: a token's KV is {subject.kv.token_bytes:,} bytes"
    return Curve("resident memory", "cached tokens", "MB", totals, tuple(ys), expected)


def _prefill(subject: Subject) -> Curve:
    lens = _fitting(_PROMPT_LENS, subject.parts.engine.limits.max_total_tokens - 1)
    ys = []
    for length in lens:
        took = []
        for _ in range(_TRIES):
            subject.llm.flush_cache()
            took.append(subject.seconds(subject.prompts(1, length), 1))
        ys.append(median(took) / length * 1e6)
    return Curve("prefill", "prompt tokens", "µs/token", lens, tuple(ys), "0 to 1: attention reads all that came before")


def _decode(subject: Subject) -> Curve:
    length = _STEP_TOKENS // 2
    most = min(subject.config.scheduler.max_running_seqs, _pool_tokens(subject) // (length + _DECODED + subject.parts.page_size))
    streams = _fitting(_STREAMS, most)
    ys = []
    for count in streams:
        prompts = subject.prompts(count, length)
        subject.seconds(prompts, 1)
        ys.append(median(subject.seconds(prompts, _DECODED) for _ in range(_TRIES)) / _DECODED * 1e3)
    return Curve(
        "decode step", "streams", "ms", streams, tuple(ys), "0 to 1: weights are read once, arithmetic is a stream's own"
    )


def _fitting(sizes: tuple[int, ...], most: int) -> tuple[int, ...]:
    found = tuple(size for size in sizes if size <= most)
    if len(found) < 2:
        raise LeftOut(f"a curve has at least two points, and of the sizes {sizes} this engine can hold {len(found)}")
    return found


def _pool_tokens(subject: Subject) -> int:
    return subject.parts.engine.stats().kv.num_pages * subject.parts.page_size


def _resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        raise LeftOut("this system does not tell how much memory is resident (/proc/self/statm)") from None


# ---- of the books alone


def _queue(policy: PolicyName) -> Curve:
    """A step of 64 short answers, of which one or two end and are followed by the next in the queue."""
    ys = [_step_us(Books(1 << 14, _PAGE_SIZE, policy=policy), _RUNNING + waiting, _SHORT) for waiting in _QUEUES]
    return Curve(f"books of a step, {policy}", "waiting", "µs", _QUEUES, tuple(ys), "0: a step looks at the head of the queue")


def _submit(policy: PolicyName) -> Curve:
    """Adding to a queue; a hundred at a time."""
    ys = []
    for waiting in _QUEUES:
        books, draw = Books(1 << 14, _PAGE_SIZE, policy=policy), _drawer(_SHORT)
        for _ in range(waiting):
            books.submit(*draw())
        start = time.perf_counter()
        for _ in range(100):
            books.submit(*draw())
        ys.append((time.perf_counter() - start) / 100 * 1e6)
    return Curve(f"submit, {policy}", "waiting", "µs", _QUEUES, tuple(ys), "0: a queue is kept in order, not put in order")


def _tree() -> Curve:
    """A step with a tree that fills the pool: who begins looks up a prompt, and pages are evicted for it."""
    ys = []
    for tokens in _TREES:
        books = Books(tokens // _PAGE_SIZE, _PAGE_SIZE, max_running_seqs=_RUNNING // 4)
        draw = _drawer(_LONG)
        while books.kv.stats().num_evicted_pages == 0:
            while books.engine.stats().num_open_requests < _RUNNING // 4:
                books.submit(draw()[0], 1)
            books.step()
        ys.append(_step_us(books, _RUNNING // 4, _LONG))
    return Curve(
        "books of a step, full pool", "tokens in the tree", "µs", _TREES, tuple(ys), "0: no operation sees more than a path"
    )


def _step_us(books: Books, num_open: int, sizes: tuple[int, int]) -> float:
    """Median step, the runner not counted, with so many requests open; whoever ends is replaced, which is not timed."""
    draw = _drawer(sizes)
    took = []
    for _ in range(_WARM_STEPS + _STEPS):
        while books.engine.stats().num_open_requests < num_open:
            books.submit(*draw())
        took.append(books.step())
    return median(took[_WARM_STEPS:]) * 1e6


def _drawer(sizes: tuple[int, int]) -> Callable[[], tuple[Int32, int]]:
    """Makes prompts, a part of them common to all and a part their own, and lengths of answers."""
    rng = np.random.default_rng(0)
    num_common, num_own = sizes
    common = rng.integers(0, VOCAB_SIZE, num_common, np.int32)

    def draw() -> tuple[Int32, int]:
        return np.concatenate((common, rng.integers(0, VOCAB_SIZE, num_own, np.int32))), int(rng.integers(10, 60))

    return draw


ENGINE_CURVES: dict[str, Callable[[Subject], Curve]] = {"memory": _memory, "prefill": _prefill, "decode": _decode}
BOOK_CURVES: dict[str, Callable[[], Curve]] = {
    "queue, fcfs": partial(_queue, "fcfs"),
    "queue, longest-prefix": partial(_queue, "longest-prefix"),
    "submit": partial(_submit, "fcfs"),
    "tree": _tree,
}
