"""Models and errors held against OpenAI's specification; answers and chunks are, wherever the other tests ask for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.full_server import KEY, full_server
from support.http import MODEL_NAME, Served
from support.openai_api import CHAT, TEXT, USER, schema_check

from ramet.config import ServerConfig
from ramet.server.app import build_app
from ramet.server.gate import Keys

BODIES: dict[str, dict[str, Any]] = {CHAT: {"messages": USER}, TEXT: {"prompt": "hi"}, "/v1/responses": {"input": "hi"}}


def spec(name: str) -> Callable[[Any], None]:
    check = schema_check(name)
    if check is None:
        pytest.skip("OpenAI's specification is absent (openapi.serving-slice.json.gz in the shared data)")
    return check


def test_models(server: Served) -> None:
    aliased = replace(server.services.config, served_model_name=(MODEL_NAME, "org/alias"))
    services = replace(server.services, config=aliased, model_names=(MODEL_NAME, "org/alias"))
    app = build_app(services, Keys((), None, share_cache=False))
    listed = replace(server, app=app).call("/v1/models", method="GET").json()
    spec("ListModelsResponse")(listed)
    assert [one["id"] for one in listed["data"]] == [MODEL_NAME, "org/alias"]
    for one in listed["data"]:
        assert replace(server, app=app).call(f"/v1/models/{one['id']}", method="GET").json() == one
        spec("Model")(one)


@pytest.mark.parametrize("path", BODIES)
def test_errors(server: Served, path: str) -> None:
    check, body = spec("ErrorResponse"), BODIES[path]
    keyed = build_app(server.services, Keys(("key",), None, share_cache=False))
    small = replace(server.services, config=ServerConfig(max_body_size="10"))
    bounded = build_app(small, Keys((), None, share_cache=False))
    answers = {
        400: server.call(path, body | {"temperature": "hot"}),
        401: replace(server, app=keyed).call(path, body),
        404: server.call(path, body | {"model": "gpt-0"}),
        405: server.call(path, method="GET"),
        413: replace(server, app=bounded).call(path, body),
        415: server.call(path, body, headers={"content-type": "text/plain"}),
    }
    for status, answer in answers.items():
        assert answer.status == status, answer.text
        check(answer.json())


def test_errors_of_a_full_queue(tmp_path: Path) -> None:
    check = spec("ErrorResponse")
    with full_server(tmp_path / "model") as full:
        for path, body in BODIES.items():
            for streamed in (False, True):
                answer = full.post(path, body | {"stream": streamed}, authorization=f"Bearer {KEY}")
                assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
                check(answer.json())
