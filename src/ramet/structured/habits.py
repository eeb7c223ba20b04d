"""What came at a place before, and how far that is to be trusted to come again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["NO_GUESS", "Habits"]

_MANY = 5
_KEPT = 0.98  # of a count, when another one is made: so some fifty of them count
_FIRST_TRUST = 0.6
_FIRST_TIMES = 4.0  # guesses that the first trust stands for
NO_GUESS = (-1, 0.0)
_Place = TypeVar("_Place", bound=Hashable)


class Habits(Generic[_Place]):
    """What came last at each of up to ``most`` places, those seen longest ago given up first.

    How far that is trusted to come again is learnt too, of all places together: from how often, in a row, it has come there, and
    from whether the sequence's guess before it was wrong. None of that is trusted beforehand: what comes tells.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._habits: OrderedDict[_Place, tuple[int, int]] = OrderedDict()  # a token, and how often in a row, up to ``_MANY``
        num_kinds = 2 * (_MANY + 1)
        self._num_right = [_FIRST_TRUST * _FIRST_TIMES] * num_kinds
        self._num_times = [_FIRST_TIMES] * num_kinds

    def guess(self, place: _Place, is_behind_miss: bool) -> tuple[int, float]:
        """The token, and how likely it is to come, between 0 and 1; ``NO_GUESS`` where nothing is known."""
        known = self._habits.get(place)
        if known is None:
            return NO_GUESS
        kind = 2 * known[1] + is_behind_miss
        return known[0], self._num_right[kind] / self._num_times[kind]

    def learn(self, place: _Place, is_behind_miss: bool, token_id: int) -> None:
        """It came there."""
        known = self._habits.get(place)
        times = 1
        if known is not None:
            kind = 2 * known[1] + is_behind_miss
            is_right = known[0] == token_id
            self._num_right[kind] = self._num_right[kind] * _KEPT + is_right
            self._num_times[kind] = self._num_times[kind] * _KEPT + 1.0
            times = min(known[1] + 1, _MANY) if is_right else 0
            self._habits.move_to_end(place)
        self._habits[place] = token_id, times
        if len(self._habits) > self._most:
            self._habits.popitem(last=False)
