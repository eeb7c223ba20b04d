"""``/v1/messages`` as Anthropic's own client sees it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.full_server import KEY, abort_all, full_server
from support.http import CONTEXT, MODEL_NAME, Served, events

from ramet.server.schemas.anthropic import ConversationRequest, MessageRequest

anthropic = pytest.importorskip("anthropic")
pydantic = pytest.importorskip("pydantic")

PATH = "/v1/messages"
LETTERS = list(range(97, 123))  # the tiny model's tokens are bytes
EOS = 256
NO_BLANKS = {9: -100, 10: -100, 13: -100, 32: -100}
OPENING = ["message_start", "content_block_start", "ping"]
CLOSING = ["content_block_stop", "message_delta", "message_stop"]
DELTA = "content_block_delta"


@pytest.fixture
def client(server: Served) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as found:
        yield found


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def ask(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Of the fields that Anthropic's client has."""
    return {"model": MODEL_NAME, "max_tokens": 16, "messages": list(messages) or [user("hello")]} | fields


def greedy(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """With the fields that it has not, by default for an answer that is as long as it may be."""
    return ask(*messages, **{"temperature": 0.0, "ignore_eos": True} | fields)


def stream_of(server: Served, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream, each of the name that its type is."""
    response = server.post(PATH, body | {"stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["request-id"] == response.headers["x-request-id"]
    found = events(response.text)
    bodies = [json.loads(data) for _, data in found]
    assert [name for name, _ in found] == [event["type"] for event in bodies]
    return bodies


def chat(*messages: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    return msgspec.convert({"messages": messages} | fields, ConversationRequest).chat_messages()


# ---- whole and in a stream


def test_a_whole_message(client: Any) -> None:
    message = client.messages.create(
        **ask(metadata={"user_id": "me"}, system="be brief", thinking={"type": "disabled"}), extra_body={"ignore_eos": True}
    )
    assert message.id.startswith("msg_")
    assert (message.type, message.role, message.model) == ("message", "assistant", MODEL_NAME)
    assert (message.stop_reason, message.stop_sequence) == ("max_tokens", None)
    (block,) = message.content
    assert block.type == "text"
    assert block.text
    assert message.usage.output_tokens == 16
    assert message.usage.cache_creation_input_tokens == 0
    assert message._request_id.startswith("req-")


@pytest.mark.parametrize(
    ("fields", "stopped"),
    [
        ({}, ("max_tokens", None)),
        ({"ignore_eos": False, "logit_bias": {EOS: 100}}, ("end_turn", None)),
        ({"allowed_token_ids": [98], "stop_sequences": ["x", "bbb"]}, ("stop_sequence", "bbb")),
        ({"allowed_token_ids": [98], "stop_token_ids": [98]}, ("end_turn", None)),
        ({"max_tokens": 0}, ("max_tokens", None)),
        ({"max_tokens": 100_000, "messages": [user("x" * 1950)]}, ("model_context_window_exceeded", None)),
    ],
    ids=["length", "end", "stop sequence", "stop token", "prompt alone", "context"],
)
def test_a_stream_says_what_a_whole_answer_says(server: Served, fields: dict[str, Any], stopped: tuple[str, str | None]) -> None:
    body = greedy(**fields)
    whole = server.post(PATH, body).json()
    found = stream_of(server, body)
    deltas = [event for event in found if event["type"] == DELTA]
    assert [event["type"] for event in found] == [*OPENING, *(DELTA for _ in deltas), *CLOSING]
    start, last = found[0]["message"], found[-2]
    assert "".join(event["delta"]["text"] for event in deltas) == whole["content"][0]["text"]
    assert (whole["stop_reason"], whole["stop_sequence"]) == stopped
    assert (last["delta"]["stop_reason"], last["delta"]["stop_sequence"]) == stopped
    assert last["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
    assert (start["content"], start["stop_reason"], start["usage"]["output_tokens"]) == ([], None, 0)
    assert start["usage"] | {"output_tokens": last["usage"]["output_tokens"]} == last["usage"]


def test_the_clients_own_stream_puts_the_message_together(client: Any) -> None:
    extra = {"extra_body": {"ignore_eos": True, "seed": 5}}
    whole = client.messages.create(**ask(), **extra)
    with client.messages.stream(**ask(), **extra) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason == "max_tokens"
    assert final.usage.output_tokens == whole.usage.output_tokens == 16


def test_the_asynchronous_client(server: Served) -> None:
    async def work() -> tuple[str, str, int]:
        extra = {"extra_body": {"ignore_eos": True, "temperature": 0.0}}
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as client:
            whole = await client.messages.create(**ask(), **extra)
            async with client.messages.stream(**ask(), **extra) as stream:
                streamed = "".join([text async for text in stream.text_stream])
            count = await client.messages.count_tokens(model=MODEL_NAME, messages=ask()["messages"])
            assert count.input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens
            return whole.content[0].text, streamed, count.input_tokens

    whole, streamed, count = asyncio.run(work())
    assert whole == streamed != ""
    assert count > len("hello")


class Verdict(pydantic.BaseModel):
    is_true: bool
    number: int


def test_an_answer_of_a_type(client: Any) -> None:
    """Blanks are ruled out: a model of random weights may write them for ever."""
    fields = ask(max_tokens=300) | {"output_format": Verdict, "extra_body": {"logit_bias": NO_BLANKS, "seed": 1}}
    parsed = client.messages.parse(**fields).parsed_output
    assert isinstance(parsed, Verdict)
    with client.messages.stream(**fields) as stream:
        assert stream.get_final_message().parsed_output == parsed


def test_a_second_turn_reuses_the_first(client: Any) -> None:
    letters = {"extra_body": {"allowed_token_ids": LETTERS}}
    turns = [user("once upon a time, in the far west")]
    first = client.messages.create(**ask(*turns), **letters)
    turns += [{"role": "assistant", "content": first.content}, user("and then?")]
    second = client.messages.create(**ask(*turns), **letters)
    computed = first.usage.input_tokens + first.usage.cache_read_input_tokens
    assert second.usage.cache_read_input_tokens >= computed
    count = client.messages.count_tokens(model=MODEL_NAME, messages=turns).input_tokens
    assert second.usage.input_tokens + second.usage.cache_read_input_tokens == count
    assert second.usage.input_tokens > 0


def test_a_prompt_computed_ahead_is_there(client: Any) -> None:
    """``max_tokens`` 0, as Anthropic has it."""
    turn = user("a long text that will be asked about later")
    warm = client.messages.create(**ask(turn, max_tokens=0))
    assert (warm.usage.output_tokens, warm.content[0].text) == (0, "")
    assert warm.usage.input_tokens > len(turn["content"])
    assert client.messages.create(**ask(turn)).usage.input_tokens <= 4  # a page of which the last token is always computed


def test_a_prefilled_answer_goes_on_where_it_ends(server: Served) -> None:
    def text(*messages: dict[str, Any], **fields: Any) -> str:
        response = server.post(PATH, greedy(*messages, allowed_token_ids=LETTERS, **fields))
        return str(response.json()["content"][0]["text"])

    whole = text(user("hello"))
    begun = {"role": "assistant", "content": [{"type": "text", "text": whole[:5]}]}
    assert text(user("hello"), begun, max_tokens=11) == whole[5:]


def test_salts_share_nothing(server: Served) -> None:
    def cached(salt: str) -> int:
        response = server.post(PATH, ask(user("a text for salted messages"), cache_salt=salt))
        return int(response.json()["usage"]["cache_read_input_tokens"])

    assert (cached("messages-a"), cached("messages-b")) == (0, 0)
    assert cached("messages-a") > 0


# ---- what a conversation becomes


def test_blocks_become_messages() -> None:
    marked = {"cache_control": {"type": "ephemeral"}}
    use = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}
    found = chat(
        user([{"type": "text", "text": "one", **marked}, {"type": "text", "text": "two"}]),
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "so"}, use],
        },
        user(
            [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "three"}], "is_error": True},
                {"type": "tool_result", "tool_use_id": "t2", "content": "four"},
                {"type": "tool_result", "tool_use_id": "t3"},
                {"type": "text", "text": "five"},
            ]
        ),
        {"role": "assistant", "content": [use]},
        {"role": "system", "content": "new rules"},
        user("six"),
        system=[{"type": "text", "text": "rules", **marked}],
    )
    call = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    said = {"content": [{"type": "text", "text": "so"}], "reasoning_content": "hm", "tool_calls": [call]}
    assert found == [
        {"role": "system", "content": [{"type": "text", "text": "rules"}]},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", **said},
        {"role": "tool", "tool_call_id": "t1", "content": [{"type": "text", "text": "three"}]},
        {"role": "tool", "tool_call_id": "t2", "content": "four"},
        {"role": "tool", "tool_call_id": "t3", "content": ""},
        {"role": "user", "content": [{"type": "text", "text": "five"}]},
        {"role": "assistant", "content": [], "tool_calls": [call]},
        {"role": "system", "content": "new rules"},
        {"role": "user", "content": "six"},
    ]


def test_a_conversation_with_tools_is_served(tools_server: Served) -> None:
    tool = {"name": "f", "description": "does", "input_schema": {"type": "object"}}
    history = [
        user("go"),
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {}}]},
        user([{"type": "tool_result", "tool_use_id": "t1", "content": "one"}]),
    ]
    with anthropic.Anthropic(base_url=tools_server.url, api_key="none", max_retries=0) as client:
        message = client.messages.create(**ask(*history), tools=[tool], tool_choice={"type": "auto"})
        counted = {"model": MODEL_NAME, "messages": history}
        count = client.messages.count_tokens(**counted, tools=[tool]).input_tokens
        without = client.messages.count_tokens(**counted, tools=[tool], tool_choice={"type": "none"}).input_tokens
        assert without == client.messages.count_tokens(**counted).input_tokens
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens == count > without


# ---- what is refused, and what is ignored


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": []}, "messages is empty"),
        ({"messages": None}, "messages: expected array"),
        ({"messages": [user("x")] * 4097}, "messages: expected array of length <= 4096"),
        ({"max_tokens": None}, "max_tokens: expected int"),
        ({"max_tokens": -1}, "max_tokens: expected int >= 0"),
        ({"max_tokens": 10**18}, "max_tokens: expected int <= 2147483647"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role is user, assistant or system"),
        ({"messages": [user(None)]}, "expected str | array, got null"),
        ({"messages": [user([])]}, "messages[0].content is empty"),
        ({"messages": [user([{"type": "text"}])]}, "messages[0].content[0].text is missing"),
        ({"messages": [user([{"type": "image", "source": {}}])]}, "messages[0].content[0] is a block of type 'image'"),
        ({"messages": [user([{"type": "document", "source": {}}])]}, "'document'"),
        ({"messages": [user([{"type": "tool_use", "id": "t", "name": "f", "input": {}}])]}, "in the wrong place"),
        ({"messages": [user([{"type": "tool_result", "content": "x"}])]}, "messages[0].content[0].tool_use_id is missing"),
        (
            {"messages": [user([{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}])]},
            "messages[0].content[0].content[0] is a block of type 'image'",
        ),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "t"}]}]}, "without a field it needs"),
        (
            {
                "messages": [
                    user("x"),
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
                ]
            },
            "messages[1] calls tools",
        ),
        ({"messages": [user("x"), {"role": "assistant", "content": ""}]}, "nothing to continue"),
        ({"system": [{"type": "image"}]}, "system[0] is a block of type 'image'"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking of type 'enabled'"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0] is of type 'bash_20250124'"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema is missing"),
        ({"tools": [{"name": "f", "input_schema": {}}]}, "no place for tools"),
        ({"tool_choice": {"type": "any"}}, "there are no tools"),
        ({"tool_choice": {"type": "tool"}}, "tool with its name"),
        ({"thinking": {"type": "deep"}}, "not 'deep'"),
        ({"output_config": {"format": {"type": "poem"}}}, "output_config.format is"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "thing"}}}}, "thing"),
        ({"stop_sequences": [""]}, "each stop is a string of 1"),
        ({"temperature": -1.0}, "temperature is a number from 0"),
        ({"top_k": 1.5}, "top_k: expected int"),
        ({"cache_salt": ""}, "cache_salt is a text"),
    ],
)
def test_what_cannot_be_served_is_refused_in_words(server: Served, fields: dict[str, Any], words: str) -> None:
    for stream in (False, True):
        response = server.call(PATH, ask(**fields, stream=stream))
        body = response.json()
        assert response.status == 400
        assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
        assert words in body["error"]["message"]
        assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]


def test_the_clients_own_errors(client: Any) -> None:
    with pytest.raises(anthropic.BadRequestError, match="'image'"):
        client.messages.create(**ask(user([{"type": "image", "source": {"type": "url", "url": "http://x/"}}])))
    with pytest.raises(anthropic.BadRequestError, match=f"{CONTEXT:,}"):
        client.messages.create(**ask(user("x" * 3000)))
    with pytest.raises(anthropic.NotFoundError, match="claude-0"):
        client.messages.create(**ask(model="claude-0"))
    with pytest.raises(anthropic.NotFoundError, match="claude-0"):
        client.messages.count_tokens(model="claude-0", messages=[user("x")])


def test_a_full_queue_and_a_wrong_key(tmp_path: Path) -> None:
    with full_server(tmp_path / "model") as full:
        with anthropic.Anthropic(base_url=full.url, api_key=KEY, max_retries=0) as client:
            with pytest.raises(anthropic.RateLimitError) as refused:
                client.messages.create(**ask())
            assert refused.value.response.headers["retry-after"] == "1"
            assert client.messages.count_tokens(model=MODEL_NAME, messages=[user("x")]).input_tokens > 1  # needs no engine
        with (
            anthropic.Anthropic(base_url=full.url, api_key="wrong", max_retries=0) as client,
            pytest.raises(anthropic.AuthenticationError),
        ):
            client.messages.create(**ask())


def test_ignored_fields_are_named(server: Served) -> None:
    named = server.call(PATH, ask(odd=1, container="c", output_config={"effort": "low"}))
    assert named.status == 200
    assert named.headers["x-ramet-ignored"] == "odd, container, output_config.effort"
    taken = ask(service_tier="auto", thinking={"type": "adaptive"}, cache_control={"type": "ephemeral"}, metadata={})
    assert "x-ramet-ignored" not in server.call(PATH, taken).headers
    versions = {"anthropic-version": "2023-06-01", "anthropic-beta": "all"}
    assert server.call(PATH, ask(), headers=versions).status == 200


@pytest.mark.parametrize(
    "body", [b'{"system": "\\ud800"}', b'{"system": "\xed\xa0\x80"}', b"[" * 100_000, b"", b"[]", b'{"system": NaN}']
)
def test_what_is_no_json_is_refused(server: Served, body: bytes) -> None:
    for path in (PATH, f"{PATH}/count_tokens"):
        response = server.call(path, body)
        assert response.status == 400
        assert response.json()["type"] == "error"


@pytest.mark.parametrize("name", [name for name in MessageRequest.__struct_fields__ if name != "stream"])
def test_no_value_of_any_field_breaks_the_server(server: Served, name: str) -> None:
    """H16: each is taken or refused in words."""
    deep = "[" * 200 + "]" * 200
    fields = {key: json.dumps(value) for key, value in ask(max_tokens=1).items()}
    for value in (
        "null",
        "true",
        "-1",
        "0",
        "1.5",
        "1e400",
        "9223372036854775808",
        '""',
        '"x"',
        "[]",
        "[null]",
        "{}",
        '{"a": 1}',
        deep,
    ):
        body = ", ".join(f'"{key}": {text}' for key, text in (fields | {name: value}).items())
        response = server.call(PATH, b"{" + body.encode() + b"}")
        assert response.status in (200, 400, 404), (name, value, response.text)
        if response.status != 200:
            assert response.json()["error"]["message"], (name, value)


# ---- who leaves, and what fails


def test_a_client_that_leaves_ends_its_request(server: Served, client: Any) -> None:
    with client.messages.stream(**ask(max_tokens=1500), extra_body={"ignore_eos": True}) as stream:
        for _ in stream.text_stream:
            break
    server.until_idle()


def test_a_stream_that_cannot_go_on_says_so(server: Served, client: Any) -> None:
    with client.messages.stream(**ask(max_tokens=1500), extra_body={"ignore_eos": True}) as stream:
        assert next(stream.text_stream)
        abort_all(server)
        with pytest.raises(anthropic.APIStatusError, match="aborted"):
            stream.get_final_message()
