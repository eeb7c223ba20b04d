"""Where a number has to end: JSON sets no bound, and a model that repeats a digit would go on to ``max_tokens``."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ramet.core.ids import UInt32

__all__ = ["MAX_DIGITS", "MAX_EXPONENT", "NoWatch", "NumberWatch", "Numbers", "Watch"]

MAX_DIGITS = 80
"""Digits in a row, before the point or behind it: 2**256 has 78."""
MAX_EXPONENT = 3
"""Digits of an exponent: those of doubles have no more."""

_DIGITS = string.digits.encode()
_RUN = re.compile(rb"(?:[eE][+-]?)?[0-9]*\Z")
_RUN_ENDS = frozenset(b"0123456789eE+-")
_OF_TEXT = frozenset(b'"' + string.ascii_letters.encode()) - frozenset(b"eE")


class Watch(Protocol):
    """What one sequence's output may not be, beside what its grammar says: a function of its tokens."""

    def hold(self, row: UInt32) -> None:
        """Take tokens out of a mask, uint32[num_words], but never all of them."""
        ...

    def accept(self, token_id: int) -> None: ...

    def rollback(self, num_tokens: int) -> None: ...

    def fork(self) -> Watch: ...


class NoWatch:
    """``Watch`` of an output without JSON in it."""

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
        self.pieces = pieces
        self._num_leading = np.zeros(num_words * 32, np.int32)
        self._num_leading[: len(pieces)] = [len(piece) - len(piece.lstrip(_DIGITS)) for piece in pieces]
        self._most = int(self._num_leading.max(initial=0))
        self._rows: dict[int, UInt32] = {}
        of_text = np.zeros(num_words * 32, bool)
        of_text[: len(pieces)] = [len(piece) == 1 and piece[0] in _OF_TEXT for piece in pieces]
        self._of_text = _packed(of_text)

    def are_text(self, row: UInt32) -> bool:
        """Whether digits at a place with this mask are text: a quote or a letter, but that of an exponent, may come too."""
        return bool((row & self._of_text).any())

    def longer_than(self, room: int) -> UInt32 | None:
        """The mask of the tokens that begin with more than ``room`` digits, None where there are none."""
        if room >= self._most:
            return None
        if room not in self._rows:
            self._rows[room] = _packed(self._num_leading > room)
        return self._rows[room]


def _packed(bits: NDArray[np.bool_]) -> UInt32:
    return np.packbits(bits, bitorder="little").view(np.uint32)


class NumberWatch:
    """``Watch`` of an output with JSON in it, of which all, or some, or what a grammar says else may be text.

    Digits are a number's where the mask has neither a quote nor a letter: JSON has neither behind them, and every string and all
    free text has. A number may end behind any digit, so one that has to end can; where its schema wants more, they may come.
    ``runs`` are the output's last digits, and the ``e`` before them, behind each of its tokens.
    """

    def __init__(self, numbers: Numbers, runs: Sequence[bytes] = (b"",)) -> None:
        self._numbers = numbers
        self._runs = list(runs)

    def hold(self, row: UInt32) -> None:
        run = self._runs[-1]
        most = MAX_EXPONENT if run[:1] in (b"e", b"E") else MAX_DIGITS
        too_long = self._numbers.longer_than(max(0, most - len(run.lstrip(b"eE+-"))))
        if too_long is None or self._numbers.are_text(row):
            return
        held = row & ~too_long
        if held.any():
            row[:] = held

    def accept(self, token_id: int) -> None:
        piece = self._numbers.pieces[token_id]
        self._runs.append(_run_behind(self._runs[-1], piece))

    def rollback(self, num_tokens: int) -> None:
        del self._runs[len(self._runs) - num_tokens :]

    def fork(self) -> NumberWatch:
        return NumberWatch(self._numbers, self._runs)


def _run_behind(run: bytes, piece: bytes) -> bytes:
    if not piece or piece[-1] not in _RUN_ENDS:
        return b""
    if piece.isdigit():  # the beginning says what it is, and of its digits so many do
        return (run + piece)[: 2 * MAX_DIGITS]
    return _RUN.search((run + piece)[-2 * MAX_DIGITS :])[0]  # type: ignore[index]  # it finds the empty one as well
