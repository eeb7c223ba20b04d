"""Calls with a tag for the function and one for each parameter, as Qwen3-Coder writes them, read as they come.

A value stands between its tags as it is. What it means is said by its tag, or by the tool's schema: a text is told as it comes,
all else is JSON, and told at its end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ramet.text.tools.json_calls import WORDS, inside_quotes, json_arguments, json_value
from ramet.text.tools.reading import Parsing, Reading, read_to
from ramet.text.tools.telling import Telling

__all__ = ["Tags", "key_value_call", "kinds_of", "xml_calls"]


class Tags(NamedTuple):
    """How a family writes its tags: what stands before a name and behind it, and how its function and parameter end.

    ``line`` stands between a value and its tags. ``says_kind``: a parameter's tag says whether its value is a text.
    """

    function: str = "<function="
    parameter: str = "<parameter="
    parameter_end: str = "</parameter>"
    function_end: str = "</function>"
    close: str = ">"
    line: str = ""
    says_kind: bool = False

    def closing(self, is_text: bool) -> str:
        """What stands behind the name of a parameter whose value is a text, or JSON."""
        kind = f' string="{str(is_text).lower()}"' if self.says_kind else ""
        return f"{self.close[:-1]}{kind}>"

    def read(self, written: str) -> tuple[str, object]:
        """The name in a tag, of which all before its ``>`` is written, and the schema that it gives its value, if any."""
        if self.close == ">":
            return written.strip(), None
        found = _QUOTED.fullmatch(written)
        return (found[1], _KINDS.get(found[2])) if found else ("", None)


_QUOTED = re.compile(r"""([^"]*)"(?:\s+string="(true|false)")?\s*""")
_KINDS: Mapping[str, object] = {"true": {"type": "string"}, "false": {"type": "object"}}
_NAME = re.compile(r"[^<>\n]*")
_MAX_NAME = 300
_TOOL = re.compile(r"[\w.:/-]+")
_CALL_END = "</tool_call>"


def kinds_of(schema: object) -> frozenset[str]:
    """The types of JSON that a value of this schema may have, as far as it says; empty where it says nothing."""
    if not isinstance(schema, Mapping):
        return frozenset()
    found: set[str] = set()
    said = schema.get("type")
    found.update([said] if isinstance(said, str) else said if isinstance(said, list) else ())
    values = schema.get("enum")
    values = [*(values if isinstance(values, list) else ()), *([schema["const"]] if "const" in schema else ())]
    found.update("string" if isinstance(one, str) else "null" if one is None else "other" for one in values)
    for key in ("anyOf", "oneOf"):
        ways = schema.get(key)
        for way in ways if isinstance(ways, list) else ():
            found |= kinds_of(way)
    return frozenset(found)


def _opened(reading: Reading, name: str) -> Telling:
    """The arguments of a call that begins, an object."""
    reading.call(name)
    told = Telling(reading.argue)
    told.open("{")
    return told


def xml_calls(reading: Reading, marks: Sequence[str], tags: Tags) -> Parsing[None]:
    """Text, and calls between the two marks. The first mark may be left out before the function that is a tool's."""
    begin, end = marks
    ends = (tags.function_end, end)
    is_marked = False
    while mark := (yield from reading.text_until((begin, tags.function, *ends))):
        if mark in ends:
            is_marked = is_marked and mark != end
            reading.end_mark()
            continue
        if mark == begin:
            yield from reading.skip_space()
            is_marked = bool((yield from reading.word((tags.function,))))
            if not is_marked:
                reading.release()
                continue
        is_marked = yield from _xml_call(reading, tags, ends, is_marked)


def _xml_call(reading: Reading, tags: Tags, ends: Sequence[str], is_marked: bool) -> Parsing[bool]:
    """One call, behind its ``<function=``, which is held. What turns out to be none is text.

    ``is_marked``: another mark before it says that it is one, whatever its name. Whether that holds for what comes next is given.
    """
    name, _ = yield from _tag(reading, tags)
    if not name or not (is_marked or reading.is_forced or name in reading.schemas):
        reading.release()
        return False
    if (yield from reading.skip_space()) == "{":
        if not (yield from json_arguments(reading, name)):
            reading.release()
        return is_marked
    told = _opened(reading, name)
    separator = ""
    while True:
        yield from reading.skip_space()
        reading.hold(is_mark=True)
        mark = yield from reading.word((tags.parameter, *ends))
        if mark in ends:
            reading.drop()
            told.close()
            reading.end_call()
            return is_marked and mark == tags.function_end
        key, kind = (yield from _tag(reading, tags)) if mark else ("", None)
        reading.drop()
        told.keep(separator + json.dumps(key, ensure_ascii=False) + ": ")
        separator = ", "
        schema = kind or _schema_of(reading, name, key)
        if not key or not (yield from _xml_value(reading, told, schema, tags.parameter_end, tags.line)):
            reading.break_off(told.ending or "{}")
            return is_marked


def _tag(reading: Reading, tags: Tags) -> Parsing[tuple[str, object]]:
    """The rest of a tag behind what stands before its name, which comes first; an empty one where it is none."""
    name, kind = tags.read((yield from _name(reading)))
    reading.take(len(name) > 0)
    return name, kind


def _name(reading: Reading, end_sign: str = ">") -> Parsing[str]:
    """Up to a sign, which stays; empty where there is none."""
    name = ""
    while (yield from reading.peek()):
        end = _NAME.match(reading.chunk, reading.at).end()  # type: ignore[union-attr]  # it matches the empty text as well
        name += reading.take(end - reading.at)
        if len(name) > _MAX_NAME:
            return ""
        if end < len(reading.chunk):
            break
    return name if (yield from reading.peek()) == end_sign else ""


def key_value_call(reading: Reading) -> Parsing[None]:
    """One call as GLM writes it, behind its mark, which is held: a name, and for each argument
    ``<arg_key>a</arg_key><arg_value>1</arg_value>``.
    """
    yield from reading.skip_space()
    name = ""
    while (yield from reading.peek()) not in ("", "<", "\n") and len(name) <= _MAX_NAME:
        name += reading.take()
    name = name.strip()
    yield from reading.skip_space()
    mark = yield from reading.word(("<arg_key>", _CALL_END))
    if not mark or not _TOOL.fullmatch(name):
        reading.release()
        return
    told = _opened(reading, name)
    separator = ""
    while mark == "<arg_key>":
        key = (yield from _name(reading, "<")).strip()
        if not key or not (yield from reading.word(("</arg_key>",))):
            break
        yield from reading.skip_space()
        if not (yield from reading.word(("<arg_value>",))):
            break
        told.keep(separator + json.dumps(key, ensure_ascii=False) + ": ")
        separator = ", "
        if not (yield from _xml_value(reading, told, _schema_of(reading, name, key), "</arg_value>")):
            break
        yield from reading.skip_space()
        mark = yield from reading.word(("<arg_key>", _CALL_END))
    if mark == _CALL_END:
        told.close()
        reading.end_call()
    else:
        reading.break_off(told.ending or "{}")


def _schema_of(reading: Reading, tool: str, key: str) -> object:
    """What a tool's parameter may be: a text, where nothing is said of it."""
    properties = reading.schemas.get(tool, {}).get("properties")
    return properties.get(key, {"type": "string"}) if isinstance(properties, Mapping) else {"type": "string"}


def _xml_value(reading: Reading, told: Telling, schema: object, end: str, line: str = "") -> Parsing[bool]:
    """A value to its end tag, told as JSON. False where the answer ends before."""
    kinds = kinds_of(schema)
    if "string" in kinds and "null" not in kinds:
        told.begin_text()
        is_whole = yield from read_to(reading, lambda text: told.tell(inside_quotes(text)), end, line)
        if is_whole:
            told.end_text()
        return is_whole
    if "string" not in kinds:
        reading.hold()
        json_text = yield from _json_value(reading, end)
        if json_text:
            reading.drop()
            told.tell(json_text)
            return True
        if reading.is_cut and reading.at == len(reading.chunk):
            reading.drop()
            return False
        reading.reread()
    pieces: list[str] = []
    is_whole = yield from read_to(reading, pieces.append, end, line)
    if is_whole:
        told.tell(_meant("".join(pieces), is_text="string" in kinds))
    return is_whole


def _json_value(reading: Reading, end: str) -> Parsing[str]:
    """A list or an object, up to the end tag, which may stand in a text of it as well; empty where there is none."""
    pieces: list[str] = []
    if (yield from reading.skip_space()) not in ("{", "[") or not (yield from json_value(reading, Telling(pieces.append))):
        return ""
    yield from reading.skip_space()
    return "".join(pieces) if (yield from reading.word((end,))) else ""


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
