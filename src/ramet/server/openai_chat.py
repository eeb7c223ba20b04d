"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import AsyncIterator

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from ramet.engine.assemble import CompletionOutput, RequestOutput
from ramet.server.conversation import Conversation, Prepared, prepared
from ramet.server.gate import body_of
from ramet.server.openai_logprobs import chat_logprobs, prompt_logprobs
from ramet.server.openai_request import Accepted, accept, check_answers
from ramet.server.parts import CallIds, PartedAnswer
from ramet.server.schemas.body import decode_body
from ramet.server.schemas.openai import (
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatEnd,
    ChatFunction,
    ChatLogprobs,
    ChatMessage,
    ChatRequest,
    ChatToolCall,
    ChunkChoice,
    Delta,
)
from ramet.server.services import services_of
from ramet.server.stream import DONE, EventStream, Piece, pieces_of, sse
from ramet.server.translate import Translator

__all__ = ["chat_completions"]


async def chat_completions(request: Request) -> Response | EventStream:
    services = services_of(request.scope)
    body, ignored = decode_body(body_of(request.scope), ChatRequest)
    services.model(body.model)
    body.check()
    sampling = services.translator.sampling(body.sampling_fields())
    check_answers(1, sampling)
    services.client.check_room()
    is_continued = bool(body.continue_final_message)
    wanted = Conversation(
        messages=body.messages,
        tools=body.tools,
        choice=body.choice(),
        add_generation_prompt=not is_continued if body.add_generation_prompt is None else body.add_generation_prompt,
        continue_final_message=is_continued,
        variables=body.chat_template_kwargs,
    )
    ready = await prepared(services, wanted, sampling)
    ignored += ready.ignored
    accepted = accept(request, body, ready.sampling, [ready.prompt], kind="chatcmpl", ignored=ignored)
    told = _Told(accepted, services.translator, ready)
    if body.stream:
        return accepted.stream(told.events())
    [output] = await accepted.outputs()
    return await accepted.reply(lambda: told.whole(output))


class _Told:
    """One request's answers in words, whole or in chunks."""

    def __init__(self, accepted: Accepted, translator: Translator, ready: Prepared) -> None:
        self._accepted = accepted
        self._tokenizer = translator.tokenizer
        self._num_top = accepted.sampling.logprobs
        self._tells_ids = bool(accepted.body.return_token_ids)
        self._answers = [_Answer(ready.parted(), CallIds(translator.tool_format, "call_")) for _ in range(accepted.sampling.n)]

    def whole(self, output: RequestOutput) -> ChatCompletion:
        return ChatCompletion(
            **self._accepted.head,
            choices=[self._choice(answer) for answer in output.outputs],
            usage=self._accepted.usage(),
            prompt_token_ids=output.prompt_token_ids if self._tells_ids else UNSET,
            prompt_logprobs=UNSET if output.prompt_logprobs is None else prompt_logprobs(output.prompt_logprobs),
            timings=self._accepted.timings(),
        )

    def _choice(self, answer: CompletionOutput) -> ChatChoice:
        told = self._answers[answer.index]
        told.delta(answer.text, answer)
        return ChatChoice(
            index=answer.index,
            message=told.message(),
            logprobs=None if answer.logprobs is None else chat_logprobs(answer.logprobs, self._num_top or 0, self._tokenizer),
            finish_reason=told.end(answer),
            stop_reason=answer.stop_reason,
            token_ids=answer.token_ids if self._tells_ids else UNSET,
        )

    async def events(self) -> AsyncIterator[bytes]:
        """The role of each choice first, then what they say as it comes, and the end of each in a chunk of its own."""
        num_answers = self._accepted.sampling.n
        has_begun = False
        async for _, news in pieces_of(self._accepted.generations):
            said = []
            if not has_begun:
                has_begun = True
                first = Delta(role="assistant", content="")
                said = [self._chunk(ChunkChoice(index=k, delta=first), tells_prompt=k == 0) for k in range(num_answers)]
            for piece in news:
                delta = self._answers[piece.index].delta(piece.text, piece.ended)
                if delta != Delta() or (piece.token_ids and (self._tells_ids or self._num_top is not None)):
                    said.append(self._chunk(self._said(piece, delta)))
                if piece.finish_reason is not None:
                    said.append(self._chunk(self._end(piece)))
            if said:
                yield b"".join(said)
        if self._accepted.has_last_chunk:
            yield sse(
                ChatChunk(**self._accepted.head, choices=[], usage=self._accepted.last_usage(), timings=self._accepted.timings())
            )
        yield DONE

    def _chunk(self, choice: ChunkChoice, *, tells_prompt: bool = False) -> bytes:
        chunk = ChatChunk(**self._accepted.head, choices=[choice], usage=self._accepted.chunk_usage())
        if tells_prompt and self._tells_ids:
            chunk.prompt_token_ids = self._accepted.generations[0].output.prompt_token_ids
        return sse(chunk)

    def _said(self, piece: Piece, delta: Delta) -> ChunkChoice:
        logprobs: ChatLogprobs | None = None
        if self._num_top is not None:
            logprobs = chat_logprobs(piece.logprobs, self._num_top, self._tokenizer)
        return ChunkChoice(
            index=piece.index,
            delta=delta,
            logprobs=logprobs,
            token_ids=piece.token_ids if self._tells_ids else UNSET,
        )

    def _end(self, piece: Piece) -> ChunkChoice:
        stop_reason = piece.answer.stop_reason
        return ChunkChoice(
            index=piece.index,
            delta=Delta(),
            finish_reason=self._answers[piece.index].end(piece.answer),
            stop_reason=UNSET if stop_reason is None else stop_reason,
        )


class _Answer:
    """One choice, apart: its reasoning, its text and its calls."""

    def __init__(self, parted: PartedAnswer, ids: CallIds) -> None:
        self._parted = parted
        self._ids = ids
        self._num_calls = 0

    def delta(self, text: str, ended: CompletionOutput | None) -> Delta:
        """What ``text`` adds, in one piece."""
        said: dict[str, list[str]] = {"text": [], "reasoning": []}
        calls: list[ChatToolCall] = []
        for one in self._parted.news(text, ended):
            if one.kind != "call":
                said[one.kind].append(one.text)
                continue
            if one.name is not None:
                self._num_calls += 1
                function = ChatFunction(name=one.name, arguments="")
                calls.append(
                    ChatToolCall(id=self._ids.of(one.part, self._parted.parts[one.part]), type="function", function=function)
                )
            elif not calls:  # it goes on with the one before
                calls.append(ChatToolCall(function=ChatFunction(arguments="")))
            calls[-1].index = self._num_calls - 1
            calls[-1].function.arguments += one.text
        return Delta(
            content="".join(said["text"]) if said["text"] else UNSET,
            reasoning_content="".join(said["reasoning"]) if said["reasoning"] else UNSET,
            tool_calls=calls or UNSET,
        )

    def message(self) -> ChatMessage:
        """The whole, once it has ended."""
        said: dict[str, list[str]] = {"text": [], "reasoning": []}
        calls = []
        for i, part in enumerate(self._parted.parts):
            if part.kind == "call":
                function = ChatFunction(name=part.name or "", arguments=part.text)
                calls.append(ChatToolCall(id=self._ids.of(i, part), type="function", function=function))
            else:
                said[part.kind].append(part.text)
        return ChatMessage(
            content="".join(said["text"]) if said["text"] or not calls else None,
            reasoning_content="".join(said["reasoning"]) if said["reasoning"] else UNSET,
            tool_calls=calls or UNSET,
        )

    def end(self, answer: CompletionOutput) -> ChatEnd:
        if answer.finish_reason == "stop" and self._parted.ends_in_calls:
            return "tool_calls"
        return answer.finish_reason  # type: ignore[return-value]  # of a whole answer it is one of these
