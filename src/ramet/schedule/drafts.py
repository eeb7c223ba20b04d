"""Guesses that a step verifies: who makes them, and which ones are worth their rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import TypeVar

from ramet.core.ports import Draft, Drafter
from ramet.core.request import Sequence
from ramet.kv.manager import KVManager
from ramet.schedule.build import Chunk
from ramet.schedule.outcome import own_fault

__all__ = ["NO_DRAFTS", "Drafters", "plan_drafts"]

_T = TypeVar("_T")
_LEAST = 0.2  # what is less likely is not asked for
_FIXED_ROWS = 7  # what a step costs whatever is in it, in rows: 4 with vectors, some 10 with tiles
_FEW_ROWS = 4  # cost what one does: the time goes to reading weights
_BLOCK_ROWS = 16  # kernels take so many at a time: of a row half the cost is its block's


@dataclass(frozen=True, slots=True)
class Drafters:
    """``make`` gives a new sequence's drafter; None where nothing is guessed for it. ``forget`` drops all that drafters learn of
    each other's sequences, so that those made from then on guess what they would in a new engine. Those that run
    may teach what they knew."""

    make: Callable[[Sequence], Drafter | None]
    forget: Callable[[], None] = lambda: None


NO_DRAFTS = Drafters(lambda seq: None)
"""Every token is computed behind those before it."""


def plan_drafts(chunks: list[Chunk], budget: int, kv: KVManager) -> tuple[list[Chunk], list[tuple[Sequence, str]]]:
    """The chunks with up to ``budget`` drafts, which are in flight from now on, and the sequences that failed of their drafters.

    They take what is left of the step and of the pool: nobody waits, shrinks or is preempted for them.
    """
    if budget <= 0 or not any(chunk.samples and chunk.sequence.drafter for chunk in chunks):
        return chunks, []
    planned = list(chunks)
    failed: list[tuple[Sequence, str]] = []
    offers: dict[int, list[Draft]] = {}
    num_sampled, num_rows = sum(chunk.samples for chunk in chunks), sum(chunk.num_tokens for chunk in chunks)
    least = max(_LEAST, num_sampled / _cost(num_sampled) / 2)
    for i, chunk in enumerate(chunks):
        if chunk.samples and chunk.sequence.drafter is not None:
            offers[i] = _own(chunk.sequence, partial(_offer, chunk.sequence, budget, least), kv, failed) or []
    for i, count in _worth(offers, budget, num_sampled, num_rows).items():
        seq = chunks[i].sequence
        if _own(seq, partial(kv.grow, seq, count), kv, failed):
            planned[i] = chunks[i]._replace(drafts=tuple([draft.token_id for draft in offers[i][:count]]))
            seq.num_in_flight_tokens += count
    return planned, failed


def _offer(seq: Sequence, budget: int, least: float) -> list[Draft]:
    most = min(budget, seq.request.max_tokens - seq.num_output_tokens - 1)
    return seq.drafter.propose(most, least) if seq.drafter is not None and most > 0 else []


def _own(seq: Sequence, work: Callable[[], _T], kv: KVManager, failed: list[tuple[Sequence, str]]) -> _T | None:
    """What ``work`` gives; a fault of it that has changed no books is the sequence's own."""
    books = kv.books(seq)
    try:
        return work()
    except Exception as error:
        if kv.books(seq) != books:
            raise
        failed.append((seq, own_fault(error)))
        return None


def _worth(offers: Mapping[int, list[Draft]], budget: int, num_sampled: int, num_rows: int) -> Counter[int]:
    """How many of each offer to verify, so that the step is likely to give the most tokens for what it costs.

    Without drafts it samples ``num_sampled`` tokens and has ``num_rows`` rows; prompts among them cost what they cost.
    """
    drafts = sorted([(draft.likelihood, i) for i, offer in offers.items() for draft in offer], key=itemgetter(0), reverse=True)
    cost_of_prompts = _cost(num_rows) - _cost(num_sampled)
    gain = float(num_sampled)
    count, best = 0, gain / _cost(num_sampled)
    for place, (likelihood, _) in enumerate(drafts[:budget], start=1):
        gain += likelihood
        rate = gain / (_cost(num_rows + place) - cost_of_prompts)
        if rate > best:
            count, best = place, rate
    return Counter([i for _, i in drafts[:count]])


def _cost(num_rows: int) -> float:
    """Of a step, in rows."""
    num_rows = max(num_rows, _FEW_ROWS)
    in_blocks = num_rows if num_rows <= _BLOCK_ROWS else -(-num_rows // _BLOCK_ROWS) * _BLOCK_ROWS
    return _FIXED_ROWS + (num_rows + in_blocks) / 2
