"""Rules of grammars that allow calls of certain tools and nothing else, in the Lark that ``structured/lark.py`` takes."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ramet.text.tools.tool import Tool
from ramet.text.tools.xml_calls import Tags, kinds_of

__all__ = [
    "COMMA",
    "arguments",
    "braced",
    "fewer",
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

_NAME = re.compile(r"[\w.\-]{1,200}")
_ANY_NAME = "/[A-Za-z_][A-Za-z0-9_]{0,63}/"
_MOST_OPEN = 64  # arguments where nothing says which there are
_NOT_ARGUMENTS = {
    "allOf", "anyOf", "oneOf", "enum", "const", "$ref", "patternProperties", "minProperties", "maxProperties",
}  # fmt: skip
_DEFINITIONS = ("$defs", "definitions")
_OTHER_REF = re.compile(r'"\$ref":"(?!#/(?:\$defs|definitions)/)')  # to what is not kept beside a property's schema
_TOLD = {"title", "description", "default", "example", "examples", "deprecated"}  # to the model alone
_OF_TEXTS = ("pattern", "format", "minLength", "maxLength")
_SOME_TEXT = "\0"  # of which no schema says anything


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


def fewer(rule: str, most: int) -> str:
    """Less than so many."""
    return "" if most == 1 else f"{rule}{{0,{most - 1}}}"


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
    return not _beside_arguments(tool)


def _beside_arguments(tool: Tool) -> str:
    """What its schema says that is not of properties one by one; empty where there is nothing."""
    properties = tool.parameters.get("properties", {})
    if found := sorted(_NOT_ARGUMENTS & tool.parameters.keys()):
        return ", ".join(found)
    if not (isinstance(properties, Mapping) and all(map(_NAME.fullmatch, properties))):
        return "its names of properties"
    if not properties.keys() >= set(tool.parameters.get("required", ())):
        return "required of what is no property"
    if any(schema is False for schema in properties.values()):
        return "a property that may not be"
    return "$ref to other places than $defs" if _OTHER_REF.search(_json(tool.parameters)) else ""


def pythonic(tools: Sequence[Tool]) -> str:
    """``call`` of any of them: what it must have first, then what it may have. Equal schemas have one rule."""
    rules: dict[str, str] = {}
    calls = []
    for tool in tools:
        needed: list[str] = []
        others: list[str] = []
        for name, schema, is_needed in _properties(tool):
            (needed if is_needed else others).append(f"{quoted(name + '=')} {_json_value(schema, rules)}")
        inside = _anything(f'{_ANY_NAME} "=" {_open_value(tool, rules)}') if _is_open(tool) else _listed(needed, others, rules)
        calls.append(f"{quoted(tool.name + '(')} {inside} {quoted(')')}")
    return f"call: {' | '.join(calls)}\n" + _values(rules)


def xml(tools: Sequence[Tool], tags: Tags, special: frozenset[str]) -> str:
    """``function`` of any of them: its mark, and ``behind`` that what it has in the order of its schema. A text ends where its
    end tag first comes.
    """
    rules: dict[str, str] = {}
    calls = []
    for tool in tools:
        if has_plain_arguments(tool) and not _is_open(tool):
            parts = [
                _perhaps(
                    f"{mark(tags.parameter + name, special)} {_xml_behind(schema, rules, tags, special)} {quoted(chr(10))}",
                    is_needed,
                )
                for name, schema, is_needed in _properties(tool)
            ]
        else:
            behind = " | ".join({quoted(tags.closing(is_text) + tags.line): None for is_text in (True, False)})
            parts = [f'({mark(tags.parameter, special)} /[^<>"\\n]{{1,200}}/ ({behind}) xml_text "\\n"){{0,64}}']
        calls.append(f"{quoted(tool.name + tags.close + chr(10))} {' '.join(parts)} {mark(tags.function_end, special)}")
    head = f"function: {mark(tags.function, special)} behind\n"
    return f"{head}behind: {' | '.join(calls)}\n" + until("xml_text", tags.parameter_end, special) + _values(rules)


def key_values(tools: Sequence[Tool], line: str) -> str:
    """``function`` of any of them: its name, and pairs of tags for what it has, in the order of its schema; ``line`` is what
    stands behind each of these.
    """
    rules: dict[str, str] = {}
    calls = []
    for tool in tools:
        if has_plain_arguments(tool) and not _is_open(tool):
            parts = [
                _perhaps(f"{quoted(f'<arg_key>{name}</arg_key>{line}<arg_value>')} {way} {quoted(line)}", is_needed)
                for name, schema, is_needed in _properties(tool)
                for way in _ways(schema, rules, '"</arg_value>"', says_kind=False).values()
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
            inside = _json_value(tool.parameters, rules)
        calls.append(f"{quoted('call:' + tool.name)} {inside}")
    return f"function: {' | '.join(calls)}\n" + until("xml_text", quote, special) + _values(rules)


def _braced(tool: Tool, rules: dict[str, str], quote: str, special: frozenset[str]) -> str:
    begin = mark(quote, special)
    if _is_open(tool):
        return _anything(f'{_ANY_NAME} ":" ({begin} xml_text | {_open_value(tool, rules)})', ",")
    needed: list[str] = []
    others: list[str] = []
    for name, schema, is_needed in _properties(tool):
        ways = _ways(schema, rules, begin, says_kind=True, json_end="")
        written = _one_of([f"{begin} {way}" if is_text else way for is_text, way in ways.items()])
        (needed if is_needed else others).append(f"{quoted(name + ':')} {written}")
    return _listed(needed, others, rules, ",")


def unkept_of_xml(tool: Tool, end: str) -> str | None:
    """What the form of ``xml`` cannot keep to of a tool's schema, if anything: it writes texts as they are, up to ``end``."""
    if _is_open(tool) and isinstance(tool.parameters.get("additionalProperties"), Mapping):
        return "additionalProperties"
    if found := _beside_arguments(tool):
        return found
    for name, schema, _ in _properties(tool):
        if "string" not in kinds_of(schema):
            continue
        if keys := [key for key in _OF_TEXTS if key in json.dumps(schema)]:
            return f"{keys[0]} of {name}, a text"
        texts = _texts(schema)
        if texts is not None and (not texts or any(end in text for text in texts)):
            return f"what {name}, a text, may be"
    return None


def _xml_behind(schema: Any, rules: dict[str, str], tags: Tags, special: frozenset[str]) -> str:
    """What comes behind the name of a parameter: the rest of its tag, the value and the end tag."""
    end = mark(tags.line + tags.parameter_end, special)
    ways = _ways(schema, rules, end, says_kind=tags.says_kind)
    return _one_of([f"{quoted(tags.closing(is_text) + tags.line)} {way}" for is_text, way in ways.items()])


def _one_of(ways: Sequence[str]) -> str:
    return ways[0] if len(ways) == 1 else f"({' | '.join(ways)})"


def _perhaps(one: str, is_needed: bool) -> str:
    return one if is_needed else f"[{one}]"


def _ways(schema: Any, rules: dict[str, str], end: str, *, says_kind: bool, json_end: str | None = None) -> dict[bool, str]:
    """How a value may be written, and its end: as a text (True), as JSON, or as the one and the other where that is said."""
    kinds = kinds_of(schema)
    ways = {}
    if "string" in kinds and (texts := _texts(schema, with_null="null" in kinds and not says_kind)) != []:
        ways[True] = f"{_one_of([*map(quoted, texts)])} {end}" if texts else "xml_text"
    if not ways or (says_kind and kinds != {"string"}):
        ways[False] = f"{_json_value(schema, rules)} {end if json_end is None else json_end}"
    return ways


def _texts(schema: Any, *, with_null: bool = False) -> list[str] | None:
    """The texts that a schema allows, ``null`` for that; None where these are all."""
    named = dict.fromkeys([*_named(schema), *([None] if with_null else ())])
    allowed = _allowed(schema, frozenset({*named, _SOME_TEXT}))
    if _SOME_TEXT in allowed:
        return None
    return ["null" if one is None else one for one in named if one in allowed]


def _named(schema: Any) -> Iterable[str | None]:
    """The texts that are values of enums or constants anywhere in a schema."""
    if isinstance(schema, Mapping):
        yield from (one for one in (*schema.get("enum", ()), schema.get("const")) if isinstance(one, str))
        for key in ("anyOf", "oneOf", "allOf"):
            for way in schema.get(key, ()):
                yield from _named(way)


def _allowed(schema: Any, values: frozenset[str | None]) -> frozenset[str | None]:
    """Those of some texts, and null, that a schema is known to allow, of what it says but of lengths, patterns and formats."""
    if not isinstance(schema, Mapping):
        return frozenset() if schema is False else values
    if "$ref" in schema:
        return frozenset()
    for listed in (schema.get("enum"), [schema["const"]] if "const" in schema else None):
        if listed is not None:
            values &= frozenset(one for one in listed if one is None or isinstance(one, str))
    kinds = schema.get("type", ("string", "null"))
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    if "null" not in kinds:
        values -= {None}
    if "string" not in kinds:
        values &= {None}
    if "anyOf" in schema:
        values = frozenset[str | None]().union(*(_allowed(way, values) for way in schema["anyOf"]))
    if "oneOf" in schema:
        ways = Counter(one for way in schema["oneOf"] for one in _allowed(way, values))
        values = frozenset(one for one, count in ways.items() if count == 1)
    for way in schema.get("allOf", ()):
        values = _allowed(way, values)
    return values


def _properties(tool: Tool) -> Iterable[tuple[str, Any, bool]]:
    """Name, schema with all that it may refer to, and whether it is required."""
    needed = tool.parameters.get("required", ())
    for name, schema in tool.parameters.get("properties", {}).items():
        yield name, _by_itself(tool, schema), name in needed


def _by_itself(tool: Tool, schema: Any) -> Any:
    """A part of a tool's schema with all that it may refer to."""
    if '"$ref":' not in _json(schema):
        return schema
    return {**schema, **{key: tool.parameters[key] for key in _DEFINITIONS if key in tool.parameters}}


def _values(rules: Mapping[str, str]) -> str:
    return "".join(f"{rule}: {body}\n" for body, rule in rules.items())


def _rule(body: str, rules: dict[str, str]) -> str:
    """The name of the rule that says this: equal ones are one, as grammars are bounded."""
    return rules.setdefault(body, f"part_{len(rules)}")


def _json_value(schema: Any, rules: dict[str, str]) -> str:
    """The rule of a value of this schema, as JSON."""
    said = {key: value for key, value in schema.items() if key not in _TOLD} if isinstance(schema, Mapping) else {}
    return _rule(f"%json {_json(said)}", rules)


def _json(schema: Any) -> str:
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


def _is_open(tool: Tool) -> bool:
    """Whether its arguments may have any names, as nothing says which there are."""
    return "properties" not in tool.parameters and tool.parameters.get("additionalProperties") is not False


def _open_value(tool: Tool, rules: dict[str, str]) -> str:
    return _json_value(_by_itself(tool, tool.parameters.get("additionalProperties", True)), rules)


def _anything(one: str, comma: str = ", ") -> str:
    return f"({one} {more(quoted(comma), f'({one})', _MOST_OPEN)})?"


def _listed(needed: Sequence[str], others: Sequence[str], rules: dict[str, str], comma: str = ", ") -> str:
    """With commas between, whichever of the others there are. Only where these may begin the list they are rules, else it would
    hold a group for each two of them.
    """
    optional = [f"{quoted(comma)} {one}" for one in others]
    if needed:
        return " ".join([f" {quoted(comma)} ".join(needed), *(f"[{one}]" for one in optional)])
    behind = [_rule(f"{one} |", rules) for one in optional[1:]]
    ways = (" ".join([one, *behind[i:]]) for i, one in enumerate(others))
    return f"[{' | '.join(ways)}]" if others else ""
