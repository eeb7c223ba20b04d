"""``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import cached_property

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from ramet.core.sampling import SamplingParams
from ramet.engine.assemble import CompletionOutput, Logprob, RequestOutput
from ramet.server.gate import body_of
from ramet.server.openai_logprobs import TextPlaces, echo_places, prompt_logprobs, text_logprobs
from ramet.server.openai_request import Accepted, accept, check_answers
from ramet.server.schemas.body import decode_body
from ramet.server.schemas.openai import TextChoice, TextCompletion, TextLogprobs, TextRequest
from ramet.server.services import services_of
from ramet.server.stream import DONE, EventStream, Piece, pieces_of, sse
from ramet.server.translate import Encoded
from ramet.text.tokenizer import Tokenizer

__all__ = ["completions"]

_DEFAULT_MAX_TOKENS = 16


async def completions(request: Request) -> Response | EventStream:
    services = services_of(request.scope)
    body, ignored = decode_body(body_of(request.scope), TextRequest)
    services.model(body.model)
    body.check()
    sampling = services.translator.sampling(body.sampling_fields(), default_max_tokens=_DEFAULT_MAX_TOKENS)
    prompts = body.prompts
    check_answers(len(prompts), sampling)
    services.client.check_room()
    await services.check_grammar(sampling)
    encoded = [await services.translator.encode(one) if isinstance(one, str) else Encoded(one, None) for one in prompts]
    if sampling.ignores_stops:
        ignored.append("stop")
    tells_prompts = bool(body.echo or body.return_token_ids)
    accepted = accept(request, body, sampling, encoded, kind="cmpl", ignored=ignored, tells_prompts=tells_prompts)
    prompts_told = [_Prompt(one.output, sampling, services.translator.known_tokenizer) for one in accepted.generations]
    answers = [
        _Answer(body, i * sampling.n + answer.index, prompt, answer)
        for i, prompt in enumerate(prompts_told)
        for answer in prompt.output.outputs
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


class _Prompt:
    """What the answers to one prompt have in common: made once, however many they are."""

    def __init__(self, output: RequestOutput, sampling: SamplingParams, tokenizer: Tokenizer | None) -> None:
        self.output = output
        self.tokenizer = tokenizer
        self.num_top = sampling.logprobs
        self.skip_special_tokens = sampling.skip_special_tokens

    @cached_property
    def text(self) -> str:
        """As it was sent; of token ids, what they spell."""
        if self.output.prompt is not None:
            return self.output.prompt
        if self.tokenizer is None:
            return ""
        return self.tokenizer.decode(self.output.prompt_token_ids, skip_special_tokens=self.skip_special_tokens)

    @cached_property
    def logprobs(self) -> TextLogprobs:
        """To be asked for once there is an answer, since all of them are there then."""
        token_ids = self.output.prompt_token_ids
        places = echo_places(self.text, token_ids, self.tokenizer)
        return text_logprobs(token_ids, self.output.prompt_logprobs or [], places, self.num_top or 0, self.tokenizer)


class _Answer:
    """One answer in the old form, a whole being one long piece. ``index`` counts the answers of all prompts."""

    def __init__(self, body: TextRequest, index: int, prompt: _Prompt, answer: CompletionOutput) -> None:
        self._body = body
        self._index = index
        self._prompt = prompt
        self._answer = answer
        self._echo = prompt.text if body.echo else ""
        self._places = TextPlaces(
            prompt.tokenizer,
            prompt.output.prompt_token_ids,
            start=len(self._echo),
            skip_special_tokens=prompt.skip_special_tokens,
        )
        self._is_first = True

    def has_to_say(self, piece: Piece) -> bool:
        """Whether there is anything new to show; a token whose text is still uncertain has none."""
        is_asked = self._prompt.num_top is not None or bool(self._body.return_token_ids)
        return bool(piece.text) or (is_asked and bool(piece.token_ids)) or (self._is_first and bool(self._echo))

    def said(self, text: str, token_ids: list[int], logprobs: Sequence[dict[int, Logprob]]) -> TextChoice:
        """The next piece, in order. An echo of the prompt stands in front of the first."""
        choice = TextChoice(index=self._index, text=text)
        if self._prompt.num_top is not None:
            places = self._places.take(token_ids)
            choice.logprobs = text_logprobs(token_ids, logprobs, places, self._prompt.num_top, self._prompt.tokenizer)
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
            choice.prompt_logprobs = prompt_logprobs(self._prompt.output.prompt_logprobs or [])
        return choice

    def _put_in_front(self, choice: TextChoice) -> None:
        if self._body.return_token_ids:
            choice.prompt_token_ids = self._prompt.output.prompt_token_ids
        choice.text = self._echo + choice.text
        if self._body.echo and choice.logprobs is not None:
            choice.logprobs = self._prompt.logprobs.joined(choice.logprobs)
