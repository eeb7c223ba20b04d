"""Calls that are JSON objects with a name and arguments, read as they come."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from ramet.text.tools.reading import Parsing, Reading

__all__ = ["json_call", "json_calls", "json_value"]

_ARGUMENTS = ("arguments", "parameters")
_BRACKET_OR_QUOTE = re.compile(r'["{}\[\]]')
_QUOTE_OR_ESCAPE = re.compile(r'["\\]')
_SCALAR = re.compile(r"[^\s,;{}\[\]\"]*")


def json_calls(reading: Reading, *, is_list: bool = False) -> Parsing[None]:
    """Calls with ``;`` or ``,`` between, as far as there are any; what is held before them is their markup, or text with them.

    ``is_list``: their opening bracket has been taken.
    """
    while True:
        char = yield from reading.skip_space()
        if char != "{" or not (yield from json_call(reading)):
            reading.release()
            return
        reading.hold(is_mark=True)
        char = yield from reading.skip_space()
        if is_list and char == "]":
            reading.take()
            reading.drop()
            return
        if char not in (",", ";"):
            reading.release()
            return
        reading.take()


def json_call(reading: Reading, *, is_marked: bool = False) -> Parsing[bool]:
    """One call; the next character is its ``{``, and held. False where it is none: what was taken is held still.

    It is a call once its name and the beginning of its arguments are there, or its end. The name may be any that markup
    (``is_marked``) says is a tool's, else it is one of the tools'. Arguments are told as they are written; those that are a text
    are told as what it spells.
    """
    name: str | None = None
    early: list[str] | None = None  # arguments that came before the name
    is_called = False
    reading.take()
    while True:
        char = yield from reading.skip_space()
        if char == ",":
            reading.take()
            continue
        if char == "}":
            reading.take()
            break
        key = (yield from _string(reading)) if char == '"' else None
        if key is None or (yield from reading.skip_space()) != ":":
            return is_called or _called_at_the_end(reading, name)
        reading.take()
        char = yield from reading.skip_space()
        if key == "name" and name is None and char == '"':
            name = yield from _string(reading)
            if not name or not (is_marked or reading.is_forced or name in reading.schemas):
                return False
        elif key in _ARGUMENTS and not is_called and name is not None and early is None and char:
            reading.call(name)
            is_called = True
            if (yield from _arguments(reading, reading.argue)):
                reading.end_call()
        elif key in _ARGUMENTS and name is None and early is None:
            early = []
            yield from _arguments(reading, early.append)
        else:
            yield from json_value(reading, _nothing)
    if name is None:
        return False
    if not is_called:
        reading.call(name)
        reading.argue("{}" if early is None else "".join(early))
        reading.end_call()
    return True


def _called_at_the_end(reading: Reading, name: str | None) -> bool:
    """Whether what was cut before its arguments is a call all the same."""
    if not (reading.is_over and reading.is_cut and name is not None):
        return False
    reading.call(name)
    return True


def _arguments(reading: Reading, write: Callable[[str], None]) -> Parsing[bool]:
    """Those of one call, whole or not."""
    char = yield from reading.peek()
    if char == '"':
        text = yield from _string(reading)
        write(text or "")
        return text is not None
    if char in ("{", "["):
        return (yield from json_value(reading, write))
    pieces: list[str] = []
    is_whole = yield from json_value(reading, pieces.append)
    if is_whole:
        scalar = "".join(pieces)
        write("{}" if scalar == "null" else scalar)
    return is_whole


def json_value(reading: Reading, write: Callable[[str], None]) -> Parsing[bool]:
    """A value up to its end, told as it comes. False where the answer ends before. What is in it is not checked: it may be no
    JSON, where no grammar holds the model to some.
    """
    char = yield from reading.peek()
    if char not in ("{", "[", '"'):
        while (yield from reading.peek()):
            end = _SCALAR.match(reading.chunk, reading.at).end()  # type: ignore[union-attr]  # it matches the empty text too
            write(reading.take(end - reading.at))
            if end < len(reading.chunk):
                return True
        return False
    nesting = _Nesting()
    while (yield from reading.peek()):
        end = nesting.end_in(reading.chunk, reading.at)
        write(reading.take(end - reading.at))
        if nesting.is_over:
            return True
    return False


class _Nesting:
    """How deep in brackets a text is, and whether in a string."""

    def __init__(self) -> None:
        self.is_over = False
        self._depth = 0
        self._is_string = False
        self._is_escaped = False

    def end_in(self, chunk: str, at: int) -> int:
        """Where the value ends in the next chunk, or the chunk does."""
        while at < len(chunk):
            if self._is_escaped:
                self._is_escaped = False
                at += 1
                continue
            found = (_QUOTE_OR_ESCAPE if self._is_string else _BRACKET_OR_QUOTE).search(chunk, at)
            if found is None:
                return len(chunk)
            at = found.end()
            match found[0]:
                case "\\":
                    self._is_escaped = True
                case '"':
                    self._is_string = not self._is_string
                case "{" | "[":
                    self._depth += 1
                case _:
                    self._depth -= 1
            if self._depth <= 0 and not self._is_string:
                self.is_over = True
                return at
        return at


def _string(reading: Reading) -> Parsing[str | None]:
    """What a string spells; the next character is its quote. None where it does not end, or is none."""
    pieces: list[str] = []
    if not (yield from json_value(reading, pieces.append)):
        return None
    try:
        text = json.loads("".join(pieces), strict=False)
    except ValueError:
        return None
    return str(text)


def _nothing(text: str) -> None:
    pass
