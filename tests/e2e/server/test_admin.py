"""The endpoints about the server itself, through the whole app, with and without keys."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.http import Called, Served, call

from ramet.config import ServerConfig
from ramet.core.sampling import SamplingParams
from ramet.errors import Unavailable
from ramet.server.app import ROUTES, build_app
from ramet.server.client import EngineState
from ramet.server.gate import Gate, Keys
from ramet.server.generation import Generation, Prompted

USER, OTHER, ADMIN = "user-key-1", "user-key-2", "admin-key"
CANARY = "zebra-canary"


def app_of(server: Served, **config: Any) -> Gate:
    """The whole app over the server's services, with other options."""
    options = ServerConfig(**config)
    keys = Keys(options.api_key, options.admin_api_key, share_cache=options.share_cache)
    return build_app(replace(server.services, config=options), keys)


def ask(server: Served, app: Gate, path: str, body: Any = None, *, method: str = "GET", key: str | None = None) -> Called:
    path, _, query = path.partition("?")
    headers = {} if key is None else {"authorization": f"Bearer {key}"}

    async def with_query(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "query_string": query.encode()}, receive, send)

    answer: Called = server.run(call(with_query, path, body, method="POST" if body is not None else method, headers=headers))
    return answer


def told(answer: Called) -> Any:
    assert answer.status == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


@pytest.fixture
def awake(server: Served) -> None:
    """An engine in a thread has no beat: after a while without work it seems hung."""
    end(server, begin(server))


@pytest.fixture
def app(server: Served, awake: None) -> Gate:
    return app_of(server)


@pytest.fixture
def keyed(server: Served, awake: None) -> Gate:
    return app_of(server, api_key=(USER, OTHER), admin_api_key=ADMIN)


def begin(server: Served, request_id: str = "test", **options: Any) -> Generation:
    """A request that runs until it is aborted."""

    async def submit() -> Generation:
        sampling = SamplingParams(max_tokens=2000, ignore_eos=True, temperature=0)
        prompted = Prompted(token_ids=list(CANARY.encode()), sampling=sampling, **options)
        [generation] = server.services.client.submit([prompted], request_id)
        await generation.changed()
        return generation

    generation: Generation = server.run(submit())
    return generation


def end(server: Served, *generations: Generation) -> None:
    async def stop() -> None:
        for generation in generations:
            generation.abort()

    server.run(stop())
    server.until_idle()


# ---- what it says


def test_health_is_ok_and_open_to_all(server: Served, keyed: Gate) -> None:
    assert told(ask(server, keyed, "/health")) == {"status": "ok"}


@pytest.mark.parametrize("state", [state for state in EngineState if state is not EngineState.READY])
def test_health_says_what_is_wrong_and_when_to_ask_again(
    server: Served, app: Gate, state: EngineState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(server.services.client), "state", state)
    answer = ask(server, app, "/health")
    assert answer.status == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json() == {"status": "draining" if state is EngineState.CLOSED else state.value}


def test_health_says_that_the_server_stops(server: Served, app: Gate) -> None:
    app.is_draining = True
    assert ask(server, app, "/health").json() == {"status": "draining"}
    assert ask(server, app, "/version").status == 503


def test_welcome_names_every_route_and_nothing_else(server: Served, keyed: Gate) -> None:
    answer = ask(server, keyed, "/")
    served = {f"{method} {route.path}" for route in ROUTES for method in (route.methods or ()) if method != "HEAD"}
    assert set(told(answer)["endpoints"]) == served - {"GET /", "GET /v1/models/{model:path}"}
    assert "tiny" not in answer.text


def test_version(server: Served, app: Gate) -> None:
    assert told(ask(server, app, "/version")) == {"version": "0.0"}


def test_models(server: Served) -> None:
    services = replace(server.services, model_names=("tiny", "alias"), aliases=frozenset({"a/path"}))
    app = build_app(services, Keys((), None, share_cache=False))
    listed = told(ask(server, app, "/v1/models"))
    assert listed["object"] == "list"
    assert [one["id"] for one in listed["data"]] == ["tiny", "alias"]
    one = {"id": "tiny", "object": "model", "created": 1_700_000_000, "owned_by": "ramet", "max_model_len": 2048}
    assert listed["data"][0] == one
    assert told(ask(server, app, "/v1/models/tiny")) == one
    missing = ask(server, app, "/v1/models/org/other")
    assert (missing.status, missing.json()["error"]["code"]) == (404, "model_not_found")
    assert ask(server, app, "/v1/models/a/path").status == 200
    assert "a/path" not in missing.text + str(listed)


def test_models_wait_for_the_first_engine(server: Served, app: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    def limits(self: object) -> None:
        raise Unavailable("the engine is not ready")

    monkeypatch.setattr(server.services.client, "ready", None)
    monkeypatch.setattr(type(server.services.client), "limits", property(limits))
    answer = ask(server, app, "/v1/models")
    assert answer.status == 503
    assert answer.headers["retry-after"]


def test_server_info_has_sizes_and_numbers_and_no_secret(server: Served) -> None:
    app = app_of(server, api_key=(USER, OTHER), admin_api_key=ADMIN, api_key_file="/secret/keys", served_model_name=("tiny",))
    end(server, begin(server))
    answer = ask(server, app, "/server_info", key=ADMIN)
    info = told(answer)
    assert info["model"] == "tiny"
    assert info["state"] == "ready"
    assert info["engine"]["max_model_len"] == 2048
    assert info["engine"]["num_pages"] == info["engine"]["stats"]["kv"]["num_pages"] > 0
    assert info["engine"]["isa"]
    assert info["config"]["has_api_key"] is info["config"]["has_admin_api_key"] is True
    for secret in (USER, OTHER, ADMIN, "/secret", "api_key_file", "/root", "/tmp", "/home"):
        assert secret not in answer.text


def test_server_info_before_an_engine(server: Served, app: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.services.client, "ready", None)
    assert told(ask(server, app, "/server_info"))["engine"] is None


def test_metrics_are_prometheus_and_know_no_text(server: Served, app: Gate) -> None:
    before = ask(server, app, "/metrics")
    assert before.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    generation = begin(server, names=frozenset({"my-canary-id"}))
    end(server, generation)
    answer = ask(server, app, "/metrics")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    assert families["ramet:requests"].type == "counter"
    [aborted] = [one for one in families["ramet:requests"].samples if one.labels["finish_reason"] == "abort"]
    assert aborted.value >= 1
    assert len(re.findall(r"^# TYPE ", answer.text, re.MULTILINE)) == len(families), "each is told once"
    for secret in (CANARY, "canary", generation.request.request_id):
        assert secret not in answer.text


# ---- what it does


def test_flush_forgets_the_cache_and_waits_for_requests(server: Served, app: Gate) -> None:
    server.post("/v1/completions", {"model": "tiny", "prompt": "flush me, please", "max_tokens": 4})
    assert told(ask(server, app, "/flush_cache", method="POST"))["num_pages"] > 0
    assert told(ask(server, app, "/flush_cache", b"")) == {"success": True, "num_pages": 0}
    generation = begin(server)
    try:
        for path, body in (("/flush_cache", b""), ("/flush_cache?force=false", {"force": False})):
            busy = ask(server, app, path, body)
            assert busy.status == 409
            assert "force" in busy.json()["error"]["message"]
        for path, body in (("/flush_cache?force=true", {}), ("/flush_cache?force=1", b""), ("/flush_cache", {"force": True})):
            assert told(ask(server, app, path, body))["success"] is True
        assert not generation.is_finished
    finally:
        end(server, generation)
    assert ask(server, app, "/flush_cache?force=perhaps", b"").status == 400
    assert ask(server, app, "/flush_cache", {"force": "yes"}).status == 400
    assert ask(server, app, "/flush_cache").status == 405


def test_abort_by_any_of_its_ids(server: Served, app: Gate) -> None:
    for field, pick in [
        ("rid", lambda one: "mine"),
        ("request_id", lambda one: one.request.request_id),
        ("rid", lambda one: ["unknown", "mine"]),
    ]:
        generation = begin(server, names=frozenset({"mine"}))
        assert told(ask(server, app, "/abort_request", {field: pick(generation)})) == {"num_aborted": 1}
        server.until_idle()
        assert generation.output.outputs[0].finish_reason == "abort"
    assert told(ask(server, app, "/abort_request", {"rid": "mine"})) == {"num_aborted": 0}
    for body in ({}, {"rid": None}, {"rid": 5}, {"rid": ["a"] * 5000}, {"abort_all": 1}):
        assert ask(server, app, "/abort_request", body).status == 400, body


def test_abort_reaches_a_callers_own_requests_alone(server: Served, keyed: Gate) -> None:
    """Whether callers share a cache or not."""
    owners = [Keys((key,), None, share_cache=True).caller(key).owner for key in (USER, OTHER)]  # type: ignore[union-attr]
    mine, theirs = (begin(server, f"test-{owner}", owner=owner, names=frozenset({"same"})) for owner in owners)
    try:
        assert ask(server, keyed, "/abort_request", {"rid": "same"}).status == 401
        assert ask(server, keyed, "/abort_request", {"abort_all": True}, key=USER).status == 403
        assert not mine.is_aborted
        assert told(ask(server, keyed, "/abort_request", {"rid": "same"}, key=USER)) == {"num_aborted": 1}
        assert (mine.is_aborted, theirs.is_aborted) == (True, False)
        assert told(ask(server, keyed, "/abort_request", {"abort_all": True}, key=ADMIN))["num_aborted"] >= 1
        assert theirs.is_aborted
    finally:
        end(server, mine, theirs)


def test_an_aborted_request_answers_that_it_was(server: Served, app: Gate) -> None:
    async def both() -> tuple[Called, Called]:
        body = {"text": CANARY, "rid": "doomed", "sampling_params": {"max_new_tokens": 2000, "ignore_eos": True}}
        answer = asyncio.create_task(call(app, "/generate", body))
        while not server.services.client.generations:
            await asyncio.sleep(0.005)
        return await call(app, "/abort_request", {"rid": "doomed"}), await answer

    aborted, answer = server.run(both())
    assert told(aborted) == {"num_aborted": 1}
    assert answer.status == 499
    assert CANARY not in answer.text
    assert json.loads(answer.body)["error"]["code"] == "aborted"


def test_admin_routes_take_the_admin_key_alone(server: Served, keyed: Gate) -> None:
    for path, body in (("/server_info", None), ("/flush_cache", b"")):
        statuses = [ask(server, keyed, path, body, key=key).status for key in (None, "wrong", USER, ADMIN)]
        assert statuses == [401, 401, 403, 200], path
