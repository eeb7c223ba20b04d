"""Prompt lookup: guesses taken from text that is there, in the sequence itself or, behind the same beginning, in the cache.

The idea of n-grams of the prompt is Saxena's (prompt lookup decoding, 2023). The tree adds what another sequence wrote after all
the same tokens: an agent that asks again, or one of many samples, goes on as the one before it for a while.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from operator import mul

from ramet.core.ports import Draft, Drafter
from ramet.core.request import Sequence

__all__ = ["BestGuess", "PromptLookup"]

_SHORT, _LONG = 2, 3  # tokens that have to agree; the short ones find what has just begun to be copied
_INDEXED_AT_ONCE = 4_096  # tokens of a long prompt: 2 to 4 ms
_ASKED_EVERY = 16  # tokens: how often the cache is asked while it knows nothing
_FROM_CACHE = 256  # tokens that are taken from it at once
_FIRST_TRUST = 0.6
_LEARNING = 0.1
_MOST_REST = 31


class PromptLookup:
    """``Drafter`` of one sequence. ``continuation`` gives up to so many tokens that the cache has behind the sequence's own.

    ``trusts`` are how many guesses have held of late behind so many tokens that agreed, first ones that were not worth their row
    included. Where none of a step's holds it guesses nothing for a while, twice as long each time.
    """

    def __init__(self, seq: Sequence, most: int, continuation: Callable[[Sequence, int], list[int]]) -> None:
        self._seq = seq
        self._most = most
        self._continuation = continuation
        self._places: dict[tuple[int, ...], int] = {}  # where the token behind each n-gram stands, of several the last
        self._num_indexed = 0
        self._ahead: list[int] = []  # what the cache had behind the first ``_asked_at`` tokens
        self._asked_at = len(seq.tokens) - _ASKED_EVERY
        self.trusts = dict.fromkeys(range(_SHORT, _LONG + 1), _FIRST_TRUST)
        self._num_agreed = _LONG  # before what was thought to come next
        self._found: list[int] = []  # what was thought to come next
        self._num_failed = 0  # proposals in a row of which nothing held
        self._rest = 0  # steps to come without a guess

    def propose(self, most: int, least: float) -> list[Draft]:
        if self._rest:
            self._rest -= 1
            return []
        found, self._num_agreed = self._of_cache(min(most, self._most)), _LONG
        if not found:
            found, self._num_agreed = self._of_own(min(most, self._most))
        trusts = [self.trusts[min(self._num_agreed + place, _LONG)] for place in range(len(found))]
        likely = [likelihood for likelihood in accumulate(trusts, mul) if likelihood >= least]
        found = found[: max(1, len(likely))]
        if self._seq.matcher is not None and found:
            found = found[: self._seq.matcher.validate(found)]
        self._found = found
        return [Draft(*one) for one in zip(found, likely, strict=False)]

    def learn(self, num_proposed: int, token_ids: list[int]) -> None:
        if not token_ids:  # what was guessed is still to come
            return
        num_held = 0
        for place, guess in enumerate(self._found[: len(token_ids)]):
            has_held = guess == token_ids[place]
            num_agreed = min(self._num_agreed + place, _LONG)
            self.trusts[num_agreed] += (has_held - self.trusts[num_agreed]) * _LEARNING
            if not has_held:
                break
            num_held += 1
        self._found = []  # of this step alone: in the next one it may rest
        if num_proposed:
            self._num_failed = 0 if num_held else self._num_failed + 1
            self._rest = min(2**self._num_failed - 1, _MOST_REST)

    def _of_cache(self, count: int) -> list[int]:
        num_tokens = len(self._seq.tokens)
        passed = num_tokens - self._asked_at
        if self._ahead:
            if passed < len(self._ahead) and self._seq.tokens.view(self._asked_at).tolist() == self._ahead[:passed]:
                return self._ahead[passed : passed + count]
        elif passed < _ASKED_EVERY:
            return []
        self._ahead, self._asked_at = self._continuation(self._seq, _FROM_CACHE), num_tokens
        return self._ahead[:count]

    def _of_own(self, count: int) -> tuple[list[int], int]:
        """What stood behind the last tokens when they came before, and how many of them agree."""
        view = self._seq.tokens.view()
        stop = min(len(view), self._num_indexed + _INDEXED_AT_ONCE)
        base = max(0, self._num_indexed - _LONG)
        tokens = view[base:stop].tolist()
        for num in range(_SHORT, _LONG + 1):
            for place in range(max(self._num_indexed, num), stop):
                self._places[tuple(tokens[place - num - base : place - base])] = place
        self._num_indexed = stop
        last = tuple(view[-_LONG:].tolist())
        for num in range(_LONG, _SHORT - 1, -1):
            start = self._places.get(last[-num:])
            if start is not None:
                return view[start : start + count].tolist(), num
        return [], _LONG


class BestGuess:
    """``Drafter`` that asks two, and takes the guesses of which more are likely to hold: of as many, the first one's."""

    def __init__(self, first: Drafter, second: Drafter) -> None:
        self._drafters = (first, second)
        self._chosen = first

    def propose(self, most: int, least: float) -> list[Draft]:
        offers = [drafter.propose(most, least) for drafter in self._drafters]
        gains = [sum(draft.likelihood for draft in offer) for offer in offers]
        best = gains.index(max(gains))
        self._chosen = self._drafters[best]
        return offers[best]

    def learn(self, num_proposed: int, token_ids: list[int]) -> None:
        for drafter in self._drafters:
            drafter.learn(num_proposed if drafter is self._chosen else 0, token_ids)
