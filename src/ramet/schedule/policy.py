"""In what order waiting sequences are admitted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Protocol

from ramet.config import PolicyName
from ramet.core.request import Sequence

__all__ = ["FirstCome", "Foresight", "LongestPrefix", "Policy", "Rank", "WithoutRepeats", "make_policy", "rank"]

Rank = tuple[int, float, int]

_AGE_TOKENS = 16  # what each later arrival is worth to a waiting sequence, in cached tokens
_WINDOW = 64  # sequences compared in one step; those behind them keep their order
_MIN_SHARED_TOKENS = 64  # computed by one for others, that are worth a wait of a step; chat templates have fewer in common


def rank(seq: Sequence) -> Rank:
    """Who goes first, all else equal: higher priority, then earlier arrival. No two sequences rank the same."""
    return (-seq.request.priority, seq.request.arrival_s, seq.seq_id)


class Policy(Protocol):
    """Puts the waiting sequences, given by ``rank``, in the order of admission. Admission stops at the first one refused.

    ``running`` are those that run, by rank, and grows with each one that is admitted while the order is gone through.
    """

    def order(self, waiting: list[Sequence], running: list[Sequence]) -> Iterable[Sequence]: ...


class Foresight(Protocol):
    """The part of ``KVManager`` a policy may ask: how many tokens of a sequence the cache would serve now, and how many
    once another one is computed.
    """

    def peek(self, seq: Sequence) -> int: ...

    def num_shared(self, seq: Sequence, other: Sequence) -> int: ...


class FirstCome:
    """By priority, then by arrival."""

    def order(self, waiting: list[Sequence], running: list[Sequence]) -> Iterable[Sequence]:
        return waiting


class LongestPrefix:
    """Most cached tokens first, within a priority (the idea of SGLang's lpm policy), with ageing.

    A sequence's worth is its cached tokens, less ``_AGE_TOKENS`` for each place it arrived later. So one with c cached
    tokens overtakes only sequences among the c / ``_AGE_TOKENS`` arrivals before it: nobody starves, whatever comes, and no
    clock is asked. A queue of any length costs at most ``_WINDOW`` peeks a step.
    """

    def __init__(self, cache: Foresight) -> None:
        self._cache = cache

    def order(self, waiting: list[Sequence], running: list[Sequence]) -> Iterable[Sequence]:
        window = sorted(waiting[:_WINDOW], key=self._key)
        return chain(window, waiting[_WINDOW:])

    def _key(self, seq: Sequence) -> tuple[int, int, int]:
        worth = self._cache.peek(seq) - _AGE_TOKENS * seq.seq_id
        return (-seq.request.priority, -worth, seq.seq_id)


class WithoutRepeats:
    """Another policy's order without those that would compute what a running sequence is about to publish.

    Of a burst of requests that begin alike the first computes what they have in common, and the others are admitted when it is
    in the cache: nothing is computed twice. Nobody waits for long: only for a sequence that runs and ranks before it, only
    while that one is on its way through the common part, and not where the cache would take it further already. So each step
    of a wait computes tokens that the waiting one needs. If the other is preempted or aborted the wait is over.
    """

    def __init__(self, policy: Policy, cache: Foresight) -> None:
        self._policy = policy
        self._cache = cache

    def order(self, waiting: list[Sequence], running: list[Sequence]) -> Iterable[Sequence]:
        for place, seq in enumerate(self._policy.order(waiting, running)):
            if place >= _WINDOW or not any(self._waits_for(seq, other) for other in running):
                yield seq

    def _waits_for(self, seq: Sequence, other: Sequence) -> bool:
        done, begun = other.num_computed_tokens, other.num_cached_tokens or 0
        if done + 1 >= len(other.tokens) or rank(other) > rank(seq):  # it computes nothing but its newest token
            return False
        shared = self._cache.num_shared(seq, other)
        return shared > done and shared - begun >= _MIN_SHARED_TOKENS and self._cache.peek(seq) <= done


_POLICIES: dict[PolicyName, Callable[[Foresight], Policy]] = {
    "fcfs": lambda _cache: FirstCome(),
    "longest-prefix": LongestPrefix,
}


def make_policy(name: PolicyName, cache: Foresight) -> Policy:
    return WithoutRepeats(_POLICIES[name](cache), cache)
