"""``POST /v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's Messages."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import replace

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ramet.engine.assemble import CompletionOutput
from ramet.server.client import Generation
from ramet.server.gate import body_of, request_id_of
from ramet.server.schemas.anthropic import (
    BlockDelta,
    BlockStart,
    BlockStop,
    ConversationRequest,
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
    TokenCount,
)
from ramet.server.schemas.body import decode_body, ignored_header
from ramet.server.services import Services, services_of
from ramet.server.stream import EventStream, answered, pieces, sse
from ramet.server.translate import Encoded, prompted_of

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
    await services.check_grammar(sampling)
    encoded = await _encoded(services, asked)
    room = services.client.limits.max_total_tokens - len(encoded.token_ids)
    if room > 0:
        sampling = replace(sampling, max_tokens=min(asked.max_tokens, room))
    prompted = prompted_of(scope, encoded, sampling, cache_salt=asked.cache_salt, priority=asked.priority)
    message_id = f"msg_{uuid.uuid4().hex}"
    (generation,) = services.submit(scope, [prompted], message_id)
    answer = _Answer(generation, message_id, model, asked.max_tokens)
    headers = {"request-id": request_id, **ignored_header([*unknown, *asked.unserved()])}
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
    encoded = await _encoded(services, asked)
    headers = {"request-id": request_id_of(scope), **ignored_header([*unknown, *asked.unserved()])}
    count = TokenCount(len(encoded.token_ids))
    return Response(msgspec.json.encode(count), headers=headers, media_type="application/json")


async def _encoded(services: Services, asked: ConversationRequest) -> Encoded:
    messages = await services.translator.run(asked.chat_messages)
    return await services.translator.chat(
        messages,
        tools=asked.chat_tools(),
        add_generation_prompt=not asked.is_prefilled,
        continue_final_message=asked.is_prefilled,
        variables=asked.chat_template_kwargs,
    )


class _Answer:
    """One message in the making. ``max_tokens`` are those asked for."""

    def __init__(self, generation: Generation, message_id: str, model: str, max_tokens: int) -> None:
        self._generation = generation
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
                if piece.text:
                    yield _event(BlockDelta(TextDelta(piece.text)))
        yield _event(BlockStop()) + _event(MessageDelta(self._stopped(), self._usage())) + _event(MessageStop())

    def whole(self) -> MessageReply:
        """The message at its end."""
        stopped = self._stopped()
        return MessageReply(
            id=self._message_id,
            model=self._model,
            content=[TextBlock(self._completion.text)],
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
        return _event(start) + _event(BlockStart(TextBlock(""))) + _PING

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
        return Stopped("end_turn", None)


def _event(event: StreamEvent) -> bytes:
    return sse(event, event.name)


_PING = _event(Ping())
