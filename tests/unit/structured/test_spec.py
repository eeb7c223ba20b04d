"""How a constraint is written, and that it travels."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import msgspec
import numpy as np
import pytest

from ramet.core.grammar import GrammarSpec
from ramet.core.request import Request
from ramet.core.sampling import SamplingParams
from ramet.engine.wire import Submit, decode_command, frame
from ramet.errors import GrammarError

WRITTEN: list[tuple[Any, GrammarSpec]] = [
    ({"json": {"type": "object"}}, GrammarSpec("json", '{"type":"object"}')),
    ({"json": '{"type": "object"}'}, GrammarSpec("json", '{"type": "object"}')),
    ({"json": True}, GrammarSpec("json", "true")),
    ({"json_object": True}, GrammarSpec("json_object")),
    ({"regex": "a+", "json": None}, GrammarSpec("regex", "a+")),
    ({"choice": ("é", "b")}, GrammarSpec("choice", '["é","b"]')),
    ({"grammar": 'root ::= "a"'}, GrammarSpec("grammar", 'root ::= "a"')),
    ({"structural_tag": {"format": {}}}, GrammarSpec("structural_tag", '{"format":{}}')),
    ({"structural_tag": "{}", "whitespace_pattern": " ?"}, GrammarSpec("structural_tag", "{}", whitespace=" ?")),
    ({"json": {}, "disable_any_whitespace": True, "disable_fallback": False}, GrammarSpec("json", "{}", whitespace="")),
    ({"json_object": True, "disable_additional_properties": True}, GrammarSpec("json_object", is_closed=True)),
    (GrammarSpec("regex", "a"), GrammarSpec("regex", "a")),
]


@pytest.mark.parametrize(("written", "spec"), WRITTEN)
def test_ways_to_write_a_constraint(written: Any, spec: GrammarSpec) -> None:
    params = SamplingParams(structured_outputs=written)
    assert params.grammar == spec
    assert hash(params.grammar) == hash(spec)


@pytest.mark.parametrize(("written", "spec"), WRITTEN)
def test_a_constraint_survives_the_wire(written: Any, spec: GrammarSpec) -> None:
    params = SamplingParams(structured_outputs=written, temperature=0, max_tokens=5, seed=3)
    plain = {f.name: getattr(params, f.name) for f in fields(params)}
    assert SamplingParams(**msgspec.msgpack.decode(msgspec.msgpack.encode(plain))) == params
    request = Request("r", np.array([1, 2], np.int32), params, seed=3, max_tokens=5)
    command = decode_command(frame(Submit.of(request))[4:])
    assert isinstance(command, Submit)
    assert SamplingParams(**command.sampling) == params


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    "written",
    [
        {}, {"json": None}, {"regex": "a", "choice": ["a"]}, {"jsn": {}}, {"regex": ""}, {"regex": 3}, {"regex": "\ud800"},
        {"choice": []}, {"choice": "abc"}, {"choice": [1]}, {"choice": ["a"] * 5_001}, {"json": []}, {"json": 5},
        {"json_object": False}, {"json_object": 1}, {"json": {"a": float("nan")}}, {"json": {"a": {1, 2}}}, {"json": {"a": LOOP}},
        {"structural_tag": 5}, {"structural_tag": {"a": LOOP}}, {"disable_fallback": True}, {"json": {}, "whitespace_pattern": 5},
        {"json": {}, "whitespace_pattern": " " * 257}, {"regex": "a", "whitespace_pattern": " "},
        {"json": {}, "disable_fallback": 1}, {"choice": ["a"], "disable_additional_properties": True},
        {"json": {}, "disable_any_whitespace": True, "whitespace_pattern": " "},
        {"kind": "yaml", "text": "a"}, {"kind": "regex", "text": ""}, {"kind": [], "text": "a"}, "json", 5,
        {"kind": "json", "text": "{}", "is_closed": []}, {"kind": "json", "text": "{}", "param": [1]}, [], {3: 4},
    ],
)  # fmt: skip
def test_what_is_no_constraint_is_refused(written: Any) -> None:
    with pytest.raises(GrammarError) as refused:
        SamplingParams(structured_outputs=written)
    assert refused.value.param == "structured_outputs"
    assert len(str(refused.value)) < 300


def test_the_name_of_the_field_is_for_errors_alone() -> None:
    named = GrammarSpec.of({"regex": "a"}, "guided_regex")
    assert (named, hash(named)) == (GrammarSpec("regex", "a"), hash(GrammarSpec("regex", "a")))
    assert named.param == "guided_regex"
    with pytest.raises(GrammarError) as refused:
        GrammarSpec.of({"regex": ""}, "guided_regex")
    assert refused.value.param == "guided_regex"


def test_a_near_name_is_suggested() -> None:
    with pytest.raises(GrammarError, match="did you mean choice"):
        GrammarSpec.of({"choices": ["a"]})
