"""``POST /v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's Messages."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ramet.engine.assemble import CompletionOutput
from ramet.errors import InvalidRequest
from ramet.server.conversation import Conversation, encoded_of, prepared
from ramet.server.gate import body_of, request_id_of
from ramet.server.generation import Generation
from ramet.server.parts import CallIds, Move, PartedAnswer
from ramet.server.schemas.anthropic import (
    BlockDelta,
    BlockStart,
    BlockStop,
    ConversationRequest,
    InputDelta,
    MessageDelta,
    MessageReply,
    MessageRequest,
    MessageStart,
    MessageStop,
    MessageUsage,
    Ping,
    Stopped,
    StreamEvent,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    TokenCount,
    ToolUseBlock,
)
from ramet.server.schemas.body import decode_body, ignored_header
from ramet.server.services import Services, services_of
from ramet.server.stream import EventStream, answered, pieces, sse
from ramet.server.translate import prompted_of

__all__ = ["count_tokens", "create_message"]


async def create_message(request: Request) -> Response | EventStream:
    """Answer one request, whole or as events. What is wrong with it raises before anything is sent.

    Clients have to send ``max_tokens``, and send large ones: where the context (or the pool) holds less behind the prompt, the
    answer may be as long as that, and ends with ``model_context_window_exceeded``, as Anthropic's own do. A prompt that leaves
    no room at all is refused. ``max_tokens`` 0 only computes the prompt, so that what begins with it comes sooner.
    """
    scope = request.scope
    services, request_id = services_of(scope), request_id_of(scope)
    asked, unknown = decode_body(body_of(scope), MessageRequest)
    model = services.model(asked.model)
    sampling = services.translator.sampling(asked.chosen_by())
    services.client.check_room()
    if asked.wants_thinking and not services.translator.thinks:
        raise InvalidRequest(
            "thinking of type 'enabled' needs a model that thinks between <think> and </think>, as this one's template does not "
            "say; leave it out, or start the server with --reasoning-parser",
            "thinking",
        )
    ready = await prepared(services, await _conversation(services, asked), sampling)
    sampling = ready.sampling
    room = services.client.limits.max_total_tokens - len(ready.prompt.token_ids)
    if room > 0:
        sampling = replace(sampling, max_tokens=min(asked.max_tokens, room))
    prompted = prompted_of(
        scope,
        ready.prompt,
        sampling,
        cache_salt=asked.cache_salt,
        priority=asked.priority,
        adapter=services.adapter(asked.model),
    )
    message_id = f"msg_{uuid.uuid4().hex}"
    (generation,) = services.submit(scope, [prompted], message_id)
    blocks = _Blocks(ready.parted(), CallIds(services.translator.tool_format, "toolu_"))
    answer = _Answer(generation, blocks, message_id, model, asked.max_tokens)
    headers = {"request-id": request_id, **ignored_header([*unknown, *asked.unserved(), *ready.ignored])}
    if asked.stream:
        return EventStream(answer.events(), [generation], headers, ping=_PING)
    await answered([generation], request)
    return Response(msgspec.json.encode(answer.whole()), headers=headers, media_type="application/json")


async def count_tokens(request: Request) -> Response:
    """How many tokens the prompt of the same request to ``/v1/messages`` has."""
    scope = request.scope
    services = services_of(scope)
    asked, unknown = decode_body(body_of(scope), ConversationRequest)
    services.model(asked.model)
    encoded = await encoded_of(services.translator, await _conversation(services, asked))
    headers = {"request-id": request_id_of(scope), **ignored_header([*unknown, *asked.unserved()])}
    count = TokenCount(len(encoded.token_ids))
    return Response(msgspec.json.encode(count), headers=headers, media_type="application/json")


async def _conversation(services: Services, asked: ConversationRequest) -> Conversation:
    return Conversation(
        messages=await services.translator.run(asked.chat_messages),
        tools=asked.chat_tools(),
        choice=asked.choice(),
        add_generation_prompt=not asked.is_prefilled,
        continue_final_message=asked.is_prefilled,
        variables=asked.variables(),
        stop_field="stop_sequences",
    )


class _Blocks:
    """The content of one message, in blocks."""

    def __init__(self, parted: PartedAnswer, ids: CallIds) -> None:
        self._parted = parted
        self._ids = ids

    @property
    def ends_in_calls(self) -> bool:
        return self._parted.ends_in_calls

    def opening(self) -> Iterator[bytes]:
        return self._events(self._parted.opening())

    def events(self, text: str, ended: CompletionOutput | None) -> Iterator[bytes]:
        """What ``text`` adds."""
        return self._events(self._parted.moves(text, ended))

    def _events(self, moves: Iterable[Move]) -> Iterator[bytes]:
        for move in moves:
            match move.kind:
                case "begin":
                    yield _event(BlockStart(self._block(move.part, is_begin=True), move.part))
                case "more":
                    yield _event(BlockDelta(_DELTAS[self._parted.parts[move.part].kind](move.text), move.part))
                case "end":
                    yield _event(BlockStop(move.part))

    def whole(self, answer: CompletionOutput) -> list[TextBlock | ThinkingBlock | ToolUseBlock]:
        for _ in self._parted.moves(answer.text, answer):
            pass
        return [self._block(i) for i in range(len(self._parted.parts))]

    def _block(self, index: int, *, is_begin: bool = False) -> TextBlock | ThinkingBlock | ToolUseBlock:
        part = self._parted.parts[index]
        text = "" if is_begin else part.text
        match part.kind:
            case "call":
                return ToolUseBlock(self._ids.of(index, part), part.name or "", _object(text))
            case "reasoning":
                return ThinkingBlock(text)
            case _:
                return TextBlock(text)


_DELTAS: Mapping[str, Callable[[str], TextDelta | ThinkingDelta | InputDelta]] = {
    "text": TextDelta,
    "reasoning": ThinkingDelta,
    "call": InputDelta,
}


def _object(text: str) -> dict[str, Any]:
    """The arguments of a call. Those that were cut, or are none, are the empty object: the stop reason says so of the first, and
    only a stream can tell what there was.
    """
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}


class _Answer:
    """One message in the making. ``max_tokens`` are those asked for."""

    def __init__(self, generation: Generation, blocks: _Blocks, message_id: str, model: str, max_tokens: int) -> None:
        self._generation = generation
        self._blocks = blocks
        self._message_id = message_id
        self._model = model
        self._max_tokens = max_tokens

    async def events(self) -> AsyncIterator[bytes]:
        """The stream, in Anthropic's order. It starts once the engine has begun: it is known then how much was cached."""
        has_begun = False
        async for news in pieces(self._generation):
            if not has_begun:
                has_begun = True
                yield self._opening()
            for piece in news:
                for event in self._blocks.events(piece.text, piece.ended):
                    yield event
        yield _event(MessageDelta(self._stopped(), self._usage())) + _event(MessageStop())

    def whole(self) -> MessageReply:
        """The message at its end."""
        content = self._blocks.whole(self._completion)
        stopped = self._stopped()
        return MessageReply(
            id=self._message_id,
            model=self._model,
            content=content,
            stop_reason=stopped.stop_reason,
            stop_sequence=stopped.stop_sequence,
            usage=self._usage(),
        )

    @property
    def _completion(self) -> CompletionOutput:
        return self._generation.output.outputs[0]

    def _opening(self) -> bytes:
        usage = msgspec.structs.replace(self._usage(), output_tokens=0)
        start = MessageStart(MessageReply(id=self._message_id, model=self._model, usage=usage))
        return b"".join([_event(start), *self._blocks.opening(), _PING])

    def _usage(self) -> MessageUsage:
        usage = self._generation.output.usage
        return MessageUsage(
            input_tokens=usage.prompt_tokens - usage.cached_tokens,
            cache_creation_input_tokens=0,
            cache_read_input_tokens=usage.cached_tokens,
            output_tokens=usage.completion_tokens,
        )

    def _stopped(self) -> Stopped:
        answer = self._completion
        if answer.finish_reason == "length":
            is_full = self._generation.request.max_tokens < self._max_tokens
            return Stopped("model_context_window_exceeded" if is_full else "max_tokens", None)
        if isinstance(answer.stop_reason, str):
            return Stopped("stop_sequence", answer.stop_reason)
        return Stopped("tool_use" if self._blocks.ends_in_calls else "end_turn", None)


def _event(event: StreamEvent) -> bytes:
    return sse(event, event.name)


_PING = _event(Ping())
