"""``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from ramet.engine.assemble import CompletionOutput, Logprob, RequestOutput
from ramet.server.gate import body_of
from ramet.server.openai_logprobs import TextPlaces, echo_places, prompt_logprobs, text_logprobs
from ramet.server.openai_request import DONE, Accepted, accept, check_answers
from ramet.server.schemas.body import decode_body
from ramet.server.schemas.openai import TextChoice, TextCompletion, TextRequest
from ramet.server.services import services_of
from ramet.server.stream import EventStream, Piece, pieces_of, sse
from ramet.server.translate import Encoded, check_model
from ramet.text.tokenizer import Tokenizer

__all__ = ["completions"]

_DEFAULT_MAX_TOKENS = 16


async def completions(request: Request) -> Response | EventStream:
    services = services_of(request.scope)
    body, ignored = decode_body(body_of(request.scope), TextRequest)
    check_model(body.model, services.model_names)
    body.check()
    sampling = services.translator.sampling(body.sampling_fields(), default_max_tokens=_DEFAULT_MAX_TOKENS)
    prompts = body.prompts
    check_answers(len(prompts), sampling)
    encoded = [await services.translator.encode(one) if isinstance(one, str) else Encoded(one, None) for one in prompts]
    tells_prompts = bool(body.echo or body.return_token_ids)
    accepted = accept(request, body, sampling, encoded, kind="cmpl", ignored=ignored, tells_prompts=tells_prompts)
    tokenizer = services.translator.known_tokenizer
    answers = [
        _Answer(accepted, body, i * sampling.n + answer.index, generation.output, answer, tokenizer)
        for i, generation in enumerate(accepted.generations)
        for answer in generation.output.outputs
    ]
    if body.stream:
        return accepted.stream(_events(accepted, answers))
    await accepted.outputs()
    return await accepted.reply(
        lambda: TextCompletion(
            **accepted.head,
            choices=[answer.whole() for answer in answers],
            usage=accepted.usage(),
            timings=accepted.timings(),
        )
    )


async def _events(accepted: Accepted, answers: list[_Answer]) -> AsyncIterator[bytes]:
    """What the answers say as it comes, and the end of each in a chunk of its own."""
    num_answers = accepted.sampling.n
    async for i, news in pieces_of(accepted.generations):
        said = []
        for piece in news:
            answer = answers[i * num_answers + piece.index]
            if answer.has_to_say(piece):
                said.append(answer.said(piece.text, piece.token_ids, piece.logprobs))
            if piece.finish_reason is not None:
                said.append(answer.end())
        if said:
            usage = accepted.chunk_usage()
            yield b"".join(sse(TextCompletion(**accepted.head, choices=[choice], usage=usage)) for choice in said)
    if accepted.has_last_chunk:
        yield sse(TextCompletion(**accepted.head, choices=[], usage=accepted.last_usage(), timings=accepted.timings()))
    yield DONE


class _Answer:
    """One answer in the old form, a whole being one long piece. ``index`` counts the answers of all prompts."""

    def __init__(
        self,
        accepted: Accepted,
        body: TextRequest,
        index: int,
        output: RequestOutput,
        answer: CompletionOutput,
        tokenizer: Tokenizer | None,
    ) -> None:
        self._body = body
        self._index = index
        self._output = output
        self._answer = answer
        self._tokenizer = tokenizer
        self._num_top = accepted.sampling.logprobs
        self._echo = _echoed(output, tokenizer, accepted.sampling.skip_special_tokens) if body.echo else ""
        self._places = TextPlaces(
            tokenizer,
            output.prompt_token_ids,
            start=len(self._echo),
            skip_special_tokens=accepted.sampling.skip_special_tokens,
        )
        self._is_first = True

    def has_to_say(self, piece: Piece) -> bool:
        """Whether there is anything new to show; a token whose text is still uncertain has none."""
        is_asked = self._num_top is not None or bool(self._body.return_token_ids)
        return bool(piece.text) or (is_asked and bool(piece.token_ids)) or (self._is_first and bool(self._echo))

    def said(self, text: str, token_ids: list[int], logprobs: Sequence[dict[int, Logprob]]) -> TextChoice:
        """The next piece, in order. An echo of the prompt stands in front of the first."""
        choice = TextChoice(index=self._index, text=text)
        if self._num_top is not None:
            places = self._places.take(token_ids)
            choice.logprobs = text_logprobs(token_ids, logprobs, places, self._num_top, self._tokenizer)
        if self._body.return_token_ids:
            choice.token_ids = token_ids
        if self._is_first:
            self._is_first = False
            self._put_in_front(choice)
        return choice

    def end(self) -> TextChoice:
        """The last piece, which says why it is the last."""
        choice = TextChoice(index=self._index, text="")
        choice.finish_reason = self._answer.finish_reason  # type: ignore[assignment]  # another reason ends in an error
        choice.stop_reason = UNSET if self._answer.stop_reason is None else self._answer.stop_reason
        return choice

    def whole(self) -> TextChoice:
        answer = self._answer
        choice = self.said(answer.text, answer.token_ids, answer.logprobs or [])
        choice.finish_reason = answer.finish_reason  # type: ignore[assignment]
        choice.stop_reason = answer.stop_reason
        if self._body.prompt_logprobs is not None:
            choice.prompt_logprobs = prompt_logprobs(self._output.prompt_logprobs or [])
        return choice

    def _put_in_front(self, choice: TextChoice) -> None:
        prompt_ids = self._output.prompt_token_ids
        if self._body.return_token_ids:
            choice.prompt_token_ids = prompt_ids
        choice.text = self._echo + choice.text
        if self._body.echo and choice.logprobs is not None and self._num_top is not None:
            found = self._output.prompt_logprobs or []
            places = echo_places(self._echo, prompt_ids, self._tokenizer)
            choice.logprobs = text_logprobs(prompt_ids, found, places, self._num_top, self._tokenizer).joined(choice.logprobs)


def _echoed(output: RequestOutput, tokenizer: Tokenizer | None, skip_special_tokens: bool) -> str:
    if output.prompt is not None:
        return output.prompt
    return "" if tokenizer is None else tokenizer.decode(output.prompt_token_ids, skip_special_tokens=skip_special_tokens)
