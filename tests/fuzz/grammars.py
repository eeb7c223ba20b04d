"""F5 and F6: patterns, grammars, schemas and structural tags that nobody meant well, compiled, and walked under their masks."""

from __future__ import annotations

import json
import time
from collections.abc import Hashable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from random import Random
from typing import Any

import jsonschema
import numpy as np
from fuzz.harness import Target, kind_of
from fuzz.mutation import as_json, mutated_bytes, mutated_json

from ramet.core.grammar import GrammarKind, GrammarSpec
from ramet.core.ports import Matcher
from ramet.errors import GrammarError
from ramet.structured.compiler import GrammarCompiler, TokenTable
from ramet.structured.digits import NoWatch
from ramet.structured.matcher import GuidanceMatcher

__all__ = ["GRAMMAR", "REGEX", "SCHEMA", "TAGS"]

_MERGED = [b'{"', b'": ', b'", "', b"true", b"12", b"00", b"ab", b"\n  ", "é".encode(), "😀".encode()[:3], b"]}", b'\\"']
_PIECES = [*(bytes([byte]) for byte in range(256)), *_MERGED, b"<x>", b"<eos>"]
_EOS = len(_PIECES) - 1
_ENDING = np.packbits(np.arange(-(-len(_PIECES) // 32) * 32) == _EOS, bitorder="little").view(np.uint32)
_MAX_STEPS = 60
_MAX_SECONDS = 2  # of processor time, to compile one
_ENDS = frozenset(b'"}]') | {_PIECES.index(b"]}")}

_REGEX_WORDS = [
    "(", ")", "(?:", "(?i)", "(?s:", "(?P<n>", "(?=", "[", "[^", "]", "[a-z]", "[[:alpha:]]", "&&", "|", "*", "+", "?", "*?",
    "{2}", "{2,}", "{0,3}", "{,2}", "{1000}", "^", "$", ".", "\\", r"\d", r"\W", r"\s", r"\b", r"\A", r"\z", r"\n", r"\x41",
    r"\u00e9", r"\x{1F600}", r"\p{L}", r"\P{Greek}", r"\pN", r"\1", "-", "é", "😀", "/", "a", "#",
]  # fmt: skip
_SCHEMA_WORDS = [
    "type", "properties", "required", "additionalProperties", "patternProperties", "items", "prefixItems", "minItems",
    "maxItems", "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "multipleOf", "enum", "const", "anyOf", "allOf", "oneOf", "$ref", "$defs", "minProperties", "maxProperties", "not", "if",
    "$id", "title", "object", "array", "string", "integer", "number", "boolean", "null", "#", "#/$defs/a", "date", "uuid",
    "a", "b", "ab", "^a", "[0-9]{2}",
]  # fmt: skip
_GRAMMAR_WORDS = [
    "start: ", "root ::= ", "a: ", "a ::= ", "T: ", "a", "T", '"x"', '"é"i', "/[a-c]+/", "/./", "|", "*", "+", "?", "~2..3",
    "{2}", "(", ")", "[a-c]", "[^\\n]", "%json {}", "%ignore ", "%import ", "<x>", "[lazy]", "[suffix=\"x\"]", "&", "~", "->",
    "//", "#", "\n", '""', "\\u00e9",
]  # fmt: skip
_TAG_WORDS = [
    "type", "structural_tag", "structures", "triggers", "format", "begin", "end", "schema", "content", "tags", "separator",
    "elements", "value", "pattern", "json_schema", "const_string", "regex", "any_text", "sequence", "or", "tag",
    "triggered_tags", "tags_with_separator", "at_least_one", "stop_after_first", "excludes", "style", "<t>", "<x>", '"', "\\",
    "/", "[0-9]+",
]  # fmt: skip
_SAFE_PATTERNS = {"^a", "[0-9]{2}", "^[a-c]+$", "b$", "x", "^(ab|c){1,3}$", "a|b"}  # of one meaning to re and to the compiler


def _walk(one: Matcher, rng: Random, other: Matcher | None = None) -> tuple[bytes, bool]:
    """A text that is taken under the masks, with a leaning to ends, and whether it is a whole one. Another matcher of the same
    constraint has the same masks all the way. There is always a way on.
    """
    text = b""
    row, second = np.zeros(one.num_words, np.uint32), np.zeros(one.num_words, np.uint32)
    for _ in range(_MAX_STEPS):
        if one.is_finished:
            return text, True
        one.fill_mask(row)
        if other is not None:
            other.fill_mask(second)
            assert np.array_equal(row, second), f"two masks behind {text!r}"
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        ids = allowed[allowed != _EOS]
        assert one.is_accepting == (len(ids) < len(allowed)), f"EOS is not where {text!r} ends"
        assert len(allowed), f"a dead end behind {text!r}"
        if one.is_accepting and (not len(ids) or rng.random() < 0.4):
            return text, True
        ends = [int(i) for i in ids if i in _ENDS]
        token = rng.choice(ends) if ends and rng.random() < 0.5 else int(rng.choice(ids))
        for matcher in (one, other):
            if matcher is not None:
                matcher.accept(token)
        text += _PIECES[token]
    return text, False


def _refused(error: GrammarError) -> str:
    text = str(error)
    assert "\n" not in text, "more than one line"
    assert len(text) < 600, "a long one"
    return kind_of(error)


class _Grammars:
    """A compiler, and what is tried with it."""

    def __init__(self) -> None:
        self._compiler = GrammarCompiler(TokenTable(_PIECES, frozenset({_EOS, _EOS - 1}), (_EOS,), len(_PIECES)))

    def regex(self, data: bytes) -> Hashable:
        """A pattern is refused in one line, or walked; where an automaton of ours holds it, llguidance has its masks too."""
        try:
            spec = GrammarSpec("regex", data.decode(errors="ignore"))
            one = self._matcher(spec)
        except GrammarError as error:
            return _refused(error)
        by_guidance = self._by_guidance(spec)
        try:
            text, is_whole = _walk(one, Random(data), by_guidance)
        except GrammarError as error:  # of a limit that was met on the way
            return "walk", kind_of(error)
        return type(one).__name__, by_guidance is None, is_whole, min(len(text), 8)

    def schema(self, data: bytes) -> Hashable:
        """A schema is refused in one line, or what is written under its masks is valid to another reader of schemas."""
        try:
            spec = GrammarSpec("json", data.decode(errors="ignore"))
            one = self._matcher(spec)
        except GrammarError as error:
            return _refused(error)
        try:
            text, is_whole = _walk(one, Random(data))
        except GrammarError as error:
            return "walk", kind_of(error)
        if not is_whole:
            return "long"
        value = json.loads(text, parse_float=Decimal)
        return type(value).__name__, _is_valid(json.loads(spec.text, parse_float=Decimal), value, text)

    def grammar(self, data: bytes) -> Hashable:
        """A grammar in Lark or EBNF is refused in one line, or walked."""
        return self._walked("grammar", data)

    def tags(self, data: bytes) -> Hashable:
        """So is a structural tag."""
        return self._walked("structural_tag", data)

    def _walked(self, kind: GrammarKind, data: bytes) -> Hashable:
        try:
            one = self._matcher(GrammarSpec(kind, data.decode(errors="ignore")))
        except GrammarError as error:
            return _refused(error)
        try:
            text, is_whole = _walk(one, Random(data))
        except GrammarError as error:
            return "walk", kind_of(error)
        return is_whole, min(len(text), 8)

    def _matcher(self, spec: GrammarSpec) -> Matcher:
        started_s = time.process_time()
        try:
            return self._compiler.matcher(spec, frozenset({_EOS})).result()
        finally:
            assert time.process_time() - started_s < _MAX_SECONDS, "it took too long"

    def _by_guidance(self, spec: GrammarSpec) -> Matcher | None:
        """llguidance's matcher of the same; None where it refuses the constraint, as it may for its limits."""
        try:
            return GuidanceMatcher(self._compiler._guided(spec).guide, ~_ENDING, _ENDING, NoWatch())
        except GrammarError:
            return None


def _mutate_regex(rng: Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    return mutated_bytes(rng, data, pool, [word.encode() for word in _REGEX_WORDS])


def _is_valid(schema: Any, value: Any, text: bytes) -> str:
    """Raises where the value is not valid; what it says is whether anything was found out."""
    if not set(_patterns(schema)) <= _SAFE_PATTERNS:
        return "patterns"
    schema = (
        {key: inner for key, inner in schema.items() if key not in ("$id", "$schema")} if isinstance(schema, dict) else schema
    )
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
        error = next(jsonschema.Draft202012Validator(schema).iter_errors(value), None)
    except jsonschema.SchemaError:  # of annotations, which nobody reads here
        return "no schema"
    except (InvalidOperation, OverflowError, ArithmeticError):  # numbers of thousands of digits
        return "numbers"
    assert error is None, f"{text!r} is not valid: {error.message[:200]}"  # type: ignore[union-attr]
    return "valid"


def _patterns(schema: Any) -> Iterator[str]:
    """Those of a schema, and all that could be taken for one."""
    if isinstance(schema, dict):
        for key, inner in schema.items():
            if key == "pattern" and isinstance(inner, str):
                yield inner
            elif key == "patternProperties" and isinstance(inner, dict):
                yield from inner
            yield from _patterns(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _patterns(inner)


def _mutate_schema(rng: Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    return _mutated_tree(rng, data, pool, _SCHEMA_WORDS)


def _mutated_tree(rng: Random, data: bytes, pool: Sequence[bytes], words: Sequence[str]) -> bytes:
    """As JSON, and now and then as bytes."""
    value = as_json(data)
    if value is None or rng.random() < 0.1:
        return mutated_bytes(rng, data, pool, [word.encode() for word in words])
    others = [other for other in map(as_json, rng.choices(pool, k=4)) if other is not None]
    return json.dumps(mutated_json(rng, value, others or [{}], words)).encode()


def _mutate_grammar(rng: Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    return mutated_bytes(rng, data, pool, [word.encode() for word in _GRAMMAR_WORDS])


def _mutate_tags(rng: Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    return _mutated_tree(rng, data, pool, _TAG_WORDS)


REGEX = Target("F5", "regex", lambda _: _Grammars().regex, _mutate_regex)
GRAMMAR = Target("F5", "grammar", lambda _: _Grammars().grammar, _mutate_grammar)
TAGS = Target("F6", "tags", lambda _: _Grammars().tags, _mutate_tags)
SCHEMA = Target("F6", "schema", lambda _: _Grammars().schema, _mutate_schema)
