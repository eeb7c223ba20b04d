"""The clients that people have, as they are: OpenAI's and Anthropic's own, which also hold each answer against their types.

What each endpoint answers is tested beside it; here is the rest: many at once, tools, errors, retries, deadlines, leaving.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from support.full_server import KEY, abort_all, full_server
from support.http import MODEL_NAME, Served
from support.openai_api import LETTERS, USER

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")
pydantic = pytest.importorskip("pydantic")

Client = Any
CHAT: dict[str, Any] = {
    "model": MODEL_NAME,
    "messages": USER,
    "seed": 1,
    "max_tokens": 8,
    "extra_body": {"allowed_token_ids": LETTERS},
}
ENDLESS: dict[str, Any] = {"model": MODEL_NAME, "messages": USER, "max_tokens": 1900}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALLS: list[dict[str, Any]] = [
    *USER,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": "sea"}'}}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "calm"},
]


def openai_of(server: Served, **options: Any) -> Client:
    options = {"api_key": "none", "max_retries": 0, "_strict_response_validation": True} | options
    return openai.OpenAI(base_url=f"{server.url}/v1", **options)


def anthropic_of(server: Served, **options: Any) -> Client:
    options = {"api_key": "none", "max_retries": 0, "_strict_response_validation": True} | options
    return anthropic.Anthropic(base_url=server.url, **options)


@pytest.fixture
def client(server: Served) -> Iterator[Client]:
    with openai_of(server) as found:
        yield found


def text_of(stream: Any) -> str:
    return "".join(choice.delta.content or "" for chunk in stream for choice in chunk.choices)


def test_chats_whole_and_streamed(client: Client) -> None:
    answer = client.chat.completions.create(**CHAT, extra_headers={"x-request-id": "mine"})
    assert answer._request_id == "mine"
    assert len(answer.choices[0].message.content) == 8
    assert text_of(client.chat.completions.create(**CHAT, stream=True)) == answer.choices[0].message.content
    raw = client.chat.completions.with_raw_response.create(**CHAT)
    assert raw.parse().choices[0].message.content == answer.choices[0].message.content


def test_a_dozen_asynchronous_streams_at_once(server: Served) -> None:
    async def work() -> tuple[list[str], list[str]]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:

            async def streamed(seed: int) -> str:
                stream = await client.chat.completions.create(**CHAT | {"seed": seed}, stream=True)
                return "".join([choice.delta.content or "" async for chunk in stream for choice in chunk.choices])

            async def whole(seed: int) -> str:
                answer = await client.chat.completions.create(**CHAT | {"seed": seed})
                return str(answer.choices[0].message.content)

            alone = [await whole(seed) for seed in range(12)]
            return alone, await asyncio.gather(*map(streamed, range(12)))

    alone, together = asyncio.run(work())
    assert together == alone
    assert len(set(alone)) > 1


def test_tools_in_what_was_said(server: Served, tools_server: Served) -> None:
    extra = {"extra_body": {"return_token_ids": True}}
    with openai_of(tools_server) as client:
        told = client.chat.completions.create(**CHAT | {"messages": CALLS, "tools": [TOOL]} | extra)
        prompt = "".join(chr(i) for i in told.prompt_token_ids if i < 128)
        assert '"look"' in prompt.partition("<call>")[0]
        assert '<call>{"name": "look", "arguments": {"at": "sea"}}</call>' in prompt
        assert "tool\ncalm\n" in prompt
        untold = client.chat.completions.create(**CHAT | {"tools": [TOOL], "tool_choice": "none"} | extra)
        assert "look" not in "".join(chr(i) for i in untold.prompt_token_ids if i < 128)
    with openai_of(server) as client:  # a template without a place for tools
        body = CHAT | {"tools": [TOOL], "parallel_tool_calls": False}
        assert client.chat.completions.create(**body, tool_choice="none").choices[0].message.content
        with pytest.raises(openai.BadRequestError, match="no place for tools"):
            client.chat.completions.create(**body)


def test_an_answer_of_a_type(client: Client) -> None:
    class Weather(pydantic.BaseModel):  # type: ignore[misc,name-defined]
        sky: Literal["clear", "grey"]

    parsed = client.chat.completions.parse(model=MODEL_NAME, messages=USER, response_format=Weather)
    assert parsed.choices[0].message.parsed.sky in ("clear", "grey")
    with client.chat.completions.stream(model=MODEL_NAME, messages=USER, response_format=Weather) as stream:
        assert stream.get_final_completion().choices[0].message.parsed.sky in ("clear", "grey")


def test_models_are_listed_and_found(client: Client, server: Served) -> None:
    assert [model.id for model in client.models.list()] == [MODEL_NAME]  # through the client's own pages
    model = client.models.retrieve(MODEL_NAME)
    assert (model.id, model.object, model.owned_by, model.created) == (MODEL_NAME, "model", "ramet", server.services.created)
    with pytest.raises(openai.NotFoundError) as missing:
        client.models.retrieve("org/other")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.APIStatusError) as never:
        client.models.delete(MODEL_NAME)
    assert never.value.status_code == 405


@pytest.mark.parametrize(
    ("change", "kind", "status"),
    [
        ({"max_tokens": -1}, "BadRequestError", 400),
        ({"model": "gpt-0"}, "NotFoundError", 404),
        ({"extra_headers": {"host": "evil.example"}}, "APIStatusError", 421),
        ({"extra_headers": {"origin": "http://evil.example"}}, "PermissionDeniedError", 403),
        ({"messages": [{"role": "user", "content": "x" * (33 << 20)}]}, "APIStatusError", 413),
    ],
)
def test_each_error_is_of_its_class(server: Served, change: dict[str, Any], kind: str, status: int) -> None:
    plain = {"model": MODEL_NAME, "messages": USER, "max_tokens": 4}
    with openai_of(server) as client, pytest.raises(getattr(openai, kind)) as theirs:
        client.chat.completions.create(**plain | change)
    with anthropic_of(server) as client, pytest.raises(getattr(anthropic, kind)) as others:
        client.messages.create(**plain | change)
    for error in (theirs.value, others.value):
        assert error.status_code == status
        assert error.request_id.startswith("req-")


def test_a_full_queue_is_tried_again_when_it_says(tmp_path: Path) -> None:
    with full_server(tmp_path / "model") as full:
        with openai_of(full, api_key=KEY) as client, pytest.raises(openai.RateLimitError):
            client.completions.create(model=MODEL_NAME, prompt="a")
        with anthropic_of(full, api_key="wrong") as client, pytest.raises(anthropic.AuthenticationError):
            client.messages.create(model=MODEL_NAME, messages=USER, max_tokens=4)
        with anthropic_of(full, api_key=KEY, max_retries=1) as client, soon(lambda: abort_all(full)):
            began_s = time.monotonic()
            answer = client.messages.create(model=MODEL_NAME, messages=USER, max_tokens=4)
            assert time.monotonic() - began_s >= 1  # as Retry-After has it; the client's own first wait is half of that
        assert answer.usage.output_tokens <= 4


def test_a_server_that_stops_is_tried_again_when_it_says(server: Served) -> None:
    with openai_of(server) as client, draining(server):
        with pytest.raises(openai.InternalServerError) as refused:
            client.chat.completions.create(**CHAT)
        assert refused.value.status_code == 503
        with openai_of(server, max_retries=1) as patient, soon(lambda: setattr(server.app, "is_draining", False)):
            began_s = time.monotonic()
            assert patient.chat.completions.create(**CHAT).choices
            assert time.monotonic() - began_s >= 2


def test_a_deadline_of_the_client_ends_its_request(server: Served) -> None:
    endless = ENDLESS | {"extra_body": {"ignore_eos": True}}
    with openai_of(server) as client, pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(**endless, timeout=0.05)
    with anthropic_of(server) as client, pytest.raises(anthropic.APITimeoutError):
        client.messages.create(**endless, timeout=0.05)
    server.until_idle()


def test_a_stream_that_is_closed_ends_its_request(server: Served) -> None:
    endless = ENDLESS | {"extra_body": {"ignore_eos": True}}
    with openai_of(server) as client:
        stream = client.chat.completions.create(**endless, stream=True)
        next(iter(stream))
        assert server.services.client.generations
        stream.close()
        server.until_idle(2)
        with client.responses.stream(model=MODEL_NAME, input="hi", extra_body={"ignore_eos": True}) as response:
            next(iter(response))
        server.until_idle(2)
    with anthropic_of(server) as client:
        with client.messages.stream(**endless) as message:
            next(iter(message))
        server.until_idle(2)


@contextmanager
def draining(server: Served) -> Iterator[None]:
    """The server says that it stops."""
    server.app.is_draining = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        server.app.is_draining = False  # type: ignore[attr-defined]


@contextmanager
def soon(work: Any, seconds: float = 0.2) -> Iterator[None]:
    """Do ``work`` beside what happens here."""
    timer = threading.Timer(seconds, work)
    timer.start()
    try:
        yield
    finally:
        timer.join()
