"""Rules of grammars that allow calls of certain tools and nothing else, in the Lark that ``structured/lark.py`` takes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ramet.text.tools.tool import Tool
from ramet.text.tools.xml_calls import Tags, kinds_of

__all__ = [
    "COMMA",
    "arguments",
    "braced",
    "has_plain_arguments",
    "key_values",
    "mark",
    "more",
    "objects",
    "pattern",
    "pythonic",
    "quoted",
    "unkept_of_xml",
    "until",
    "xml",
]

COMMA = '", "'

_NAME = re.compile(r"[\w.\-]+")
_ANY_NAME = "/[A-Za-z_][A-Za-z0-9_]{0,63}/"
_MOST_OPEN = 64  # arguments where nothing says which there are
_NOT_ARGUMENTS = {
    "allOf", "anyOf", "oneOf", "enum", "const", "$ref", "patternProperties", "minProperties", "maxProperties",
}  # fmt: skip
_DEFINITIONS = ("$defs", "definitions")
_OF_TEXTS = ("pattern", "format", "minLength", "maxLength")


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def mark(text: str, special: frozenset[str]) -> str:
    """A text with the special tokens in it, or that it is, by their names."""
    return " ".join(_name(part) if part in special else quoted(part) for part in _parts(text, special))


def until(rule: str, text: str, special: frozenset[str]) -> str:
    """``rule``: anything up to where this text first comes, and it."""
    before, *others = _parts(text, special)
    if before in special:
        before, others = "", [before, *others]
    anything = f"/(.|\\n)*{pattern(before)}/"
    return f"{rule}: {anything} {mark(''.join(others), special)}\n" if others else f"{rule}[lazy]: {anything}\n"


def _parts(text: str, special: frozenset[str]) -> list[str]:
    """Cut around special tokens."""
    ways = "|".join(map(re.escape, special))
    return [part for part in re.split(f"({ways})", text) if part] if ways and text else [text]


def _name(token: str) -> str:
    return token if token.startswith("<") else f"<{token}>"


def pattern(text: str) -> str:
    """A regular expression of just this text."""
    return re.sub(r"[^\w<>\x80-\U0010ffff]", lambda found: "\\" + found[0], text)


def more(separator: str, rule: str, most: int) -> str:
    """What may come behind the first of at most so many."""
    return "" if most == 1 else f"({separator} {rule}){{0,{most - 1}}}"


def objects(tools: Sequence[Tool], name: str) -> str:
    """``object``: a call as an object, whose arguments are called ``name``."""
    heads = (quoted(f'{{"name": {quoted(tool.name)}, "{name}": ') for tool in tools)
    calls = (f'{head} arguments_{i} "}}"' for i, head in enumerate(heads))
    return f"object: {' | '.join(calls)}\n" + arguments(tools)


def arguments(tools: Sequence[Tool]) -> str:
    """``arguments_i`` of each tool."""
    return "".join(f"arguments_{i}: %json {_json(tool.parameters)}\n" for i, tool in enumerate(tools))


def has_plain_arguments(tool: Tool) -> bool:
    """Whether all that its schema says is of properties by their names, so that they can be written one by one."""
    names = tool.parameters.get("properties", {})
    return isinstance(names, Mapping) and not _NOT_ARGUMENTS & tool.parameters.keys() and all(map(_NAME.fullmatch, names))


def pythonic(tools: Sequence[Tool]) -> str:
    """``call`` of any of them: what it must have first, then what it may have. Equal schemas have one rule."""
    rules: dict[str, str] = {}
    calls = []
    for tool in tools:
        needed: list[str] = []
        others: list[str] = []
        for name, schema, is_needed in _properties(tool):
            value = rules.setdefault(_json(schema), f"value_{len(rules)}")
            (needed if is_needed else others).append(f"{quoted(name + '=')} {value}")
        inside = _anything(f'{_ANY_NAME} "=" {_open_value(tool, rules)}') if _is_open(tool) else _listed(needed, others)
        calls.append(f"{quoted(tool.name + '(')} {inside} {quoted(')')}")
    return f"call: {' | '.join(calls)}\n" + _values(rules)


def xml(tools: Sequence[Tool], tags: Tags, special: frozenset[str]) -> str:
    """``function`` of any of them: what it has in the order of its schema. A text ends where its end tag first comes."""
    rules: dict[str, str] = {}
    calls = []
    for tool in tools:
        if has_plain_arguments(tool) and not _is_open(tool):
            parts = [
                f"({mark(tags.parameter + name, special)} ({_xml_behind(schema, rules, tags, special)}) {quoted(chr(10))})"
                f"{'' if is_needed else '?'}"
                for name, schema, is_needed in _properties(tool)
            ]
        else:
            behind = " | ".join({quoted(tags.closing(is_text) + tags.line): None for is_text in (True, False)})
            parts = [f'({mark(tags.parameter, special)} /[^<>"\\n]{{1,200}}/ ({behind}) xml_text "\\n"){{0,64}}']
        begin = mark(f"{tags.function}{tool.name}{tags.close}\n", special)
        calls.append(f"{begin} {' '.join(parts)} {mark(tags.function_end, special)}")
    return f"function: {' | '.join(calls)}\n" + until("xml_text", tags.parameter_end, special) + _values(rules)


def key_values(tools: Sequence[Tool], line: str) -> str:
    """``function`` of any of them: its name, and pairs of tags for what it has, in the order of its schema; ``line`` is what
    stands behind each of these.
    """
    rules: dict[str, str] = {}
    calls = []
    for tool in tools:
        if has_plain_arguments(tool) and not _is_open(tool):
            parts = [
                f"({quoted(f'<arg_key>{name}</arg_key>{line}<arg_value>')} {_xml_value(schema, rules, '</arg_value>')} "
                f"{quoted(line)}){'' if is_needed else '?'}"
                for name, schema, is_needed in _properties(tool)
            ]
        else:
            behind = quoted(f"</arg_key>{line}<arg_value>")
            parts = [f'("<arg_key>" /[^<>\\n]{{1,200}}/ {behind} xml_text {quoted(line)}){{0,64}}']
        calls.append(f"{quoted(tool.name + line)} {' '.join(parts)}")
    return f"function: {' | '.join(calls)}\n" + until("xml_text", "</arg_value>", frozenset()) + _values(rules)


def braced(tools: Sequence[Tool], quote: str, special: frozenset[str]) -> str:
    """``function`` of any of them as Gemma writes it: what it must have first, then what it may have. Texts are between quotes
    of their own; a list or an object is JSON.
    """
    rules: dict[str, str] = {}
    calls = []
    for tool in tools:
        if has_plain_arguments(tool):
            inside = f'"{{" {_braced(tool, rules, quote, special)} "}}"'
        else:
            inside = rules.setdefault(_json(tool.parameters), f"value_{len(rules)}")
        calls.append(f"{quoted('call:' + tool.name)} {inside}")
    return f"function: {' | '.join(calls)}\n" + until("xml_text", quote, special) + _values(rules)


def _braced(tool: Tool, rules: dict[str, str], quote: str, special: frozenset[str]) -> str:
    begin = mark(quote, special)
    if _is_open(tool):
        return _anything(f'{_ANY_NAME} ":" ({begin} xml_text | {_open_value(tool, rules)})', ",")
    needed: list[str] = []
    others: list[str] = []
    for name, schema, is_needed in _properties(tool):
        kinds = kinds_of(schema)
        ways = [f"{begin} {_xml_text(schema, rules, quote, special)}"] if "string" in kinds else []
        if kinds != {"string"}:
            ways.append(rules.setdefault(_json(schema), f"value_{len(rules)}"))
        (needed if is_needed else others).append(f"{quoted(name + ':')} ({' | '.join(ways)})")
    return _listed(needed, others, ",")


def unkept_of_xml(tool: Tool) -> str | None:
    """What the form of ``xml`` cannot keep to of a tool's schema, if anything: it writes texts as they are."""
    if _is_open(tool) and isinstance(tool.parameters.get("additionalProperties"), Mapping):
        return "additionalProperties"
    if not has_plain_arguments(tool):
        return ", ".join(sorted(_NOT_ARGUMENTS & tool.parameters.keys())) or "its names of properties"
    for name, schema, _ in _properties(tool):
        if "string" in kinds_of(schema) and (found := [key for key in _OF_TEXTS if key in json.dumps(schema)]):
            return f"{found[0]} of {name}, a text"
    return None


def _xml_behind(schema: Any, rules: dict[str, str], tags: Tags, special: frozenset[str]) -> str:
    """What comes behind the name of a parameter: the rest of its tag, the value and the end tag."""
    kinds = kinds_of(schema)
    ways = [True, False] if tags.says_kind and kinds > {"string"} else ["string" in kinds]
    end = tags.line + tags.parameter_end
    return " | ".join(
        f"{quoted(tags.closing(is_text) + tags.line)} {(_xml_text if is_text else _xml_json)(schema, rules, end, special)}"
        for is_text in ways
    )


def _xml_value(schema: Any, rules: dict[str, str], end: str) -> str:
    """A value and its end tag."""
    return (_xml_text if "string" in kinds_of(schema) else _xml_json)(schema, rules, end, frozenset())


def _xml_json(schema: Any, rules: dict[str, str], end: str, special: frozenset[str]) -> str:
    return f"{rules.setdefault(_json(schema), f'value_{len(rules)}')} {mark(end, special)}"


def _xml_text(schema: Any, rules: dict[str, str], end: str, special: frozenset[str]) -> str:
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if not all(isinstance(one, str) and end not in one for one in values) or not values:
        return "xml_text"
    return f"({' | '.join(map(quoted, values))}) {mark(end, special)}"


def _properties(tool: Tool) -> Iterable[tuple[str, Any, bool]]:
    """Name, schema with all that it may refer to, and whether it is required."""
    shared = {key: tool.parameters[key] for key in _DEFINITIONS if key in tool.parameters}
    needed = tool.parameters.get("required", ())
    for name, schema in tool.parameters.get("properties", {}).items():
        yield name, {**schema, **shared} if isinstance(schema, Mapping) else schema, name in needed


def _values(rules: Mapping[str, str]) -> str:
    return "".join(f"{rule}: %json {text}\n" for text, rule in rules.items())


def _json(schema: Any) -> str:
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


def _is_open(tool: Tool) -> bool:
    """Whether its arguments may have any names, as nothing says which there are."""
    return "properties" not in tool.parameters and tool.parameters.get("additionalProperties") is not False


def _open_value(tool: Tool, rules: dict[str, str]) -> str:
    schema = tool.parameters.get("additionalProperties", True)
    return rules.setdefault(_json({} if schema is True else schema), f"value_{len(rules)}")


def _anything(one: str, comma: str = ", ") -> str:
    return f"({one} {more(quoted(comma), f'({one})', _MOST_OPEN)})?"


def _listed(needed: Sequence[str], others: Sequence[str], comma: str = ", ") -> str:
    """With commas between, whichever of the others there are."""
    optional = [f"({quoted(comma)} {one})?" for one in others]
    if needed:
        return f" {quoted(comma)} ".join(needed) + " " + " ".join(optional)
    if not others:
        return ""
    ways = (" ".join([one, *optional[i + 1 :]]) for i, one in enumerate(others))
    return f"({' | '.join(ways)})?"
