"""What a request must be before the engine takes it. Everything is checked here, and nothing is changed before all is checked."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ramet.core.ids import Int32, RequestId
from ramet.core.ports import Clock
from ramet.core.request import Namespace, Request
from ramet.core.sampling import SamplingParams
from ramet.errors import ContextTooLong, InvalidRequest, shown

__all__ = ["Admission", "Limits", "PromptIds", "check_sampling"]

PromptIds = Sequence[int] | np.ndarray

_MAX_ID_CHARS = 256
_MAX_PRIORITY = 2**31 - 1
_MAX_LOGPROBS_TOLD = 2**22  # of one request; each is an object of some 200 bytes
_SEED_BITS = 53  # a JSON number that every client reads back exactly


@dataclass(frozen=True, slots=True)
class Limits:
    """``max_total_tokens`` bounds prompt plus output: the context length, or what the KV pool holds if that is less."""

    vocab_size: int
    max_model_len: int
    max_total_tokens: int

    @classmethod
    def of(cls, vocab_size: int, max_model_len: int, fits: Callable[[int], bool]) -> Limits:
        """``fits`` is the pool's own bound at admission, asked rather than worked out again, so that the two cannot differ."""
        lengths = range(1, max_model_len + 1)
        return cls(vocab_size, max_model_len, bisect_left(lengths, True, key=lambda n: not fits(n)))

    def check_prompt(self, prompt: PromptIds) -> Int32:
        """int32[n] of a prompt that is not empty, short enough, and of this model's token ids."""
        is_flat = prompt.ndim == 1 if isinstance(prompt, np.ndarray) else isinstance(prompt, Sequence)
        if not is_flat or isinstance(prompt, (str, bytes)):
            raise InvalidRequest(f"prompt is a flat list of token ids, not {type(prompt).__name__}", "prompt")
        if len(prompt) == 0:
            raise InvalidRequest("prompt is empty; it needs at least 1 token", "prompt")
        if len(prompt) > self.max_total_tokens:
            raise self._too_long(f"prompt is {len(prompt):,} tokens", "Shorten it")
        ids = prompt if isinstance(prompt, np.ndarray) else _int_array(prompt)
        if ids.dtype.kind not in "iu":
            raise InvalidRequest(f"prompt token ids are whole numbers, not {ids.dtype}", "prompt")
        outside = np.flatnonzero((ids < 0) | (ids >= self.vocab_size))
        if len(outside):
            where = int(outside[0])
            raise InvalidRequest(
                f"prompt token {where} is {ids[where]}; this model's token ids are 0 to {self.vocab_size - 1}", "prompt"
            )
        return ids.astype(np.int32)

    def max_tokens(self, num_prompt_tokens: int, sampling: SamplingParams) -> int:
        """The request's ``max_tokens``, or all that fits where it gives none. Never less than it asks for."""
        room = self.max_total_tokens - num_prompt_tokens
        wanted = sampling.max_tokens
        if wanted is None:
            if room < max(1, sampling.min_tokens):
                raise self._too_long(
                    f"prompt is {num_prompt_tokens:,} tokens, which leaves {room:,} for the output", "Shorten the prompt"
                )
            return room
        if wanted > room:
            total = num_prompt_tokens + wanted
            raise self._too_long(
                f"prompt is {num_prompt_tokens:,} tokens and max_tokens {wanted:,}, together {total:,}",
                f"Lower max_tokens to {room:,}" if room > 0 else "Shorten the prompt",
                "max_tokens" if room > 0 else "prompt",
            )
        return wanted

    def _too_long(self, what: str, fix: str, param: str = "prompt") -> ContextTooLong:
        if self.max_total_tokens < self.max_model_len:
            bound, option = "the KV pool holds", ", or give the pool more (--kv-cache-memory, --max-total-tokens)"
        else:
            bound, option = "the context (--max-model-len) is", ""
        return ContextTooLong(f"{what}; {bound} {self.max_total_tokens:,}. {fix}{option}.", param)


class Admission:
    """Makes requests: checks all that can be wrong with one, draws its seed where it gives none, resolves its bounds.

    The engine has one, and so has a server in front of it, which refuses at the door what the engine would refuse. ``eos_ids``
    end an output unless the request ignores them; ``seed`` is where seeds come from.
    """

    def __init__(self, limits: Limits, eos_ids: Iterable[int], clock: Clock, seed: int) -> None:
        self.limits = limits
        self._eos_ids = frozenset(eos_ids)
        self._clock = clock
        self._seed = seed
        self._num_requests = 0

    def request(
        self,
        prompt: PromptIds,
        sampling: SamplingParams,
        *,
        request_id: RequestId,
        namespace: Namespace,
        priority: int = 0,
        arrival_s: float | None = None,
    ) -> Request:
        """A request that the engine can run. Raises ``InvalidRequest`` and ``ContextTooLong``; nothing is changed then."""
        check_sampling(sampling)
        ids = self.limits.check_prompt(prompt)
        sampling.check_vocabulary(self.limits.vocab_size)
        _check_priority(priority)
        _check_namespace(namespace)
        _check_request_id(request_id)
        max_tokens = self.limits.max_tokens(len(ids), sampling)
        _check_logprobs(len(ids), max_tokens, sampling)
        stops = frozenset(sampling.stop_token_ids or ())
        self._num_requests += 1
        return Request(
            request_id=request_id,
            prompt=ids,
            sampling=sampling,
            seed=self._draw_seed() if sampling.seed is None else sampling.seed,
            max_tokens=max_tokens,
            stop_ids=stops if sampling.ignore_eos else stops | self._eos_ids,
            namespace=namespace,
            priority=priority,
            arrival_s=self._clock.now() if arrival_s is None else arrival_s,
        )

    def _draw_seed(self) -> int:
        """Counter-based: the seed of the k-th request depends on the seed and k alone."""
        (word,) = np.random.SeedSequence([self._seed, self._num_requests]).generate_state(1, np.uint64)
        return int(word) >> (64 - _SEED_BITS)


def _int_array(ids: Sequence[int]) -> np.ndarray:
    """Whole numbers alone: numpy would take True for 1 and 1.0 for 1."""
    for kind in set(map(type, ids)):
        if kind is bool or not issubclass(kind, (int, np.integer)):
            where = next(i for i, value in enumerate(ids) if type(value) is kind)
            raise InvalidRequest(f"prompt token {where} is {shown(ids[where])}; token ids are whole numbers", "prompt")
    try:
        return np.array(ids, dtype=np.int64)
    except OverflowError:
        where = next(i for i, value in enumerate(ids) if not -(2**63) <= value < 2**63)
        raise InvalidRequest(f"prompt token {where} is beyond every token id", "prompt") from None


def _check_logprobs(num_prompt_tokens: int, max_tokens: int, sampling: SamplingParams) -> None:
    """What is asked for is held in memory until the answer is whole, so all of it together is bounded, not each number alone."""
    count = 0
    if sampling.logprobs is not None:
        count += sampling.n * max_tokens * (sampling.logprobs + 1)
    if sampling.prompt_logprobs is not None:
        count += num_prompt_tokens * (sampling.prompt_logprobs + 1)
    if count > _MAX_LOGPROBS_TOLD:
        raise InvalidRequest(
            f"the request asks for up to {count:,} logprobs, over {_MAX_LOGPROBS_TOLD:,}; lower n, max_tokens or logprobs",
            "logprobs",
        )


def _check_request_id(request_id: object) -> None:
    if not isinstance(request_id, str) or not 0 < len(request_id) <= _MAX_ID_CHARS:
        raise InvalidRequest(f"request_id is a string of 1 to {_MAX_ID_CHARS} characters", "request_id")


def _check_priority(priority: object) -> None:
    if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > _MAX_PRIORITY:
        raise InvalidRequest(
            f"priority is a whole number of at most {_MAX_PRIORITY} either way, not {shown(priority)}", "priority"
        )


def check_sampling(sampling: object) -> None:
    if not isinstance(sampling, SamplingParams):
        raise InvalidRequest(f"sampling parameters are a SamplingParams, not {shown(sampling)}", "params")


def _check_namespace(namespace: object) -> None:
    """A namespace is part of every cache key, so a field that is none would fail in the midst of a step."""
    is_sound = (
        isinstance(namespace, Namespace)
        and _is_unicode(namespace.salt)
        and _is_unicode(namespace.adapter)
        and type(namespace.generation) is int
    )
    if not is_sound:
        raise InvalidRequest(f"namespace is of two texts and a whole number, not {shown(namespace, 200)}", "namespace")


def _is_unicode(text: object) -> bool:
    """A lone surrogate has no UTF-8 form."""
    return isinstance(text, str) and not any("\ud800" <= c <= "\udfff" for c in text)
