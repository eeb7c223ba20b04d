"""Calls that are JSON objects with a name and arguments, read as they come. What is told of their arguments is JSON, always.

Gemma's arguments are read here as well: names are bare there, and texts stand as they are between ``quote``, a mark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from ramet.text.tools.reading import Parsing, Reading, read_to
from ramet.text.tools.telling import Telling

__all__ = ["WORDS", "inside_quotes", "json_arguments", "json_call", "json_calls", "json_scalar", "json_value"]

WORDS = {"True": "true", "False": "false", "None": "null"}
"""Names of Python's that mean something in JSON."""

_ARGUMENTS = ("arguments", "parameters")
_SPACE = re.compile(r"[ \t\r\n]*")
_PLAIN = re.compile(r'(?:[^"\\\x00-\x1f]+|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*')  # characters, and escapes that are whole
_WORD = re.compile(r"[-+.\w]*")
_BARE = re.compile(r'[^:,"<{}\[\]]*')
_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_HEX = frozenset("0123456789abcdefABCDEF")
_MAX_WORD = 400  # characters of a number


def json_calls(reading: Reading, *, is_list: bool = False, is_marked: bool = False) -> Parsing[None]:
    """Calls with ``;`` or ``,`` between, as far as there are any; what is held before them is their markup, or text with them.

    ``is_list``: their opening bracket has been taken. ``is_marked``: markup says that they are calls, whatever their names, and
    though nothing be between them.
    """
    while True:
        char = yield from reading.skip_space()
        if char != "{" or not (yield from json_call(reading, is_marked=is_marked)):
            reading.release()
            return
        reading.hold(is_mark=True)
        char = yield from reading.skip_space()
        if is_list and char == "]":
            reading.take()
            reading.drop()
            return
        if char in (",", ";"):
            reading.take()
        elif not (is_marked and char == "{"):
            reading.release()
            return


def json_call(reading: Reading, *, is_marked: bool = False) -> Parsing[bool]:
    """One call; the next character is its ``{``, and held. False where it is none: what was taken is held still.

    It is a call once its name and a value of its arguments are there, or its end. The name may be any that markup
    (``is_marked``) says is a tool's, else it is one of the tools'.
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
            return _broken(reading, name, is_called)
        reading.take()
        char = yield from reading.skip_space()
        if key == "name" and name is None and char == '"':
            name = yield from _string(reading)
            if not name or not (is_marked or reading.is_forced or name in reading.schemas):
                return False
        elif key in _ARGUMENTS and not is_called and name is not None and early is None and char:
            if not (yield from json_arguments(reading, name)):
                return False
            if reading.is_broken:
                return True
            is_called = True
        elif key in _ARGUMENTS and name is None and early is None:
            early = []
            if not (yield from _arguments(reading, Telling(early.append))):
                return False
        elif not (yield from json_value(reading, Telling(_nothing))):
            return _broken(reading, name, is_called)
    if name is None:
        return False
    if not is_called:
        reading.call(name)
        reading.argue("{}" if early is None else "".join(early))
        reading.end_call()
    return True


def json_arguments(reading: Reading, name: str, call_id: str | None = None, quote: str = "") -> Parsing[bool]:
    """The arguments of a call, which begins with them. False where they are none: what was taken is held still.

    Those that break off, or are no JSON from some place on, end there.
    """
    is_called = False

    def argue(text: str) -> None:
        nonlocal is_called
        if not is_called:
            reading.call(name, call_id)
            is_called = True
        reading.argue(text)

    told = Telling(argue)
    if (yield from _arguments(reading, told, quote)):
        reading.end_call()
    elif is_called:
        reading.break_off(told.ending)
    return is_called or _called_at_the_end(reading, name, call_id)


def json_scalar(word: str) -> str | None:
    """The JSON of a number or the name of a constant; None of all else."""
    word = WORDS.get(word, word)
    return word if len(word) <= _MAX_WORD and _SCALAR.fullmatch(word) else None


def _broken(reading: Reading, name: str | None, is_called: bool) -> bool:
    """Whether an object that goes no further is a call."""
    if not is_called:
        return _called_at_the_end(reading, name)
    reading.break_off("")
    return True


def _called_at_the_end(reading: Reading, name: str | None, call_id: str | None = None) -> bool:
    """Whether what was cut before its arguments is a call all the same."""
    if not (reading.is_over and reading.is_cut and name is not None):
        return False
    reading.call(name, call_id)
    return True


def _arguments(reading: Reading, told: Telling, quote: str = "") -> Parsing[bool]:
    """Those of one call: an object, or a text that spells one; of all else JSON is made as well."""
    if (yield from reading.skip_space()) == '"':
        text = yield from _string(reading)
        if text is not None:
            told.tell(_spelt(text))
        return text is not None
    pieces: list[str] = []
    is_scalar = (yield from reading.peek()) not in ("{", "[")
    is_whole = yield from json_value(reading, Telling(pieces.append) if is_scalar else told, quote)
    if is_scalar and is_whole:
        scalar = "".join(pieces)
        told.tell("{}" if scalar == "null" else scalar)
    return is_whole


def _spelt(text: str) -> str:
    try:
        json.loads(text or "{}", parse_constant=_refuse)
        return text or "{}"
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def json_value(reading: Reading, told: Telling, quote: str = "") -> Parsing[bool]:
    """A value up to its end, with its white space. False where it is none from some place on, or the answer ends before."""
    while True:
        char = yield from _next(reading, told)
        if char in ("{", "["):
            told.open(reading.take())
            if (yield from _next(reading, told)) != told.closing:
                if char == "{" and not (yield from _key(reading, told, quote)):
                    return False
                continue
        elif char == '"':
            told.begin_text()
            reading.take()
            if not (yield from _characters(reading, told.tell)):
                return False
            told.end_text()
        elif quote and char == quote[0]:
            if not (yield from reading.word((quote,))):
                return False
            told.begin_text()
            if not (yield from read_to(reading, lambda text: told.tell(inside_quotes(text)), quote)):
                return False
            told.end_text()
        elif not (yield from _scalar(reading, told)):
            return False
        while told.closing:
            char = yield from _next(reading, told)
            if char == told.closing:
                reading.take()
                told.close()
                continue
            if char != ",":
                return False
            told.keep(reading.take())
            if (yield from _next(reading, told)) == told.closing:
                continue
            if told.closing == "}" and not (yield from _key(reading, told, quote)):
                return False
            break
        else:
            return True


def _next(reading: Reading, told: Telling) -> Parsing[str]:
    """The next character that is no white space; it stays."""
    while (char := (yield from reading.peek())) and char in " \t\r\n":
        end = _SPACE.match(reading.chunk, reading.at).end()  # type: ignore[union-attr]  # it matches the empty text as well
        told.keep(reading.take(end - reading.at))
    return char


def _key(reading: Reading, told: Telling, quote: str) -> Parsing[bool]:
    """A name and its colon."""
    char = yield from reading.peek()
    told.keep('"')
    if char == '"':
        reading.take()
        is_whole = yield from _characters(reading, told.keep)
    elif not quote:
        return False
    elif char == quote[0]:
        is_whole = bool((yield from reading.word((quote,)))) and (
            yield from read_to(reading, lambda text: told.keep(inside_quotes(text)), quote)
        )
    else:
        pieces: list[str] = []
        yield from _run(reading, _BARE, pieces.append)
        name = "".join(pieces).strip()
        told.keep(inside_quotes(name))
        is_whole = bool(name)
    if not is_whole:
        return False
    told.keep('"')
    if (yield from _next(reading, told)) != ":":
        return False
    told.keep(reading.take())
    return True


def _scalar(reading: Reading, told: Telling) -> Parsing[bool]:
    pieces: list[str] = []
    yield from _run(reading, _WORD, pieces.append, _MAX_WORD)
    scalar = json_scalar("".join(pieces))
    if scalar is not None:
        told.tell(scalar)
    return scalar is not None


def _run(reading: Reading, signs: re.Pattern[str], write: Callable[[str], None], most: int = 1 << 62) -> Parsing[int]:
    """Write the signs that come next, as many as there are, or a few more than ``most``. How many they were is given."""
    count = 0
    while (yield from reading.peek()) and count <= most:
        end = signs.match(reading.chunk, reading.at).end()  # type: ignore[union-attr]  # it matches the empty text as well
        count += end - reading.at
        write(reading.take(end - reading.at))
        if end < len(reading.chunk):
            break
    return count


def inside_quotes(text: str) -> str:
    """What JSON writes between quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _characters(reading: Reading, write: Callable[[str], None]) -> Parsing[bool]:
    """What stands in a string, up to its closing quote, which is taken. False where there is none.

    What JSON would have escaped is escaped: line breaks, and a backslash before what is no escape.
    """
    while char := (yield from reading.peek()):
        end = _PLAIN.match(reading.chunk, reading.at).end()  # type: ignore[union-attr]  # it matches the empty text as well
        if end > reading.at:
            write(reading.take(end - reading.at))
            continue
        reading.take()
        if char == '"':
            return True
        if char != "\\":
            write(json.dumps(char)[1:-1])
            continue
        sign = yield from reading.peek()
        if sign == "u":
            reading.take()
            digits = ""
            while len(digits) < 4 and (yield from reading.peek()) in _HEX:
                digits += reading.take()
            if len(digits) == 4 or (yield from reading.peek()):
                write(("\\u" if len(digits) == 4 else "\\\\u") + digits)
        elif sign and sign in '"\\/bfnrt':
            write("\\" + reading.take())
        elif sign:
            write("" if sign == "'" else "\\\\")
    return False


def _string(reading: Reading) -> Parsing[str | None]:
    """What a string spells; the next character is its quote. None where it does not end.

    Half a pair of surrogates, with which no answer can be sent, becomes U+FFFD.
    """
    reading.take()
    pieces: list[str] = []
    if not (yield from _characters(reading, pieces.append)):
        return None
    text: str = json.loads(f'"{"".join(pieces)}"')
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _nothing(text: str) -> None:
    pass
