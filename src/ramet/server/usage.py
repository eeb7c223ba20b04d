"""What a request took: tokens, and time by its parts."""

from __future__ import annotations

from collections.abc import Sequence

from ramet.engine.assemble import Usage
from ramet.server.generation import Generation
from ramet.server.schemas.openai import Timings

__all__ = ["summed_usage", "timings_of"]


def summed_usage(generations: Sequence[Generation]) -> Usage:
    """The counts so far of a request's prompts together; each prompt counts once, however many answers it has."""
    total = Usage(prompt_tokens=0)
    for generation in generations:
        usage = generation.output.usage
        total.prompt_tokens += usage.prompt_tokens
        total.cached_tokens += usage.cached_tokens
        total.completion_tokens += usage.completion_tokens
    return total


def timings_of(generations: Sequence[Generation]) -> Timings:
    """Of finished generations. What was never begun has no time of its own: a prompt without output is all prefill."""
    usage = summed_usage(generations)
    arrived = min(generation.request.arrival_s for generation in generations)
    ended = max(generation.finished_s or arrived for generation in generations)
    started = min((one.started_s for one in generations if one.started_s is not None), default=ended)
    first = min((one.first_token_s for one in generations if one.first_token_s is not None), default=ended)
    last = max((one.last_token_s for one in generations if one.last_token_s is not None), default=first)
    num_later = usage.completion_tokens - sum(len(one.output.outputs) for one in generations)  # first tokens come of prefill
    return Timings(
        queue_ms=_ms(started - arrived),
        prefill_ms=_ms(first - started),
        decode_ms=_ms(last - first),
        prompt_n=usage.prompt_tokens,
        cached_n=usage.cached_tokens,
        predicted_n=usage.completion_tokens,
        predicted_per_second=round(max(num_later, 0) / (last - first), 3) if last > first else 0.0,
    )


def _ms(seconds: float) -> float:
    return round(max(seconds, 0.0) * 1000, 3)
