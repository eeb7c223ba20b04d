"""H16: every field of every request with everything wrong in it that JSON can spell, and what its sender reads then (T35)."""

from __future__ import annotations

import asyncio
import json
import os
import re
from typing import Any

import pytest
from support.attacks import ENDPOINTS, Attack, Endpoint, Place, attacks, places
from support.http import Called, Served, call, events

IS_FULL = os.environ.get("RAMET_FAULT") == "full"
LONG_CHARS = 4_000_000 if IS_FULL else 100_000  # the first is what the largest body holds
AT_ONCE = 8
BETRAYAL = re.compile(
    r"0x|<.* object|object at|msgspec|Struct|Traceback|\.py\b|line \d+, in|[a-z]Error\(|/(home|root|tmp|usr|work)\b"
)
MOST_CHARS = 1600  # of an error's body
SECRET = "the quick brown fox jumps over a dog of which nobody else shall read; "  # longer than what errors show of a value


def check_error(endpoint: Endpoint, answer: Called, case: str) -> None:
    """In the dialect's shape, in few words, and with nothing of the server's inside."""
    assert answer.headers["content-type"] == "application/json", case
    told = answer.json()
    if endpoint.path.startswith("/v1/messages"):
        assert set(told) == {"type", "error", "request_id"}, case
        assert told["type"] == "error", case
        assert set(told["error"]) == {"type", "message"}, case
    else:
        assert set(told) == {"error"}, case
        assert set(told["error"]) == {"message", "type", "param", "code"}, case
    assert told["error"]["message"], case
    assert len(answer.body) <= MOST_CHARS, case
    assert not BETRAYAL.search(answer.text), (case, answer.text)


def steady(answer: Called) -> Any:
    """What an answer says, without its names and times, and without what was cached of its prompt."""
    told = answer.json()
    return re.sub(
        r'"(id|created|created_at|completed_at|item_id|num_pages|e2e_latency|cached_tokens)": [^,}]+', "", json.dumps(told)
    )


def whole(answer: Called, case: str) -> None:
    """An answer of 200, told whole."""
    if answer.headers["content-type"] == "application/json":
        answer.json()
    else:
        assert answer.headers["content-type"].startswith("text/event-stream"), case
        assert not any(name == "error" or '"error":{' in data for name, data in events(answer.text)), case


async def ask_all(app: Any, place: Place, cases: list[Attack]) -> list[Called]:
    found: list[Called] = []
    for i in range(0, len(cases), AT_ONCE):
        found += await asyncio.gather(*(call(app, place.endpoint.path, case.body) for case in cases[i : i + AT_ONCE]))
    return found


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.path)
def test_h16_t35_every_field_of_every_request(tools_server: Served, endpoint: Endpoint) -> None:
    """Some 7,000 bodies: refused in the dialect's own shape or answered, and a good request after them is answered as before."""
    server = tools_server
    good = json.dumps(endpoint.good).encode()
    before = steady(server.call(endpoint.path, good))
    num_cases = 0
    for place in places(endpoint):
        cases = list(attacks(place, long_chars=LONG_CHARS))
        for case, answer in zip(cases, server.run(ask_all(server.app, place, cases)), strict=True):
            name = f"{place}: {case.name}"
            assert answer.status in case.statuses, (name, answer.status, answer.text[:300])
            if answer.status == 200:
                whole(answer, name)
            else:
                check_error(endpoint, answer, name)
        num_cases += len(cases)
        after = server.call(endpoint.path, good)
        assert (after.status, steady(after)) == (200, before), str(place)
    assert num_cases >= 19 * len(endpoint.kind.__struct_fields__)
    server.until_idle()


BODIES = {
    "nothing": b"",
    "NUL": b"\x00",
    "half": b"{",
    "a list": b"[]",
    "null": b"null",
    "a number": b"5",
    "no UTF-8": b'{"messages": "\xff", "force": "\xff"}',
    "EUC-KR": '{"prompt": "한국", "messages": "한국", "text": "한국", "input": "한국", "force": "한국"}'.encode("euc-kr"),
    "EUC-KR in a name": '{"한국": 1}'.encode("euc-kr"),
    "UTF-16": '{"prompt": "a"}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"prompt": "a"}',
    "two values": b'{"prompt": "a"} {}',
    "a comment": b'{"prompt": "a" /* b */}',
    "quotes of one stroke": b"{'prompt': 'a'}",
    "YAML": b"prompt: a",
    "gzip": b"\x1f\x8b\x08\x00\x00\x00\x00\x00",
    "depth 100,000": b"[" * 100_000,
    "objects to a depth of 100,000": b'{"a":' * 100_000,
    "a bare surrogate's bytes": b'{"prompt": "\xed\xa0\xbd", "force": "\xed\xa0\xbd"}',
}


@pytest.mark.parametrize("name", BODIES)
def test_b158_t35_bodies_that_are_no_request(tools_server: Served, name: str) -> None:
    for endpoint in ENDPOINTS:
        if not (name == "nothing" and endpoint.path == "/flush_cache"):  # which needs no body
            answer = tools_server.call(endpoint.path, BODIES[name])
            assert answer.status == 400, (endpoint.path, answer.text)
            check_error(endpoint, answer, endpoint.path)


SECRETS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": SECRET}], "n": 0}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 10**6}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [SECRET]}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": {"text": SECRET}}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url", "text": SECRET}]}]}),
    ("/v1/chat/completions", {"messages": [{"role": SECRET, "content": 5}]}),
    ("/v1/chat/completions", {"messages": [{"role": ["user"], "content": SECRET}]}),
    ("/v1/chat/completions", {"messages": [SECRET]}),
    ("/v1/chat/completions", {"messages": SECRET}),
    ("/v1/chat/completions", {"messages": [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": SECRET}]}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": SECRET}], "tool_choice": {"x": SECRET}}),
    ("/v1/completions", {"prompt": [SECRET, 5]}),
    ("/v1/completions", {"prompt": {"text": SECRET}}),
    ("/v1/completions", {"prompt": SECRET * 100}),
    ("/v1/completions", {"prompt": SECRET, "suffix": SECRET}),
    ("/v1/completions", {"prompt": SECRET, "stop": [SECRET * 100]}),
    ("/v1/completions", {"prompt": SECRET, "guided_regex": "("}),
    ("/v1/responses", {"input": [{"type": "message", "role": "user", "content": [{"type": "input_image", "text": SECRET}]}]}),
    ("/v1/responses", {"input": [{"type": "message", "role": SECRET, "content": "a"}]}),
    ("/v1/responses", {"input": SECRET, "conversation": SECRET}),
    ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "image", "text": SECRET}]}], "max_tokens": 1}),
    ("/v1/messages", {"messages": [{"role": "user", "content": SECRET * 100}], "max_tokens": 1}),
    ("/v1/messages", {"messages": [{"role": "user", "content": SECRET}], "system": [SECRET], "max_tokens": 1}),
    ("/generate", {"text": SECRET, "sampling_params": {"n": 0}}),
    ("/generate", {"text": [SECRET, 5]}),
    ("/tokenize", {"prompt": SECRET, "messages": [{"role": "user", "content": SECRET}]}),
    ("/detokenize", {"tokens": SECRET}),
]  # fmt: skip


def test_t35_errors_do_not_tell_prompts(tools_server: Served) -> None:
    """A wrong value is shown by its first 40 characters, and nothing else that was sent is."""
    for path, body in SECRETS:
        answer = tools_server.call(path, body)
        assert answer.status in (400, 404), (path, body, answer.text)
        assert SECRET[:50] not in answer.text, (path, body, answer.text)


def test_t35_names_of_fields_are_told_in_part(tools_server: Served) -> None:
    """Whoever names a field with a hundred kilobytes reads them neither in the error's message nor in its header."""
    name = "n" * 100_000
    message = {"role": "user", "content": "hi"}
    for endpoint, body in [
        (ENDPOINTS[0], {"messages": [message], "chat_template_kwargs": {f"_{name}": 1}}),
        (ENDPOINTS[0], {"messages": [message | {name: {"a": [[[[[[1]]]]]]} | {"b": [0] * 9}}], "max_tokens": 10**6}),
        (ENDPOINTS[0], {"messages": [message], "logit_bias": {name: 1}}),
        (ENDPOINTS[0], {"messages": [message], "structured_outputs": {name: 1}}),
        (ENDPOINTS[7], {"text": "hi", "sampling_params": {name: 1}}),
    ]:
        answer = tools_server.call(endpoint.path, body)
        assert answer.status == 400, answer.text[:300]
        check_error(endpoint, answer, endpoint.path)
    ignored = tools_server.call(
        "/v1/completions", {"prompt": "hi", "max_tokens": 1, name: 1} | {f"{name}{i}": 1 for i in range(20)}
    )
    assert ignored.status == 200
    assert len(ignored.headers["x-ramet-ignored"]) < 1500
