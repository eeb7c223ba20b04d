"""What a step gives back, to the scheduler (``StepOutput``) and to the edge (``SequenceUpdate``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from ramet.core.ids import Float32, Int32, RequestId, SeqId
from ramet.core.request import FinishReason

__all__ = ["NOT_HELD", "NO_TOKEN_LEFT", "SequenceUpdate", "StepOutput", "TokenLogprobs"]

NO_TOKEN_LEFT = (
    "no token could be chosen: every token is masked, since what the grammar and allowed_token_ids leave is banned, or nothing; "
    "ask for less at once"
)
NOT_HELD = "the output could not be held to its grammar"
"""How the error of a sequence begins whose grammar asks too much of it.

Both are the request's own fault, and show only when its answer has come so far.
"""


@dataclass(frozen=True, slots=True, eq=False)
class TokenLogprobs:
    """Logprobs at one position: the token that stands there, and the best ones in falling order.

    Both of the model's raw distribution. ``rank`` is the token's, from 1.
    """

    token_id: int
    logprob: float
    rank: int
    top_ids: Int32
    top_logprobs: Float32


class StepOutput(msgspec.Struct, frozen=True, eq=False):
    """Results of one batch of R sampled rows. ``token_ids`` has one each, -1 where the row failed.

    ``logprobs`` has an entry for each sampled row, None where none was asked; ``prompt_logprobs`` one for each of the batch's
    ``prompt_logprob_rows``. ``errors`` maps a sampled row to what went wrong with it alone.
    """

    step: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs | None, ...]
    prompt_logprobs: tuple[TokenLogprobs, ...]
    errors: Mapping[int, str]


class SequenceUpdate(msgspec.Struct, frozen=True, eq=False):
    """News of one sequence after a step: the first tells that it has begun to run, the last one has ``finish_reason``.

    ``logprobs`` go with ``new_token_ids`` one to one when asked for, else empty. ``started_s`` is the engine clock's time at
    which the sequence was first admitted, ``num_cached_tokens`` what the cache gave it then; None where it never was.
    """

    request_id: RequestId
    seq_id: SeqId
    index: int
    new_token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    num_cached_tokens: int = 0
    started_s: float | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    error: str | None = None
