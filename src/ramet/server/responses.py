"""``POST /v1/responses``: OpenAI's Responses, of which nothing is stored."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ramet.core.sampling import SamplingParams
from ramet.engine.assemble import Logprob
from ramet.server.client import Generation
from ramet.server.errors import Problem
from ramet.server.gate import body_of
from ramet.server.openai_logprobs import chat_logprobs
from ramet.server.schemas.body import decode_body, ignored_header
from ramet.server.schemas.openai import TokenLogprob
from ramet.server.schemas.responses import (
    ErrorEvent,
    Incomplete,
    InputDetails,
    ItemEvent,
    OutputDetails,
    OutputMessage,
    OutputText,
    PartEvent,
    ResponseEvent,
    ResponseFailure,
    ResponseReply,
    ResponseRequest,
    ResponseUsage,
    Status,
    StreamEvent,
    TextDelta,
    TextDone,
    TextFormat,
    TextOptions,
)
from ramet.server.services import services_of
from ramet.server.stream import EventStream, Piece, answered, pieces, sse
from ramet.server.translate import Translator, prompted_of

__all__ = ["create_response"]

_TEXT = TextOptions(TextFormat("text"))


async def create_response(request: Request) -> Response | EventStream:
    """Answer one request, whole or as events. What is wrong with it raises before anything is sent."""
    scope = request.scope
    services = services_of(scope)
    asked, unknown = decode_body(body_of(scope), ResponseRequest)
    asked.check_served()
    model = services.model(asked.model)
    sampling = services.translator.sampling(asked.chosen_by())
    services.client.check_room()
    await services.check_grammar(sampling)
    messages = await services.translator.run(asked.chat_messages)
    encoded = await services.translator.chat(messages, tools=asked.chat_tools(), variables=asked.chat_template_kwargs)
    prompted = prompted_of(scope, encoded, sampling, cache_salt=asked.cache_salt, priority=asked.priority)
    begun = _begun(asked, model, sampling)
    (generation,) = services.submit(scope, [prompted], begun.id)
    answer = _Answer(generation, begun, services.translator)
    headers = ignored_header([*unknown, *asked.unserved()])
    if asked.stream:
        return EventStream(answer.events(), [generation], headers, failed=answer.failed)
    await answered([generation], request)
    return Response(await answer.body(), headers=headers, media_type="application/json")


def _begun(asked: ResponseRequest, model: str, sampling: SamplingParams) -> ResponseReply:
    """The response as it is before its first token."""
    return ResponseReply(
        id=f"resp_{uuid.uuid4().hex}",
        created_at=int(time.time()),
        model=model,
        instructions=asked.instructions,
        max_output_tokens=asked.max_output_tokens,
        metadata=asked.metadata or {},
        parallel_tool_calls=asked.parallel_tool_calls is not False,
        prompt_cache_key=asked.prompt_cache_key,
        safety_identifier=asked.safety_identifier,
        temperature=sampling.temperature,
        text=_TEXT if asked.text is None or asked.text.format is None else TextOptions(asked.text.format),
        tool_choice=asked.tool_choice or "auto",
        tools=asked.tools or [],
        top_logprobs=asked.top_logprobs or 0,
        top_p=sampling.top_p,
        user=msgspec.UNSET if asked.user is None else asked.user,
    )


class _Answer:
    """One response in the making. Its events are numbered from 0, without a gap."""

    def __init__(self, generation: Generation, begun: ResponseReply, translator: Translator) -> None:
        self._generation = generation
        self._begun = begun
        self._translator = translator
        self._item_id = f"msg_{uuid.uuid4().hex}"
        self._numbers = itertools.count()

    async def events(self) -> AsyncIterator[bytes]:
        """The stream, in OpenAI's order. It starts once the engine has begun."""
        has_begun = False
        async for news in pieces(self._generation):
            if not has_begun:
                has_begun = True
                yield self._opening()
            for piece in news:
                if piece.text or piece.logprobs:
                    yield self._delta(piece)
        yield await self._translator.made(self._closing, self._generation.request.sampling)

    async def body(self) -> bytes:
        """The whole response, once the generation is finished."""
        return await self._translator.made(lambda: msgspec.json.encode(self._whole()), self._generation.request.sampling)

    def _whole(self) -> ResponseReply:
        output = self._generation.output
        (answer,), usage = output.outputs, output.usage
        is_cut = answer.finish_reason == "length"
        status: Status = "incomplete" if is_cut else "completed"
        return msgspec.structs.replace(
            self._begun,
            status=status,
            completed_at=None if is_cut else int(time.time()),
            incomplete_details=Incomplete("max_output_tokens") if is_cut else None,
            output=[self._item(status, OutputText(answer.text, self._logprobs(answer.logprobs)))],
            usage=ResponseUsage(
                input_tokens=usage.prompt_tokens,
                input_tokens_details=InputDetails(usage.cached_tokens),
                output_tokens=usage.completion_tokens,
                output_tokens_details=OutputDetails(),
                total_tokens=usage.prompt_tokens + usage.completion_tokens,
            ),
        )

    def failed(self, problem: Problem) -> bytes:
        """The end of a stream that cannot go on: clients wait for either event, so both are told."""
        error = _event(ErrorEvent("error", self._next(), problem.code, problem.message, problem.param))
        failure = ResponseFailure("server_error", problem.message)
        reply = msgspec.structs.replace(self._begun, status="failed", error=failure)
        return error + _event(ResponseEvent("response.failed", self._next(), reply))

    def _opening(self) -> bytes:
        empty = OutputText("", [])
        return b"".join(
            (
                _event(ResponseEvent("response.created", self._next(), self._begun)),
                _event(ResponseEvent("response.in_progress", self._next(), self._begun)),
                _event(ItemEvent("response.output_item.added", self._next(), self._item("in_progress"))),
                _event(PartEvent("response.content_part.added", self._next(), self._item_id, empty)),
            )
        )

    def _delta(self, piece: Piece) -> bytes:
        logprobs = self._logprobs(piece.logprobs)
        return _event(TextDelta("response.output_text.delta", self._next(), self._item_id, piece.text, logprobs))

    def _closing(self) -> bytes:
        reply = self._whole()
        (item,) = reply.output
        (part,) = item.content
        return b"".join(
            (
                _event(TextDone("response.output_text.done", self._next(), self._item_id, part.text, part.logprobs)),
                _event(PartEvent("response.content_part.done", self._next(), self._item_id, part)),
                _event(ItemEvent("response.output_item.done", self._next(), item)),
                _event(ResponseEvent(f"response.{reply.status}", self._next(), reply)),
            )
        )

    def _next(self) -> int:
        return next(self._numbers)

    def _item(self, status: Status, *content: OutputText) -> OutputMessage:
        return OutputMessage(self._item_id, status, list(content))

    def _logprobs(self, found: list[dict[int, Logprob]] | None) -> list[TokenLogprob]:
        if not found:
            return []
        return chat_logprobs(found, self._generation.request.sampling.logprobs or 0, self._translator.tokenizer).content


def _event(event: StreamEvent) -> bytes:
    return sse(event, event.type)
