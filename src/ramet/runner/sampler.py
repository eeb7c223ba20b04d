"""Chooses the next tokens. Every result is a function of its own row of logits and parameters alone (docs/design/exactness.md).

The arithmetic is the backend's (``kernels/reference_sampling.py`` defines it); here are the random numbers that it is given and
the words for what went wrong. The numbers are Philox4x64-10 (Salmon et al., 2011), keyed by seed and sample index, the counter
being the token's absolute position, so a draw can be repeated without the draws before it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ramet import _native
from ramet.core.batch import RowSampling
from ramet.core.ids import Float32, Int32
from ramet.core.output import NO_TOKEN_LEFT, TokenLogprobs
from ramet.kernels.backend import Backend, Choosing, Picks, RowFault, RowLogprobs

__all__ = ["Choice", "choosing_of", "sample", "token_logprobs", "told", "uniforms"]


class Choice(NamedTuple):
    """What a row got. ``token_id`` is -1 where ``error`` says what went wrong."""

    token_id: int
    logprobs: TokenLogprobs | None = None
    error: str | None = None


def sample(backend: Backend, logits: Float32, sampling: RowSampling, rows: range) -> list[Choice]:
    """Choose a token for each of float32[len(rows), V]; ``rows``, neighbours, are their places in ``sampling``.

    Never raises for the content of a row: a fault of one is its ``Choice.error`` and touches no other.
    """
    choosing = choosing_of(sampling).of(slice(rows.start, rows.stop))
    return told(backend, logits, backend.sample(logits, choosing), choosing)


def choosing_of(sampling: RowSampling) -> Choosing:
    """How tokens are chosen for all sampled rows of a step."""
    draws = uniforms(sampling.seed, sampling.sample_index, sampling.counter)
    return Choosing(sampling, np.arange(len(draws), dtype=np.int32), draws)


def told(backend: Backend, logits: Float32, picks: Picks, choosing: Choosing) -> list[Choice]:
    """What was chosen of float32[R, V], with the logprobs that are wanted, and what went wrong."""
    choices = [Choice(token_id) for token_id in picks.token_ids.tolist()]
    num_best_of = choosing.sampling.num_logprobs.tolist()  # a list: behind the kernels numpy's indexing takes 20 us
    wanted = [num_best_of[row] for row in choosing.rows.tolist()]
    if max(wanted, default=-1) >= 0:
        num_best = np.where(picks.token_ids < 0, np.int32(-1), np.array(wanted, np.int32))
        found = backend.logprobs(logits, picks.token_ids, num_best)
        for i in np.flatnonzero(num_best >= 0).tolist():
            token_id = choices[i].token_id
            choices[i] = Choice(token_id, _told(found, i, token_id, int(num_best[i])))
    for i, fault in enumerate(picks.faults.tolist()):
        if fault:
            choices[i] = Choice(-1, error=_fault(RowFault(fault), int(picks.fault_sizes[i]), logits.shape[1]))
    return choices


def token_logprobs(backend: Backend, logits: Float32, token_ids: Int32, num_best: Int32) -> list[TokenLogprobs]:
    """Raw logprobs of each of float32[R, V] at ``token_ids[i]`` and of the ``num_best[i]`` best, ties by lower id.

    A row whose logits are not finite gives NaN and no best tokens. Raises ``IndexError`` for a token outside the vocabulary.
    """
    found = backend.logprobs(logits, token_ids, num_best)
    wanted = zip(token_ids.tolist(), num_best.tolist(), strict=True)
    return [_told(found, i, token_id, count) for i, (token_id, count) in enumerate(wanted)]


def uniforms(seeds: npt.NDArray[np.uint64], sample_indices: Int32, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Each request's random number in [0, 1) for its token at a position: 53 bits of Philox4x64-10."""
    out = np.empty(len(seeds), np.float64)
    _native.uniforms(seeds, sample_indices, positions, out)
    return out


def _told(found: RowLogprobs, i: int, token_id: int, num_best: int) -> TokenLogprobs:
    logprob = float(found.logprobs[i])
    count = num_best if logprob == logprob else 0  # NaN: the row has no best tokens
    rank = int(found.ranks[i])
    return TokenLogprobs(token_id, logprob, rank, found.top_ids[i, :count], found.top_logprobs[i, :count])


def _fault(fault: RowFault, size: int, vocab_size: int) -> str:
    if fault == RowFault.NONE_LEFT:
        return NO_TOKEN_LEFT
    if fault == RowFault.NOT_FINITE:
        return f"the model gave {size} of {vocab_size} logits that are not finite"
    return f"no token could be chosen: token {size} is out of bounds, the model's vocabulary has {vocab_size}"
