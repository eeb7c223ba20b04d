"""In what order waiting sequences are admitted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Protocol

from ramet.config import PolicyName
from ramet.core.request import Sequence

__all__ = ["FirstCome", "LongestPrefix", "Peeker", "Policy", "Rank", "make_policy", "rank"]

Rank = tuple[int, float, int]

_AGE_TOKENS = 16  # what each later arrival is worth to a waiting sequence, in cached tokens
_WINDOW = 64  # sequences compared in one step; those behind them keep their order


def rank(seq: Sequence) -> Rank:
    """Who goes first, all else equal: higher priority, then earlier arrival. No two sequences rank the same."""
    return (-seq.request.priority, seq.request.arrival_s, seq.seq_id)


class Policy(Protocol):
    """Puts the waiting sequences, given by ``rank``, in the order of admission. Admission stops at the first one refused."""

    def order(self, waiting: list[Sequence]) -> Iterable[Sequence]: ...


class Peeker(Protocol):
    """The part of ``KVManager`` a policy may ask: how many tokens of a sequence the cache would serve now."""

    def peek(self, seq: Sequence) -> int: ...


class FirstCome:
    """By priority, then by arrival."""

    def order(self, waiting: list[Sequence]) -> Iterable[Sequence]:
        return waiting


class LongestPrefix:
    """Most cached tokens first, within a priority (the idea of SGLang's lpm policy), with ageing.

    A sequence's worth is its cached tokens, less ``_AGE_TOKENS`` for each place it arrived later. So one with c cached
    tokens overtakes only sequences among the c / ``_AGE_TOKENS`` arrivals before it: nobody starves, whatever comes, and no
    clock is asked. A queue of any length costs at most ``_WINDOW`` peeks a step.
    """

    def __init__(self, cache: Peeker) -> None:
        self._cache = cache

    def order(self, waiting: list[Sequence]) -> Iterable[Sequence]:
        window = sorted(waiting[:_WINDOW], key=self._key)
        return chain(window, waiting[_WINDOW:])

    def _key(self, seq: Sequence) -> tuple[int, int, int]:
        worth = self._cache.peek(seq) - _AGE_TOKENS * seq.seq_id
        return (-seq.request.priority, -worth, seq.seq_id)


_POLICIES: dict[PolicyName, Callable[[Peeker], Policy]] = {
    "fcfs": lambda _cache: FirstCome(),
    "longest-prefix": LongestPrefix,
}


def make_policy(name: PolicyName, cache: Peeker) -> Policy:
    return _POLICIES[name](cache)
