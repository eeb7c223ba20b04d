"""What one engine does, through the Python API: prompts in, answers out, no HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ramet.cli.measure.books import chat_waste
from ramet.cli.measure.figures import Figure, bracketed, rate_figure, time_figure
from ramet.cli.measure.kernels import (
    ROWS,
    KVShape,
    Part,
    attention_cases,
    attention_figure,
    attention_work,
    product_figures,
)
from ramet.cli.measure.limits import Limits, Work, linear_work
from ramet.config import EngineConfig
from ramet.core.sampling import SamplingParams
from ramet.engine.build import EngineParts, build_engine
from ramet.llm import LLM
from ramet.runner.kv_tensors import free_bytes

__all__ = ["CASES", "KERNEL_CASES", "Case", "LeftOut", "Subject"]

_RUNS_S, _MIN_RUNS, _MAX_RUNS = 2.0, 3, 9  # a case runs for about so long, after a first time that does not count
_OWN_TOKENS = 33  # of a prompt before it decodes: whole pages of 16 and one that is always computed
_DECODED = 48
_ROOT, _BRANCHES, _TAIL, _GROWN = 3000, 16, 8, 32  # of a tree search
_ALONE, _ANSWER = 500, 32  # of prompts that share nothing


class LeftOut(Exception):
    """A case that cannot be measured here, and why. Caught by who prints it."""


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """The engine that is measured. ``chunk_size`` is how many tokens of a prompt a step computes."""

    llm: LLM
    parts: EngineParts
    limits: Limits
    config: EngineConfig

    @property
    def kv(self) -> KVShape:
        return KVShape(self.parts.kv_dtype, self.parts.page_bytes // self.parts.page_size)

    @property
    def chunk_size(self) -> int:
        config = self.config.scheduler
        return min(config.chunked_prefill_size or config.max_batch_tokens, config.max_batch_tokens)

    def prompts(self, count: int, length: int, seed: int = 0) -> list[list[int]]:
        """Random tokens: nothing is shared but by chance."""
        rows: list[list[int]] = np.random.default_rng(seed).integers(0, self.parts.spec.vocab_size, (count, length)).tolist()
        return rows

    def check_fits(self, num_tokens: int, num_seqs: int = 1, num_shared: int = 0) -> None:
        """Raise ``LeftOut`` where sequences of so many tokens, the first of them on the same pages, cannot run side by side."""
        limit = self.parts.engine.limits.max_total_tokens
        if num_tokens > limit:
            raise LeftOut(f"it needs {num_tokens:,} tokens of context; the model, or its KV pool, has {limit:,}")
        page_size = self.parts.page_size
        need = num_shared // page_size + num_seqs * (-(-num_tokens // page_size) - num_shared // page_size)
        have = self.parts.engine.stats().kv.num_pages
        if need > have:
            raise LeftOut(f"it needs {need * page_size:,} tokens of KV; the pool has {have * page_size:,}")
        if num_seqs > self.config.scheduler.max_running_seqs:
            raise LeftOut(f"it needs {num_seqs} sequences at once; {self.config.scheduler.max_running_seqs} may run")

    def seconds(self, prompts: list[list[int]], num_tokens: int) -> float:
        """Of answers of so many tokens, greedy, all asked for at once."""
        sampling = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
        start = time.perf_counter()
        self.llm.generate(prompts, sampling, use_tqdm=False)
        return time.perf_counter() - start

    def step_work(self, num_rows: int, num_seen: float, num_read: float, num_sampled: int) -> Work:
        """Of a step: all weights are read once, the output projection computes the sampled rows alone."""
        work = attention_work(self.parts.spec, self.kv, num_seen, num_read)
        for name, weight in self.parts.products.items():
            rows = num_sampled if name == "head" else num_rows
            work += linear_work(weight, rows) if rows else Work()
        return work

    def prefill_work(self, num_tokens: int) -> Work:
        """Of a prompt in chunks, and its first token."""
        work = Work()
        for start in range(0, num_tokens, self.chunk_size):
            end = min(start + self.chunk_size, num_tokens)
            work += self.step_work(end - start, sum(range(start + 1, end + 1)), end, end == num_tokens)
        return work

    def decode_work(self, num_seqs: int, num_steps: int, context: int, num_shared: int = 0) -> Work:
        """Of steps with a row of each sequence; ``context`` is what the first of them sees."""
        work = Work()
        for seen in range(context, context + num_steps):
            work += self.step_work(num_seqs, num_seqs * seen, num_shared + num_seqs * (seen - num_shared), num_seqs)
        return work


def _runs(run: Callable[[], float]) -> list[float]:
    run()
    found: list[float] = []
    until = time.perf_counter() + _RUNS_S
    while len(found) < _MIN_RUNS or (len(found) < _MAX_RUNS and time.perf_counter() < until):
        found.append(run())
    return found


def _decode(subject: Subject, num_streams: int) -> Iterator[Figure]:
    """Prompts are in the cache but for their last token, so every step decodes."""
    subject.check_fits(_OWN_TOKENS + _DECODED, num_streams)
    prompts = subject.prompts(num_streams, _OWN_TOKENS)
    subject.seconds(prompts, 1)
    seconds, rates = bracketed(subject.limits, lambda: _runs(lambda: subject.seconds(prompts, _DECODED)))
    work = subject.decode_work(num_streams, _DECODED, _OWN_TOKENS)
    yield rate_figure(f"decode, {num_streams} at once", "tok/s", num_streams * _DECODED, seconds, work, rates)


def _prefill(subject: Subject, num_tokens: int) -> Iterator[Figure]:
    subject.check_fits(num_tokens + 1)
    prompts = subject.prompts(1, num_tokens)

    def run() -> float:
        subject.llm.flush_cache()
        return subject.seconds(prompts, 1)

    seconds, rates = bracketed(subject.limits, lambda: _runs(run))
    yield rate_figure(f"prefill, {num_tokens:,} tokens", "tok/s", num_tokens, seconds, subject.prefill_work(num_tokens), rates)


def _branches(subject: Subject) -> list[list[int]]:
    [root] = subject.prompts(1, _ROOT)
    return [root + tail for tail in subject.prompts(_BRANCHES, _TAIL, seed=1)]


def _tree_search(subject: Subject) -> Iterator[Figure]:
    """Branches of a root that nobody has seen, sent at once."""
    subject.check_fits(_ROOT + _TAIL + _GROWN, _BRANCHES, _ROOT)
    prompts = _branches(subject)

    def run() -> float:
        subject.llm.flush_cache()
        return subject.seconds(prompts, _GROWN)

    seconds, rates = bracketed(subject.limits, lambda: _runs(run))
    context = _ROOT + _TAIL
    tails = subject.step_work(_BRANCHES * _TAIL, _BRANCHES * _TAIL * context, context, _BRANCHES)
    work = subject.prefill_work(_ROOT) + tails + subject.decode_work(_BRANCHES, _GROWN - 1, context + 1, _ROOT)
    yield time_figure(f"{_BRANCHES} branches x {_GROWN} on a new {_ROOT:,}", "s", seconds, work, rates)


def _shared_prefix(subject: Subject) -> Iterator[Figure]:
    """Steps of branches whose root is in the cache; then attention alone in such a step."""
    subject.check_fits(_ROOT + _TAIL + _GROWN, _BRANCHES, _ROOT)
    prompts = _branches(subject)
    subject.seconds(prompts[:1], 1)
    subject.seconds(prompts, 1)
    seconds, rates = bracketed(subject.limits, lambda: _runs(lambda: subject.seconds(prompts, _GROWN)))
    work = subject.decode_work(_BRANCHES, _GROWN, _ROOT + _TAIL, _ROOT)
    step = time_figure(f"step, {_BRANCHES} rows on one {_ROOT:,}", "ms", seconds, work, rates, calls=_GROWN)
    yield step
    part = Part(_BRANCHES, _ROOT + _TAIL + _GROWN // 2, shared=_ROOT)
    alone = attention_figure(
        "  its attention alone", [part], subject.parts.backend, subject.parts.spec, subject.kv, subject.limits
    )
    yield replace(alone, note=f"{alone.value / step.value:.0%} of the step")


def _no_share(subject: Subject) -> Iterator[Figure]:
    """Prompts without a common beginning, cache on and off in turn: what the tree costs those who have no use for it."""
    if subject.config.cache.prefix_cache == "none":
        raise LeftOut("the cache is off (--prefix-cache none), so there is nothing to compare")
    subject.check_fits(_ALONE + _ANSWER, _BRANCHES)
    need, free = sum(weight.nbytes for weight in subject.parts.products.values()) * 2, free_bytes()
    if need > free:
        raise LeftOut(f"a second engine needs about {need / 1e9:.1f} GB; {free / 1e9:.1f} GB are free")
    config = replace(subject.config, cache=replace(subject.config.cache, prefix_cache="none"))
    parts = build_engine(config)
    with LLM.from_parts(parts) as llm:
        off = Subject(llm, parts, subject.limits, config)
        seed = 0

        def run() -> float:
            nonlocal seed
            seed += 1
            took = {}
            for one in (subject, off) if seed % 2 else (off, subject):
                one.llm.flush_cache()
                took[one] = one.seconds(one.prompts(_BRANCHES, _ALONE, seed), _ANSWER)
            return took[off] / took[subject]

        ratios = _runs(run)
    yield Figure(
        f"cache on / off, {_BRANCHES} x {_ALONE} alone",
        "x",
        tuple(ratios),
        note="throughput with the cache on over that with it off, in turn; 1 is as fast",
    )


def _memory(subject: Subject) -> Iterator[Figure]:
    """Slots of pages that hold no token, on a chat's traffic; of the books alone, which know no model."""
    shares = chat_waste(subject.parts.page_size)
    yield Figure(
        f"waste, pages of {subject.parts.page_size} tokens",
        "%",
        (100 * sum(shares) / len(shares),),
        note=f"of the slots that running chats hold, mean of {len(shares):,} steps",
    )


def _products(subject: Subject, num_rows: int) -> Iterator[Figure]:
    return product_figures(subject.parts.backend, subject.parts.products, num_rows, subject.limits)


def _attention(subject: Subject, name: str) -> Iterator[Figure]:
    parts = attention_cases(subject.chunk_size)[name]
    yield attention_figure(name, parts, subject.parts.backend, subject.parts.spec, subject.kv, subject.limits)


Case = Callable[[Subject], Iterator[Figure]]
CASES: dict[str, dict[str, Case]] = {
    "decode": {f"decode, {n} at once": partial(_decode, num_streams=n) for n in (1, 4, 16, 64)},
    "prefill": {f"prefill, {n:,} tokens": partial(_prefill, num_tokens=n) for n in (512, 2000, 8000)},
    "tree-search": {"tree search": _tree_search},
    "shared-prefix": {"step on a shared prefix": _shared_prefix},
    "no-share": {"nothing shared": _no_share},
    "memory": {"memory": _memory},
    "products": {f"products, {n} rows": partial(_products, num_rows=n) for n in ROWS},
    "attention": {name: partial(_attention, name=name) for name in attention_cases(1)},
}
KERNEL_CASES = ("products", "attention")
