"""The form of an output, asked for by the names that users of each server type, at each endpoint that has them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from support.http import Served
from support.openai_api import CHAT, TEXT, USER

RESPONSES, MESSAGES, GENERATE = "/v1/responses", "/v1/messages", "/generate"
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
SCHEMA = {"type": "object", "properties": {"d": DIGIT}, "required": ["d"]}  # open, so its answers are closed by strict alone
CLOSED = SCHEMA | {"additionalProperties": False}
STRICT = {"type": "json_schema", "json_schema": {"name": "d", "strict": True, "schema": SCHEMA}}
EBNF = 'root ::= "x" [yz]'
TAG = {
    "type": "structural_tag",
    "format": {"type": "tag", "begin": "<d>", "content": {"type": "json_schema", "json_schema": CLOSED}, "end": "</d>"},
}
D = r'\{\s*"d"\s*:\s*[0-9]\s*\}'
TAGGED = f"<d>{D}</d>"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": USER, "max_tokens": 100},
    TEXT: {"prompt": "go", "max_tokens": 100},
    RESPONSES: {"input": "go", "max_output_tokens": 100},
    MESSAGES: {"messages": USER, "max_tokens": 100},
}
FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"structured_outputs": {"json": CLOSED}}, D),
    ({"structured_outputs": {"json": CLOSED, "disable_any_whitespace": True, "disable_fallback": True}}, r'\{"d":[0-9]\}'),
    ({"structured_outputs": {"json": CLOSED, "whitespace_pattern": "  "}}, r'\{(  )?"d"(  )?:(  )?[0-9](  )?\}'),
    ({"structured_outputs": {"json": SCHEMA, "disable_additional_properties": True}}, D),
    ({"structured_outputs": {"choice": ["no"]}}, "no"),
    ({"structured_outputs": {"regex": "(ab){3}"}}, "ababab"),
    ({"structured_outputs": {"grammar": EBNF}}, "x[yz]"),
    ({"structured_outputs": {"structural_tag": TAG}}, TAGGED),
    ({"guided_json": json.dumps(CLOSED)}, D),
    ({"guided_json": CLOSED, "guided_whitespace_pattern": " ", "guided_decoding_backend": "auto"}, r'\{ ?"d" ?: ?[0-9] ?\}'),
    ({"guided_regex": "(ab){3}"}, "ababab"),
    ({"guided_choice": ["yes, of course"]}, "yes, of course"),
    ({"guided_grammar": EBNF}, "x[yz]"),
    ({"regex": "[a-c]{4}"}, "[a-c]{4}"),
    ({"ebnf": EBNF}, "x[yz]"),
    ({"json_schema": json.dumps(CLOSED)}, D),
    ({"json_schema": CLOSED}, D),
    ({"structural_tag": json.dumps(TAG)}, TAGGED),
    ({"grammar": EBNF}, "x[yz]"),
]
OPENAI: list[tuple[dict[str, Any], str]] = [
    ({"response_format": STRICT}, D),
    ({"response_format": {"type": "json_object", "schema": CLOSED}}, D),
    ({"response_format": {"type": "json_schema", "schema": CLOSED}}, D),
    ({"response_format": TAG}, TAGGED),
]
CASES = [(path, fields, told) for path in (CHAT, TEXT) for fields, told in [*FIELDS, *OPENAI]]
CASES += [(RESPONSES, fields, told) for fields, told in FIELDS[1::4]]
CASES += [
    (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "d", "strict": True, "schema": SCHEMA}}}, D),
    (MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": CLOSED}}}, D),
    (MESSAGES, {"output_format": {"type": "json_schema", "schema": CLOSED}}, D),
]


def texts(path: str, answer: dict[str, Any]) -> list[str]:
    if path == CHAT:
        return [one["message"]["content"] for one in answer["choices"]]
    if path == TEXT:
        return [one["text"] for one in answer["choices"]]
    content = answer["output"][0]["content"] if path == RESPONSES else answer["content"]
    return [one["text"] for one in content]


@pytest.mark.parametrize(("path", "fields", "told"), CASES, ids=[f"{p[4:9]}-{str(f)[:44]}" for p, f, _ in CASES])
def test_answers_have_the_form_that_was_asked_for(server: Served, path: str, fields: dict[str, Any], told: str) -> None:
    response = server.post(path, BODIES[path] | fields)
    assert response.status_code == 200, response.text
    assert "x-ramet-ignored" not in response.headers
    assert all(re.fullmatch(told, text) for text in texts(path, response.json())), response.text


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"regex": "[a-c]{4}"}, "[a-c]{4}"),
        ({"ebnf": EBNF}, "x[yz]"),
        ({"json_schema": json.dumps(CLOSED)}, D),
        ({"structural_tag": json.dumps(TAG)}, TAGGED),
    ],
)
def test_generate_has_the_names_of_sglang(server: Served, params: dict[str, str], told: str) -> None:
    answer = server.post(GENERATE, {"text": "go", "sampling_params": params | {"max_new_tokens": 100}}).json()
    assert re.fullmatch(told, answer["text"])


def test_stop_strings_do_not_cut_a_document_short(server: Served) -> None:
    """They do cut what another grammar makes."""
    for path, form in (
        (CHAT, {"response_format": STRICT}),
        (TEXT, {"guided_json": CLOSED}),
        (RESPONSES, {"json_schema": CLOSED}),
    ):
        response = server.post(path, BODIES[path] | form | {"stop": ['"d', "}"]})
        assert all(re.fullmatch(D, text) for text in texts(path, response.json())), response.text
        assert response.headers["x-ramet-ignored"] == "stop"
    form = {"output_format": {"type": "json_schema", "schema": CLOSED}, "stop_sequences": ["d"]}
    response = server.post(MESSAGES, BODIES[MESSAGES] | form)
    assert re.fullmatch(D, texts(MESSAGES, response.json())[0])
    assert (response.json()["stop_reason"], response.headers["x-ramet-ignored"]) == ("end_turn", "stop_sequences")
    params = {"json_schema": json.dumps(CLOSED), "stop": "d", "max_new_tokens": 100}
    response = server.post(GENERATE, {"text": "go", "sampling_params": params})
    assert re.fullmatch(D, response.json()["text"])
    assert response.headers["x-ramet-ignored"] == "sampling_params.stop"
    for path in (CHAT, TEXT):
        response = server.post(path, BODIES[path] | {"guided_regex": "(ab){3}", "stop": "ba"})
        assert texts(path, response.json()) == ["a"]
        assert "x-ramet-ignored" not in response.headers


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "yaml"}}, "response_format"),  # B098
    ({"response_format": {}}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),  # B098
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format"),  # B098
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}}}, "response_format"),
    ({"response_format": {"type": "json_object", "schema": "{"}}, "response_format"),
    ({"response_format": {"type": "structural_tag"}}, "response_format"),
    ({"response_format": STRICT, "guided_regex": "a"}, "guided_regex"),
    ({"guided_regex": "ab**"}, "guided_regex"),  # B097
    ({"guided_regex": "ab("}, "guided_regex"),  # B097
    ({"guided_json": {"type": "objekt"}}, "guided_json"),  # B097
    ({"structured_outputs": {"json": 5}}, "structured_outputs"),  # B097
    ({"json_schema": {"$ref": "#/nowhere"}}, "json_schema"),  # B097
    ({"json_schema": {"type": "string", "minLength": -1}}, "json_schema"),  # B097
    ({"ebnf": 'root ::= "abc  /  start: / "x"'}, "ebnf"),  # B100
    ({"grammar": 'start: "abc  /  start: / "x"'}, "grammar"),  # B100
    ({"structural_tag": {"type": "structural_tag"}}, "structural_tag"),
    ({"regex": "a", "ebnf": "b"}, "json_schema|regex"),
    ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
    ({"structured_outputs": {"json": {}, "backend": "outlines"}}, "structured_outputs"),
    ({"structured_outputs": {"json": {}, "whitespace_pattern": ".*"}}, "structured_outputs"),
    ({"structured_outputs": {"json": {}, "whitespace_pattern": "[ "}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "disable_any_whitespace": True}}, "structured_outputs"),
    ({"structured_outputs": {"json": {}, "disable_any_whitespace": "yes"}}, "structured_outputs"),
    ({"structured_outputs": {"json": {}, "disable_any_whitespace": True, "whitespace_pattern": " "}}, "structured_outputs"),
    ({"structured_outputs": {"disable_fallback": True}}, "structured_outputs"),
    ({"guided_json": {}, "guided_decoding_backend": "outlines"}, "guided_decoding_backend"),
    ({"guided_regex": "a", "guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
    ({"grammar": EBNF, "grammar_lazy": True}, "grammar_lazy"),
    ({"grammar": EBNF, "grammar_triggers": [{"type": 0, "value": "<"}]}, "grammar_triggers"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=[f"{i}-{param}" for i, (_, param) in enumerate(REFUSED)])
def test_forms_that_are_none_are_refused_by_the_name_of_their_field(server: Served, fields: dict[str, Any], param: str) -> None:
    """B097, B098, B100."""
    for path in (CHAT, TEXT, RESPONSES):
        if path == RESPONSES and "response_format" in fields:
            continue
        for stream in (False, True):
            response = server.post(path, BODIES[path] | fields | {"stream": stream})
            assert response.status_code == 400, response.text
            assert re.fullmatch(param, response.json()["error"]["param"]), response.text
    assert server.post(TEXT, {"prompt": "go", "max_tokens": 1}).status_code == 200


def test_all_that_were_sent_are_named(server: Served) -> None:
    fields = {"guided_choice": ["a"], "regex": "a", "structured_outputs": {"regex": "a"}, "response_format": STRICT}
    told = server.post(CHAT, BODIES[CHAT] | fields).json()["error"]["message"]
    assert all(name in told for name in fields)
    sampling = {"regex": "a", "ebnf": EBNF}
    told = server.post(GENERATE, {"text": "go", "sampling_params": sampling}).json()["error"]["message"]
    assert "regex, ebnf each say" in told
    both = {"output_format": {"type": "json_schema", "schema": {}}, "output_config": {"format": STRICT | {"schema": {}}}}
    told = server.post(MESSAGES, BODIES[MESSAGES] | both).json()["error"]["message"]
    assert "output_config.format, output_format each say" in told
