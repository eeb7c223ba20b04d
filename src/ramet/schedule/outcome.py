"""What a step's sampled rows mean for one sequence: which of its guesses held, and whether it ends there."""

from __future__ import annotations

from dataclasses import dataclass, field

from ramet.core.output import StepOutput, TokenLogprobs
from ramet.core.request import FinishReason
from ramet.errors import shown
from ramet.schedule.build import Chunk
from ramet.schedule.masks import NOT_READY, accept_token

__all__ = ["Outcome", "own_fault", "take_tokens"]


@dataclass(slots=True)
class Outcome:
    """``token_ids`` are the new tokens, appended to the sequence already; ``finish_reason`` is not yet set on it.

    Of a sequence that fails the tokens before the fault are good ones. None and no error: its grammar was not ready.
    """

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    error: str | None = None


def take_tokens(chunk: Chunk, output: StepOutput, row: int) -> Outcome:
    """Append what the model chose, row by row from ``row`` on, as long as each row's guess is what the row before it chose.

    A row was computed behind the guesses before it. So the first choice that differs from its guess is still the model's own,
    and all rows behind it are of a text that was not written.
    """
    outcome = Outcome()
    seq = chunk.sequence
    for place in range(len(chunk.drafts) + 1):
        if (error := output.errors.get(row + place)) is not None:
            outcome.error = None if error == NOT_READY else error
            break
        token_id = output.token_ids[row + place]
        is_stop = token_id in seq.request.stop_ids and seq.num_output_tokens >= seq.request.sampling.min_tokens
        is_complete, error = (False, None) if is_stop else accept_token(seq, token_id)
        if error is not None:
            outcome.error = None if error == NOT_READY else error
            break
        seq.tokens.append(token_id)
        outcome.token_ids.append(token_id)
        if (logprobs := output.logprobs[row + place]) is not None:
            outcome.logprobs.append(logprobs)
        if is_stop or is_complete:
            outcome.finish_reason = "stop"
            outcome.stop_token_id = token_id if is_stop else None
            break
        if seq.num_output_tokens >= seq.request.max_tokens:
            outcome.finish_reason = "length"
            break
        if place < len(chunk.drafts) and token_id != chunk.drafts[place]:
            break
    _teach(chunk, outcome)
    return outcome


def _teach(chunk: Chunk, outcome: Outcome) -> None:
    drafter = chunk.sequence.drafter
    if drafter is None:
        return
    try:
        drafter.learn(len(chunk.drafts), outcome.token_ids)
    except Exception as error:  # whatever it is, it must not reach the batch mates
        outcome.error = outcome.error or own_fault(error)


def own_fault(error: Exception) -> str:
    return f"a defect met this sequence: {shown(error, 200)}"
