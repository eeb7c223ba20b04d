"""What chat completions and completions share: from a body to running generations, and what all their answers have."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from ramet.core.sampling import SamplingParams
from ramet.engine.assemble import RequestOutput
from ramet.errors import InvalidRequest
from ramet.server.generation import Generation
from ramet.server.schemas.body import ignored_header
from ramet.server.schemas.openai import CompletionUsage, OpenAIFields, Timings
from ramet.server.services import services_of
from ramet.server.stream import EventStream, answered
from ramet.server.translate import Encoded, prompted_of
from ramet.server.usage import summed_usage, timings_of

__all__ = ["Accepted", "accept", "check_answers"]

_MAX_ANSWERS = 128
_MAX_PROMPT_WORK = 1 << 18  # logprobs of prompt tokens, or tokens that are told again: some 60 MB, at once


@dataclass(frozen=True, slots=True)
class Accepted:
    """A request that the engine has taken. ``head`` is what each of its answers and chunks begins with."""

    request: Request
    body: OpenAIFields
    sampling: SamplingParams
    generations: list[Generation]
    head: dict[str, Any]
    headers: dict[str, str]

    async def outputs(self) -> list[RequestOutput]:
        """Wait for the whole; the engine is told where the client leaves before."""
        return await answered(self.generations, self.request)

    async def reply(self, build: Callable[[], msgspec.Struct]) -> Response:
        """The whole answer."""
        translator = services_of(self.request.scope).translator
        content = await translator.made(lambda: msgspec.json.encode(build()), self.sampling)
        return Response(content, headers=self.headers, media_type="application/json")

    def stream(self, events: AsyncIterator[bytes]) -> EventStream:
        return EventStream(events, self.generations, self.headers)

    def usage(self) -> CompletionUsage:
        """So far."""
        return CompletionUsage.of(summed_usage(self.generations))

    def chunk_usage(self) -> CompletionUsage | UnsetType | None:
        """What a chunk before the last says of it."""
        if self.body.tells_usage_always:
            return self.usage()
        return None if self.body.tells_usage else UNSET

    def last_usage(self) -> CompletionUsage | UnsetType:
        return self.usage() if self.body.tells_usage else UNSET

    def timings(self) -> Timings | UnsetType:
        return timings_of(self.generations) if self.body.timings else UNSET

    @property
    def has_last_chunk(self) -> bool:
        """Whether a stream ends with a chunk without choices."""
        return self.body.tells_usage or bool(self.body.timings)


def check_answers(num_prompts: int, sampling: SamplingParams) -> None:
    """Raise ``InvalidRequest`` where a request is for too many answers. Before its prompts are tokenized."""
    if num_prompts * sampling.n > _MAX_ANSWERS:
        raise InvalidRequest(
            f"{num_prompts:,} prompts with n = {sampling.n} are {num_prompts * sampling.n:,} answers, over {_MAX_ANSWERS}; "
            "send several requests",
            "n" if num_prompts == 1 else "prompt",
        )


def accept(
    request: Request,
    body: OpenAIFields,
    sampling: SamplingParams,
    prompts: Sequence[Encoded],
    *,
    kind: str,
    ignored: list[str],
    tells_prompts: bool = False,
) -> Accepted:
    """Send a request to the engine. ``kind`` is what its id begins with; ``tells_prompts`` where each answer has its prompt in
    it. Nothing is sent where this raises.
    """
    scope = request.scope
    services = services_of(scope)
    _check_prompt_work(prompts, sampling, tells_prompts)
    names = [] if body.request_id is None else [body.request_id]
    prompted = [
        prompted_of(
            scope,
            prompt,
            sampling,
            cache_salt=body.cache_salt,
            priority=body.priority,
            adapter=services.adapter(body.model),
            names=names,
        )
        for prompt in prompts
    ]
    response_id = f"{kind}-{uuid.uuid4().hex}"
    generations = services.submit(scope, prompted, response_id)
    head = {
        "id": response_id,
        "created": int(time.time()),
        "model": services.model(body.model),
        "system_fingerprint": f"ramet-{services.version}",
    }
    return Accepted(request, body, sampling, generations, head, ignored_header(ignored))


def _check_prompt_work(prompts: Sequence[Encoded], sampling: SamplingParams, tells_prompts: bool) -> None:
    """What is told of each prompt token, for each answer, is bounded before any of it is made."""
    if sampling.prompt_logprobs is None and not tells_prompts:
        return
    num_tokens = sum(len(prompt.token_ids) for prompt in prompts)
    num_each = (sampling.prompt_logprobs or 0) + 1
    work = num_tokens * sampling.n * num_each
    if work > _MAX_PROMPT_WORK:
        raise InvalidRequest(
            f"{num_tokens:,} prompt tokens, told of with n = {sampling.n} and {num_each} logprobs each, are {work:,} entries, "
            f"over {_MAX_PROMPT_WORK:,}; ask for fewer, or send less at a time",
            "prompt",
        )
