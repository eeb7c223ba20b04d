"""Calls written as Python writes them, ``[f(a=1), g(b="x")]``, read as they come. Nothing is evaluated."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from ramet.text.tools.json_calls import json_scalar
from ramet.text.tools.reading import Parsing, Reading
from ramet.text.tools.telling import Telling

__all__ = ["pythonic_calls"]

_NAME = re.compile(r"[\w.\-]*")
_TOOL = re.compile(r"[\w.:/\-]*")
_PLAIN = {"'": re.compile(r"[^'\\\x00-\x1f\"]*"), '"': re.compile(r'[^"\\\x00-\x1f]*')}
_CLOSING = {"[": "]", "(": ")", "{": "}"}
_ESCAPES = {"'": "'", '"': '\\"', "\\": "\\\\", "/": "/", "\n": "", "a": "\\u0007", "v": "\\u000b", "0": "\\u0000"}
_HEX = frozenset("0123456789abcdefABCDEF")


def pythonic_calls(reading: Reading, *, is_list: bool = True, is_marked: bool = False) -> Parsing[None]:
    """Calls, as far as there are any; what is held before them is their markup, or text with them.

    ``is_list``: their opening bracket has been taken, and commas are between them; else white space may be all that is.
    ``is_marked``: markup says that they are calls, whatever their names.
    """
    while True:
        yield from reading.skip_space()
        if not (yield from _call(reading, is_marked)):
            reading.release()
            return
        reading.hold(is_mark=True)
        char = yield from reading.skip_space()
        if char == "]":
            reading.take()
            reading.drop()
            return
        if char == ",":
            reading.take()
        elif is_list or not _NAME.match(char)[0]:  # type: ignore[index]  # it matches the empty text as well
            reading.release()
            return


def _call(reading: Reading, is_marked: bool) -> Parsing[bool]:
    """``f(a=1, b=2)``. It is a call once its first value begins, or at its end; one that breaks off then is one too."""
    name = yield from _name(reading, _TOOL)
    if not name or not (is_marked or reading.is_forced or name in reading.schemas) or (yield from reading.skip_space()) != "(":
        return False
    reading.take()
    is_called = False

    def argue(text: str) -> None:
        nonlocal is_called
        if not is_called:
            reading.call(name)
            is_called = True
        reading.argue(text)

    told = Telling(argue)
    told.open("{")
    if (yield from _arguments(reading, told)):
        reading.take()
        told.close()
        reading.end_call()
    elif is_called:
        reading.break_off(told.ending)
    elif reading.is_over and reading.is_cut:
        reading.call(name)
        is_called = True
    return is_called


def _arguments(reading: Reading, told: Telling) -> Parsing[bool]:
    """Up to the closing bracket, which stays. False where they break off."""
    is_first = True
    while (char := (yield from reading.skip_space())) != ")":
        if not is_first:
            if char != ",":
                return False
            reading.take()
            if (yield from reading.skip_space()) == ")":
                return True
        key = yield from _name(reading)
        if not key or (yield from reading.skip_space()) != "=":
            return False
        reading.take()
        told.keep(("" if is_first else ", ") + json.dumps(key) + ": ")
        is_first = False
        if not (yield from _value(reading, told)):
            return False
    return True


def _name(reading: Reading, signs: re.Pattern[str] = _NAME) -> Parsing[str]:
    pieces: list[str] = []
    while (yield from reading.peek()):
        end = signs.match(reading.chunk, reading.at).end()  # type: ignore[union-attr]  # it matches the empty text as well
        pieces.append(reading.take(end - reading.at))
        if end < len(reading.chunk):
            break
    return "".join(pieces)


def _value(reading: Reading, told: Telling) -> Parsing[bool]:
    """One value, told as JSON as it comes. False where it ends before its time, or is none."""
    brackets: list[str] = []  # as they are to be closed
    while True:
        char = yield from reading.skip_space()
        if char in _CLOSING:
            reading.take()
            brackets.append(_CLOSING[char])
            told.open("{" if char == "{" else "[")
            if (yield from reading.skip_space()) != brackets[-1]:
                if char == "{" and not (yield from _key(reading, told)):
                    return False
                continue
        elif char in ("'", '"'):
            told.begin_text()
            if not (yield from _string(reading, told.tell)):
                return False
            told.end_text()
        elif not (yield from _scalar(reading, told)):
            return False
        while brackets:
            char = yield from reading.skip_space()
            if char == brackets[-1]:
                reading.take()
                brackets.pop()
                told.close()
                continue
            if char != ",":
                return False
            reading.take()
            told.keep(", ")
            if (yield from reading.skip_space()) == brackets[-1]:
                continue
            if told.closing == "}" and not (yield from _key(reading, told)):
                return False
            break
        else:
            return True


def _key(reading: Reading, told: Telling) -> Parsing[bool]:
    """A name in quotes and its colon."""
    if (yield from reading.peek()) not in ("'", '"'):
        return False
    told.keep('"')
    if not (yield from _string(reading, told.keep)) or (yield from reading.skip_space()) != ":":
        return False
    reading.take()
    told.keep('": ')
    return True


def _scalar(reading: Reading, told: Telling) -> Parsing[bool]:
    """A number, or the name of a constant: Python's or JSON's. False for all else."""
    sign = ""
    if (yield from reading.peek()) in ("-", "+"):
        sign = reading.take().replace("+", "")
    word = sign + (yield from _name(reading))
    if word[-1:] in ("e", "E") and (yield from reading.peek()) == "+":
        word += reading.take() + (yield from _name(reading))
    scalar = json_scalar(word)
    if scalar is not None:
        told.tell(scalar)
    return scalar is not None


def _string(reading: Reading, write: Callable[[str], None]) -> Parsing[bool]:
    """What stands in ``'...'`` or ``"..."``, as JSON writes it. False where it does not end."""
    quote = reading.take()
    plain = _PLAIN[quote]
    while char := (yield from reading.peek()):
        end = plain.match(reading.chunk, reading.at).end()  # type: ignore[union-attr]  # it matches the empty text as well
        if end > reading.at:
            write(reading.take(end - reading.at))
            continue
        reading.take()
        if char == quote:
            return True
        write((yield from _escape(reading)) if char == "\\" else json.dumps(char)[1:-1])
    return False


def _escape(reading: Reading) -> Parsing[str]:
    """What stands behind a backslash, as JSON has it."""
    char = yield from reading.peek()
    if not char:
        return ""
    reading.take()
    if char in "bfnrt":
        return "\\" + char
    if char not in "xu":
        return _ESCAPES.get(char, "\\\\" + json.dumps(char)[1:-1])
    digits = ""
    while len(digits) < (2 if char == "x" else 4):
        if (yield from reading.peek()) not in _HEX:
            return ""
        digits += reading.take()
    return "\\u" + digits.rjust(4, "0")
