"""``POST /v1/responses``: OpenAI's Responses, of which nothing is stored."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ramet.core.sampling import SamplingParams
from ramet.engine.assemble import CompletionOutput, Logprob
from ramet.server.conversation import Conversation, prepared
from ramet.server.errors import Problem
from ramet.server.gate import body_of
from ramet.server.generation import Generation
from ramet.server.openai_logprobs import chat_logprobs
from ramet.server.parts import CallIds, Move, PartedAnswer
from ramet.server.schemas.body import decode_body, ignored_header
from ramet.server.schemas.openai import TokenLogprob
from ramet.server.schemas.responses import ResponseRequest, TextFormat, TextOptions
from ramet.server.schemas.responses_told import (
    ArgumentsDelta,
    ArgumentsDone,
    ErrorEvent,
    FunctionCall,
    Incomplete,
    InputDetails,
    ItemEvent,
    OutputDetails,
    OutputItem,
    OutputMessage,
    OutputText,
    PartEvent,
    Reasoning,
    ReasoningDelta,
    ReasoningDone,
    ReasoningText,
    ResponseEvent,
    ResponseFailure,
    ResponseReply,
    ResponseUsage,
    Status,
    StreamEvent,
    TextDelta,
    TextDone,
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
    wanted = Conversation(
        messages=await services.translator.run(asked.chat_messages),
        tools=asked.chat_tools(),
        choice=asked.choice(),
        variables=asked.chat_template_kwargs,
    )
    ready = await prepared(services, wanted, sampling)
    prompted = prompted_of(
        scope,
        ready.prompt,
        ready.sampling,
        cache_salt=asked.cache_salt,
        priority=asked.priority,
        adapter=services.adapter(asked.model),
    )
    begun = _begun(asked, model, sampling)
    (generation,) = services.submit(scope, [prompted], begun.id)
    answer = _Answer(generation, begun, services.translator, ready.parted())
    unserved = [] if ready.form.is_text or not asked.wants_logprobs else ["top_logprobs"]
    headers = ignored_header([*unknown, *asked.unserved(), *ready.ignored, *unserved])
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
    """One response in the making. Its events are numbered from 0, without a gap.

    Each part of the answer is an item: reasoning, a message, a call. Logprobs are a message's that is all of the answer.
    """

    def __init__(self, generation: Generation, begun: ResponseReply, translator: Translator, parted: PartedAnswer) -> None:
        self._generation = generation
        self._begun = begun
        self._translator = translator
        self._parted = parted
        self._item_id = uuid.uuid4().hex
        self._call_ids = CallIds(translator.tool_format, "call_")
        self._numbers = itertools.count()

    @property
    def _completion(self) -> CompletionOutput:
        return self._generation.output.outputs[0]

    async def events(self) -> AsyncIterator[bytes]:
        """The stream, in OpenAI's order. It starts once the engine has begun."""
        has_begun = False
        async for news in pieces(self._generation):
            if not has_begun:
                has_begun = True
                yield b"".join(self._opening())
            for piece in news:
                yield await self._translator.made(partial(self._said, piece), self._generation.request.sampling)
        yield await self._translator.made(self._closing, self._generation.request.sampling)

    async def body(self) -> bytes:
        """The whole response, once the generation is finished."""

        def make() -> bytes:
            for _ in self._parted.moves(self._completion.text, self._completion):
                pass
            return msgspec.json.encode(self._whole())

        return await self._translator.made(make, self._generation.request.sampling)

    def failed(self, problem: Problem) -> bytes:
        """The end of a stream that cannot go on: clients wait for either event, so both are told."""
        error = _event(ErrorEvent("error", self._next(), problem.code, problem.message, problem.param))
        failure = ResponseFailure("server_error", problem.message)
        reply = msgspec.structs.replace(self._begun, status="failed", error=failure)
        return error + _event(ResponseEvent("response.failed", self._next(), reply))

    def _whole(self) -> ResponseReply:
        usage = self._generation.output.usage
        is_cut = self._completion.finish_reason == "length"
        return msgspec.structs.replace(
            self._begun,
            status="incomplete" if is_cut else "completed",
            completed_at=None if is_cut else int(time.time()),
            incomplete_details=Incomplete("max_output_tokens") if is_cut else None,
            output=[self._item(i) for i in range(len(self._parted.parts))],
            usage=ResponseUsage(
                input_tokens=usage.prompt_tokens,
                input_tokens_details=InputDetails(usage.cached_tokens),
                output_tokens=usage.completion_tokens,
                output_tokens_details=OutputDetails(),
                total_tokens=usage.prompt_tokens + usage.completion_tokens,
            ),
        )

    # ---- events

    def _opening(self) -> Iterator[bytes]:
        yield _event(ResponseEvent("response.created", self._next(), self._begun))
        yield _event(ResponseEvent("response.in_progress", self._next(), self._begun))
        for move in self._parted.opening():
            yield from self._begin(move.part)

    def _said(self, piece: Piece) -> bytes:
        told: list[bytes] = []
        logprobs = self._logprobs(piece.logprobs)
        if logprobs and not piece.text:
            told.append(_event(TextDelta("response.output_text.delta", self._next(), self._id(0), "", logprobs, 0)))
        for move in self._parted.moves(piece.text, piece.ended):
            match move.kind:
                case "begin":
                    told += self._begin(move.part)
                case "more":
                    told.append(self._more(move, logprobs))
                case "end":
                    told += self._end(move.part)
        return b"".join(told)

    def _begin(self, part: int) -> Iterator[bytes]:
        yield _event(ItemEvent("response.output_item.added", self._next(), self._item(part, is_begin=True), part))
        kind = self._parted.parts[part].kind
        if kind != "call":
            empty = OutputText("", []) if kind == "text" else ReasoningText("")
            yield _event(PartEvent("response.content_part.added", self._next(), self._id(part), empty, part))

    def _more(self, move: Move, logprobs: list[TokenLogprob]) -> bytes:
        number, item_id = self._next(), self._id(move.part)
        match self._parted.parts[move.part].kind:
            case "text":
                return _event(TextDelta("response.output_text.delta", number, item_id, move.text, logprobs, move.part))
            case "reasoning":
                return _event(ReasoningDelta("response.reasoning_text.delta", number, item_id, move.text, move.part))
            case "call":
                return _event(ArgumentsDelta("response.function_call_arguments.delta", number, item_id, move.text, move.part))

    def _end(self, part: int) -> Iterator[bytes]:
        match item := self._item(part):
            case OutputMessage(content=[text]):
                yield _event(TextDone("response.output_text.done", self._next(), item.id, text.text, text.logprobs, part))
                yield _event(PartEvent("response.content_part.done", self._next(), item.id, text, part))
            case Reasoning(content=[thought]):
                yield _event(ReasoningDone("response.reasoning_text.done", self._next(), item.id, thought.text, part))
                yield _event(PartEvent("response.content_part.done", self._next(), item.id, thought, part))
            case FunctionCall(name=name, arguments=arguments):
                done = ArgumentsDone("response.function_call_arguments.done", self._next(), item.id, name, arguments, part)
                yield _event(done)
        yield _event(ItemEvent("response.output_item.done", self._next(), item, part))

    def _closing(self) -> bytes:
        reply = self._whole()
        return _event(ResponseEvent(f"response.{reply.status}", self._next(), reply))

    def _next(self) -> int:
        return next(self._numbers)

    # ---- items

    def _id(self, part: int) -> str:
        return f"{_PREFIXES[self._parted.parts[part].kind]}_{self._item_id}{part or ''}"

    def _item(self, index: int, *, is_begin: bool = False) -> OutputItem:
        """As it is so far; without content where it begins."""
        part = self._parted.parts[index]
        item_id, status = self._id(index), "in_progress" if is_begin else self._status(index)
        text = "" if is_begin else part.text
        match part.kind:
            case "call":
                return FunctionCall(item_id, status, self._call_ids.of(index, part), part.name or "", text)
            case "reasoning":
                return Reasoning(item_id, status, [] if is_begin else [ReasoningText(text)])
            case "text":
                content = [] if is_begin else [OutputText(text, self._logprobs(self._completion.logprobs))]
                return OutputMessage(item_id, status, content)

    def _status(self, index: int) -> Status:
        """A part is incomplete that was cut: the last of an answer that was."""
        is_last = index == len(self._parted.parts) - 1
        return "incomplete" if is_last and self._completion.finish_reason == "length" else "completed"

    def _logprobs(self, found: list[dict[int, Logprob]] | None) -> list[TokenLogprob]:
        if not found or not self._parted.is_text:
            return []
        return chat_logprobs(found, self._generation.request.sampling.logprobs or 0, self._translator.tokenizer).content


_PREFIXES = {"text": "msg", "reasoning": "rs", "call": "fc"}


def _event(event: StreamEvent) -> bytes:
    return sse(event, event.type)
