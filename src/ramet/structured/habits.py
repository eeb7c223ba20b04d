"""What came at a place before, and how far that is to be trusted to come again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from math import exp
from typing import Generic, TypeVar

__all__ = ["Habit", "Habits", "Trust"]

_MANY = 5
_FICKLE = 2
_TIMES = range(_MANY + 1)
_HELD = [changes * len(_TIMES) + min(times + 1, _MANY) for changes in range(_FICKLE + 1) for times in _TIMES]
_CHANGED = [min(changes + 1, _FICKLE) * len(_TIMES) for changes in range(_FICKLE + 1) for _ in _TIMES]
_Place = TypeVar("_Place", bound=Hashable)
Habit = tuple[int, int]
"""The token that came last, and a state: how often in a row it has come, up to ``_MANY``, and how often the token has changed
there, up to ``_FICKLE``."""


class Habits(Generic[_Place]):
    """What came last at each of up to ``most`` places, those seen longest ago given up first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._habits: OrderedDict[_Place, Habit] = OrderedDict()

    def at(self, place: _Place) -> Habit | None:
        return self._habits.get(place)

    def learn(self, place: _Place, token_id: int) -> None:
        """It came there."""
        known = self._habits.get(place)
        if known is None:
            self._habits[place] = token_id, 1
            if len(self._habits) > self._most:
                self._habits.popitem(last=False)
        else:
            self._habits[place] = token_id, (_HELD if known[0] == token_id else _CHANGED)[known[1]]
            self._habits.move_to_end(place)


# Weights to begin with, of log-odds. What comes tells, so they need not be good ones: half or twice as much is as well.
_STEADY = [0.5 + 0.2 * (times - 1) for times in _TIMES]  # for the token that always came, so often
_UNSTEADY = [-0.4 + 0.2 * times for times in _TIMES]  # for the one that came last, so often, where others came too
_AGAINST_STEADY, _AGAINST_UNSTEADY = -1.2, -0.25  # for any other
_BEHIND_HIT, _BEHIND_MISS = 0.0, -0.5
_LEARNING = 0.03


class Trust:
    """How likely a token is to come, by what habits of several kinds say of it: each adds to its log-odds, or takes from them.

    How much is learnt of all places together (logistic regression, a step for each guess that is put to the test), for each kind
    of habit: by whether it says that token, how often that came in a row, and how often it changed. So habits that agree are
    surer than one, and where nothing else ever came that is another matter than where something did.
    """

    def __init__(self, num_kinds: int) -> None:
        against = [_AGAINST_STEADY] * len(_TIMES) + [_AGAINST_UNSTEADY] * len(_TIMES) * _FICKLE
        self._weights = [[*_STEADY, *_UNSTEADY * _FICKLE, *against] for _ in range(num_kinds)]
        self._of_miss = [_BEHIND_HIT, _BEHIND_MISS]

    def of(self, token_id: int, habits: Sequence[Habit | None], is_behind_miss: bool) -> float:
        """How likely it is, between 0 and 1. ``is_behind_miss``: the sequence's guess before it was wrong."""
        odds = self._of_miss[is_behind_miss]
        for weights, habit in zip(self._weights, habits, strict=True):
            if habit is not None:
                odds += weights[habit[1] if habit[0] == token_id else habit[1] + len(_HELD)]
        return 1.0 / (1.0 + exp(-odds))

    def learn(self, token_id: int, habits: Sequence[Habit | None], is_behind_miss: bool) -> None:
        """It came where habits said that."""
        for guess in {habit[0] for habit in habits if habit is not None}:
            change = _LEARNING * ((guess == token_id) - self.of(guess, habits, is_behind_miss))
            self._of_miss[is_behind_miss] += change
            for weights, habit in zip(self._weights, habits, strict=True):
                if habit is not None:
                    weights[habit[1] if habit[0] == guess else habit[1] + len(_HELD)] += change
