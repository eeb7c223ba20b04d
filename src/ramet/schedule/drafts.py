"""Guesses that a step verifies: who makes them, and which ones are worth their rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ramet.core.ports import Drafter
from ramet.core.request import Sequence
from ramet.kv.manager import KVManager
from ramet.schedule.build import Chunk
from ramet.schedule.outcome import own_fault

__all__ = ["Drafters", "no_drafts", "plan_drafts"]

Drafters: TypeAlias = Callable[[Sequence], Drafter | None]
"""Makes a new sequence's drafter; None where nothing is guessed for it."""

_FIXED_ROWS = 8  # what a step costs whatever is in it, in rows


def no_drafts(seq: Sequence) -> Drafter | None:
    """Every token is computed behind those before it."""
    return None


def plan_drafts(chunks: list[Chunk], budget: int, kv: KVManager) -> tuple[list[Chunk], list[tuple[Sequence, str]]]:
    """The chunks with up to ``budget`` drafts, which are in flight from now on, and the sequences that failed of their drafters.

    They take what is left of the step and of the pool: nobody waits, shrinks or is preempted for them.
    """
    planned, failed = [], []
    least = _least_trust(sum(1 for chunk in chunks if chunk.samples))
    for chunk in chunks:
        seq = chunk.sequence
        drafts: tuple[int, ...] = ()
        if seq.drafter is not None and chunk.samples:
            books = kv.books(seq)
            try:
                most = min(budget, seq.request.max_tokens - seq.num_output_tokens - 1)
                drafts = tuple(seq.drafter.propose(most, least)) if most > 0 else ()
                if not kv.grow(seq, len(drafts)):
                    drafts = ()
            except Exception as error:
                if kv.books(seq) != books:
                    raise
                failed.append((seq, own_fault(error)))
        seq.num_in_flight_tokens += len(drafts)
        budget -= len(drafts)
        planned.append(chunk._replace(drafts=drafts) if drafts else chunk)
    return planned, failed


def _least_trust(num_rows: int) -> float:
    """How sure a guess must be to be worth a row, where ``num_rows`` are sampled anyway.

    One that holds saves its sequence a step: a row, and a share of the step's fixed part, which is small where many share it. One
    that fails costs a row.
    """
    return num_rows / (num_rows + _FIXED_ROWS)
