"""The definition of how a token is chosen, in numpy. The order is the one that vLLM documents:

1. ids outside ``allowed`` or the grammar's mask and ``banned`` ids are out (-inf), whatever their bias; ``bias`` is added;
2. repetition (over prompt and output), frequency and presence penalties (over the output);
3. temperature 0: the largest score, the lowest id among equals. Else scores are divided by the temperature;
4. ``min_p``, then ``top_k``, then ``top_p`` of what is left; among equal ones lower ids are kept first;
5. one draw: inverse CDF over token ids in rising order.

Scores are float32: bias and penalties are each computed in float64 and rounded once, so two backends agree on them, on greedy
choices and on ``top_k`` to the bit. Weights are float64 here; a backend may have them in float32, which moves the edges of
``min_p``, ``top_p`` and of the draw by about 1e-6 of a probability. Logprobs are of the raw logits.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ramet.core.batch import RowSampling
from ramet.core.ids import Float32, Int32
from ramet.kernels.backend import Choosing, Picks, RowFault, RowLogprobs

__all__ = ["logprob_rows", "sample_rows"]

_Float64: TypeAlias = npt.NDArray[np.float64]
_Ids: TypeAlias = npt.NDArray[np.intp]

_LARGEST = float(np.finfo(np.float32).max)

# Where a nucleus is looked for, as shares of the largest weight: sorting the few tokens above a floor is far cheaper than sorting
# the vocabulary, and every floor that holds the nucleus gives the same one.
_NUCLEUS_FLOORS = (2.0**-8, 2.0**-16, 0.0)


def sample_rows(logits: Float32, choosing: Choosing) -> Picks:
    """What ``Backend.sample`` does."""
    picks = Picks.empty(len(logits))
    sampling, rows, draws = choosing
    for i, (row, draw) in enumerate(zip(rows.tolist(), draws.tolist(), strict=True)):
        picks.token_ids[i], picks.faults[i], picks.fault_sizes[i] = _pick(logits[i], sampling, row, draw)
    return picks


def logprob_rows(logits: Float32, token_ids: Int32, num_best: Int32) -> RowLogprobs:
    """What ``Backend.logprobs`` does: logprob = (x - max) - log(sum(exp(x - max))), in float64, rounded to float32 at the end."""
    vocab_size = logits.shape[1]
    found = RowLogprobs.empty(num_best, vocab_size)
    for i, (token_id, wanted) in enumerate(zip(token_ids.tolist(), num_best.tolist(), strict=True)):
        if wanted < 0:
            continue
        if not 0 <= token_id < vocab_size:
            raise IndexError(f"token {token_id} is not in the model's vocabulary of {vocab_size}")
        if not np.isfinite(logits[i]).all():
            found.logprobs[i], found.ranks[i] = np.nan, vocab_size
            continue
        chosen = logits[i, token_id]
        shifted = np.subtract(logits[i], logits[i].max(), dtype=np.float64)
        log_total = np.log(np.exp(shifted).sum())
        best = _best_ids(logits[i], min(wanted, vocab_size))
        with np.errstate(over="ignore"):  # the difference of two huge logits may be -inf in float32
            found.logprobs[i] = shifted[token_id] - log_total
            found.top_logprobs[i, : len(best)] = shifted[best] - log_total
        found.ranks[i] = 1 + np.count_nonzero(logits[i] > chosen) + np.count_nonzero(logits[i, :token_id] == chosen)
        found.top_ids[i, : len(best)] = best
    return found


def _pick(logits: Float32, sampling: RowSampling, row: int, u: float) -> tuple[int, RowFault, int]:
    """Token id, fault and what ``Picks`` says of its size."""
    num_bad = int(np.count_nonzero(~np.isfinite(logits)))
    if num_bad:
        return -1, RowFault.NOT_FINITE, num_bad
    unknown = _unknown_ids(sampling, row, len(logits))
    if len(unknown):
        return -1, RowFault.UNKNOWN_ID, int(unknown[0])
    scores = _scores(logits, sampling, row)
    if scores.max() == -np.inf:
        return -1, RowFault.NONE_LEFT, 0
    if sampling.temperature[row] == 0:
        return int(scores.argmax()), RowFault.NONE, 0
    return _drawn(scores, sampling, row, u), RowFault.NONE, 0


def _drawn(scores: Float32, sampling: RowSampling, row: int, u: float) -> int:
    min_p, top_k, top_p = float(sampling.min_p[row]), int(sampling.top_k[row]), float(sampling.top_p[row])
    largest = scores.max()
    kept: list[_Ids] = []  # each filter's survivors, rising, as places among the survivors of the one before
    if 0 < top_k < len(scores):
        kept.append(np.sort(_best_ids(scores, top_k)))
        scores = scores[kept[-1]]
    weights = np.exp(np.subtract(scores, largest, dtype=np.float64) / float(sampling.temperature[row]))
    if min_p > 0:
        kept.append(np.flatnonzero(weights >= min_p))
        weights = weights[kept[-1]]
    if top_p < 1:
        kept.append(_nucleus(weights, top_p))
        weights = weights[kept[-1]]
    place = _place(weights, u)
    for survivors in reversed(kept):
        place = int(survivors[place])
    return place


def _ragged(indptr: Int32, values: npt.NDArray[np.generic], row: int) -> npt.NDArray[np.generic]:
    return values[indptr[row] : indptr[row + 1]]


def _unknown_ids(sampling: RowSampling, row: int, vocab_size: int) -> npt.NDArray[np.generic]:
    """The row's ids that are not of the vocabulary."""
    ids = np.concatenate(
        [
            _ragged(sampling.bias_indptr, sampling.bias_ids, row),
            _ragged(sampling.allowed_indptr, sampling.allowed_ids, row),
            _ragged(sampling.history_indptr, sampling.history_ids, row),
            _ragged(sampling.banned_indptr, sampling.banned_ids, row),
        ]
    )
    return ids[(ids < 0) | (ids >= vocab_size)]


def _scores(logits: Float32, sampling: RowSampling, row: int) -> Float32:
    """float32[V]: the logits after bias, masks and penalties; -inf where a token may not be chosen.

    Masks come last here: nothing before them can lift -inf, so the order among the three does not matter.
    """
    scores: Float32 = logits.copy()
    bias = slice(sampling.bias_indptr[row], sampling.bias_indptr[row + 1])
    ids = sampling.bias_ids[bias]
    scores[ids] = _rounded(scores[ids].astype(np.float64) + sampling.bias_values[bias])
    _penalise(scores, sampling, row)
    may_come = np.ones(len(scores), np.bool_)
    allowed = sampling.allowed_ids[sampling.allowed_indptr[row] : sampling.allowed_indptr[row + 1]]
    if len(allowed):
        may_come[:] = False
        may_come[allowed] = True
    for mask in sampling.masks[sampling.mask_indptr[row] : sampling.mask_indptr[row + 1]]:
        may_come &= np.unpackbits(mask.view(np.uint8), count=len(scores), bitorder="little").view(np.bool_)
    may_come[sampling.banned_ids[sampling.banned_indptr[row] : sampling.banned_indptr[row + 1]]] = False
    scores[~may_come] = -np.inf
    return scores


def _penalise(scores: Float32, sampling: RowSampling, row: int) -> None:
    """Repetition divides positive scores and multiplies negative ones (CTRL); the other two subtract (OpenAI)."""
    history = sampling.history_ids[sampling.history_indptr[row] : sampling.history_indptr[row + 1]]
    repetition = float(sampling.repetition_penalty[row])
    frequency, presence = float(sampling.frequency_penalty[row]), float(sampling.presence_penalty[row])
    if repetition == 1 and frequency == 0 and presence == 0:
        return
    seen = np.unique(history)
    new = scores[seen].astype(np.float64)
    new = np.where(new > 0, new / repetition, new * repetition)
    counts = np.bincount(history[sampling.history_prompt_lens[row] :], minlength=len(scores))[seen]
    scores[seen] = _rounded(new - np.where(counts > 0, frequency * counts + presence, 0))


def _rounded(scores: _Float64) -> Float32:
    """To float32, within its range: a token that may be chosen stays so."""
    return np.clip(scores, -_LARGEST, _LARGEST).astype(np.float32)


def _nucleus(weights: _Float64, top_p: float) -> _Ids:
    """Places of the fewest largest weights whose sum reaches ``top_p`` of the total, rising; of equal ones the first."""
    wanted = top_p * weights.sum()
    for floor in _NUCLEUS_FLOORS:
        falling = np.sort(weights[weights > floor])[::-1]
        reached = falling.cumsum()
        if reached[-1] >= wanted:
            break
    size = min(1 + int(reached.searchsorted(wanted)), len(falling))
    smallest = falling[size - 1]
    places: _Ids = np.flatnonzero(weights >= smallest)
    num_surplus = len(places) - size
    if num_surplus:
        places = np.delete(places, np.flatnonzero(weights[places] == smallest)[-num_surplus:])
    return places


def _place(weights: _Float64, u: float) -> int:
    """The first place whose cumulated weight exceeds ``u`` of the total.

    It exists and its weight is not 0: u is at most 1 - 2**-53, so u * total is below the total even after rounding.
    """
    reached = weights.cumsum()
    return int(reached.searchsorted(u * reached[-1], side="right"))


def _best_ids(logits: Float32, count: int) -> _Ids:
    """Ids of the ``count`` largest, falling, equal ones by rising id."""
    if count == 0:
        return np.empty(0, np.intp)
    cut = np.partition(logits, len(logits) - count)[len(logits) - count]
    ids = np.flatnonzero(logits >= cut)
    order: _Ids = ids[np.argsort(-logits[ids], kind="stable")[:count]]
    return order
