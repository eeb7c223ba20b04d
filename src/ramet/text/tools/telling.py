"""Arguments of a call, told while they are read."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Telling"]

_CLOSING = {"{": "}", "[": "]"}


class Telling:
    """JSON that is told to ``write`` as it comes, and never so far that ``ending`` could not make it whole.

    So commas, names and opening brackets are kept back until the value behind them begins.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._kept: list[str] = []
        self._closing: list[str] = []
        self._num_told = 0
        self._is_text = False

    @property
    def closing(self) -> str:
        """The bracket that closes the innermost one that is open; empty where none is."""
        return self._closing[-1] if self._closing else ""

    @property
    def ending(self) -> str:
        """What makes JSON of all that was told."""
        return '"' * self._is_text + "".join(reversed(self._closing[: self._num_told]))

    def keep(self, text: str) -> None:
        if text:
            self._kept.append(text)

    def open(self, bracket: str) -> None:
        self._kept.append(bracket)
        self._closing.append(_CLOSING[bracket])

    def close(self) -> None:
        """A comma just before it is dropped."""
        last = next((i for i in reversed(range(len(self._kept))) if self._kept[i].strip()), None)
        if last is not None and self._kept[last].strip() == ",":
            del self._kept[last]
        self.tell(self._closing.pop())

    def tell(self, text: str) -> None:
        """All that was kept, and this."""
        self._num_told = len(self._closing)
        if self._kept:
            text = "".join(self._kept) + text
            self._kept = []
        self._write(text)

    def begin_text(self) -> None:
        self.tell('"')
        self._is_text = True

    def end_text(self) -> None:
        self._is_text = False
        self.tell('"')
