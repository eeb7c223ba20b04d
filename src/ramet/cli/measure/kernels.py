"""The kernels alone: each product of a model, and attention, without an engine around them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ramet.cli.measure.figures import Figure, bracketed, time_figure
from ramet.cli.measure.limits import Limits, Work, linear_work
from ramet.core.batch import Batch, PageCopies
from ramet.core.ids import Float32, Int32, IntBuffer
from ramet.core.request import Request, Sequence
from ramet.core.sampling import SamplingParams
from ramet.kernels.backend import Backend, KVFormat, PackedWeight
from ramet.model.spec import ModelSpec
from ramet.runner.kv_tensors import allocate_kv, free_bytes
from ramet.schedule.build import Chunk, build_batch
from ramet.schedule.sampling_rows import SamplingRows

__all__ = ["ROWS", "KVShape", "Part", "attention_cases", "attention_figure", "attention_work", "product_figures"]

T = TypeVar("T")
ROWS = (1, 4, 16, 256)
_MAX_HEAD_ROWS = 64  # a step has logits of the rows it samples alone, a slab of so many at a time
_SWEEPS_S = 0.5  # each case is gone through again and again for about so long, after a first time that does not count
_MIN_SWEEPS = 3
_PAGE_SIZE = 16
_NO_COPIES = PageCopies(*(np.empty(0, np.int32) for _ in range(3)))


def product_figures(backend: Backend, products: Mapping[str, PackedWeight], num_rows: int, limits: Limits) -> Iterator[Figure]:
    """Microseconds a call of each kind of product, a mean over the layers; last, of all products of a step together.

    They run in a step's order, so each finds its weight as far away as a step does; nothing else runs between them.
    """
    calls = [(name.split(".")[-1], weight) for name, weight in products.items()]
    calls = [(kind, weight) for kind, weight in calls if kind != "head" or num_rows <= _MAX_HEAD_ROWS]
    inputs = {weight.shape[1]: _normal(num_rows, weight.shape[1]) for _, weight in calls}
    work: dict[str, list[Work]] = defaultdict(list)
    for kind, weight in calls:
        work[kind].append(linear_work(weight, num_rows))

    def sweep() -> dict[str, float]:
        took: dict[str, float] = defaultdict(float)
        for kind, weight in calls:
            start = time.perf_counter()
            backend.linear(inputs[weight.shape[1]], weight)
            took[kind] += time.perf_counter() - start
        return took

    sweeps, rates = bracketed(limits, lambda: _again_and_again(sweep))
    rows = f"{num_rows} row{'s' * (num_rows > 1)}"
    for kind, works in work.items():
        seconds = [took[kind] for took in sweeps]
        yield time_figure(f"{kind}, {rows}", "µs", seconds, sum(works, Work()), rates, len(works))
    total = sum((one for works in work.values() for one in works), Work())
    yield time_figure(f"all {len(calls)}, {rows}", "µs", [sum(took.values()) for took in sweeps], total, rates)


@dataclass(frozen=True, slots=True)
class KVShape:
    """``token_bytes`` is what one token takes in all layers together; ``dtype`` is the configuration's name of the type."""

    dtype: KVFormat
    token_bytes: int


@dataclass(frozen=True, slots=True)
class Part:
    """A step of ``num_seqs`` sequences of ``context`` tokens: the first ``shared`` on the same pages, the last ``rows`` new."""

    num_seqs: int
    context: int
    shared: int = 0
    rows: int = 1

    @property
    def num_slots(self) -> int:
        return self.num_seqs * (self.context + _PAGE_SIZE)

    def batch(self) -> Batch:
        """As the scheduler would build it."""
        num_shared = self.shared // _PAGE_SIZE
        num_own = -(-self.context // _PAGE_SIZE) - num_shared
        request = Request("bench", np.zeros(self.context, np.int32), SamplingParams(), 0, 1)
        chunks = []
        for i in range(self.num_seqs):
            pages: Int32 = np.arange(num_shared + num_own, dtype=np.int32)
            pages[num_shared:] += i * num_own
            seq = Sequence(i, request, tokens=IntBuffer(request.prompt), num_prompt_tokens=self.context, pages=IntBuffer(pages))
            chunks.append(Chunk(seq, self.context - self.rows, self.rows, samples=False))
        return build_batch(1, _PAGE_SIZE, chunks, _NO_COPIES, SamplingRows().of([]))

    def work(self, spec: ModelSpec, kv: KVShape) -> Work:
        """Of all layers together; what sequences share is read once."""
        num_seen = self.num_seqs * sum(range(self.context - self.rows + 1, self.context + 1))
        return attention_work(spec, kv, num_seen, self.shared + self.num_seqs * (self.context - self.shared))


def attention_work(spec: ModelSpec, kv: KVShape, num_seen: float, num_read: float) -> Work:
    """Of all layers: ``num_seen`` sums up the positions that each row sees, ``num_read`` are the tokens whose KV is read."""
    ops = 4.0 * num_seen * spec.num_heads * spec.head_dim * spec.num_layers
    num_bytes = num_read * kv.token_bytes
    return Work(num_bytes, single_ops=ops) if kv.dtype == "float32" else Work(num_bytes, half_ops=ops)


def attention_cases(chunk_size: int) -> dict[str, list[Part]]:
    """By name, the steps that together are one measured thing; a prompt is computed in chunks."""
    starts = range(0, 2000, chunk_size)
    return {
        "attention, prefill of 2,000": [
            Part(1, min(start + chunk_size, 2000), rows=min(chunk_size, 2000 - start)) for start in starts
        ],
        "attention, 16 rows on one 3,000": [Part(16, 3008, shared=2992)],
        "attention, 16 rows on 1,000 each": [Part(16, 1000)],
    }


def attention_figure(name: str, parts: list[Part], backend: Backend, spec: ModelSpec, kv: KVShape, limits: Limits) -> Figure:
    """Milliseconds of attention in all layers of the steps, their plans not counted."""
    num_slots = max(part.num_slots for part in parts)
    # Each layer has memory of its own, as far as there is room: one alone would sit in a cache.
    num_layers = max(1, min(spec.num_layers, free_bytes() // 4 * spec.num_layers // (num_slots * kv.token_bytes)))
    layers = allocate_kv(num_layers, num_slots, spec.num_kv_heads, spec.head_dim, kv.dtype)
    numbers = _normal(num_slots, spec.num_kv_heads, spec.head_dim)
    for layer in layers:
        backend.write_kv(layer, numbers, numbers, np.arange(num_slots, dtype=np.int32))
    steps = [(backend.plan(part.batch()), _normal(part.num_seqs * part.rows, spec.num_heads, spec.head_dim)) for part in parts]
    scale = spec.head_dim**-0.5

    def sweep() -> float:
        start = time.perf_counter()
        for plan, q in steps:
            for i in range(spec.num_layers):
                backend.attention(q, layers[i % num_layers], plan, scale)
        return time.perf_counter() - start

    seconds, rates = bracketed(limits, lambda: _again_and_again(sweep))
    return time_figure(name, "ms", seconds, sum((part.work(spec, kv) for part in parts), Work()), rates)


def _again_and_again(sweep: Callable[[], T]) -> list[T]:
    sweep()
    found: list[T] = []
    until = time.perf_counter() + _SWEEPS_S
    while len(found) < _MIN_SWEEPS or time.perf_counter() < until:
        found.append(sweep())
    return found


def _normal(*shape: int) -> Float32:
    return np.random.default_rng(0).standard_normal(shape, np.float32)
