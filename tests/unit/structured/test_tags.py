"""Structural tags: free text until a trigger, and then what the tag says."""

from __future__ import annotations

from typing import Any

import pytest
from byte_grammars import EOS, SPECIAL, accepts, allowed, matcher, walk

from ramet.errors import GrammarError

A = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
JSON_A = {"type": "json_schema", "json_schema": A}
TEXT = {"type": "any_text"}
CALL = {"begin": "<f=a>", "content": JSON_A, "end": "</f>"}
CALLS = {"type": "triggered_tags", "triggers": ["<f="], "tags": [CALL]}
BRACKET = "\uff3b"  # a full-width one
TOOL = f"{BRACKET}도구\uff3d"


def structures(*tags: tuple[str, Any, str], triggers: list[str], **options: Any) -> dict[str, Any]:
    named = [{"begin": begin, "schema": schema, "end": end} for begin, schema, end in tags]
    return {"structural_tag": {"type": "structural_tag", "structures": named, "triggers": triggers}, **options}


def form(inner: Any) -> dict[str, Any]:
    return {"structural_tag": {"type": "structural_tag", "format": inner}}


def tag(begin: str, content: Any, end: Any) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


OLD = structures(("<f=a>", A, "</f>"), (TOOL, {}, "!"), ("<f=b>", {"type": "integer"}, ""), triggers=["<f=", BRACKET])
THOUGHT = tag("<think>", TEXT, "</think>")
WITH_THOUGHT = {"type": "sequence", "elements": [THOUGHT, CALLS | {"at_least_one": True, "stop_after_first": True}]}
SEPARATED = {
    "type": "tags_with_separator",
    "separator": ",",
    "tags": [
        tag("[", {"type": "regex", "pattern": "[0-9/]+"}, "]"),
        tag("(", {"type": "const_string", "value": "x"}, [")", "}"]),
    ],
}
EITHER = {"type": "or", "elements": [{"type": "const_string", "value": "é"}, JSON_A, {"type": "regex", "pattern": "[0-9]+5"}]}
COMPACT = structures(("<f>", A, "</f>"), triggers=["<f>"], disable_any_whitespace=True)
CLOSED = structures(("<f>", {"properties": {"a": {}}}, ""), triggers=["<f>"], disable_additional_properties=True)

CALLED = '<f=a>{"a": 1}</f>'
CASES: list[tuple[str, Any, list[str], list[str]]] = [
    ("no tag", OLD, ["", "hello", "< f=", "<<f", "é \n"], []),
    ("tags in text", OLD, [CALLED, f"x {CALLED}y<{CALLED} z", "<f=b>12", "<f=b>2 and"], ["<f=c>", "<f=", "<f=a>{}", "<f=b>x"]),
    ("b076", OLD, [f"{TOOL}12! ok", f'a{TOOL}{{"b": [1]}}!'], [f"{BRACKET}x", TOOL, f"{TOOL}12"]),
    ("thought", form(WITH_THOUGHT), [f"<think>a<b</think>{CALLED}"], ["<think>a</think>", CALLED, f"<think></think>{CALLED}x"]),
    ("one at least", form(CALLS | {"at_least_one": True}), [CALLED, f"{CALLED}x{CALLED}"], ["", "x", f"x{CALLED}"]),
    ("one at most", form(CALLS | {"stop_after_first": True}), ["", "x", f"x{CALLED}"], [f"{CALLED}x", CALLED * 2]),
    ("separated", form(SEPARATED), ["", "[1]", "[1/2],(x),[3]", "(x}"], ["[1],", "[1][2]", "(y)", "x"]),
    ("one separated", form(SEPARATED | {"stop_after_first": True, "at_least_one": True}), ["[1]"], ["", "[1],[2]"]),
    ("either", form(EITHER), ["é", '{"a": 1}', "125"], ["", "12", "é5"]),
    ("text alone", form(TEXT), ["", CALLED, "<f=c>"], []),
    ("compact", COMPACT, ['<f>{"a":1}</f>'], ['<f>{"a": 1}</f>']),
    ("closed", CLOSED, ['<f>{"a": 1}'], ['<f>{"b": 1}']),
    ("schema as text", structures(("<f>", '{"type":"integer"}', ";"), triggers=["<f>"]), ["<f>1;"], ["<f>x;"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "constraint", "valid", "invalid"), CASES, ids=[case[0] for case in CASES])
def test_tags_take_just_their_texts(name: str, constraint: Any, valid: list[str], invalid: list[str]) -> None:
    """B076."""
    assert [text for text in valid if not accepts(constraint, text)] == []
    assert [text for text in invalid if accepts(constraint, text)] == []


def test_b076_multi_byte_tags_come_byte_by_byte() -> None:
    one = matcher(OLD)
    for byte in TOOL.encode()[: len(BRACKET.encode())]:
        assert {byte, ord("a")} & allowed(one)
        one.accept(byte)
    for byte in TOOL.encode()[len(BRACKET.encode()) :]:
        assert allowed(one) == {byte}, "behind its trigger a tag is the only way on"
        one.accept(byte)
    assert walk(one, "12!")
    assert {EOS, ord("a"), 0xEF} <= allowed(one)


def test_free_text_is_whole_characters() -> None:
    one = matcher(OLD)
    assert walk(one, b"\xeb")
    assert allowed(one) == set(range(0x80, 0xC0)), "an output does not end within a character"


def test_special_tokens_of_tags_are_tokens() -> None:
    one = matcher(structures(("<x>call ", A, "<x>"), triggers=["<x>"]))
    assert walk(one, "hello <x> ")
    assert SPECIAL in allowed(one)
    one.accept(SPECIAL)
    assert allowed(one) == {ord("c")}
    assert walk(one, 'call {"a":1}')
    assert allowed(one) == {SPECIAL}
    one.accept(SPECIAL)
    assert one.is_accepting
    thought = matcher(form({"type": "sequence", "elements": [tag("<x>", TEXT, "<x>"), TEXT]}))
    assert allowed(thought) == {SPECIAL}
    thought.accept(SPECIAL)
    assert walk(thought, "ab")
    assert SPECIAL in allowed(thought)
    assert EOS not in allowed(thought)


REFUSED: list[tuple[Any, str]] = [
    ("[", "not JSON"),
    ("[1]", 'of type "structural_tag"'),
    ({"type": "other", "format": TEXT}, 'of type "structural_tag"'),
    ({"structures": []}, "structures and triggers, or format"),
    ({"structures": [], "triggers": ["a"]}, "structures is a list that is not empty"),
    ({"structures": [{"begin": "a", "end": "b"}], "triggers": ["a"]}, "begin, schema and end"),
    ({"structures": [{"begin": "b", "schema": {}, "end": ""}], "triggers": ["a"]}, "begins with none of the triggers"),
    ({"structures": [{"begin": "a", "schema": {}, "end": ""}], "triggers": ["a", "b"]}, "no tag begins with 'b'"),
    ({"structures": [{"begin": "ab", "schema": {}, "end": ""}], "triggers": ["a", "ab"]}, "'a' is empty, or within another"),
    ({"structures": [{"begin": "a", "schema": {}, "end": ""}], "triggers": [""]}, "is empty"),
    ({"structures": [{"begin": "a", "schema": {}, "end": ""}], "triggers": ["a", "a"]}, "within another"),
    ({"structures": [{"begin": "a<x>", "schema": {}, "end": ""}], "triggers": ["a<x>"]}, "does not begin with"),
    ({"structures": [{"begin": "a", "schema": {"not": {}}, "end": ""}], "triggers": ["a"]}, "not is not supported"),
    ({"structures": [{"begin": 1, "schema": {}, "end": ""}], "triggers": ["a"]}, "begin is a text, not 1"),
    ({"structures": [{"begin": "a", "schema": {}, "end": 1}], "triggers": ["a"]}, "end is a text, not 1"),
    ({"format": 5}, "format is an object"),
    ({"format": {"type": "grammar", "grammar": "x"}}, "format.type is one of"),
    ({"format": {"type": []}}, "format.type is one of"),
    ({"format": {"type": "regex"}}, "format.pattern is missing"),
    ({"format": {"type": "regex", "pattern": "a("}}, "the structural tag cannot be used"),
    ({"format": {"type": "regex", "pattern": "(a{1000}){1000}"}}, "repeats a piece"),
    ({"format": {"type": "const_string", "value": "a", "more": 1}}, "'more'"),
    ({"format": {"type": "json_schema", "json_schema": {}, "style": "qwen_xml"}}, "style is json"),
    ({"format": {"type": "any_text", "excludes": ["a"]}}, "excludes is not supported"),
    ({"format": {"type": "sequence", "elements": [TEXT, TEXT]}}, "elements.0.: free text"),
    ({"format": {"type": "or", "elements": [TEXT, JSON_A]}}, "elements.0.: free text"),
    ({"format": tag("a", CALLS, "b")}, "content: free text"),
    ({"format": SEPARATED | {"tags": [JSON_A]}}, "tags.0..type is tag"),
    ({"format": tag(1, TEXT, "b")}, "format.begin is a text"),
    ({"format": tag("a", TEXT, "")}, "any_text before it has no end"),
    ({"format": tag("a", TEXT, [])}, "end is a list"),
    ({"format": CALLS | {"at_least_one": 1}}, "at_least_one is true or false"),
    ({"format": CALLS | {"tags": [CALL] * 129}}, "over 128 tags"),
]  # fmt: skip


@pytest.mark.parametrize(("written", "what"), REFUSED, ids=[what for _, what in REFUSED])
def test_what_is_wrong_with_a_tag_is_said_with_its_place(written: Any, what: str) -> None:
    with pytest.raises(GrammarError, match=what.replace("(", "[(]")) as refused:
        matcher({"structural_tag": written})
    assert "\n" not in str(refused.value)


def test_deep_formats_are_refused() -> None:
    deep: Any = TEXT
    for _ in range(2_000):
        deep = {"type": "sequence", "elements": [deep]}
    for inner in (deep, {"type": "or", "elements": [JSON_A] * 1_001}):
        with pytest.raises(GrammarError, match=r"deep|parts"):
            matcher(form(inner))
