"""Prompt lookup: guesses taken from text that is there, in the sequence itself or, behind the same beginning, in the cache.

The idea of n-grams of the prompt is Saxena's (prompt lookup decoding, 2023). The tree adds what another sequence wrote after all
the same tokens: an agent that asks again, or one of many samples, goes on as the one before it for a while.
"""

from __future__ import annotations

from collections.abc import Callable

from ramet.core.ports import Draft, Drafter
from ramet.core.request import Sequence

__all__ = ["BestGuess", "PromptLookup"]

_NGRAM = 3
_INDEXED_AT_ONCE = 4_096  # tokens of a long prompt: 2 ms
_ASKED_EVERY = 16  # tokens: how often the cache is asked while it knows nothing
_FROM_CACHE = 256  # tokens that are taken from it at once
_FIRST_TRUST = 0.6
_LEARNING = 0.1
_LEAST_TRUST = 0.2
_MOST_REST = 31


class PromptLookup:
    """``Drafter`` of one sequence. ``continuation`` gives up to so many tokens that the cache has behind the sequence's own.

    ``trust`` is how many of its guesses have held of late, first ones that were not worth their row included. Where none of a
    step's holds it guesses nothing for a while, twice as long each time.
    """

    def __init__(self, seq: Sequence, most: int, continuation: Callable[[Sequence, int], list[int]]) -> None:
        self._seq = seq
        self._most = most
        self._continuation = continuation
        self._places: dict[tuple[int, ...], int] = {}  # where the token behind each n-gram stands, of several the last
        self._num_indexed = 0
        self._ahead: list[int] = []  # what the cache had behind the first ``_asked_at`` tokens
        self._asked_at = len(seq.tokens) - _ASKED_EVERY
        self.trust = _FIRST_TRUST
        self._guess: int | None = None  # what was thought to come next
        self._num_failed = 0  # proposals in a row of which nothing held
        self._rest = 0  # steps to come without a guess

    def propose(self, most: int, least: float) -> list[Draft]:
        if self._rest:
            self._rest -= 1
            return []
        likelihoods = [self.trust]
        while len(likelihoods) < min(most, self._most) and likelihoods[-1] * self.trust >= least:
            likelihoods.append(likelihoods[-1] * self.trust)
        found = self._of_cache(len(likelihoods)) or self._of_own(len(likelihoods))
        if self._seq.matcher is not None and found:
            found = found[: self._seq.matcher.validate(found)]
        self._guess = found[0] if found else None
        return [Draft(*one) for one in zip(found, likelihoods, strict=False) if one[1] >= least]

    def learn(self, num_proposed: int, token_ids: list[int]) -> None:
        num_held = min(num_proposed, max(0, len(token_ids) - 1))
        for place in range(min(num_held + 1, num_proposed)):
            self.trust += ((place < num_held) - self.trust) * _LEARNING
        if not num_proposed and self._guess is not None and token_ids:
            self.trust += ((self._guess == token_ids[0]) - self.trust) * _LEARNING
        self._guess = None  # of this step alone: in the next one another drafter may be asked
        self.trust = max(self.trust, _LEAST_TRUST)
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

    def _of_own(self, count: int) -> list[int]:
        """What stood behind the last n-gram when it came before."""
        view = self._seq.tokens.view()
        stop = min(len(view), self._num_indexed + _INDEXED_AT_ONCE)
        base = max(0, self._num_indexed - _NGRAM)
        tokens = view[base:stop].tolist()
        for place in range(max(self._num_indexed, _NGRAM), stop):
            self._places[tuple(tokens[place - _NGRAM - base : place - base])] = place
        self._num_indexed = stop
        start = self._places.get(tuple(view[-_NGRAM:].tolist()), len(view))
        return [int(token_id) for token_id in view[start : start + count]]


class BestGuess:
    """``Drafter`` that asks one first and, where that has none, another."""

    def __init__(self, first: Drafter, second: Drafter) -> None:
        self._drafters = (first, second)
        self._chosen = first

    def propose(self, most: int, least: float) -> list[Draft]:
        for drafter in self._drafters:
            if drafts := drafter.propose(most, least):
                self._chosen = drafter
                return drafts
        return []

    def learn(self, num_proposed: int, token_ids: list[int]) -> None:
        for drafter in self._drafters:
            drafter.learn(num_proposed if drafter is self._chosen else 0, token_ids)
