"""JSON Schema: what is taken, and within which bounds.

The meaning is the compiler's (draft 2020-12). This pass comes before it, for two reasons. The compiler recurses and multiplies,
so depth, references and alternatives are counted first. And what it would pass over in silence is refused here: a keyword that
nobody enforces makes the output a superset of what was asked, which is worse than an error.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from ramet.errors import GrammarError, shown
from ramet.structured.regex import RegexBudget

__all__ = ["MAX_LITERAL", "WHITESPACE", "checked_schema", "checked_whitespace"]

WHITESPACE = r"\x20|\n[\x20\t]{0,32}"
"""Where JSON may have white space: none, one space, or one line break with its indentation. So it cannot go on for ever."""

_ESCAPES_WITHOUT_U = 'nrbtf\\"'
"""For schemas that tell names apart: the compiler does so by their bytes, so a \\u0061 would pass for another name than a."""

_JSON_SPACE = r"[\x20\t\n\r]"
_SPACES = re.compile(r"(?:[ \t\n\r]|\\[ tnr]|\\x20|\\s|\[(?:[ \t\n\r]|\\[ tnrs]|\\x20)+\]|\(\?:|[()|*+?]|\{[0-9]*,?[0-9]*\})*")
"""Patterns of nothing but what JSON takes for white space."""

MAX_LITERAL = 16_384
"""Characters of one literal: forced text is followed to its end, at a state of the compiler's for each two bytes or so."""

_MAX_DEPTH = 60  # of the document, lists and objects; the compiler reads JSON to a depth of 127
_MAX_VALUES = 10_000
_MAX_PROPERTIES = 1_000  # in all
_MAX_ENUM = 5_000
_MAX_HELD_ENUM = 512  # values of enums beside a pattern or format, each of which is held against it
_MAX_RECURSION = (
    300  # depths of the schema and of all that is referred to, added up: the compiler's stack holds several times that
)
_MAX_COSTLY = 400
_MAX_ONE_OF = 256  # each two are compared
_MAX_PATTERN_PROPERTIES = 32  # each two are compared
_MAX_MERGES = 256  # alternatives that meet in one place, multiplied
_MAX_ALL_MERGES = 1_024
_MAX_MULTIPLE = 10_000  # states of the automaton that counts remainders
_MAX_DECIMALS = 12
_MAX_EXACT = 2**53  # the compiler holds numbers as floats, and ends the process at -2**63

_ONE = {"additionalProperties", "additionalItems", "items"}
_LISTS = {"anyOf", "allOf", "oneOf", "prefixItems"}
_MAPS = {"properties", "patternProperties", "$defs", "definitions"}
_DEFINITIONS = {"$defs", "definitions"}
_MOST = {
    "required": _MAX_PROPERTIES, "enum": _MAX_ENUM, "oneOf": _MAX_ONE_OF,
    "patternProperties": _MAX_PATTERN_PROPERTIES,
}  # fmt: skip
_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_COSTLY = {*_NUMBERS, "format"}  # each is an automaton of its own
_COUNTS = {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
_ENFORCED = {*_ONE, *_LISTS, *_MAPS, *_NUMBERS, *_COUNTS, "type", "enum", "const", "required", "pattern", "format", "$ref"}
_ANNOTATIONS = {
    "title", "description", "default", "example", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema", "$id",
    "contentEncoding", "contentMediaType", "nullable", "discriminator",
}  # fmt: skip
_UNENFORCED = {
    "not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems", "propertyNames", "dependencies",
    "dependentRequired", "dependentSchemas", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef",
    "$dynamicAnchor", "$recursiveAnchor", "$anchor", "id", "extends", "disallow", "divisibleBy", "contentSchema", "x-guidance",
}  # fmt: skip


def checked_schema(text: str, whitespace: str | None = None, *, is_closed: bool = False) -> str:
    """The schema as the compiler gets it, with the pattern of its white space, ours where that is None. An ``is_closed`` one
    allows no properties but those it names, wherever it does not say otherwise. Raises ``GrammarError`` naming the place of what
    is wrong.
    """
    schema = _loaded(text)
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise GrammarError(f"a JSON schema is an object, not {shown(schema)}")
    _check_size(schema)
    walked = _Schema(schema, is_closed)
    try:
        walked.check()
    except RecursionError:
        raise GrammarError("the JSON schema's references are too deep; flatten it") from None
    options = {
        "whitespace_pattern": WHITESPACE if whitespace is None else checked_whitespace(whitespace),
        "lenient": False,
        "coerce_one_of": False,
    }
    if walked.tells_names_apart:
        options["json_allowed_escapes"] = _ESCAPES_WITHOUT_U
    else:
        options["json_allow_general_unicode_escapes"] = True
    plain = {key: value for key, value in schema.items() if key not in ("$schema", "$id")}
    return json.dumps(plain | {"x-guidance": options}, ensure_ascii=False, allow_nan=False)


def checked_whitespace(pattern: str) -> str:
    """A caller's own pattern of white space, as the compiler gets it. Raises ``GrammarError``."""
    if not _SPACES.fullmatch(pattern):
        raise GrammarError(
            f"whitespace_pattern is {shown(pattern)}; it is made of spaces, \\t, \\n, \\r and \\s, with [], (), | and repetitions"
        )
    RegexBudget().check(pattern)
    return pattern.replace(r"\s", _JSON_SPACE)


def _loaded(text: str) -> Any:
    """JSON of a text, floats as they are written. Of a key that comes twice the last counts, here and so in what is compiled."""
    try:
        schema = json.loads(text, parse_constant=_no_constant)
        json.dumps(schema, ensure_ascii=False, allow_nan=False).encode()
    except RecursionError:
        raise GrammarError(f"the JSON schema is nested more than {_MAX_DEPTH} deep; flatten it, or use $ref") from None
    except ValueError as error:  # bad syntax, numbers of thousands of digits or beyond every float, lone surrogates
        raise GrammarError(f"the JSON schema is not JSON: {shown(str(error), 100)}") from None
    return schema


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _check_size(schema: Any) -> None:
    """Bounds on the document itself, whatever it means."""
    level, num_values, depth = [schema], 0, 0
    while level:
        depth += 1
        num_values += len(level)
        if depth > _MAX_DEPTH:
            raise GrammarError(f"the JSON schema is nested more than {_MAX_DEPTH} deep; flatten it, or use $ref")
        if num_values > _MAX_VALUES:
            raise GrammarError(f"the JSON schema holds more than {_MAX_VALUES:,} values; make it smaller")
        level = [inner for value in level if isinstance(value, (dict, list)) for inner in _inner(value)]


def _inner(value: dict[str, Any] | list[Any]) -> Iterator[Any]:
    return iter(value.values() if isinstance(value, dict) else value)


class _Schema:
    """One walk over a schema: each subschema once, named by its place (a JSON pointer) in what is said of it."""

    def __init__(self, root: dict[str, Any], is_closed: bool) -> None:
        self._root = root
        self._is_closed = is_closed
        self.tells_names_apart = False  # somewhere: properties that are declared, from others that may come beside them
        # By identity, which is safe because the root keeps all of them alive.
        self._places: dict[int, str] = {}
        self._heights: dict[int, int] = {}  # levels below a subschema, definitions not counted
        self._weights: dict[int, int] = {}
        self._targets: dict[int, tuple[Any, str]] = {}  # what is referred to
        self._multiples: list[Decimal] = []
        self._num_merges = self._num_properties = self._num_held = self._num_costly = 0
        self._regexes = RegexBudget()

    def check(self) -> None:
        """Raise ``GrammarError`` where something is out of bounds or would not be enforced."""
        self._walk(self._root, "#")
        waiting = list(self._targets)
        while waiting:  # places that only references lead to
            target, place = self._targets[waiting.pop()]
            known = len(self._targets)
            self._walk(target, place)
            waiting += list(self._targets)[known:]
        recursion = self._heights[id(self._root)] + sum(self._heights.get(target, 1) for target in self._targets)
        if recursion > _MAX_RECURSION:
            raise GrammarError(f"the JSON schema and all it refers to are {recursion} levels, added up; at most {_MAX_RECURSION}")
        self._check_multiples()
        for target, _ in [(self._root, "#"), *self._targets.values()]:
            self._weight(target)

    # ---- keyword by keyword

    def _walk(self, schema: Any, place: str) -> int:
        """Check a subschema and all within; its height."""
        if isinstance(schema, bool):
            return 1
        if not isinstance(schema, dict):
            raise GrammarError(f"{place}: a schema is an object, true or false, not {shown(schema)}")
        if id(schema) not in self._heights:
            self._places[id(schema)] = place
            self._heights[id(schema)] = height = 1
            self._put_plainly(schema)
            for key, value in schema.items():
                self._check_keyword(key, value, place)
                for name, inner in _subschemas(key, value, place):
                    inner_height = self._walk(inner, f"{place}/{name}")
                    if key not in _DEFINITIONS:
                        height = max(height, 1 + inner_height)
            self._heights[id(schema)] = height
            self._look_at_names(schema, place)
            self._count(schema, place)
        return self._heights[id(schema)]

    def _put_plainly(self, schema: dict[str, Any]) -> None:
        """What means the same to us, in the words of the compiler."""
        if schema.get("uniqueItems") is False:
            del schema["uniqueItems"]  # says nothing, and the compiler knows the keyword not at all
        for key in schema.keys() & _COUNTS:
            if isinstance(schema[key], float) and schema[key].is_integer():
                schema[key] = int(schema[key])
        if self._is_closed and schema.keys() & {"properties", "patternProperties"}:
            schema.setdefault("additionalProperties", False)

    def _look_at_names(self, schema: dict[str, Any], place: str) -> None:
        """What the compiler would take for other properties than they are."""
        is_open = schema.get("additionalProperties") is not False or bool(schema.get("patternProperties"))
        if is_open and (schema.get("properties") or schema.get("patternProperties")):
            self.tells_names_apart = True
        if is_open and schema.get("minProperties", 0) > max(1, len(set(schema.get("required", ())))):
            raise GrammarError(
                f"{place}: minProperties is more than the required ones, and others cannot be counted, since one may come twice; "
                "leave it out, or close the object with additionalProperties: false"
            )

    def _count(self, schema: dict[str, Any], place: str) -> None:
        """Budgets of the schema as a whole."""
        self._num_properties += len(schema.get("properties", ()))
        if self._num_properties > _MAX_PROPERTIES:
            raise GrammarError(f"{place}: the JSON schema has over {_MAX_PROPERTIES:,} properties in all; make it smaller")
        self._num_costly += len(schema.keys() & _COSTLY)
        if self._num_costly > _MAX_COSTLY:
            raise GrammarError(f"{place}: the JSON schema has over {_MAX_COSTLY} bounds of numbers and formats; make it smaller")
        if schema.keys() & {"pattern", "format"}:
            self._num_held += len(schema.get("enum", ()))
        if self._num_held > _MAX_HELD_ENUM:
            raise GrammarError(f"{place}: over {_MAX_HELD_ENUM} values of an enum beside a pattern or format; leave that out")

    def _check_keyword(self, key: str, value: Any, place: str) -> None:
        if key in _UNENFORCED:
            raise GrammarError(f"{place}: {key} is not supported, and to pass over it would allow what it forbids; leave it out")
        if key in _ENFORCED:
            self._check_patterns(_check_value(key, value, place), place)
        else:
            _check_annotation(key, place)
        if key == "$ref":
            target = self._target(value, place)
            self._targets.setdefault(id(target), (target, value))
        elif key == "multipleOf":
            self._multiples.append(Decimal(str(value)))

    def _check_patterns(self, patterns: list[Any], place: str) -> None:
        for pattern in patterns:
            if not isinstance(pattern, str):
                raise GrammarError(f"{place}: pattern is a text, not {shown(pattern)}")
            try:
                self._regexes.check(pattern)
            except GrammarError as error:
                raise GrammarError(f"{place}: {error}") from None

    def _target(self, ref: Any, place: str) -> Any:
        if not isinstance(ref, str) or "%" in ref or not (ref == "#" or ref.startswith("#/")):
            raise GrammarError(f"{place}: $ref is a place in this schema such as #/$defs/name, not {shown(ref)}")
        found: Any = self._root
        for part in ref.split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and part in found:
                found = found[part]
            elif isinstance(found, list) and part.isdecimal() and len(part) < 6 and int(part) < len(found):
                found = found[int(part)]
            else:
                raise GrammarError(f"{place}: $ref {shown(ref)} leads nowhere")
        return found

    # ---- what would be multiplied

    def _check_multiples(self) -> None:
        """The least common multiple of all, in units of the finest one: an automaton for them has that many states."""
        if not self._multiples:
            return
        if min(self._multiples) <= 0:
            raise GrammarError("multipleOf is above 0")
        decimals = max(max(0, -int(one.normalize().as_tuple().exponent)) for one in self._multiples)
        if decimals > _MAX_DECIMALS or max(self._multiples) > _MAX_MULTIPLE:
            raise GrammarError(f"multipleOf is at most {_MAX_MULTIPLE:,}, with at most {_MAX_DECIMALS} decimals")
        common = math.lcm(*(int(one.scaleb(decimals)) for one in self._multiples))
        if common > _MAX_MULTIPLE:
            raise GrammarError(
                f"the least common multiple of all multipleOf is {shown(common)} units of the finest; at most {_MAX_MULTIPLE:,}"
            )

    def _weight(self, schema: Any) -> int:
        """How many schemas a place becomes once the allOf, anyOf, oneOf and $ref that meet there are multiplied out."""
        if not isinstance(schema, dict):
            return 1
        known = self._weights.get(id(schema))
        if known is not None:
            return known
        self._weights[id(schema)] = 1  # what refers back to itself is no further alternative
        factors = [self._weight(one) for one in schema.get("allOf", ())]
        factors += [sum([self._weight(one) for one in schema[key]]) for key in ("anyOf", "oneOf") if key in schema]
        if "$ref" in schema:
            factors.append(self._weight(self._target(schema["$ref"], "")))
        weight = math.prod(factors)
        if sum(factor > 1 for factor in factors) > 1:
            self._num_merges += weight
            if weight > _MAX_MERGES or self._num_merges > _MAX_ALL_MERGES:
                place = self._places.get(id(schema), "#")
                raise GrammarError(
                    f"{place}: alternatives that meet make {weight:,} combinations; at most {_MAX_MERGES} are taken"
                )
        self._weights[id(schema)] = weight
        for key, value in schema.items():
            for _, inner in _subschemas(key, value, ""):
                self._weight(inner)
        return weight


def _subschemas(key: str, value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """The schemas directly under a keyword, with their names below it. Raises ``GrammarError`` where it holds something else."""
    if key in _MAPS:
        if not isinstance(value, dict):
            raise GrammarError(f"{place}: {key} maps names to schemas, and is not {shown(value)}")
        yield from ((f"{key}/{name}", inner) for name, inner in value.items())
    elif key in _LISTS or (key == "items" and isinstance(value, list)):
        if not isinstance(value, list):
            raise GrammarError(f"{place}: {key} is a list of schemas, not {shown(value)}")
        yield from ((f"{key}/{index}", inner) for index, inner in enumerate(value))
    elif key in _ONE:
        yield key, value


def _check_value(key: str, value: Any, place: str) -> list[Any]:
    """The value of a keyword that is enforced, as far as its bounds go or the compiler would pass over it; its patterns."""
    if key in _NUMBERS and not _is_number(value, (int, float)):
        raise GrammarError(f"{place}: {key} is a number, not {shown(value)}")
    if key in _NUMBERS or key in ("enum", "const"):
        _check_exact(key, value, place)
    if key in _COUNTS and (not _is_number(value, int) or not 0 <= value < 2**31):
        raise GrammarError(f"{place}: {key} is a whole number from 0 on, not {shown(value)}")
    if key == "required" and not (isinstance(value, list) and all(isinstance(name, str) for name in value)):
        raise GrammarError(f"{place}: required is a list of property names, not {shown(value)}")
    if key == "enum" and not (isinstance(value, list) and value):
        raise GrammarError(f"{place}: enum is a list of values, not {shown(value)}")
    has_literals = key in ("enum", "properties", "required") and isinstance(value, (list, dict))
    literals = [value] if key == "const" else value if has_literals else ()
    longest = max((len(json.dumps(one, ensure_ascii=False)) for one in literals), default=0)
    if longest > MAX_LITERAL:
        raise GrammarError(f"{place}: {key} has a text of {longest:,} characters; at most {MAX_LITERAL:,} are taken")
    most = _MOST.get(key)
    if most is not None and isinstance(value, (list, dict)) and len(value) > most:
        raise GrammarError(f"{place}: {key} has {len(value):,} entries; at most {most:,} are taken")
    return [value] if key == "pattern" else list(value) if key == "patternProperties" and isinstance(value, dict) else []


def _check_exact(key: str, value: Any, place: str) -> None:
    level = [value]
    while level:
        for one in level:
            if _is_number(one, (int, float)) and abs(one) > _MAX_EXACT:
                raise GrammarError(
                    f"{place}: {key} has {shown(one)}; numbers beyond {_MAX_EXACT:,} (2**53) would not be held exactly, so none "
                    "is taken. Lower it, or leave it out"
                )
        level = [inner for one in level if isinstance(one, (dict, list)) for inner in _inner(one)]


def _is_number(value: object, kinds: type | tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _check_annotation(key: str, place: str) -> None:
    """What is no keyword says nothing of the output and is let be, unless it looks like a keyword misspelt."""
    if key == "$id" and place != "#":
        raise GrammarError(f"{place}: $id below the top would move what references mean; leave it out")
    if key not in _ANNOTATIONS and (near := difflib.get_close_matches(key, _ENFORCED | _UNENFORCED, n=1, cutoff=0.85)):
        raise GrammarError(f"{place}: {shown(key)} is no keyword of JSON Schema; did you mean {near[0]}?")
