"""An answer in parts, for whichever dialect tells of it: what is new of it, which part begins and ends, and ids of calls."""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ramet.engine.assemble import CompletionOutput
from ramet.text.tools.form import ToolFormat
from ramet.text.tools.reader import AnswerReader
from ramet.text.tools.reading import Delta, Part

__all__ = ["CallIds", "Move", "PartedAnswer"]

_SIGNS = string.ascii_letters + string.digits


class CallIds:
    """Ids of the calls in one answer, by the number of the part that each is, with what the dialect puts in front.

    Some templates take nothing but nine letters and digits, when a conversation comes back to them, and some models give ids
    themselves and look for those.
    """

    def __init__(self, form: ToolFormat, prefix: str) -> None:
        self._prefix, self._length = ("", 9) if form.has_short_ids else (prefix, 24)
        self._ids: dict[int, str] = {}

    def of(self, number: int, part: Part) -> str:
        if number not in self._ids:
            made = self._prefix + "".join(secrets.choice(_SIGNS) for _ in range(self._length))
            self._ids[number] = made if part.call_id is None or part.call_id in self._ids.values() else part.call_id
        return self._ids[number]


@dataclass(frozen=True, slots=True)
class Move:
    """Part number ``part`` begins, has more text, or is whole."""

    kind: Literal["begin", "more", "end"]
    part: int
    text: str = ""


class PartedAnswer:
    """One answer as it grows. ``is_text``: it has one part, a text."""

    def __init__(self, reader: AnswerReader, *, is_text: bool) -> None:
        self.is_text = is_text
        self._reader = reader
        self._open: int | None = None

    @property
    def parts(self) -> list[Part]:
        return self._reader.parts

    @property
    def ends_in_calls(self) -> bool:
        return self._reader.ends_in_calls

    def news(self, text: str, ended: CompletionOutput | None) -> list[Delta]:
        """What ``text`` adds; with the last of it, which comes with the answer that has ``ended``, all that was kept back. An
        answer is cut where it did not end by itself: by its limit, or by a stop of the caller's.
        """
        news = self._reader.push(text)
        if ended is not None:
            news += self._reader.finish(is_cut=ended.finish_reason == "length" or ended.stop_reason is not None)
        return news

    def opening(self) -> Iterator[Move]:
        """What is known before anything has come: a text that is sure to come has begun."""
        if self.is_text:
            yield from self._begin_text()

    def moves(self, text: str, ended: CompletionOutput | None) -> Iterator[Move]:
        """The same as moves, one part after the other. An answer without any has a text, which is empty."""
        for one in self.news(text, ended):
            if one.part != self._open:
                yield from self._end()
                self._open = one.part
                yield Move("begin", one.part)
            if one.text:
                yield Move("more", one.part, one.text)
        if ended is not None:
            if not self.parts:
                yield from self._begin_text()
            yield from self._end()

    def _begin_text(self) -> Iterator[Move]:
        self.parts.append(Part("text"))
        self._open = 0
        yield Move("begin", 0)

    def _end(self) -> Iterator[Move]:
        if self._open is not None:
            yield Move("end", self._open)
