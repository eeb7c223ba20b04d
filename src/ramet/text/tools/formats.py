"""How models write calls of tools, by families of chat templates: how that is read, and a grammar that allows nothing else.

The forms are those that the families' own templates write and ask for; each reader takes more than its grammar allows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ramet.text.tools.json_calls import json_call, json_calls, json_value
from ramet.text.tools.pythonic import pythonic_calls
from ramet.text.tools.reading import Parsing, Reading
from ramet.text.tools.tool import Tool

__all__ = ["MAX_CALLS", "ToolFormat", "tool_format"]

MAX_CALLS = 16  # of one answer that is held to calls: so it ends

_PYTHON_NAME = re.compile(r"[\w.\-]+")
_NOT_ARGUMENTS = {
    "allOf", "anyOf", "oneOf", "enum", "const", "$ref", "patternProperties", "minProperties", "maxProperties",
}  # fmt: skip
_DEFINITIONS = ("$defs", "definitions")


class ToolFormat:
    """One family; this one has no calls: all is text.

    ``marks`` are what may be special tokens of a vocabulary. ``is_single``: there is one call at most.
    """

    reads_calls = False
    is_single = False
    has_short_ids = False  # nine letters and digits: templates refuse others
    marks: Sequence[str] = ()

    def read(self, reading: Reading) -> Parsing[None]:
        """Read an answer to its end."""
        return (yield from reading.rest())

    def opening(self, tools: Sequence[Tool]) -> str:
        """What a prompt ends with where a call has to come: the beginning of its markup that no grammar can spell."""
        return ""

    def lark(self, tools: Sequence[Tool], most: int) -> str:
        """Rules of which ``calls`` is one to ``most`` calls of these tools, behind the opening. Empty where there are none."""
        return ""

    def free_lark(self, tools: Sequence[Tool], most: int) -> str:
        """Rules of which ``answer`` is any text with at most so many calls in it. Empty where no mark, that text can spell, tells
        a call from text.
        """
        return ""


class _Hermes(ToolFormat):
    """``<tool_call>{"name": ..., "arguments": ...}</tool_call>``, once a call: Hermes, Qwen 2.5 and 3, and many others."""

    reads_calls = True
    marks = ("<tool_call>", "</tool_call>")

    def __init__(self, special: frozenset[str] = frozenset()) -> None:
        self._begin, self._end = (mark if mark in special else _quoted(mark) for mark in self.marks)

    def read(self, reading: Reading) -> Parsing[None]:
        while (yield from reading.text_until(self.marks[:1])):
            if (yield from reading.skip_space()) != "{" or not (yield from json_call(reading, is_marked=True)):
                reading.release()
                continue
            while (yield from reading.skip_space()) == "}":  # one too many, as small models write
                reading.take()
            reading.hold(is_mark=True)
            if (yield from reading.word(self.marks[1:])):
                reading.drop()
            else:
                reading.release()

    def lark(self, tools: Sequence[Tool], most: int) -> str:
        call = f'call: {self._begin} "\\n" object "\\n" {self._end}\n'
        return f"calls: call {_more(_quoted(chr(10)), 'call', most)}\n" + call + _objects(tools, "arguments")

    def free_lark(self, tools: Sequence[Tool], most: int) -> str:
        if self._begin == self.marks[0]:
            return ""
        text = "text: /(.|\\n)*/\nbegin[lazy]: /(.|\\n)*<tool_call>/\n"
        behind = "text" if most > 1 else ""
        call = f'call: begin "\\n" object "\\n" {self._end}\n'
        return f"answer: text | call{{1,{most}}} {behind}\n" + text + call + _objects(tools, "arguments")


class _Bare(ToolFormat):
    """Calls that are all the answer, or follow a mark: an object, a list of objects, or a list in Python's form.

    Without a mark an object is a call only by the name of a tool. Llama 3 calls arguments ``parameters``.
    """

    reads_calls = True

    def __init__(
        self, marks: Sequence[str], arguments: str = "arguments", *, is_pythonic: bool = False, is_single: bool = False
    ) -> None:
        self.marks = marks
        self.is_single = is_single
        self._arguments = arguments
        self._is_pythonic = is_pythonic

    def read(self, reading: Reading) -> Parsing[None]:
        reading.hold()
        yield from self._calls(reading)
        if not self.marks:
            yield from reading.rest()
        while self.marks and (yield from reading.text_until(self.marks)):
            yield from self._calls(reading)

    def _calls(self, reading: Reading) -> Parsing[None]:
        char = yield from reading.skip_space()
        if char == "[":
            reading.take()
            char = yield from reading.skip_space()
            if self._is_pythonic and char != "{":
                yield from pythonic_calls(reading)
            else:
                yield from json_calls(reading, is_list=True)
        elif char == "{":
            yield from json_calls(reading)
        else:
            reading.release()

    def lark(self, tools: Sequence[Tool], most: int) -> str:
        if self._is_pythonic and all(map(_has_plain_arguments, tools)):
            return f'calls: "[" call {_more(_COMMA, "call", most)} "]"\n' + _pythonic(tools)
        many = "" if most == 1 else f' | "[" object {_more(_COMMA, "object", most)} "]"'
        return f"calls: object{many}\n" + _objects(tools, self._arguments)


class _Mistral(ToolFormat):
    """``[TOOL_CALLS][{"name": ..., "arguments": ...}, ...]``, or from version 11 on ``[TOOL_CALLS]name[ARGS]{...}`` once a call.

    The marks are special tokens, so a prompt ends with those that have to come; in the later form that is one call.
    """

    reads_calls = True
    has_short_ids = True
    marks = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")

    def __init__(self, *, is_later: bool) -> None:
        self._is_later = self.is_single = is_later

    def read(self, reading: Reading) -> Parsing[None]:
        while (yield from reading.text_until(self.marks[:1])):
            match (yield from reading.skip_space()):
                case "[":
                    reading.take()
                    yield from json_calls(reading, is_list=True)
                case "{":
                    yield from json_calls(reading)
                case _:
                    yield from self._named_call(reading)

    def _named_call(self, reading: Reading) -> Parsing[None]:
        name = ""
        while (char := (yield from reading.peek())) and (char.isalnum() or char in "_-./:") and len(name) < 128:
            name += reading.take()
        if name and (yield from reading.word(self.marks[1:])) == "[CALL_ID]":
            while (yield from reading.peek()).isalnum():
                reading.take()
            yield from reading.word(self.marks[1:2])
        if not name or (yield from reading.skip_space()) != "{":
            reading.release()
            return
        reading.call(name)
        if (yield from json_value(reading, reading.argue)):
            reading.end_call()

    def opening(self, tools: Sequence[Tool]) -> str:
        return f"[TOOL_CALLS]{tools[0].name}[ARGS]" if self._is_later and len(tools) == 1 else "[TOOL_CALLS]"

    def lark(self, tools: Sequence[Tool], most: int) -> str:
        if not self._is_later:
            return f'calls: " "? "[" object {_more(_COMMA, "object", most)} "]"\n' + _objects(tools, "arguments")
        if len(tools) == 1:
            return "calls: arguments_0\n" + _arguments(tools)
        calls = " | ".join(f"{_quoted(tool.name)} arguments_{i}" for i, tool in enumerate(tools))
        return f"calls: {calls}\n" + _arguments(tools)


_FORMATS: Mapping[str, Callable[[str, frozenset[str]], ToolFormat]] = {
    "none": lambda template, special: ToolFormat(),
    "hermes": lambda template, special: _Hermes(special),
    "llama3_json": lambda template, special: _Bare(("<|python_tag|>",), "parameters", is_single=True),
    "pythonic": lambda template, special: _Bare(("<|python_tag|>", "<|python_start|>"), is_pythonic=True),
    "mistral": lambda template, special: _Mistral(is_later="[ARGS]" in template),
    "json": lambda template, special: _Bare(()),
}


def tool_format(name: str, template: str, special: Callable[[str], bool]) -> ToolFormat:
    """The family of this name; ``auto`` is the one whose marks are in the template, ``json`` where there are none.

    ``special`` says which texts are special tokens of the model's.
    """
    if name == "auto":
        name = next((found for mark, found in _MARKS.items() if mark in template), "json")
    return _FORMATS[name](template, frozenset(filter(special, _Hermes.marks)))


_MARKS = {
    "<function=": "none",  # an XML of its own, which is not read here
    "<tool_call>": "hermes",
    "[TOOL_CALLS]": "mistral",
    "[func_name1(": "pythonic",
    "<|python_tag|>": "llama3_json",
}


# ---- rules of a grammar


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


_COMMA = '", "'


def _more(separator: str, rule: str, most: int) -> str:
    """What may come behind the first of at most so many."""
    return "" if most == 1 else f"({separator} {rule}){{0,{most - 1}}}"


def _objects(tools: Sequence[Tool], arguments: str) -> str:
    heads = (_quoted(f'{{"name": {_quoted(tool.name)}, "{arguments}": ') for tool in tools)
    calls = (f'{head} arguments_{i} "}}"' for i, head in enumerate(heads))
    return f"object: {' | '.join(calls)}\n" + _arguments(tools)


def _arguments(tools: Sequence[Tool]) -> str:
    return "".join(f"arguments_{i}: %json {_json(tool.parameters)}\n" for i, tool in enumerate(tools))


def _json(schema: Any) -> str:
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


def _has_plain_arguments(tool: Tool) -> bool:
    """Whether all that its schema says is of properties by their names, so that they can be written one by one."""
    names = tool.parameters.get("properties", {})
    return isinstance(names, Mapping) and not _NOT_ARGUMENTS & tool.parameters.keys() and all(map(_PYTHON_NAME.fullmatch, names))


def _pythonic(tools: Sequence[Tool]) -> str:
    """The call of any of them: what it must have first, then what it may have. Equal schemas have one rule."""
    rules: dict[str, str] = {}
    calls = []
    for tool in tools:
        shared = {key: tool.parameters[key] for key in _DEFINITIONS if key in tool.parameters}
        wanted = tool.parameters.get("required", ())
        needed: list[str] = []
        others: list[str] = []
        for name, schema in tool.parameters.get("properties", {}).items():
            text = _json({**schema, **shared} if isinstance(schema, Mapping) else schema)
            value = rules.setdefault(text, f"value_{len(rules)}")
            (needed if name in wanted else others).append(f"{_quoted(name + '=')} {value}")
        calls.append(f"{_quoted(tool.name + '(')} {_listed(needed, others)} {_quoted(')')}")
    return f"call: {' | '.join(calls)}\n" + "".join(f"{rule}: %json {text}\n" for text, rule in rules.items())


def _listed(needed: Sequence[str], others: Sequence[str]) -> str:
    """With commas between, whichever of the others there are."""
    optional = [f'(", " {one})?' for one in others]
    if needed:
        return ' ", " '.join(needed) + " " + " ".join(optional)
    if not others:
        return ""
    ways = (" ".join([one, *optional[i + 1 :]]) for i, one in enumerate(others))
    return f"({' | '.join(ways)})?"
