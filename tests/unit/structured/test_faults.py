"""What went wrong in the field, by its number: which texts a constraint takes, and which it does not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from byte_grammars import EOS, accepts, accepts_json, allowed, matcher, walk

from ramet.errors import GrammarError

ROOT = Path(__file__).resolve().parents[3]
SHARED = Path(os.environ.get("RAMET_SHARED") or ROOT.parent / "shared")
NODE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
    "required": ["v", "kids"],
    "additionalProperties": False,
}
CLOSED_A = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
AB = {"type": "object", "properties": {"ab": {"type": "boolean"}}, "additionalProperties": {"type": "integer"}}
COST = {"type": "object", "properties": {"cost (usd)*": {"type": "integer"}}, "required": ["cost (usd)*"]}

SCHEMAS: list[tuple[str, Any, list[Any], list[Any]]] = [
    ("b065", {"type": "string", "pattern": "^[0-9]+$", "minLength": 2, "maxLength": 4}, ["12", "1234"], ["1", "12345", "12a"]),
    ("b067", {"type": "integer", "minimum": -4}, [-4, -1, 0, 17], [-5, -40]),
    ("b068", {"type": "integer", "minimum": 25}, [25, 99, 100, 3000], [24, 3, -30]),
    ("b070", {"type": "number", "maximum": 1.5}, [1.5, -9], [1.6]),
    ("b073", COST | {"additionalProperties": False}, [{"cost (usd)*": 7}], [{"cost usd": 7}, {}]),
    ("b079", CLOSED_A | {"anyOf": [{"required": ["a"]}]}, [{"a": 1}], ["x", 5, {}, {"a": 1, "b": 2}]),
    (
        "b080",
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}]},
        [[], [1], [1, True], [1, True, "x"]],
        [["x"], [1, 2]],
    ),
    (
        "b082",
        {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
        [[True] * 2, [True] * 3],
        [[True], [True] * 4],
    ),
    ("b085", AB, [{"a": 1, "abc": 2, "b": 3}, {"ab": True}], [{"ab": 1}, {"abc": True}]),
    ("b088", {"$defs": {"node": NODE}, "$ref": "#/$defs/node"}, [{"v": 1, "kids": [{"v": 2, "kids": []}]}], [{"v": 1}]),
    ("b088", {"$defs": {"node": NODE}, "$ref": "#/$defs/node"}, [{"v": 1, "kids": []}], [{"v": 1, "kids": [3]}]),
    ("b089", {"type": "string", "pattern": r"^\w{2}-\d{3}$"}, ["ab-123", "_9-000"], ["a-123", "ab-12x"]),
    ("b091", {"type": "string", "pattern": r"^v\/[0-9]$"}, ["v/3"], ["v3", r"v\/3"]),
    ("b092", {"type": "string", "pattern": "[0-9]{2}"}, ["ab12c", "77"], ["a1b2", ""]),
    ("b092", {"type": "string", "pattern": "^re"}, ["re", "redo"], ["are"]),
    ("draft 7 tuples", {"type": "array", "items": [{"type": "integer"}], "additionalItems": False}, [[], [1]], [["a"], [1, 2]]),
    ("says nothing", {"type": "array", "uniqueItems": False, "items": {"type": "integer"}}, [[1, 1]], [["a"]]),
    (
        "annotations",
        {"type": "integer", "title": "n", "$schema": "https://json-schema.org/draft-07/schema#", "x-y": 1},
        [3],
        ["a"],
    ),
]


@pytest.mark.parametrize(("name", "schema", "valid", "invalid"), SCHEMAS, ids=[f"{s[0]}-{i}" for i, s in enumerate(SCHEMAS)])
def test_a_schema_means_what_it_says(name: str, schema: Any, valid: list[Any], invalid: list[Any]) -> None:
    """B065, B067, B068, B070, B073, B079, B080, B082, B085, B088, B089, B091, B092."""
    assert [value for value in valid if not accepts_json(schema, value)] == []
    assert [value for value in invalid if accepts_json(schema, value)] == []


SEOUL, SEOUL_MISREAD = '"서울"', json.dumps("서울".encode().decode("latin-1"), ensure_ascii=False)
TAG = "\uff3b도구\uff3d"  # in full-width brackets
TYPED_T = {"type": "object", "properties": {"t": {"type": "number"}}}

TEXTS: list[tuple[str, object, list[str], list[str]]] = [
    ("b067", {"json": {"type": "integer", "minimum": -4}}, ["-4"], ["-"]),
    ("b068", {"json": {"type": "integer", "minimum": 25}}, ["25"], ["025"]),
    ("b071", {"json": {"enum": [False, None, 2.5]}}, ["false", "null", "2.5"], ["False", "None"]),
    ("b071", {"json": {"enum": ['say "hi"', "a\\b"]}}, [r'"say \"hi\""', r'"a\\b"'], [r'"a\b"', "'a\\b'"]),
    ("b074", {"json": {"enum": ["서울", "東京"]}}, [SEOUL], [SEOUL_MISREAD]),
    ("b076", {"grammar": f'start: "{TAG}" call\ncall: %json {{"type": "object"}}'}, [TAG + '{"a": 1}'], [TAG, "{}"]),
    ("b086 open", {"json": TYPED_T}, ['{"t":1,"t\': [{":null}'], ['{"t":"x"}']),
    ("b094", {"regex": r"^(up\nto|down\nby)$"}, ["up\nto"], [r"up\nto"]),
    ("b094", {"regex": "^(up\nto|down\nby)$"}, ["up\nto", "down\nby"], [r"up\nto"]),
    ("b095", {"regex": "[\x00-\u007f]+"}, ["ab"], ["é", ""]),
    ("b101", {"grammar": 'root ::= "a" | "b"'}, ["a", "b"], ["c"]),
    ("b104", {"json": {}}, ["12", "null", '"a"', "[]", "true", "12.5"], ["12}", "1  "]),
    ("b107", {"regex": " ?[0-9]{4}"}, ["2024", " 2024"], ["  2024", "202"]),
    ("b110", {"choice": ["-1", "0", "1"]}, ["-1", "0", "1"], ["2", "-", ""]),
    ("b110", {"choice": ["☕", "🙂"]}, ["☕", "🙂"], ["x"]),
    ("b110", {"choice": ["a", "ab"]}, ["a", "ab"], ["b", "abb"]),
    ("b112", {"grammar": 'root ::= e\ne ::= [0-9]+ | e "+" e'}, ["1+2", "12"], ["+", "1+"]),
    ("b112", {"grammar": 'start: e\ne: /[0-9]+/ | e "+" e'}, ["1+2"], ["1+"]),
    ("b113", {"grammar": 'root ::= ("a"* )*'}, ["", "aaa"], ["b"]),
    ("b113", {"regex": "(a*)*"}, ["", "aaa"], ["b"]),
    ("single repetitions", {"regex": r"[*+]+\++\?*a??(b+)*"}, ["*+", "++??bb", "*+?a"], ["", "aa", "+bab"]),
    ("escapes", {"grammar": r'root ::= "\u00e9\n\"" [^\]\x41-\x43\-] .'}, ["é\n\"D\n"], ["é\n\"A.", 'é\n"].']),
    ("empty alternative", {"grammar": 'root ::= "x" (| "y") ws\nws ::= | [ \\t]{1,2} # end'}, ["x", "xy  "], ["", "xyy", "x   "]),
    ("longest matches", {"grammar": 'root ::= [0-9]+ "5" ("(" root ")")?'}, ["125", "1255(35)"], ["5", "12"]),
    ("slashes", {"regex": r"a/b\/c[/]"}, ["a/b/c/"], ["a/b"]),
    ("escapes", {"json": {}}, [r'"\u0041\ud83d\ude00\n"'], [r'"\ud83d"', r'"\x41"', '"\n"']),
    ("names spelt otherwise", {"json": {"properties": {"a": {"type": "integer"}}}}, ['{"a":1,"b":"é"}'], [r'{"\u0061":"x"}']),
    ("white space", {"json_object": True}, ["{}", '{"a": [1, 2]}', '{\n  "a": 1\n}'], ["[]", '{"a":  1}', "{} ", '{\n\n"a":1}']),
]  # fmt: skip


@pytest.mark.parametrize(("name", "constraint", "valid", "invalid"), TEXTS, ids=[f"{t[0]}-{i}" for i, t in enumerate(TEXTS)])
def test_a_constraint_takes_just_its_texts(name: str, constraint: object, valid: list[str], invalid: list[str]) -> None:
    """B067, B068, B071, B074, B076, B086, B094, B095, B101, B104, B107, B110, B112, B113."""
    assert [text for text in valid if not accepts(constraint, text)] == []
    assert [text for text in invalid if accepts(constraint, text)] == []


def test_the_table_of_schemas_from_the_field() -> None:
    path = SHARED / "cases" / "schemas.json"
    if not path.exists():
        pytest.skip("the shared cases are absent")
    refused = []
    for case in json.loads(path.read_text("utf-8")):
        try:
            assert all(accepts_json(case["schema"], value) for value in case["valid"]), case["schema"]
            assert not any(accepts_json(case["schema"], value) for value in case["invalid"]), case["schema"]
        except GrammarError:
            refused.append(case["schema"])
    assert refused == [{"oneOf": [{"type": "integer"}, {"minimum": 2, "type": "number"}]}], "alternatives that overlap"


@pytest.mark.parametrize("constraint", [{"grammar": "root ::= [🌀-🗿]+"}, {"regex": "[🌀-🗿]+"}], ids=str)
def test_a_character_over_several_tokens_is_allowed_byte_by_byte(constraint: object) -> None:  # B077
    one = matcher(constraint)
    assert allowed(one) == {0xF0}
    one.accept(0xF0)
    assert allowed(one) == {0x9F}
    one.accept(0x9F)
    assert allowed(one) == set(range(0x8C, 0x98))
    one.accept(0x8C)
    assert EOS not in allowed(one)
    one.accept(0x80)
    assert allowed(one) == {0xF0, EOS, 257}


def test_declared_keys_out_of_order_are_never_a_dead_end() -> None:  # B083
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
    one = matcher({"json": schema})
    assert walk(one, '{"')
    assert allowed(one) == {ord("a")}, "the wrong key is masked at its first character"


def test_a_closed_object_masks_a_key_like_a_declared_one() -> None:  # B086
    one = matcher({"json": {"type": "object", "properties": {"fore": {"type": "array"}}, "additionalProperties": False}})
    assert walk(one, '{"fore')
    assert allowed(one) == {ord('"')}


def test_white_space_is_bounded_wherever_it_may_stand() -> None:  # B104
    one = matcher({"json": {}})
    assert walk(one, "[\n" + " " * 32)
    assert not allowed(one) & set(b" \t\r\n")
