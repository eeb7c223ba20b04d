"""The endpoints that are neither OpenAI's nor Anthropic's: /tokenize and /detokenize are vLLM's, /generate is SGLang's."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ramet.core.sampling import SamplingParams
from ramet.engine.assemble import CompletionOutput, Logprob
from ramet.errors import InvalidRequest
from ramet.server.conversation import Conversation, encoded_of
from ramet.server.gate import body_of
from ramet.server.generation import Generation
from ramet.server.schemas.body import decode_body, ignored_header
from ramet.server.schemas.native import (
    Detokenized,
    DetokenizeRequest,
    Ending,
    GenerateAnswer,
    GenerateRequest,
    GenerateSampling,
    MetaInfo,
    NamedLogprob,
    Tokenized,
    TokenizeRequest,
)
from ramet.server.services import Services, services_of
from ramet.server.stream import DONE, EventStream, answered, pieces_of, sse
from ramet.server.translate import Encoded, Translator, prompted_of

__all__ = ["detokenize", "generate", "tokenize"]

_DEFAULT_MAX_TOKENS = 128  # SGLang's
_MAX_ANSWERS = 1024  # of one request
_MAX_LOGPROBS = 1 << 20  # of one request: some 200 MB
_MAX_NAME_CHARS = 256
_UNSUPPORTED = (
    "image_data",
    "video_data",
    "audio_data",
    "input_embeds",
    "session_params",
    "custom_logit_processor",
)


def _json(content: bytes, ignored: Sequence[str]) -> Response:
    return Response(content, headers=ignored_header(ignored), media_type="application/json")


# ---- tokens and text


async def tokenize(request: Request) -> Response:
    """POST /tokenize: the token ids of a prompt or of a conversation, as this model would be given them."""
    services = services_of(request.scope)
    wanted, ignored = decode_body(body_of(request.scope), TokenizeRequest)
    services.model(wanted.model)
    max_model_len = services.client.limits.max_model_len
    token_ids = await _token_ids(services.translator, wanted)
    tokenizer = services.translator.tokenizer

    def work() -> bytes:
        token_strs = [tokenizer.token_text(token_id) for token_id in token_ids] if wanted.return_token_strs else None
        told = Tokenized(count=len(token_ids), max_model_len=max_model_len, tokens=token_ids, token_strs=token_strs)
        return msgspec.json.encode(told)

    return _json(await services.translator.run(work, len(token_ids)), ignored)


async def _token_ids(translator: Translator, wanted: TokenizeRequest) -> list[int]:
    if (wanted.prompt is None) == (wanted.messages is None):
        raise InvalidRequest("send either a prompt or messages", "prompt")
    if wanted.chat_template is not None:
        raise InvalidRequest("a request may not bring a chat template; the server's is used (--chat-template)", "chat_template")
    if wanted.prompt is not None:
        prompt, special = wanted.prompt, wanted.add_special_tokens is not False
        tokenizer = translator.tokenizer
        return await translator.run(lambda: tokenizer.encode(prompt, add_special_tokens=special), len(prompt))
    conversation = Conversation(
        messages=wanted.messages or [],
        tools=wanted.tools,
        add_generation_prompt=wanted.add_generation_prompt and not wanted.continue_final_message,
        continue_final_message=wanted.continue_final_message,
        variables=wanted.chat_template_kwargs,
    )
    return list((await encoded_of(translator, conversation)).token_ids)


async def detokenize(request: Request) -> Response:
    """POST /detokenize: the text of token ids, special ones among them."""
    services = services_of(request.scope)
    wanted, ignored = decode_body(body_of(request.scope), DetokenizeRequest)
    services.model(wanted.model)
    vocab_size = services.client.limits.vocab_size
    for token_id in (min(wanted.tokens, default=0), max(wanted.tokens, default=0)):
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(f"tokens has {token_id}; this model's token ids are 0 to {vocab_size - 1}", "tokens")
    tokenizer = services.translator.tokenizer
    text = await services.translator.run(lambda: tokenizer.decode(wanted.tokens, skip_special_tokens=False))
    return _json(msgspec.json.encode(Detokenized(prompt=text)), ignored)


# ---- /generate


async def generate(request: Request) -> Response | EventStream:
    """POST /generate: one prompt or several, answered whole or as a stream of all that has been said so far."""
    services = services_of(request.scope)
    wanted, ignored = decode_body(body_of(request.scope), GenerateRequest)
    batch = await _submit(request, services, wanted)
    if batch.generations[0].request.sampling.ignores_stops:
        ignored.append("sampling_params.stop")
    if wanted.stream:
        return EventStream(_events(batch, services.translator), batch.generations, ignored_header(ignored))
    await answered(batch.generations, request)
    return _json(await services.translator.made(batch.whole, batch.generations[0].request.sampling), ignored)


@dataclass(frozen=True, slots=True)
class _Batch:
    """The prompts of one request on their way. ``names`` are what their answers are called, one a prompt."""

    wanted: GenerateRequest
    generations: list[Generation]
    names: list[str]
    is_list: bool

    @property
    def is_single(self) -> bool:
        """Whether the answer is an object, where otherwise it is a list."""
        return not self.is_list and len(self.generations[0].output.outputs) == 1

    def whole(self) -> bytes:
        """All answers as JSON, once they are finished."""
        told = [
            self.answer(position, answer)
            for position, generation in enumerate(self.generations)
            for answer in generation.output.outputs
        ]
        return msgspec.json.encode(told[0] if self.is_single else told)

    def event(self, position: int, answer: CompletionOutput) -> bytes:
        """What a stream says of an answer: all of it so far."""
        told = self.answer(position, answer)
        if not self.is_single:
            told.index = self.index(position, answer)
        return sse(told)

    def answer(self, position: int, answer: CompletionOutput) -> GenerateAnswer:
        """One answer as far as it is there, of the prompt at ``position``."""
        generation = self.generations[position]
        return GenerateAnswer(
            text=answer.text, output_ids=answer.token_ids, meta_info=_meta(self.wanted, self.names[position], generation, answer)
        )

    def index(self, position: int, answer: CompletionOutput) -> int:
        """Its place among all answers of the request: those of the first prompt come first."""
        return sum(len(generation.output.outputs) for generation in self.generations[:position]) + answer.index


async def _submit(request: Request, services: Services, wanted: GenerateRequest) -> _Batch:
    for name in _UNSUPPORTED:
        if getattr(wanted, name) is not None:
            raise InvalidRequest(f"{name} is not supported; send text or input_ids", name)
    services.model(wanted.lora_path, "lora_path")
    services.client.check_room()
    prompts, is_list = await _prompts(services.translator, wanted)
    sampling = _samplings(services.translator, wanted, len(prompts))
    _check_work(prompts, sampling, services.client.limits.max_total_tokens)
    for one in {one.grammar: one for one in sampling}.values():
        await services.check_grammar(one)
    own_id = f"gen-{uuid.uuid4().hex}"
    names = _names(wanted, len(prompts)) or [f"{own_id}-{i}" if is_list else own_id for i in range(len(prompts))]
    prompted = [
        prompted_of(
            request.scope,
            prompt,
            one,
            cache_salt=wanted.cache_salt,
            priority=wanted.priority,
            adapter=services.adapter(wanted.lora_path),
            names=(name, own_id),
        )
        for prompt, one, name in zip(prompts, sampling, names, strict=True)
    ]
    return _Batch(wanted, services.submit(request.scope, prompted, own_id), names, is_list)


async def _prompts(translator: Translator, wanted: GenerateRequest) -> tuple[list[Encoded], bool]:
    """The prompts, and whether they came as a list."""
    if (wanted.text is None) == (wanted.token_ids is None):
        raise InvalidRequest("send either text or input_ids", "text")
    if wanted.token_ids is not None:
        return _given_prompts(wanted.token_ids)
    texts = wanted.text if isinstance(wanted.text, list) else [wanted.text or ""]
    _check_count(len(texts), "text")
    tokenizer = translator.tokenizer
    num_chars = sum(map(len, texts))
    encoded = await translator.run(lambda: [Encoded(tokenizer.encode(one), one) for one in texts], num_chars)
    return encoded, isinstance(wanted.text, list)


def _given_prompts(token_ids: list[int | list[int]]) -> tuple[list[Encoded], bool]:
    kinds = set(map(type, token_ids))
    if list not in kinds:
        return [Encoded(token_ids, None)], False  # type: ignore[arg-type]
    if len(kinds) > 1:
        raise InvalidRequest("input_ids is a list of token ids, or a list of such lists", "input_ids")
    _check_count(len(token_ids), "input_ids")
    return [Encoded(one, None) for one in token_ids], True  # type: ignore[arg-type]


def _check_count(num_answers: int, param: str) -> None:
    if not 0 < num_answers <= _MAX_ANSWERS:
        raise InvalidRequest(f"the request asks for {num_answers:,} answers; send for 1 to {_MAX_ANSWERS:,} at a time", param)


def _names(wanted: GenerateRequest, num_prompts: int) -> list[str]:
    """The caller's own ids, one a prompt; none where it gave none."""
    if wanted.names is None:
        return []
    names = [wanted.names] * num_prompts if isinstance(wanted.names, str) else wanted.names
    if len(names) != num_prompts:
        raise InvalidRequest(f"rid has {len(names)} ids for {num_prompts} prompts", "rid")
    if not all(0 < len(name) <= _MAX_NAME_CHARS for name in names):
        raise InvalidRequest(f"a rid is a text of 1 to {_MAX_NAME_CHARS} characters", "rid")
    return names


def _samplings(translator: Translator, wanted: GenerateRequest, num_prompts: int) -> list[SamplingParams]:
    """One a prompt."""
    params = wanted.sampling_params
    if not isinstance(params, list):
        return [_sampling(translator, wanted, params or GenerateSampling())] * num_prompts
    if len(params) != num_prompts:
        raise InvalidRequest(f"sampling_params has {len(params)} entries for {num_prompts} prompts", "sampling_params")
    return [_sampling(translator, wanted, one) for one in params]


def _sampling(translator: Translator, wanted: GenerateRequest, params: GenerateSampling) -> SamplingParams:
    fields = params.sampling_fields()
    renamed = {
        "n": params.n,
        "max_tokens": _DEFAULT_MAX_TOKENS if params.max_new_tokens is None else params.max_new_tokens,
        "min_tokens": params.min_new_tokens,
        "seed": params.sampling_seed,
        "include_stop_str_in_output": params.no_stop_trim,
        "structured_outputs": params.constraint(),
    }
    if wanted.return_logprob:
        renamed["logprobs"] = wanted.top_logprobs_num
        renamed["prompt_logprobs"] = wanted.top_logprobs_num if wanted.logprob_start_len >= 0 else None
    return translator.sampling(fields | {name: value for name, value in renamed.items() if value is not None})


def _check_work(prompts: Sequence[Encoded], sampling: Sequence[SamplingParams], max_total_tokens: int) -> None:
    """What one request may make the server hold is bounded before any of it is made (T14)."""
    _check_count(sum(one.n for one in sampling), "sampling_params")
    num_logprobs = 0
    for prompt, one in zip(prompts, sampling, strict=True):
        size = len(prompt.token_ids)
        num_told = min(size + (one.max_tokens or 0), max_total_tokens) - (size if one.prompt_logprobs is None else 0)
        num_logprobs += 0 if one.logprobs is None else num_told * one.n * (one.logprobs + 1)
    if num_logprobs > _MAX_LOGPROBS:
        raise InvalidRequest(
            f"the request may have {num_logprobs:,} logprobs, over {_MAX_LOGPROBS:,}; lower top_logprobs_num or max_new_tokens, "
            "or send fewer prompts at a time",
            "top_logprobs_num",
        )


async def _events(batch: _Batch, translator: Translator) -> AsyncIterator[bytes]:
    async for position, news in pieces_of(batch.generations):
        for piece in news:
            if piece.finish_reason is None:
                yield batch.event(position, piece.answer)
            else:
                sampling = batch.generations[position].request.sampling
                yield await translator.made(partial(batch.event, position, piece.answer), sampling)
    yield DONE


def _meta(wanted: GenerateRequest, name: str, generation: Generation, answer: CompletionOutput) -> MetaInfo:
    usage = generation.output.usage
    meta = MetaInfo(
        id=name,
        finish_reason=_ending(generation, answer),
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=len(answer.token_ids),
        cached_tokens=usage.cached_tokens,
    )
    if generation.finished_s is not None:
        meta.e2e_latency = max(0.0, generation.finished_s - generation.request.arrival_s)
    # While an answer grows its logprobs are left out: to say them all again with each token would be work without bound.
    if answer.logprobs is not None and answer.finish_reason is not None:
        with_text = wanted.return_text_in_logprobs
        meta.output_token_logprobs = [_chosen(entry, with_text) for entry in answer.logprobs]
        if wanted.top_logprobs_num:
            meta.output_top_logprobs = [_best(entry, wanted.top_logprobs_num, with_text) for entry in answer.logprobs]
        meta.input_token_logprobs = _of_prompt(wanted, generation)
    return meta


def _ending(generation: Generation, answer: CompletionOutput) -> Ending | None:
    match answer.finish_reason:
        case None:
            return None
        case "stop":
            last = answer.token_ids[-1] if answer.token_ids else None
            return Ending(type="stop", matched=last if answer.stop_reason is None else answer.stop_reason)
        case "length":
            return Ending(type="length", length=generation.request.max_tokens)
        case reason:
            return Ending(type="abort" if reason == "abort" else "error")


def _of_prompt(wanted: GenerateRequest, generation: Generation) -> list[NamedLogprob]:
    """Those of the prompt's tokens from ``logprob_start_len`` on; its first token has none."""
    entries = generation.output.prompt_logprobs or []
    first = generation.output.prompt_token_ids[0]
    named: list[NamedLogprob] = [
        (None, first, None) if entry is None else _chosen(entry, wanted.return_text_in_logprobs) for entry in entries
    ]
    return named[max(0, wanted.logprob_start_len) :]


def _chosen(entry: dict[int, Logprob], with_text: bool) -> NamedLogprob:
    """The token that stands there is the first of its entry."""
    token_id, one = next(iter(entry.items()))
    return (one.logprob, token_id, one.decoded_token if with_text else None)


def _best(entry: dict[int, Logprob], count: int, with_text: bool) -> list[NamedLogprob]:
    best = sorted(entry.items(), key=lambda item: item[1].rank)[:count]
    return [(one.logprob, token_id, one.decoded_token if with_text else None) for token_id, one in best]
