"""How the next token is chosen: the caller's parameters, validated."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ramet.core.grammar import GrammarSpec
from ramet.errors import InvalidRequest, shown

__all__ = ["MAX_LOGPROBS", "SamplingParams"]

MAX_LOGPROBS = 20  # the OpenAI API's limit; more would let one request fill the memory
_MAX_STOPS = 64
_MAX_STOP_CHARS = 4096
_MAX_N = 128
_MAX_TOKENS = 2**31 - 1
_SEED_LIMIT = 2**64


class _NamesUnknownFields(type):
    """Turns an unknown keyword into ``InvalidRequest`` with the nearest name."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
        for name in kwargs:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=2)
                hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
                raise InvalidRequest(f"unknown sampling parameter {shown(name)}; {hint}", name)
        return super().__call__(*args, **kwargs)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams(metaclass=_NamesUnknownFields):
    """Sampling parameters, named as vLLM's users know them. Raises ``InvalidRequest``.

    ``temperature`` 0 is greedy. ``top_k`` 0 or -1 and ``top_p`` 1 are off. ``max_tokens`` None means as many as the
    context and the pool allow; 0 only computes the prompt. ``logprobs`` k gives the chosen token's logprob and the k best;
    they are of the model's raw distribution, before penalties, temperature and masks. ``seed`` makes the
    output repeatable whatever else runs; without one the engine draws one and reports it. ``structured_outputs`` constrains the
    output (``GrammarSpec.of`` says how it is written); such an output ends where its grammar can go no further, before
    ``min_tokens`` and under ``ignore_eos`` as well, and nothing ends it sooner but ``max_tokens``, and ``stop``
    where it is no JSON document.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    structured_outputs: GrammarSpec | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        _whole("n", self.n, 1, _MAX_N)
        _real("temperature", self.temperature, 0.0, 100.0)
        _real("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _whole("top_k", self.top_k, -1, _MAX_TOKENS)
        _real("min_p", self.min_p, 0.0, 1.0)
        _real("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _real("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _real("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _optional_whole("seed", self.seed, 0, _SEED_LIMIT - 1)
        _optional_whole("max_tokens", self.max_tokens, 0, _MAX_TOKENS)
        _whole("min_tokens", self.min_tokens, 0, _MAX_TOKENS)
        _optional_whole("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        _optional_whole("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS)
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequest(f"{name} is true or false, not {shown(getattr(self, name))}", name)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(f"min_tokens {self.min_tokens} is over max_tokens {self.max_tokens}", "min_tokens")
        object.__setattr__(self, "stop", _stops(self.stop))
        object.__setattr__(self, "stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids))
        object.__setattr__(self, "allowed_token_ids", _token_ids("allowed_token_ids", self.allowed_token_ids))
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidRequest("allowed_token_ids is empty, so no token could be chosen; leave it out", "allowed_token_ids")
        object.__setattr__(self, "logit_bias", _bias(self.logit_bias))
        if self.structured_outputs is not None:
            object.__setattr__(self, "structured_outputs", GrammarSpec.of(self.structured_outputs))

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings to look for, possibly none."""
        return () if self.ignores_stops else tuple(self.stop or ())

    @property
    def ignores_stops(self) -> bool:
        """Whether there are stop strings without effect: a JSON document ends by itself, and they could only cut it short."""
        return bool(self.stop) and self.grammar is not None and self.grammar.is_document

    @property
    def grammar(self) -> GrammarSpec | None:
        """What ``structured_outputs`` says."""
        return None if self.structured_outputs is None else GrammarSpec.of(self.structured_outputs)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise ``InvalidRequest`` where a token id is not in [0, vocab_size)."""
        lists = {
            "stop_token_ids": self.stop_token_ids or (),
            "allowed_token_ids": self.allowed_token_ids or (),
            "logit_bias": tuple(self.logit_bias or ()),
        }
        for name, ids in lists.items():
            for token_id in ids:
                if token_id >= vocab_size:
                    raise InvalidRequest(f"{name} has {token_id}; this model's token ids are 0 to {vocab_size - 1}", name)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole(name: str, value: object, low: int, high: int) -> None:
    if not _is_whole(value) or not low <= value <= high:  # type: ignore[operator]
        raise InvalidRequest(f"{name} is a whole number from {low} to {high}, not {shown(value)}", name)


def _optional_whole(name: str, value: object, low: int, high: int) -> None:
    if value is not None:
        _whole(name, value, low, high)


def _real(name: str, value: object, low: float, high: float, *, open_low: bool = False) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and (low < value if open_low else low <= value) and value <= high:  # type: ignore[operator]
        return  # NaN is not: it compares false
    edge = "above" if open_low else "from"
    raise InvalidRequest(f"{name} is a number {edge} {low} to {high}, not {shown(value)}", name)


def _stops(stop: object) -> tuple[str, ...] | None:
    if stop is None:
        return None
    found = (stop,) if isinstance(stop, str) else stop
    if not isinstance(found, (list, tuple)) or len(found) > _MAX_STOPS:
        raise InvalidRequest(f"stop is a string or a list of at most {_MAX_STOPS} strings", "stop")
    for one in found:
        if not isinstance(one, str) or not 0 < len(one) <= _MAX_STOP_CHARS:
            raise InvalidRequest(f"each stop is a string of 1 to {_MAX_STOP_CHARS} characters, not {shown(one)}", "stop")
        if any("\ud800" <= c <= "\udfff" for c in one):
            raise InvalidRequest("stop holds a lone surrogate, which no output can contain", "stop")
    return tuple(found)


def _token_ids(name: str, ids: object) -> tuple[int, ...] | None:
    if ids is None:
        return None
    if isinstance(ids, (str, bytes)) or not isinstance(ids, (list, tuple, set, frozenset)):
        raise InvalidRequest(f"{name} is a list of token ids", name)
    for token_id in ids:
        _whole(name, token_id, 0, _MAX_TOKENS)
    return tuple(sorted(set(ids)))


def _bias(bias: object) -> dict[int, float] | None:
    if bias is None:
        return None
    if not isinstance(bias, Mapping):
        raise InvalidRequest("logit_bias maps token ids to numbers", "logit_bias")
    for token_id, value in bias.items():
        _whole("logit_bias", token_id, 0, _MAX_TOKENS)
        _real("logit_bias", value, -100.0, 100.0)
    return {token_id: float(value) for token_id, value in sorted(bias.items())}
