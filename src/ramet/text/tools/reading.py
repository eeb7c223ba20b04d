"""An answer's text read as it comes, and the parts that it turns out to have.

Parsers are generators over a ``Reading``: they take characters from it, wait where there are none yet (``yield``), and write
parts. Each character is looked at once, however the text is cut, so that reading is linear and the cuts change nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, TypeAlias, TypeVar

__all__ = ["Delta", "Kind", "Parsing", "Part", "Reading", "read_to"]

T = TypeVar("T")
Parsing: TypeAlias = Generator[None, None, T]
Kind: TypeAlias = Literal["reasoning", "text", "call"]

_SPACES = re.compile(r"\s*")


@lru_cache(maxsize=64)
def _beginnings(words: tuple[str, ...]) -> re.Pattern[str]:
    """Where one of ``words`` stands in a chunk of text, or may begin at its end."""
    return re.compile("|".join(map(_beginning, words)))


def _beginning(word: str) -> str:
    """``abc`` as ``a(?:\\Z|b(?:\\Z|c))``."""
    pattern = re.escape(word[-1])
    for sign in reversed(word[:-1]):
        pattern = f"{re.escape(sign)}(?:\\Z|{pattern})"
    return pattern


@dataclass(frozen=True, slots=True)
class Delta:
    """What is new of part number ``part``: text, reasoning, or arguments of a call. ``name`` is in a call's first one alone."""

    part: int
    kind: Kind
    text: str
    name: str | None = None


@dataclass(slots=True)
class Part:
    """A stretch of reasoning or of text, or a call, whose text is its arguments. ``is_whole``: they came to their end.
    ``call_id`` is the one that the model gave it, where its family has such.
    """

    kind: Kind
    name: str | None = None
    call_id: str | None = None
    is_whole: bool = False
    _texts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        self._texts[:] = ["".join(self._texts)]
        return self._texts[0]

    def add(self, text: str) -> None:
        self._texts.append(text)


class Reading:
    """Text that a parser takes in and parts that it writes.

    White space at the end of reasoning and text is kept back until more of it comes, and dropped where a call or the text
    comes instead; so is white space that follows these two.

    ``break_off`` ends a call whose arguments are no more what they should be; text is dropped from there on, until the next call,
    or the mark at its end. ``hold`` begins to keep what is taken, until it is known what that was.
    ``schemas`` are those of the parameters of the tools there are, by their names; ``is_forced``: the answer is sure to be calls.
    ``is_cut`` says, at the end, that the answer was ended in its midst.
    """

    def __init__(self, schemas: Mapping[str, Mapping[str, Any]], *, is_forced: bool = False) -> None:
        self.schemas = schemas
        self.is_forced = is_forced
        self.chunk = ""
        self.at = 0
        self.is_over = False
        self.is_cut = False
        self.parts: list[Part] = []
        self._deltas: list[Delta] = []
        self._kind: Kind = "text"
        self._spaces: list[str] = []
        self._trims = False
        self._is_holding = False
        self._held: list[str] = []
        self._held_from = 0
        self._holds_mark = False
        self.is_broken = False

    # ---- taking

    def feed(self, chunk: str) -> None:
        """The next text, once all before has been taken."""
        if self._is_holding:
            self._held.append(self.chunk[self._held_from :])
        self.chunk, self.at, self._held_from = chunk, 0, 0

    def peek(self) -> Parsing[str]:
        """The next character, which stays; empty at the end of all."""
        while self.at == len(self.chunk):
            if self.is_over:
                return ""
            yield
        return self.chunk[self.at]

    def take(self, count: int = 1) -> str:
        """So many characters of those that are there."""
        start, self.at = self.at, self.at + count
        return self.chunk[start : self.at]

    def skip_space(self) -> Parsing[str]:
        """The next character that is no white space; it stays."""
        while (yield from self.peek()).isspace():
            self.at = _SPACES.match(self.chunk, self.at).end()  # type: ignore[union-attr]  # it matches the empty text as well
        return (yield from self.peek())

    def word(self, words: Sequence[str]) -> Parsing[str]:
        """One of ``words``, taken; empty where none comes: then what was taken is the beginning of one."""
        for word in words:
            if self.chunk.startswith(word, self.at):
                return self.take(len(word))
        taken = ""
        while taken not in words:
            char = yield from self.peek()
            if not char or not any(word.startswith(taken + char) for word in words):
                return ""
            taken += self.take()
        return taken

    def text_until(self, words: Sequence[str]) -> Parsing[str]:
        """Say all up to the first of ``words``, which is taken and held; empty where the end comes before.

        The first character of a word must not be in it again.
        """
        pattern = _beginnings(tuple(words))
        while (yield from self.peek()):
            found = pattern.search(self.chunk, self.at)
            end = len(self.chunk) if found is None else found.start()
            self.say(self.take(end - self.at))
            if found is not None:
                self.hold(is_mark=True)
                if word := (yield from self.word(words)):
                    return word
                self.release()
        return ""

    def rest(self) -> Parsing[None]:
        """Say all that comes, at once and as it is."""
        if not (yield from self.peek()):
            return
        if self._trims:
            yield from self.skip_space()
        elif self._spaces:
            self._write(self._kind, "".join(self._spaces))
        self._trims, self._spaces = False, []
        while (yield from self.peek()):
            text = self.take(len(self.chunk) - self.at)
            if not self.is_broken:
                self._write(self._kind, text)

    # ---- holding

    def hold(self, *, is_mark: bool = False) -> None:
        """Keep what is taken from here on. ``is_mark``: it is markup or the beginning of some, never shown where it is cut."""
        self._is_holding, self._holds_mark = True, is_mark
        self._held, self._held_from = [], self.at

    def release(self) -> None:
        """What is held was text. Where the answer was cut in the midst of markup, it is dropped."""
        text = "".join([*self._held, self.chunk[self._held_from : self.at]]) if self._is_holding else ""
        self.drop()
        if not (self.is_over and self.is_cut and (self._holds_mark or self.is_forced)):
            self.say(text)

    def reread(self) -> None:
        """What is held is read once more, by whoever comes next."""
        if self._held:
            self.chunk, self._held_from = "".join([*self._held, self.chunk[self._held_from :]]), 0
        self.at = self._held_from
        self.drop()

    def drop(self) -> None:
        """Forget what is held."""
        self._is_holding, self._held = False, []

    # ---- writing

    def say(self, text: str) -> None:
        """More of the reasoning or the text."""
        if self.is_broken:
            return
        body = text.rstrip()
        if not body:
            if text:
                self._spaces.append(text)
            return
        tail = text[len(body) :]
        body = body.lstrip() if self._trims else "".join(self._spaces) + body
        self._trims, self._spaces = False, [tail] if tail else []
        self._write(self._kind, body)

    def begin(self, kind: Kind, *, is_more: bool = False) -> None:
        """What is said from here on is of this kind. ``is_more``: a paragraph of its own, behind others of the kind."""
        self._kind, self._trims, self._spaces = kind, True, []
        if is_more and self.parts and self.parts[-1].kind == kind:
            self._trims, self._spaces = False, ["\n\n"]

    def call(self, name: str, call_id: str | None = None) -> None:
        """A call of a tool begins; what is held was its markup."""
        self.drop()
        self.is_broken = False
        self.begin("text")
        self.parts.append(Part("call", name, call_id))
        self._deltas.append(Delta(len(self.parts) - 1, "call", "", name))

    def argue(self, text: str) -> None:
        """More of the last call's arguments."""
        if text:
            self._write("call", text)

    def end_call(self) -> None:
        self.parts[-1].is_whole = True

    def break_off(self, ending: str) -> None:
        """The last call's arguments go no further; ``ending`` makes them whole, where the answer was not cut."""
        if not (self.is_over and self.is_cut):
            self.argue(ending)
        self.is_broken = True

    def end_mark(self) -> None:
        """The mark that is held ends the call before it, be that broken, or it is text."""
        if self.is_broken or (self._trims and self.parts and self.parts[-1].kind == "call"):
            self.is_broken = False
            self.drop()
        else:
            self.release()

    def end_message(self) -> None:
        """The mark that is held ends whatever was before it, with the white space there."""
        self.drop()
        self.is_broken = False
        self.begin("text")

    def end(self) -> None:
        """White space that no more came behind is text, but not reasoning, and nothing behind a call."""
        if self._kind == "text" and not self._trims and self._spaces:
            self._write("text", "".join(self._spaces))
        self._spaces = []

    def written(self) -> list[Delta]:
        """What was written since this was last asked."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def _write(self, kind: Kind, text: str) -> None:
        if not self.parts or self.parts[-1].kind != kind:
            self.parts.append(Part(kind))
        self.parts[-1].add(text)
        self._deltas.append(Delta(len(self.parts) - 1, kind, text))


def read_to(reading: Reading, write: Callable[[str], None], end: str, line: str = "") -> Parsing[bool]:
    """Write all up to ``end``, which is taken, without one ``line``, if any, before and behind. False where no end comes.

    The first character of the end must not be in it again.
    """
    ends = (end, line + end) if line else (end,)
    if line and (yield from reading.peek()) == line:
        reading.take()
    pattern = _beginnings(ends)
    while (yield from reading.peek()):
        found = pattern.search(reading.chunk, reading.at)
        at = len(reading.chunk) if found is None else found.start()
        if at > reading.at:
            write(reading.take(at - reading.at))
            continue
        wanted = ends[-1] if reading.chunk[at] == line else end
        taken = ""
        while taken != wanted and (yield from reading.peek()) == wanted[len(taken)]:
            taken += reading.take()
        if taken == wanted:
            return True
        if reading.is_over and reading.at == len(reading.chunk):  # the beginning of an end is none of the text
            return False
        write(taken)
    return False
