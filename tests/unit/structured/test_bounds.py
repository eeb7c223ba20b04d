"""What is refused, and how fast; and how much is kept."""

from __future__ import annotations

import json
import resource
import time
from typing import Any

import pytest
from byte_grammars import COMPILER, VOCAB_SIZE, accepts, matcher
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ramet.core.grammar import MAX_GRAMMAR_BYTES, GrammarSpec
from ramet.errors import GrammarError, InvalidRequest
from ramet.structured import compiler
from ramet.structured.compiler import GrammarCompiler, TokenTable

ALLOF = [{"anyOf": [{"properties": {f"k{i}{j}": {"type": "integer"}}} for j in range(3)]} for i in range(7)]
DEFS = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(900)} | {"a900": {"type": "integer"}}

HOSTILE: list[tuple[str, object]] = [
    ("groups", {"grammar": "start: " + "(" * 60_000 + '"a"' + ")" * 60_000}),  # B181
    ("ebnf groups", {"grammar": "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000}),  # B181
    ("regex groups", {"regex": "(" * 60_000 + "a" + ")" * 60_000}),
    ("rules in a chain", {"grammar": "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(5_000)) + '\nr5000: "a"'}),
    ("ebnf chain", {"grammar": "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1}" for i in range(5_000)) + '\nr5000 ::= "a"'}),
    ("references in a chain", {"json": {"$ref": "#/$defs/a0", "$defs": DEFS}}),
    ("nested lists", {"json": "[" * 100_000}),
    ("nested schemas", {"json": '{"items":' * 2_000 + "{}" + "}" * 2_000}),
    ("repetitions", {"regex": "a{1,1000000000}"}),
    ("nested repetitions", {"regex": "((((a{100}){100}){100}){100})"}),
    ("repetitions of repetitions", {"regex": "a{1000}{1000}"}),
    ("repetitions in a pattern", {"json": {"type": "string", "pattern": "(a{1000}){1000}"}}),
    ("grammar repetitions", {"grammar": 'start: a{1,1000000000}\na: "x"'}),
    ("multiples", {"json": {"type": "integer", "multipleOf": 1_000_003}}),
    ("multiples together", {"json": {"allOf": [{"type": "integer", "multipleOf": k} for k in (97, 89, 83)]}}),
    ("alternatives multiplied", {"json": {"type": "object", "allOf": ALLOF}}),
    ("properties", {"json": {"properties": {f"k{i}": {} for i in range(10_000)}}}),
    ("terms that double", {"grammar": "start: A40\nA0: \"x\"\n" + "\n".join(f"A{i + 1}: A{i} A{i}" for i in range(40))}),
    ("optional pieces", {"regex": r"\w?" * 20_000}),
    ("optional pieces in a grammar", {"grammar": "root ::= " + '"a"? ' * 4_000}),
    ("classes", {"regex": r"\w" * 30_000}),
    ("bounds of numbers", {"json": {"anyOf": [{"minimum": i + 0.123456789, "maximum": i * 1e6} for i in range(900)]}}),
    ("schemas in a grammar", {"grammar": "start: " + " | ".join(["%json {}"] * 200)}),
    ("enum beside a pattern", {"json": {"enum": [f"v{i}" for i in range(5_000)], "pattern": "(a|v)*v"}}),
]  # fmt: skip


@pytest.mark.parametrize("constraint", [h[1] for h in HOSTILE], ids=[h[0] for h in HOSTILE])
def test_t16_hostile_grammars_are_refused_at_once(constraint: Any) -> None:
    """T16, B181."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    with pytest.raises(GrammarError) as refused:
        COMPILER.check(GrammarSpec.of(constraint))
    assert time.process_time() - started < 1
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024 < 200
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(("pattern", "text"), [("(a|b)*a(a|b){24}", "ba" + "b" * 24), ("(a+)+b", "aaab")])
def test_b182_t16_patterns_with_huge_automata_work(pattern: str, text: str) -> None:
    """B182, T16: states are made as they are met."""
    started = time.process_time()
    assert accepts({"regex": pattern}, text)
    assert not accepts({"regex": pattern}, "b" * 24 + "a")
    assert time.process_time() - started < 1


def test_b109_large_schemas_compile_quickly() -> None:
    arrays = {f"f{i}": {"type": "array", "maxItems": 15, "items": {"type": "string", "maxLength": 120}} for i in range(6)}
    started = time.process_time()
    assert accepts({"json": {"type": "object", "properties": arrays}}, '{"f0": ["a"], "f5": []}')
    assert accepts({"json": {"enum": [f"value number {i}" for i in range(5_000)]}}, '"value number 4999"')
    assert time.process_time() - started < 2


UNENFORCED = [
    "not",
    "if",
    "contains",
    "uniqueItems",
    "propertyNames",
    "dependentRequired",
    "unevaluatedProperties",
    "$dynamicRef",
]


@pytest.mark.parametrize("keyword", UNENFORCED)
def test_what_would_not_be_enforced_is_refused_by_name(keyword: str) -> None:
    for schema in ({keyword: True}, {"properties": {"a": {"anyOf": [{keyword: {}}]}}}, {"$defs": {"x": {keyword: 1}}}):
        with pytest.raises(GrammarError, match=f"{'[$]' if keyword[0] == '$' else ''}{keyword.lstrip('$')} is not supported"):
            matcher({"json": schema})


def test_keywords_are_not_names_and_values_are_not_schemas() -> None:
    assert accepts({"json": {"properties": {"not": {"const": {"if": 1}}}, "required": ["not"]}}, '{"not": {"if":1}}')


@pytest.mark.parametrize(
    ("constraint", "what"),
    [
        ({"regex": "ab**("}, "repeats a repetition, 'b[*][*]'"),  # B097
        ({"regex": "ab("}, "the regex cannot be used"),  # B097
        *(({"regex": "a" + twice}, "repeats a repetition") for twice in ("++", "*+", "?+", "{2}+", "*?*", "(b)?*")),
        ({"json": {"type": "string", "pattern": "^[a-z]++$"}}, "repeats a repetition"),
        ({"grammar": "start: /a**/"}, "repeats a repetition"),
        ({"json": {"type": "objekt"}}, "objekt"),  # B097
        ({"json": "5"}, "an object, not 5"),  # B097
        ({"json": {"$ref": "#/nowhere"}}, "leads nowhere"),  # B097
        ({"json": {"type": "string", "minLength": -1}}, "minLength is a whole number"),  # B097
        ({"grammar": 'root ::= "abc  /  start: / "x"'}, "cannot be read at line 1"),  # B100
        ({"grammar": 'start: "abc  /  start: / "x"'}, "cannot be read at line 1"),  # B100
        ({"json": {"$ref": "https://example.com/x"}}, "a place in this schema"),
        ({"json": {"$ref": "#"}}, "no text can match it"),
        ({"json": {"exclusiveMinimum": True, "minimum": 3}}, "exclusiveMinimum is a number"),
        ({"json": {"minLenght": 3}}, "did you mean minLength"),
        ({"json": {"minProperties": 2}}, "one may come twice"),
        ({"json": {"const": -(2**63)}}, "const has -9223372036854775808; numbers beyond"),
        ({"json": {"enum": [{"a": [2**53 + 1]}]}}, "enum has 9007199254740993; numbers beyond"),
        ({"json": {"type": "number", "maximum": 2.0**60}}, "maximum has 1.15.*; numbers beyond"),
        ({"json": {"minProperties": 2, "required": ["a"], "patternProperties": {"^b": {}}}}, "one may come twice"),
        ({"json": {"x-guidance": {"lenient": True}}}, "x-guidance is not supported"),
        ({"json": {"properties": {"a": {"$id": "https://x"}}}}, "#/properties/a: [$]id"),
        ({"json": {"type": "string", "format": "shoe size"}}, "shoe size"),
        ({"json": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}, "oneOf"),
        ({"json": '{"minimum": NaN}'}, "NaN"),
        ({"json": '{"minimum": 1e999}'}, "not JSON"),
        ({"json": '{"enum": ["\\ud800"]}'}, "not JSON"),
        ({"json": '{"minimum": %s}' % ("9" * 5000)}, "not JSON"),
        ({"json": {"multipleOf": 0}}, "multipleOf is above 0"),
        ({"json": {"const": ["x" * 20_000]}}, "const has a text of 20,004 characters; at most 16,384"),
        ({"json": {"enum": [1, "é" * 16_383]}}, "enum has a text of 16,385"),
        ({"json": {"properties": {"p" * 17_000: {}}}}, "properties has a text of 17,002"),
        ({"grammar": 'start: "' + "y" * 17_000 + '"'}, "a text of 17,002 characters"),
        ({"grammar": 'root ::= "' + "y" * 17_000 + '"'}, "a text of 17,002 characters"),
        ({"json": False}, "not False"),
        ({"regex": r"[^\s\S]"}, "no text can match it"),
        ({"regex": "()"}, "no token can come next"),
        ({"regex": "(?=a)b"}, "look-around"),
        ({"regex": "(?x)a b"}, "the flag x"),
        ({"choice": [""]}, "no token can come next"),
        ({"grammar": "start: a\na: a"}, "no text can match it"),
        ({"grammar": 'root ::= "a" b'}, "'b', which is not defined"),
        ({"grammar": 'x ::= "a"'}, "no rule root"),
        ({"grammar": 'root ::= "a"\nroot ::= "b"'}, "defined twice"),
        ({"grammar": r'root ::= "\q"'}, "escape"),
        ({"grammar": "root ::= [z-a]"}, "ends before it begins"),
        ({"grammar": 'start: a\na[stop="x"]: /b*/'}, "the option stop"),
        ({"grammar": "start: a\na[temperature=0.7]: /b*/"}, "the option temperature"),
        ({"grammar": "start: a\na[max_tokens=7]: /b*/"}, "the option max_tokens"),
        ({"grammar": "start: <[256]>"}, "tokens by number"),
        ({"grammar": '%llguidance {"no_forcing": false}\nstart: "a"'}, "%llguidance"),
        ({"grammar": 'start: %json {"not": {}}'}, "not is not supported"),
        ({"grammar": "start: %json {"}, "%json"),
        ({"grammar": "start: @other"}, "'@'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_on_one_line(constraint: Any, what: str) -> None:
    """B097, B100."""
    with pytest.raises(GrammarError, match=what) as refused:
        matcher(constraint)
    assert refused.value.param == "structured_outputs"
    assert "\n" not in str(refused.value)
    assert isinstance(refused.value, InvalidRequest)


KEYWORDS = [
    "type", "items", "properties", "anyOf", "allOf", "oneOf", "$ref", "$defs", "enum", "const", "required", "minimum",
    "multipleOf", "pattern", "maxLength", "format", "a",
]  # fmt: skip
LEAVES = st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["integer", "object", "#", "^a+$", 0.5, "#/$defs/a"])
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=4),
    max_leaves=12,
)


def is_taken(spec: GrammarSpec) -> bool:
    """Whether it can be used; if not it must have been refused, in one line."""
    try:
        COMPILER.check(spec)
    except GrammarError as error:
        return "\n" in str(error) and pytest.fail(f"not one line: {error}")
    return True


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(JSON)
def test_any_json_is_a_schema_or_refused(value: Any) -> None:
    is_taken(GrammarSpec("json", json.dumps(value)))


@settings(max_examples=200)
@given(
    st.text('ab(){}[]|*+?\\^$.,0159-/&~:="%<>@#\n rst', min_size=1, max_size=30),
    st.sampled_from(["", "start: ", "root ::= ", "regex"]),
)
def test_any_text_is_a_grammar_or_refused(text: str, head: str) -> None:
    is_taken(GrammarSpec("regex", text) if head == "regex" else GrammarSpec("grammar", head + text))


def test_what_the_two_tests_above_ask_can_be_true() -> None:
    assert is_taken(GrammarSpec("json", '{"anyOf": [{"type": "integer"}, {"enum": ["a"]}]}'))


def test_t17_what_is_kept_is_bounded_by_count_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    small = GrammarCompiler(TokenTable([bytes([b]) for b in range(256)], frozenset(), (256,), VOCAB_SIZE))
    monkeypatch.setattr(compiler, "_MAX_CACHED", 20)
    monkeypatch.setattr(compiler, "_MAX_CACHED_BYTES", 8 * compiler.LEXER_BYTES)
    for i in range(100):
        small.matcher(GrammarSpec("regex", f"a{i}"), frozenset()).result()
    assert len(small._kept) == 20
    for i in range(20):
        small.matcher(GrammarSpec("regex", f"b{i}" + "c" * 1_000), frozenset()).result()
        small.matcher(GrammarSpec("grammar", f'root ::= "{i}" r\nr ::= "c"' + " " * 50), frozenset()).result()
    assert 1 < sum(spec.kind == "grammar" for spec in small._kept) < 8
    assert sum(compiler._num_bytes(spec, kept.compiled) for spec, kept in small._kept.items()) <= compiler._MAX_CACHED_BYTES


def test_a_grammar_is_compiled_once_while_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    one = GrammarCompiler(TokenTable([bytes([b]) for b in range(256)], frozenset(), (256,), VOCAB_SIZE))
    compiled = []
    compile_it = one._compile
    monkeypatch.setattr(one, "_compile", lambda spec: compiled.append(spec.text) or compile_it(spec))
    for text in ("a", "b", "a", "a"):
        one.matcher(GrammarSpec("regex", text), frozenset()).result()
        one.matcher(GrammarSpec("grammar", f'root ::= "{text}"'), frozenset()).result()
    assert compiled == ["a", 'root ::= "a"', "b", 'root ::= "b"']


def test_a_text_over_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(GrammarError, match="at most 262,144"):
        GrammarSpec("regex", "a" * (MAX_GRAMMAR_BYTES + 1))
