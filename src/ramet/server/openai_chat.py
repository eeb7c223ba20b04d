"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import AsyncIterator

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from ramet.engine.assemble import CompletionOutput, RequestOutput
from ramet.server.gate import body_of
from ramet.server.openai_logprobs import chat_logprobs, prompt_logprobs
from ramet.server.openai_request import Accepted, accept, check_answers
from ramet.server.schemas.body import decode_body
from ramet.server.schemas.openai import (
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatLogprobs,
    ChatMessage,
    ChatRequest,
    ChunkChoice,
    Delta,
)
from ramet.server.services import services_of
from ramet.server.stream import DONE, EventStream, Piece, pieces_of, sse
from ramet.text.tokenizer import Tokenizer

__all__ = ["chat_completions"]


async def chat_completions(request: Request) -> Response | EventStream:
    services = services_of(request.scope)
    body, ignored = decode_body(body_of(request.scope), ChatRequest)
    services.model(body.model)
    body.check()
    sampling = services.translator.sampling(body.sampling_fields())
    check_answers(1, sampling)
    services.client.check_room()
    await services.check_grammar(sampling)
    is_continued = bool(body.continue_final_message)
    prompt = await services.translator.chat(
        body.messages,
        tools=body.offered_tools,
        add_generation_prompt=not is_continued if body.add_generation_prompt is None else body.add_generation_prompt,
        continue_final_message=is_continued,
        variables=body.chat_template_kwargs,
    )
    accepted = accept(request, body, sampling, [prompt], kind="chatcmpl", ignored=ignored)
    told = _Told(accepted, services.translator.tokenizer)
    if body.stream:
        return accepted.stream(told.events())
    [output] = await accepted.outputs()
    return await accepted.reply(lambda: told.whole(output))


class _Told:
    """One request's answers in words, whole or in chunks."""

    def __init__(self, accepted: Accepted, tokenizer: Tokenizer) -> None:
        self._accepted = accepted
        self._tokenizer = tokenizer
        self._num_top = accepted.sampling.logprobs
        self._tells_ids = bool(accepted.body.return_token_ids)

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
        return ChatChoice(
            index=answer.index,
            message=ChatMessage(content=answer.text),
            logprobs=None if answer.logprobs is None else chat_logprobs(answer.logprobs, self._num_top or 0, self._tokenizer),
            finish_reason=answer.finish_reason,  # type: ignore[arg-type]  # of a whole answer it is one of these two
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
                if piece.text or (piece.token_ids and (self._tells_ids or self._num_top is not None)):
                    said.append(self._chunk(self._said(piece)))
                if piece.finish_reason is not None:
                    said.append(self._chunk(_end(piece)))
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

    def _said(self, piece: Piece) -> ChunkChoice:
        logprobs: ChatLogprobs | None = None
        if self._num_top is not None:
            logprobs = chat_logprobs(piece.logprobs, self._num_top, self._tokenizer)
        return ChunkChoice(
            index=piece.index,
            delta=Delta(content=piece.text),
            logprobs=logprobs,
            token_ids=piece.token_ids if self._tells_ids else UNSET,
        )


def _end(piece: Piece) -> ChunkChoice:
    stop_reason = piece.answer.stop_reason
    return ChunkChoice(
        index=piece.index,
        delta=Delta(),
        finish_reason=piece.finish_reason,  # type: ignore[arg-type]  # another reason has ended the stream
        stop_reason=UNSET if stop_reason is None else stop_reason,
    )
