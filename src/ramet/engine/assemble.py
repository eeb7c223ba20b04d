"""From sequence updates to what a caller reads: text, stop strings, logprobs, usage.

The engine knows token ids alone. Text, and with it stop strings, begins here, at its edge: one ``OutputAssembler`` serves the
Python API and the server, so that both say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import attrgetter

from ramet.core.ids import RequestId, SeqId
from ramet.core.output import SequenceUpdate, TokenLogprobs
from ramet.core.request import FinishReason, Request
from ramet.core.sampling import SamplingParams
from ramet.text.detokenizer import Detokenizer
from ramet.text.tokenizer import Tokenizer

__all__ = ["CompletionOutput", "Logprob", "OutputAssembler", "RequestOutput", "Usage"]

_finish_reason = attrgetter("finish_reason")


@dataclass(frozen=True, slots=True)
class Logprob:
    """Log of a token's probability in the model's raw distribution, its rank there (from 1), and its text."""

    logprob: float
    rank: int
    decoded_token: str


@dataclass(slots=True)
class CompletionOutput:
    """One of a request's n answers. ``delta`` is, in a stream, the text that is new since the last time.

    ``logprobs`` has a dict a token, token id -> Logprob, the token itself always in it. ``stop_reason`` is the stop string or
    stop token id that ended the answer; None for an EOS token.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] | None = None
    cumulative_logprob: float | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    delta: str = ""


@dataclass(slots=True)
class Usage:
    """Token counts. ``prompt_tokens`` includes the cached ones; ``cached_tokens`` is fixed at admission, 0 on a miss."""

    prompt_tokens: int
    cached_tokens: int = 0
    completion_tokens: int = 0


@dataclass(slots=True)
class RequestOutput:
    """The state of one request. ``prompt_logprobs`` has an entry a prompt token, the first None."""

    request_id: RequestId
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    usage: Usage
    seed: int
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None

    @property
    def finished(self) -> bool:
        return None not in map(_finish_reason, self.outputs)  # asked at each token


@dataclass(slots=True)
class _Open:
    """A request in the making: its output and a detokenizer an answer (None without a tokenizer)."""

    request: Request
    output: RequestOutput
    detokenizers: list[Detokenizer | None]


class OutputAssembler:
    """Keeps the open requests' outputs. ``abort`` is called with a sequence whose stop string came or whose text failed."""

    def __init__(self, tokenizer: Tokenizer | None, abort: Callable[[SeqId], None]) -> None:
        self._tokenizer = tokenizer
        self._abort = abort
        self._open: dict[RequestId, _Open] = {}

    def open(self, request: Request, prompt_text: str | None = None) -> RequestOutput:
        """Begin a request; its output object is updated in place until it is finished."""
        sampling = request.sampling
        prompt_ids = request.prompt.tolist()
        output = RequestOutput(
            request_id=request.request_id,
            prompt=prompt_text,
            prompt_token_ids=prompt_ids,
            outputs=[
                CompletionOutput(
                    index=i,
                    logprobs=None if sampling.logprobs is None else [],
                    cumulative_logprob=None if sampling.logprobs is None else 0.0,
                )
                for i in range(sampling.n)
            ],
            usage=Usage(prompt_tokens=len(prompt_ids)),
            seed=request.seed,
            prompt_logprobs=None if sampling.prompt_logprobs is None else [None],
        )
        self._open[request.request_id] = _Open(
            request, output, [self._detokenizer(sampling, prompt_ids) for _ in range(sampling.n)]
        )
        return output

    def apply(self, updates: Iterable[SequenceUpdate]) -> list[RequestOutput]:
        """Take a step's updates in; returns the outputs they changed, each once. Finished ones are let go."""
        changed: dict[RequestId, RequestOutput] = {}
        for update in updates:
            entry = self._open.get(update.request_id)
            if entry is None:
                continue
            answer = entry.output.outputs[update.index]
            if answer.finish_reason is not None:
                continue  # its stop string has come; what the engine still had in flight is not part of the answer
            changed[update.request_id] = entry.output
            try:
                self._apply_one(entry, answer, update)
            except Exception as error:  # whatever it is, it is this answer's alone
                answer.finish_reason, answer.error = "error", f"the answer could not be put into words: {error}"
                self._abort(update.seq_id)
            if answer.finish_reason is not None and entry.output.finished:
                del self._open[update.request_id]
        return list(changed.values())

    def open_ids(self) -> tuple[RequestId, ...]:
        """Requests that are not finished."""
        return tuple(self._open)

    def close(self, request_id: RequestId) -> None:
        """Forget a request. Unknown ids are no error: it may just have finished."""
        self._open.pop(request_id, None)

    def _detokenizer(self, sampling: SamplingParams, prompt_ids: list[int]) -> Detokenizer | None:
        if self._tokenizer is None:
            return None
        return Detokenizer(
            self._tokenizer,
            prompt_ids,
            stops=sampling.stops,
            include_stop=sampling.include_stop_str_in_output,
            min_tokens=sampling.min_tokens,
            skip_special_tokens=sampling.skip_special_tokens,
        )

    def _apply_one(self, entry: _Open, answer: CompletionOutput, update: SequenceUpdate) -> None:
        usage = entry.output.usage
        if update.index == 0:
            usage.cached_tokens = update.num_cached_tokens
        if entry.output.prompt_logprobs is not None:
            entry.output.prompt_logprobs.extend(self._named(one) for one in update.prompt_logprobs)
        for i, token_id in enumerate(update.new_token_ids):
            answer.token_ids.append(token_id)
            usage.completion_tokens += 1
            if answer.logprobs is not None and answer.cumulative_logprob is not None:
                answer.logprobs.append(self._named(update.logprobs[i]))
                answer.cumulative_logprob += update.logprobs[i].logprob
            is_stop = update.stop_token_id is not None and i == len(update.new_token_ids) - 1
            if self._say(entry, answer, token_id, is_stop):
                self._abort(update.seq_id)
                return
        if update.finish_reason is not None:
            self._finish(entry, answer, update)

    def _say(self, entry: _Open, answer: CompletionOutput, token_id: int, is_stop: bool) -> bool:
        """Add a token's text. True where it completed a stop string; the answer is finished then."""
        detokenizer = entry.detokenizers[answer.index]
        sampling = entry.request.sampling
        if detokenizer is None or (is_stop and not sampling.include_stop_str_in_output):
            return False  # the text of a stop token is no part of the answer
        answer.text += detokenizer.push([token_id])
        if detokenizer.stopped is None:
            return False
        answer.finish_reason, answer.stop_reason = "stop", detokenizer.stopped
        return True

    def _finish(self, entry: _Open, answer: CompletionOutput, update: SequenceUpdate) -> None:
        answer.finish_reason, answer.error = update.finish_reason, update.error
        caller_stops = entry.request.sampling.stop_token_ids or ()
        if update.stop_token_id in caller_stops:
            answer.stop_reason = update.stop_token_id
        detokenizer = entry.detokenizers[answer.index]
        if detokenizer is not None:
            answer.text += detokenizer.finish()
            if detokenizer.stopped is not None and update.error is None:  # by a last character that was never completed
                answer.finish_reason, answer.stop_reason = "stop", detokenizer.stopped

    def _named(self, one: TokenLogprobs) -> dict[int, Logprob]:
        """The token first, then the best ones in falling order."""
        text = self._tokenizer.token_text if self._tokenizer else _no_text
        found = {one.token_id: Logprob(one.logprob, one.rank, text(one.token_id))}
        for rank, (token_id, logprob) in enumerate(zip(one.top_ids.tolist(), one.top_logprobs.tolist(), strict=True), start=1):
            found.setdefault(token_id, Logprob(logprob, rank, text(token_id)))
        return found


def _no_text(token_id: int) -> str:
    return ""
