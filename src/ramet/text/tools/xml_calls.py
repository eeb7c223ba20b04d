"""Calls with a tag for the function and one for each parameter, as Qwen3-Coder writes them, read as they come.

A value stands between its tags as it is, with a line break before and behind it. What it means is said by the tool's schema: a
text is told as it comes, all else is JSON, and told at its end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from ramet.text.tools.json_calls import WORDS
from ramet.text.tools.reading import Parsing, Reading
from ramet.text.tools.telling import Telling

__all__ = ["kinds_of", "xml_call", "xml_value"]

_FUNCTION, _PARAMETER = "<function=", "<parameter="
_ENDS = ("</function>", "</tool_call>")
_NAME = re.compile(r"[^<>\n]*")
_PLAIN = re.compile(r"(?:[^<\n]|<(?=[^/])|\n(?=[^<]))*")  # what is certain to be neither the end tag nor the line break before it
_MAX_NAME = 200


def kinds_of(schema: object) -> frozenset[str]:
    """The types of JSON that a value of this schema may have, as far as it says; empty where it says nothing."""
    if not isinstance(schema, Mapping):
        return frozenset()
    found: set[str] = set()
    said = schema.get("type")
    found.update([said] if isinstance(said, str) else said if isinstance(said, list) else ())
    values = schema.get("enum")
    found.update("string" if isinstance(one, str) else "other" for one in (values if isinstance(values, list) else ()))
    if isinstance(schema.get("const"), str):
        found.add("string")
    for key in ("anyOf", "oneOf"):
        ways = schema.get(key)
        for way in ways if isinstance(ways, list) else ():
            found |= kinds_of(way)
    return frozenset(found)


def xml_call(reading: Reading, *, is_marked: bool) -> Parsing[None]:
    """One call, behind its ``<function=``, which is held. What turns out to be none is text.

    ``is_marked``: another mark before it says that it is one, whatever its name.
    """
    name = yield from _name(reading)
    if not name or not (is_marked or reading.is_forced or name in reading.schemas):
        reading.release()
        return
    reading.call(name)
    properties = reading.schemas.get(name, {}).get("properties")
    told = Telling(reading.argue)
    told.open("{")
    separator = ""
    while True:
        yield from reading.skip_space()
        reading.hold(is_mark=True)
        mark = yield from reading.word((_PARAMETER, *_ENDS))
        if mark in _ENDS:
            reading.drop()
            told.close()
            reading.end_call()
            return
        key = (yield from _name(reading)) if mark else ""
        reading.drop()
        told.keep(separator + json.dumps(key, ensure_ascii=False) + ": ")
        separator = ", "
        schema = properties.get(key, {"type": "string"}) if isinstance(properties, Mapping) else {"type": "string"}
        if not key or not (yield from xml_value(reading, told, schema)):
            reading.break_off(told.ending or "{}")
            return


def _name(reading: Reading) -> Parsing[str]:
    """Up to the ``>``, which is taken; empty where there is none."""
    name = ""
    while (yield from reading.peek()):
        end = _NAME.match(reading.chunk, reading.at).end()  # type: ignore[union-attr]  # it matches the empty text as well
        name += reading.take(end - reading.at)
        if len(name) > _MAX_NAME:
            return ""
        if end < len(reading.chunk):
            break
    if (yield from reading.peek()) != ">":
        return ""
    reading.take()
    return name.strip()


def xml_value(reading: Reading, told: Telling, schema: object, end: str = "</parameter>") -> Parsing[bool]:
    """A value to its end tag, told as JSON. False where the answer ends before."""
    kinds = kinds_of(schema)
    if "string" in kinds and "null" not in kinds:
        told.begin_text()
        is_whole = yield from _value(reading, lambda text: told.tell(json.dumps(text, ensure_ascii=False)[1:-1]), end)
        if is_whole:
            told.end_text()
        return is_whole
    pieces: list[str] = []
    is_whole = yield from _value(reading, pieces.append, end)
    if is_whole:
        told.tell(_meant("".join(pieces), is_text="string" in kinds))
    return is_whole


def _meant(text: str, *, is_text: bool) -> str:
    """The JSON that a value stands for; what is none is a text, and of one that may be a text only ``null`` is not."""
    word = text.strip()
    word = WORDS.get(word, word)
    if not is_text or word == "null":
        try:
            json.loads(word, parse_constant=_no_constant)
            return word
        except (ValueError, RecursionError):
            pass
    return json.dumps(text, ensure_ascii=False)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _value(reading: Reading, write: Callable[[str], None], end_tag: str) -> Parsing[bool]:
    """All up to the end tag, which is taken, without the line breaks beside the tags. False where there is none."""
    if (yield from reading.peek()) == "\n":
        reading.take()
    kept = ""  # a line break that may be the last
    while char := (yield from reading.peek()):
        end = _PLAIN.match(reading.chunk, reading.at).end()  # type: ignore[union-attr]  # it matches the empty text as well
        if end > reading.at:
            write(kept + reading.take(end - reading.at))
            kept = ""
        elif char == "\n":
            write(kept)
            kept = reading.take()
        else:
            taken = ""
            while taken != end_tag and (yield from reading.peek()) == end_tag[len(taken)]:
                taken += reading.take()
            if taken == end_tag:
                return True
            if reading.is_over and reading.at == len(reading.chunk):  # the beginning of a tag is none of the value
                return False
            write(kept + taken)
            kept = ""
    return False
