"""The document of the endpoints: whole, sound, true of what they answer, and told by servers without keys alone (T34)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.http import MODEL_NAME, Served, events

from ramet.config import ServerConfig
from ramet.server.app import ROUTES, build_app
from ramet.server.gate import Gate, Keys
from ramet.server.openapi import document

jsonschema = pytest.importorskip("jsonschema")
PATH = "/openapi.json"


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    return document(ROUTES, "1", [MODEL_NAME])


@pytest.fixture(scope="module")
def check(told: dict[str, Any]) -> Callable[[Any, Any], None]:
    """Holds a value against a schema of the document."""
    definitions = {"components": told["components"]}
    return lambda schema, value: jsonschema.Draft202012Validator(schema | definitions).validate(value)


def asked_of(operation: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of an operation's body, and its example."""
    body = operation["requestBody"]["content"]["application/json"]
    return body["schema"], body.get("example", {})


def test_it_is_served_and_tells_every_route(server: Served, told: dict[str, Any]) -> None:
    answer = server.http.get(PATH)
    assert answer.headers["content-type"] == "application/json"
    found = answer.json()
    assert found["info"]["version"] == server.services.version
    assert found["paths"] == told["paths"]
    routes = {(route.path.replace(":path", ""), m.lower()) for route in ROUTES for m in route.methods or () if m != "HEAD"}
    assert {(path, method) for path, one in found["paths"].items() for method in one} == routes


def test_every_reference_leads_somewhere(told: dict[str, Any]) -> None:
    text = json.dumps(told)
    names = {part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= set(told["components"]["schemas"])
    for schema in told["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_answers_and_events_are_as_it_says(server: Served, told: dict[str, Any], check: Callable[[Any, Any], None]) -> None:
    streamed = []
    for path, methods in told["paths"].items():
        ((method, operation),) = methods.items()
        url = path.replace("{model}", MODEL_NAME)
        answers = operation["responses"]["200"]["content"]
        if method == "get":
            answer = server.http.get(url)
        else:
            schema, example = asked_of(operation)
            check(schema, example)
            answer = server.post(url, example)
        if "lora_adapter" in path:  # here none may be loaded
            assert answer.status_code == 404, (path, answer.text)
            continue
        assert answer.status_code == 200, (path, answer.text)
        (kind, *_) = answers
        assert answer.headers["content-type"].startswith(kind)
        check(answers[kind]["schema"], answer.json() if kind == "application/json" else answer.text)
        if "text/event-stream" in answers:
            streamed.append(path)
            of_data = answers["text/event-stream"]["itemSchema"]["properties"]["data"]["anyOf"][0]["contentSchema"]
            said = [data for _, data in events(server.post(url, example | {"stream": True}).text) if data != "[DONE]"]
            assert said, path
            for data in said:
                check(of_data, json.loads(data))
    assert len(streamed) == 5


def test_errors_are_as_it_says(server: Served, told: dict[str, Any], check: Callable[[Any, Any], None]) -> None:
    for path, methods in told["paths"].items():
        ((method, operation),) = methods.items()
        of_error = operation["responses"]["default"]["content"]["application/json"]["schema"]
        answer = server.post(path, b"[]") if method == "post" else server.http.delete(path)
        assert answer.status_code == (400 if method == "post" else 405)
        check(of_error, answer.json())


def test_a_method_that_is_not_taken_is_told_of_those_that_are(server: Served) -> None:
    answer = server.http.get("/v1/chat/completions")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert set(server.http.delete("/v1/models/tiny").headers["allow"].split(", ")) == {"GET", "HEAD"}


@pytest.mark.parametrize("config", [ServerConfig(api_key=("user",)), ServerConfig(admin_api_key="admin")])
def test_t34_with_any_key_there_is_none(server: Served, config: ServerConfig) -> None:
    keys = Keys(config.api_key, config.admin_api_key, share_cache=False)
    app: Gate = build_app(replace(server.services, config=config), keys)

    def status(key: str | None) -> int:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return int(replace(server, app=app).call(PATH, method="GET", headers=headers).status)

    assert status(None) == (401 if config.api_key else 404)
    assert status("user" if config.api_key else "admin") == 404
