"""Where a number has to end: JSON sets no bound, and a model that repeats a digit would go on to ``max_tokens``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from ramet.core.ids import UInt32

__all__ = ["MAX_DIGITS", "NoWatch", "NumberWatch", "Numbers", "Watch"]

MAX_DIGITS = 80
"""Digits in a row, before the point, behind it, or of the exponent: 2**256 has 78."""

_DIGITS = b"0123456789"


class Watch(Protocol):
    """What one sequence's output may not be, beside what its grammar says: a function of its tokens."""

    def hold(self, row: UInt32) -> None:
        """Take tokens out of a mask, uint32[num_words], but never all of them."""
        ...

    def accept(self, token_id: int) -> None: ...

    def rollback(self, num_tokens: int) -> None: ...

    def fork(self) -> Watch: ...


class NoWatch:
    """``Watch`` of an output that has other text than JSON."""

    def hold(self, row: UInt32) -> None:
        pass

    def accept(self, token_id: int) -> None:
        pass

    def rollback(self, num_tokens: int) -> None:
        pass

    def fork(self) -> NoWatch:
        return self


class Numbers:
    """The digits of a vocabulary's tokens. ``pieces[id]`` is a token's bytes; a mask has ``num_words`` words of 32 ids."""

    def __init__(self, pieces: Sequence[bytes], num_words: int) -> None:
        self._pieces = pieces
        self._num_leading = np.zeros(num_words * 32, np.int32)
        self._num_leading[: len(pieces)] = [len(piece) - len(piece.lstrip(_DIGITS)) for piece in pieces]
        self._most = int(self._num_leading.max(initial=0))
        self._rows: dict[int, UInt32] = {}

    def longer_than(self, room: int) -> UInt32 | None:
        """The mask of the tokens that begin with more than ``room`` digits, None where there are none."""
        if room >= self._most:
            return None
        if room not in self._rows:
            self._rows[room] = np.packbits(self._num_leading > room, bitorder="little").view(np.uint32)
        return self._rows[room]

    def after(self, place: _Place, token_id: int) -> _Place:
        """Where one that stood at ``place`` stands behind a token."""
        piece = self._pieces[token_id]
        if place.is_escaped or b'"' in piece or b"\\" in piece:
            return _through(place, piece)
        if place.is_string:
            return place
        num_trailing = len(piece) - len(piece.rstrip(_DIGITS))
        return _Place(num_digits=num_trailing + place.num_digits * (num_trailing == len(piece)))


class _Place(NamedTuple):
    """In a string or not, and behind its backslash; ``num_digits`` are those just before, outside of strings."""

    is_string: bool = False
    is_escaped: bool = False
    num_digits: int = 0


def _through(place: _Place, piece: bytes) -> _Place:
    is_string, is_escaped, num_digits = place
    for byte in piece:
        if is_escaped:
            is_escaped = False
        elif byte == ord('"'):
            is_string, num_digits = not is_string, 0
        elif is_string:
            is_escaped = byte == ord("\\")
        else:
            num_digits = num_digits + 1 if byte in _DIGITS else 0
    return _Place(is_string, is_escaped, num_digits)


class NumberWatch:
    """``Watch`` of an output whose digits outside of ``"..."`` are those of JSON numbers.

    A number may end behind any digit, so one that has to end can; where its schema wants more of them, they may come.
    """

    def __init__(self, numbers: Numbers, places: Sequence[_Place] = (_Place(),)) -> None:
        self._numbers = numbers
        self._places = list(places)

    def hold(self, row: UInt32) -> None:
        place = self._places[-1]
        too_long = None if place.is_string else self._numbers.longer_than(max(0, MAX_DIGITS - place.num_digits))
        if too_long is None:
            return
        held = row & ~too_long
        if held.any():
            row[:] = held

    def accept(self, token_id: int) -> None:
        self._places.append(self._numbers.after(self._places[-1], token_id))

    def rollback(self, num_tokens: int) -> None:
        del self._places[len(self._places) - num_tokens :]

    def fork(self) -> NumberWatch:
        return NumberWatch(self._numbers, self._places)
