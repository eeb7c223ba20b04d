"""What came at a place before, and how far that is to be trusted to come again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

__all__ = ["Guess", "Habits"]

_KEPT = 0.9  # of a count, when another one is made: so some ten of them count
_Place = TypeVar("_Place", bound=Hashable)


class Guess(NamedTuple):
    """``trust`` is how likely it is to be right, as far as is known."""

    token_id: int
    trust: float


class _Entry(NamedTuple):
    token_id: int
    num_hits: float
    num_times: float


class Habits(Generic[_Place]):
    """One token for each of up to ``most`` places, those seen longest ago given up first.

    ``doubt`` is how many times, unseen, another one came: the less, the sooner one is trusted.
    """

    def __init__(self, most: int, doubt: float) -> None:
        self._most = most
        self._doubt = doubt
        self._entries: OrderedDict[_Place, _Entry] = OrderedDict()

    def guess(self, place: _Place) -> Guess | None:
        entry = self._entries.get(place)
        return None if entry is None else Guess(entry.token_id, entry.num_hits / (entry.num_times + self._doubt))

    def learn(self, place: _Place, token_id: int) -> None:
        """It came there. One that comes less often than not gives way to the one that came."""
        known, num_hits, num_times = self._entries.get(place, (token_id, 0.0, 0.0))
        num_hits, num_times = num_hits * _KEPT + (known == token_id), num_times * _KEPT + 1.0
        if num_hits < num_times / 2:
            known, num_hits, num_times = token_id, 1.0, 2.0
        self._entries[place] = _Entry(known, num_hits, num_times)
        self._entries.move_to_end(place)
        if len(self._entries) > self._most:
            self._entries.popitem(last=False)
