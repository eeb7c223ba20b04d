"""Chooses the next tokens. Every result is a function of its own row of logits and parameters alone (docs/design/exactness.md).

The order is the one that vLLM documents:

1. logprobs of the raw logits, for those who asked;
2. ids outside ``allowed`` or the grammar's mask and ``banned`` ids are out (-inf), whatever their bias; ``bias`` is added;
3. repetition (over prompt and output), frequency and presence penalties (over the output);
4. temperature 0: the largest logit, the lowest id among equals. Else logits are divided by the temperature;
5. ``min_p``, then ``top_k``, then ``top_p`` of what is left; among equal logits lower ids are kept first;
6. one draw: inverse CDF over token ids in rising order.

Sums that decide something are float64 over one contiguous row, in numpy's fixed order; they depend neither on the number of
rows nor on where a row lies in memory. Random numbers are Philox4x64-10 (Salmon et al., 2011), keyed by seed and sample
index, the counter being the token's absolute position, so a draw can be repeated without the draws before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ramet.core.batch import RowSampling
from ramet.core.ids import Float32
from ramet.core.output import NO_TOKEN_LEFT, TokenLogprobs

__all__ = ["Choice", "sample", "token_logprobs", "uniform"]

_Float64: TypeAlias = npt.NDArray[np.float64]
_Ids: TypeAlias = npt.NDArray[np.intp]

# Where a nucleus is looked for, as shares of the largest weight: sorting the few tokens above a floor is far cheaper than sorting
# the vocabulary, and every floor that holds the nucleus gives the same one.
_NUCLEUS_FLOORS = (2.0**-8, 2.0**-16, 0.0)


class Choice(NamedTuple):
    """What a row got. ``token_id`` is -1 where ``error`` says what went wrong."""

    token_id: int
    logprobs: TokenLogprobs | None = None
    error: str | None = None


def sample(logits: Float32, sampling: RowSampling, rows: Sequence[int]) -> list[Choice]:
    """Choose a token for each of float32[len(rows), V]; ``rows[i]`` is the place in ``sampling`` of logits row i.

    Never raises for the content of a row: a fault of one is its ``Choice.error`` and touches no other.
    """
    finite = np.logical_and.reduce(np.isfinite(logits), axis=1)
    best = logits.argmax(axis=1)
    plain = _is_plain_greedy(sampling)
    return [
        _choose(logits[i], sampling, row, int(best[i]) if plain[row] else None) if finite[i] else _not_finite(logits[i])
        for i, row in enumerate(rows)
    ]


def token_logprobs(logits: Float32, token_id: int, num_best: int) -> TokenLogprobs:
    """Raw logprobs of float32[V] at ``token_id`` and of the ``num_best`` best, ties by lower id.

    logprob = (x - max) - log(sum(exp(x - max))), in float64, rounded to float32 at the end. Equal logits rank by id.
    """
    if not 0 <= token_id < len(logits):
        raise IndexError(f"token {token_id} is not in the model's vocabulary of {len(logits)}")
    shifted = np.subtract(logits, logits.max(), dtype=np.float64)
    log_total = np.log(np.exp(shifted).sum())
    best = _best_ids(logits, min(num_best, len(logits)))
    chosen = logits[token_id]
    num_better = np.count_nonzero(logits > chosen) + np.count_nonzero(logits[:token_id] == chosen)
    return TokenLogprobs(
        token_id=token_id,
        logprob=float(np.float32(shifted[token_id] - log_total)),
        rank=1 + int(num_better),
        top_ids=best.astype(np.int32),
        top_logprobs=(shifted[best] - log_total).astype(np.float32),
    )


def uniform(seed: int, sample_index: int, position: int) -> float:
    """The request's random number in [0, 1) for the token at ``position``: 53 bits of Philox4x64-10."""
    bits = int(np.random.Philox(key=seed | sample_index << 64, counter=position).random_raw())
    return (bits >> 11) * 2.0**-53


class _NoneLeft(Exception):
    """Every token is masked."""


def _choose(logits: Float32, sampling: RowSampling, row: int, greedy_id: int | None) -> Choice:
    try:
        token_id = _pick(logits, sampling, row) if greedy_id is None else greedy_id
        num_best = int(sampling.num_logprobs[row])
        return Choice(token_id, token_logprobs(logits, token_id, num_best) if num_best >= 0 else None)
    except _NoneLeft:
        return Choice(-1, error=NO_TOKEN_LEFT)
    except Exception as error:  # one row's fault must not reach its batch mates
        return Choice(-1, error=f"no token could be chosen: {error}")


def _not_finite(logits: Float32) -> Choice:
    num_bad = int(np.count_nonzero(~np.isfinite(logits)))
    return Choice(-1, error=f"the model gave {num_bad} of {len(logits)} logits that are not finite")


def _is_plain_greedy(sampling: RowSampling) -> npt.NDArray[np.bool_]:
    """bool[R]: rows whose answer is the argmax of the raw logits."""
    plain: npt.NDArray[np.bool_] = (
        (sampling.temperature == 0)
        & (sampling.repetition_penalty == 1)
        & (sampling.frequency_penalty == 0)
        & (sampling.presence_penalty == 0)
        & (sampling.bias_indptr[1:] == sampling.bias_indptr[:-1])
        & (sampling.banned_indptr[1:] == sampling.banned_indptr[:-1])
        & (sampling.allowed_indptr[1:] == sampling.allowed_indptr[:-1])
        & (sampling.mask_indptr[1:] == sampling.mask_indptr[:-1])
    )
    return plain


def _pick(logits: Float32, sampling: RowSampling, row: int) -> int:
    scores = _scores(logits, sampling, row)
    largest = scores.max()
    if largest == -np.inf:
        raise _NoneLeft
    temperature = float(sampling.temperature[row])
    if temperature == 0:
        return int(scores.argmax())
    min_p, top_k, top_p = float(sampling.min_p[row]), int(sampling.top_k[row]), float(sampling.top_p[row])
    kept: list[_Ids] = []  # each filter's survivors, rising, as places among the survivors of the one before
    if 0 < top_k < len(scores):
        kept.append(np.sort(_best_ids(scores, top_k)))
        scores = scores[kept[-1]]
    weights = _weights(scores, largest, temperature)
    if min_p > 0:
        kept.append(np.flatnonzero(weights >= min_p))
        weights = weights[kept[-1]]
    if top_p < 1:
        kept.append(_nucleus(weights, top_p))
        weights = weights[kept[-1]]
    place = _draw(weights, uniform(int(sampling.seed[row]), int(sampling.sample_index[row]), int(sampling.counter[row])))
    for survivors in reversed(kept):
        place = int(survivors[place])
    return place


def _weights(scores: _Float64, largest: float, temperature: float) -> _Float64:
    """Overwrites scores with probabilities over that of the most likely token, whose weight is exactly 1."""
    scores -= largest
    scores /= temperature
    return np.exp(scores, out=scores)


def _scores(logits: Float32, sampling: RowSampling, row: int) -> _Float64:
    """float64[V]: the logits after bias, masks and penalties; -inf where a token may not be chosen.

    Masks come last here: nothing before them can lift -inf, so the order among the three does not matter.
    """
    scores: _Float64 = logits.astype(np.float64)
    bias = slice(sampling.bias_indptr[row], sampling.bias_indptr[row + 1])
    scores[sampling.bias_ids[bias]] += sampling.bias_values[bias]
    _penalise(scores, sampling, row)
    allowed = sampling.allowed_ids[sampling.allowed_indptr[row] : sampling.allowed_indptr[row + 1]]
    if len(allowed):
        masked = np.full_like(scores, -np.inf)
        masked[allowed] = scores[allowed]
        scores = masked
    for mask in sampling.masks[sampling.mask_indptr[row] : sampling.mask_indptr[row + 1]]:
        may_come = np.unpackbits(mask.view(np.uint8), count=len(scores), bitorder="little").view(np.bool_)
        scores = np.where(may_come, scores, -np.inf)
    scores[sampling.banned_ids[sampling.banned_indptr[row] : sampling.banned_indptr[row + 1]]] = -np.inf
    return scores


def _penalise(scores: _Float64, sampling: RowSampling, row: int) -> None:
    """Repetition divides positive scores and multiplies negative ones (CTRL); the other two subtract (OpenAI)."""
    history = sampling.history_ids[sampling.history_indptr[row] : sampling.history_indptr[row + 1]]
    repetition = float(sampling.repetition_penalty[row])
    if repetition != 1:
        seen = np.flatnonzero(np.bincount(history))
        scores[seen] = np.where(scores[seen] > 0, scores[seen] / repetition, scores[seen] * repetition)
    frequency, presence = float(sampling.frequency_penalty[row]), float(sampling.presence_penalty[row])
    if frequency != 0 or presence != 0:
        counts = np.bincount(history[sampling.history_prompt_lens[row] :])
        used = np.flatnonzero(counts)
        scores[used] -= frequency * counts[used] + presence


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


def _draw(weights: _Float64, u: float) -> int:
    """The first place whose cumulated weight exceeds ``u`` of the total.

    It exists and its weight is not 0: u is at most 1 - 2**-53, so u * total is below the total even after rounding.
    """
    reached = weights.cumsum()
    return int(reached.searchsorted(u * reached[-1], side="right"))


def _best_ids(logits: Float32 | _Float64, count: int) -> _Ids:
    """Ids of the ``count`` largest, falling, equal ones by rising id."""
    if count == 0:
        return np.empty(0, np.intp)
    cut = np.partition(logits, len(logits) - count)[len(logits) - count]
    ids = np.flatnonzero(logits >= cut)
    order: _Ids = ids[np.argsort(-logits[ids], kind="stable")[:count]]
    return order
