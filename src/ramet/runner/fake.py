"""A runner without a model: what it answers is a hash of the history that it reads through the page table.

Its KV memory holds one number a slot, which depends on the token there, its position and the number before it. A row's
logits are drawn from all the numbers at its sequence's positions up to its own. So a wrong page, one published before it was
filled, freed while in use or not copied changes the output, and the right output needs no page at all: it is what the same
request gives alone in an empty engine. The sampler is the real one. Time is virtual.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from ramet.core.batch import NO_MASKS, Batch
from ramet.core.ids import Float32, UInt32
from ramet.core.output import StepOutput
from ramet.errors import EngineDead
from ramet.kernels.registry import make_backend
from ramet.runner.inputs import check_batch
from ramet.runner.sampler import sample, token_logprobs

__all__ = ["FakeRunner", "StepCost", "VirtualClock", "no_faults"]

_Hashes = npt.NDArray[np.uint64]


class VirtualClock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        self._now_s += seconds

    pause = advance


@dataclass(frozen=True, slots=True)
class StepCost:
    """Time of a step: a fixed part, a part for each token computed and one for each token of KV read."""

    step_s: float = 1e-3
    token_s: float = 1e-4
    context_token_s: float = 1e-7

    def of(self, batch: Batch) -> float:
        return self.step_s + self.token_s * batch.num_tokens + self.context_token_s * int(batch.context_lens.sum())


def no_faults(batch: Batch) -> Mapping[int, str]:
    """Every row succeeds."""
    return {}


class FakeRunner:
    """A ``Runner`` over a pool of ``num_pages`` pages. Batches are computed in ``collect``, in the order of their launch.

    ``faults`` gives the errors of a batch's sampled rows, or raises to play a device that is gone. A batch that breaks the
    contract of ``Batch`` (slots that are not in the page table, a page written by one sequence and seen by another) raises
    ``EngineDead``.
    """

    def __init__(
        self,
        vocab_size: int,
        page_size: int,
        num_pages: int,
        clock: VirtualClock,
        cost: StepCost | None = None,
        faults: Callable[[Batch], Mapping[int, str]] = no_faults,
    ) -> None:
        self._token_salts = _mix(np.arange(1, vocab_size + 1, dtype=np.uint64))
        self._page_size = page_size
        self._num_pages = num_pages
        self._kv: _Hashes = np.zeros(num_pages * page_size, np.uint64)
        self._clock = clock
        self._cost = cost or StepCost()
        self._faults = faults
        self._backend = make_backend("cpu", threads=1)
        self.launched: deque[Batch] = deque()

    def launch(self, batch: Batch) -> None:
        self.launched.append(batch)

    def collect(self, masks: UInt32 = NO_MASKS) -> StepOutput:
        batch = self.launched.popleft()
        sampling = msgspec.structs.replace(batch.sampling, masks=masks)
        check_batch(batch, self._page_size, self._num_pages)
        _check_writers(batch)
        errors = dict(self._faults(batch))
        self._copy_pages(batch)
        logits = self._logits(batch)
        choices = sample(self._backend, logits[batch.sample_rows], sampling, range(len(batch.sample_rows)))
        errors.update({row: choice.error for row, choice in enumerate(choices) if choice.error is not None})
        wanted = batch.prompt_logprob_targets, batch.prompt_logprob_k
        prompt_logprobs = token_logprobs(self._backend, logits[batch.prompt_logprob_rows], *wanted)
        self._clock.advance(self._cost.of(batch))
        return StepOutput(
            step=batch.step,
            token_ids=tuple(-1 if row in errors else choice.token_id for row, choice in enumerate(choices)),
            logprobs=tuple(None if row in errors else choice.logprobs for row, choice in enumerate(choices)),
            prompt_logprobs=tuple(prompt_logprobs),
            errors=errors,
        )

    def _copy_pages(self, batch: Batch) -> None:
        copies = batch.page_copies
        for src, dst, count in zip(copies.src.tolist(), copies.dst.tolist(), copies.num_tokens.tolist(), strict=True):
            from_slot, to_slot = src * self._page_size, dst * self._page_size
            self._kv[to_slot : to_slot + count] = self._kv[from_slot : from_slot + count]

    def _logits(self, batch: Batch) -> Float32:
        """float32[T, V] in [0, 8)."""
        logits = np.empty((batch.num_tokens, len(self._token_salts)), np.float32)
        for b in range(batch.num_seqs):
            first_row, end_row = int(batch.query_indptr[b]), int(batch.query_indptr[b + 1])
            rows = slice(first_row, end_row)
            context_len = int(batch.context_lens[b])
            pages = batch.page_ids[batch.page_indptr[b] : batch.page_indptr[b + 1]]
            table = (pages[:, None] * self._page_size + np.arange(self._page_size)).ravel()[:context_len]
            start = context_len - (end_row - first_row)
            before = int(self._kv[table[start - 1]]) if start else 0
            self._kv[batch.slots[rows]] = _chain(before, batch.token_ids[rows].tolist(), start)
            seen = _mix(self._kv[table] + np.arange(context_len, dtype=np.uint64)).cumsum(dtype=np.uint64)[start:]
            logits[rows] = (_mix(seen[:, None] ^ self._token_salts) >> np.uint64(41)) * np.float32(2.0**-20)
        return logits


def _check_writers(batch: Batch) -> None:
    """Raise ``EngineDead`` where one sequence writes a page that another one sees."""
    writers: dict[int, int] = {}
    for b in range(batch.num_seqs):
        slots = batch.slots[batch.query_indptr[b] : batch.query_indptr[b + 1]]
        writers.update(dict.fromkeys((slots // batch.page_size).tolist(), b))
    for b in range(batch.num_seqs):
        for page_id in batch.page_ids[batch.page_indptr[b] : batch.page_indptr[b + 1]].tolist():
            if writers.get(page_id, b) != b:
                raise EngineDead(f"step {batch.step}: page {page_id} is written while sequence {batch.seq_ids[b]} sees it")


def _mix(x: _Hashes) -> _Hashes:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): every bit of the input reaches every bit of the output."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _chain(before: int, token_ids: list[int], start: int) -> list[int]:
    """The numbers of tokens from position ``start`` on, each a hash of the one before it."""
    numbers = []
    for position, token_id in enumerate(token_ids, start):
        before = (before ^ (token_id + 1) * 0x9E3779B97F4A7C15 ^ position << 40) * 0xD6E8FEB86659FD93 % 2**64
        before ^= before >> 32
        numbers.append(before)
    return numbers
