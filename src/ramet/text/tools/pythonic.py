"""Calls written as Python writes them, ``[f(a=1), g(b="x")]``, read as they come. Nothing is evaluated."""

from __future__ import annotations

import json
import re

from ramet.text.tools.reading import Parsing, Reading

__all__ = ["pythonic_calls"]

_NAME = re.compile(r"[\w.\-]*")
_PLAIN = {"'": re.compile(r"[^'\\\x00-\x1f\"]*"), '"': re.compile(r'[^"\\\x00-\x1f]*')}
_CLOSING = {"[": "]", "(": ")", "{": "}"}
_WORDS = {"True": "true", "False": "false", "None": "null"}
_ESCAPES = {"'": "'", '"': '\\"', "\\": "\\\\", "/": "/", "\n": "", "a": "\\u0007", "v": "\\u000b", "0": "\\u0000"}
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_HEX = frozenset("0123456789abcdefABCDEF")
_MAX_WORD = 400  # characters of a number or a name


def pythonic_calls(reading: Reading) -> Parsing[None]:
    """The calls of a list whose opening bracket has been taken and is held; what is none is text."""
    while True:
        yield from reading.skip_space()
        if not (yield from _call(reading)):
            reading.release()
            return
        reading.hold(is_mark=True)
        char = yield from reading.skip_space()
        if char not in (",", "]"):
            reading.release()
            return
        reading.take()
        if char == "]":
            reading.drop()
            return


def _call(reading: Reading) -> Parsing[bool]:
    """``f(a=1, b=2)``. It is a call once the name of its first argument is there, or its end."""
    name = yield from _name(reading)
    if not name or not (reading.is_forced or name in reading.schemas) or (yield from reading.skip_space()) != "(":
        return False
    reading.take()
    num_arguments = 0
    while (char := (yield from reading.skip_space())) != ")":
        if char == "," and num_arguments:
            reading.take()
            char = yield from reading.skip_space()
            if char == ")":
                break
        key = yield from _name(reading)
        if not key or (yield from reading.skip_space()) != "=":
            is_cut = reading.is_over and reading.is_cut and not num_arguments
            if is_cut:
                reading.call(name)
            return is_cut or num_arguments > 0
        reading.take()
        if not num_arguments:
            reading.call(name)
        reading.argue(("{" if not num_arguments else ", ") + json.dumps(key) + ": ")
        num_arguments += 1
        if not (yield from _value(reading)):
            return True
    reading.take()
    if not num_arguments:
        reading.call(name)
    reading.argue("}" if num_arguments else "{}")
    reading.end_call()
    return True


def _name(reading: Reading) -> Parsing[str]:
    pieces: list[str] = []
    while (yield from reading.peek()):
        end = _NAME.match(reading.chunk, reading.at).end()  # type: ignore[union-attr]  # it matches the empty text as well
        pieces.append(reading.take(end - reading.at))
        if end < len(reading.chunk):
            break
    return "".join(pieces)


def _value(reading: Reading) -> Parsing[bool]:
    """One value, told as JSON as it comes. False where it ends before its time, or is none."""
    open_brackets: list[str] = []
    while True:
        char = yield from reading.skip_space()
        if char in _CLOSING:
            reading.take()
            open_brackets.append(char)
            reading.argue("{" if char == "{" else "[")
            continue
        if open_brackets and char == _CLOSING[open_brackets[-1]]:
            pass  # an empty one, or a comma behind the last
        elif char in ("'", '"'):
            if not (yield from _string(reading)):
                return False
        elif not (yield from _scalar(reading)):
            return False
        while True:
            if not open_brackets:
                return True
            char = yield from reading.skip_space()
            if char == _CLOSING[open_brackets[-1]]:
                reading.take()
                reading.argue("}" if open_brackets.pop() == "{" else "]")
                continue
            if char == ":" and open_brackets[-1] == "{":
                reading.take()
                reading.argue(": ")
                break
            if char != ",":
                return False
            reading.take()
            char = yield from reading.skip_space()
            if not char:
                return False
            if char != _CLOSING[open_brackets[-1]]:
                reading.argue(", ")
                break


def _scalar(reading: Reading) -> Parsing[bool]:
    """A number, or the name of a constant: Python's or JSON's. False for all else."""
    sign = ""
    if (yield from reading.peek()) in ("-", "+"):
        sign = reading.take().replace("+", "")
    word = sign + (yield from _name(reading))
    if word[-1:] in ("e", "E") and (yield from reading.peek()) == "+":
        word += reading.take() + (yield from _name(reading))
    if len(word) > _MAX_WORD:
        return False
    word = _WORDS.get(word, word)
    if word not in ("true", "false", "null") and not _NUMBER.fullmatch(word):
        return False
    reading.argue(word)
    return True


def _string(reading: Reading) -> Parsing[bool]:
    """``'...'`` or ``"..."``, as a JSON string. False where it does not end."""
    quote = reading.take()
    plain = _PLAIN[quote]
    reading.argue('"')
    while char := (yield from reading.peek()):
        end = plain.match(reading.chunk, reading.at).end()  # type: ignore[union-attr]  # it matches the empty text as well
        if end > reading.at:
            reading.argue(reading.take(end - reading.at))
            continue
        reading.take()
        if char == quote:
            reading.argue('"')
            return True
        reading.argue((yield from _escape(reading)) if char == "\\" else json.dumps(char)[1:-1])
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
