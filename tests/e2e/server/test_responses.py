"""``/v1/responses`` as OpenAI's own client sees it, and as OpenAI's specification has it."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.full_server import KEY, abort_all, full_server
from support.http import CONTEXT, MODEL_NAME, Served, events

from ramet.server.schemas.responses import ResponseRequest

openai = pytest.importorskip("openai")
pydantic = pytest.importorskip("pydantic")

ROOT = Path(__file__).parents[3]
PATH = "/v1/responses"
LETTERS = list(range(97, 123))  # the tiny model's tokens are bytes
EOS = 256
NO_BLANKS = {9: -100, 10: -100, 13: -100, 32: -100}
ENDING = {"allowed_token_ids": [*LETTERS, EOS], "logit_bias": {EOS: 4}, "seed": 3, "temperature": 1.0, "max_output_tokens": 500}
OPENING = ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
CLOSING = ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
DELTA = "response.output_text.delta"


@pytest.fixture
def client(server: Served) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as found:
        yield found


@pytest.fixture(scope="session")
def check() -> Callable[[str, Any], None]:
    """Holds a body against a schema of OpenAI's specification, by its name there or by an event's type."""
    jsonschema = pytest.importorskip("jsonschema")
    referencing = pytest.importorskip("referencing")
    shared = Path(os.environ.get("RAMET_SHARED") or ROOT.parent / "shared")
    path = shared / "data" / "openai-openapi" / "openapi.json.gz"
    if not path.exists():
        pytest.skip(f"OpenAI's specification is absent ({path.name} in the shared data)")
    spec = json.loads(gzip.decompress(path.read_bytes()))
    resource = referencing.Resource.from_contents(spec, referencing.jsonschema.DRAFT202012)
    registry = referencing.Registry().with_resource("urn:openapi", resource)
    schemas = spec["components"]["schemas"]
    by_type = {}
    for option in schemas["ResponseStreamEvent"]["anyOf"]:
        name = option["$ref"].rpartition("/")[2]
        by_type[schemas[name]["properties"]["type"]["enum"][0]] = name

    def validate(name: str, body: Any) -> None:
        reference = {"$ref": f"urn:openapi#/components/schemas/{by_type.get(name, name)}"}
        jsonschema.Draft202012Validator(reference, registry=registry).validate(body)

    return validate


def ask(**fields: Any) -> dict[str, Any]:
    """Of the fields that OpenAI has."""
    return {"model": MODEL_NAME, "input": "hello", "max_output_tokens": 16, "temperature": 0.0} | fields


def longest(**fields: Any) -> dict[str, Any]:
    """With one of ours: the answer has all of its 16 tokens."""
    return ask(ignore_eos=True, **fields)


def stream_of(server: Served, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream, each of the name that its type is, numbered from 0."""
    response = server.post(PATH, body | {"stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    found = events(response.text)
    bodies = [json.loads(data) for _, data in found]
    assert [name for name, _ in found] == [event["type"] for event in bodies]
    assert [event["sequence_number"] for event in bodies] == list(range(len(bodies)))
    return bodies


def same(response: dict[str, Any]) -> tuple[Any, ...]:
    """What two answers to one request have in common, but for what was cached."""
    (item,) = response["output"]
    usage = response["usage"]
    return item["content"], item["status"], response["status"], response["incomplete_details"], usage["output_tokens"]


def chat(**fields: Any) -> list[dict[str, Any]]:
    return msgspec.convert(fields, ResponseRequest).chat_messages()


# ---- whole and in a stream


def test_a_whole_response(client: Any) -> None:
    fields = ask(instructions="be brief", metadata={"a": "b"}, user="me")
    response = client.responses.create(**fields, extra_body={"ignore_eos": True})
    assert response.id.startswith("resp_")
    assert response.object == "response"
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.model == MODEL_NAME
    assert response.instructions == "be brief"
    assert response.metadata == {"a": "b"}
    assert response.user == "me"
    assert response.temperature == 0.0
    assert response.error is None
    (message,) = response.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "incomplete")
    assert message.content[0].text == response.output_text != ""
    assert message.content[0].annotations == []
    usage = response.usage
    assert usage.output_tokens == 16
    assert usage.total_tokens == usage.input_tokens + 16
    assert usage.output_tokens_details.reasoning_tokens == 0
    assert usage.input_tokens_details.cached_tokens < usage.input_tokens


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"ignore_eos": True}, "incomplete"),
        (ENDING, "completed"),
        ({"allowed_token_ids": [EOS]}, "completed"),
        ({"allowed_token_ids": [98], "stop": "bb"}, "completed"),
        ({"max_output_tokens": 0}, "incomplete"),
    ],
    ids=["length", "end", "nothing", "stop string", "prompt alone"],
)
def test_a_stream_says_what_a_whole_answer_says(server: Served, fields: dict[str, Any], status: str) -> None:
    body = ask(**fields)
    found = stream_of(server, body)
    deltas = [event for event in found if event["type"] == DELTA]
    expected = [*OPENING, *(DELTA for _ in deltas), *CLOSING, f"response.{status}"]
    assert [event["type"] for event in found] == expected
    created, done, part, item, last = found[0], *found[-4:]
    assert created["response"]["output"] == []
    assert created["response"]["status"] == "in_progress"
    text = "".join(event["delta"] for event in deltas)
    assert text == done["text"] == part["part"]["text"] == item["item"]["content"][0]["text"]
    assert last["response"]["output"] == [item["item"]]
    assert len({event["item_id"] for event in found if "item_id" in event} | {item["item"]["id"]}) == 1
    assert created["response"]["id"] == last["response"]["id"]
    whole = server.post(PATH, body).json()
    assert whole["status"] == status
    assert same(whole) == same(last["response"])


def test_the_clients_own_stream_puts_the_response_together(client: Any) -> None:
    fields = {"model": MODEL_NAME, "input": "hello", "extra_body": ENDING}
    whole = client.responses.create(**fields)
    with client.responses.stream(**fields) as stream:
        deltas = [event.delta for event in stream if event.type == DELTA]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == whole.output_text
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_the_asynchronous_client(server: Served) -> None:
    async def work() -> tuple[str, str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            whole = await client.responses.create(**ask())
            pieces = [event.delta async for event in await client.responses.create(**ask(), stream=True) if event.type == DELTA]
            return whole.output_text, "".join(pieces)

    whole, streamed = asyncio.run(work())
    assert whole == streamed != ""


class Verdict(pydantic.BaseModel):
    is_true: bool
    number: int


def test_an_answer_of_a_type(client: Any) -> None:
    """Blanks are ruled out: a model of random weights may write them for ever."""
    fields = ask(max_output_tokens=300) | {"text_format": Verdict, "extra_body": {"logit_bias": NO_BLANKS, "seed": 1}}
    parsed = client.responses.parse(**fields).output_parsed
    assert isinstance(parsed, Verdict)
    with client.responses.stream(**fields) as stream:
        assert stream.get_final_response().output_parsed == parsed


def test_any_object(server: Served) -> None:
    fields = {"logit_bias": NO_BLANKS | {ord("}"): 5}, "seed": 1, "max_output_tokens": 300}
    response = server.post(PATH, ask(text={"format": {"type": "json_object"}}, **fields)).json()
    assert response["text"] == {"format": {"type": "json_object"}}
    assert isinstance(json.loads(response["output"][0]["content"][0]["text"]), dict)


def test_a_second_turn_reuses_the_first(client: Any) -> None:
    letters = {"extra_body": {"allowed_token_ids": LETTERS}}
    question = {"role": "user", "content": "once upon a time in the west"}
    first = client.responses.create(**ask(input=[question]), **letters)
    turn = {"role": "user", "content": [{"type": "input_text", "text": "and then?"}]}
    second = client.responses.create(**ask(input=[question, *first.output, turn]), **letters)
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens
    assert second.usage.input_tokens_details.cached_tokens < second.usage.input_tokens
    again = client.responses.create(**ask(input=[question, *first.output, turn]), **letters)
    assert again.output_text == second.output_text


def test_salts_share_nothing(client: Any) -> None:
    def cached(salt: str) -> int:
        response = client.responses.create(**ask(input="a text for the salted"), extra_body={"cache_salt": salt})
        return int(response.usage.input_tokens_details.cached_tokens)

    assert (cached("responses-a"), cached("responses-b")) == (0, 0)
    assert cached("responses-a") > 0


def test_logprobs(server: Served) -> None:
    body = longest(top_logprobs=3, include=["message.output_text.logprobs"], seed=1, temperature=1.0)
    whole = server.post(PATH, body).json()
    found = whole["output"][0]["content"][0]["logprobs"]
    assert len(found) == whole["usage"]["output_tokens"]
    for token in found:
        best = [one["logprob"] for one in token["top_logprobs"]]
        assert len(best) == 3
        assert best == sorted(best, reverse=True)
        assert token["logprob"] <= best[0] <= 0
    streamed = stream_of(server, body)
    assert [one for event in streamed if event["type"] == DELTA for one in event["logprobs"]] == found
    bare = server.post(PATH, longest(include=["message.output_text.logprobs"])).json()
    assert [one["top_logprobs"] for one in bare["output"][0]["content"][0]["logprobs"]] == [[]] * 16
    assert server.post(PATH, ask()).json()["output"][0]["content"][0]["logprobs"] == []


def test_without_a_limit_the_answer_ends_with_the_context(client: Any) -> None:
    response = client.responses.create(model=MODEL_NAME, input="x" * 1980, extra_body={"allowed_token_ids": LETTERS})
    assert response.status == "incomplete"
    assert response.usage.total_tokens == CONTEXT


def test_bodies_and_events_are_as_specified(server: Served, tools_server: Served, check: Callable[[str, Any], None]) -> None:
    tool = {"type": "function", "name": "f", "description": "does", "parameters": {"type": "object"}, "strict": True}
    logprobs = {"top_logprobs": 2, "include": ["message.output_text.logprobs"]}
    for body in (
        ask(),
        ask(**logprobs, metadata={"a": "b"}, user="me", prompt_cache_key="k", safety_identifier="s", seed=1),
        ask(allowed_token_ids=[EOS], instructions="be brief"),
        ask(tools=[tool], tool_choice="auto", parallel_tool_calls=False, text={"format": {"type": "text"}}),
    ):
        check("CreateResponse", body)
        check("Response", tools_server.post(PATH, body).json())
        for event in stream_of(tools_server, body):
            check(event["type"], event)


# ---- what a conversation becomes


def test_items_become_messages() -> None:
    calls = [
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}', "id": "fc_1"},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": ""},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
    ]
    said = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]}
    found = chat(instructions="rules", input=[{"role": "developer", "content": "more"}, said, *calls, calls[0]])
    tool_calls = [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
        {"id": "c2", "type": "function", "function": {"name": "g", "arguments": ""}},
    ]
    assert found == [
        {"role": "system", "content": "rules"},
        {"role": "developer", "content": "more"},
        {"role": "assistant", "content": [{"type": "text", "text": "so"}], "tool_calls": tool_calls},
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "two"}]},
        {"role": "assistant", "content": None, "tool_calls": tool_calls[:1]},
    ]
    assert chat(input="hi") == [{"role": "user", "content": "hi"}]


def test_a_conversation_with_tools_is_served(tools_server: Served) -> None:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    history = [
        {"role": "user", "content": "go"},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
    ]
    with_tools = tools_server.post(PATH, ask(input=history, tools=[tool])).json()
    without = tools_server.post(PATH, ask(input=history, tools=[tool], tool_choice="none")).json()
    assert with_tools["tools"][0]["name"] == "f"
    assert with_tools["usage"]["input_tokens"] > without["usage"]["input_tokens"]


# ---- what is refused, and what is ignored


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": [{"role": "user", "content": None}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": []}]}, "input[0].content"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x/"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0]"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"role": "user", "content": "x"}] * 4097}, "input"),
        ({"tools": [{"type": "function", "name": "f"}] * 129}, "tools"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "f"}]}, "tools"),  # the template of this server has no place for them
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"text": {"format": {"type": "poem"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"max_output_tokens": -1}, "max_output_tokens"),
        ({"max_output_tokens": 10**18}, "max_output_tokens"),
        ({"max_output_tokens": "8"}, "max_output_tokens"),
        ({"max_output_tokens": True}, "max_output_tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"seed": 2**64}, "seed"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs"),
        ({"metadata": {"a": 1}}, "metadata[...]"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(server: Served, fields: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        response = server.call(PATH, ask(**fields, stream=stream))
        error = response.json()["error"]
        assert response.status == 400
        assert (error["type"], error["param"]) == ("invalid_request_error", param)


def test_the_clients_own_errors(client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        client.responses.create(**ask(previous_response_id="resp_1"))
    with pytest.raises(openai.BadRequestError) as too_long:
        client.responses.create(**ask(input="x" * 3000))
    assert too_long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.responses.create(**ask(model="gpt-0"))
    assert unknown.value.code == "model_not_found"


def test_a_full_queue_and_a_wrong_key(tmp_path: Path) -> None:
    with full_server(tmp_path / "model") as full:
        with openai.OpenAI(base_url=f"{full.url}/v1", api_key=KEY, max_retries=0) as client:
            with pytest.raises(openai.RateLimitError) as refused:
                client.responses.create(**ask())
            assert refused.value.response.headers["retry-after"] == "1"
        with (
            openai.OpenAI(base_url=f"{full.url}/v1", api_key="wrong", max_retries=0) as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.responses.create(**ask())


def test_ignored_fields_are_named(server: Served) -> None:
    named = server.call(PATH, ask(reasoning={"effort": "low"}, text={"verbosity": "low"}, moderation={"model": "m"}, odd=1))
    assert named.status == 200
    assert named.headers["x-ramet-ignored"] == "moderation, odd, reasoning, text.verbosity"
    taken = ask(
        store=True, include=["reasoning.encrypted_content"], service_tier="auto", stream_options={}, truncation="disabled"
    )
    quiet = server.call(PATH, taken)
    assert "x-ramet-ignored" not in quiet.headers
    assert quiet.json()["store"] is False


@pytest.mark.parametrize(
    "body", [b'{"input": "\\ud800"}', b'{"input": "\xed\xa0\x80"}', b"[" * 100_000, b"", b"[]", b'{"input": NaN}']
)
def test_what_is_no_json_is_refused(server: Served, body: bytes) -> None:
    assert server.call(PATH, body).status == 400


@pytest.mark.parametrize("name", [name for name in ResponseRequest.__struct_fields__ if name != "stream"])
def test_no_value_of_any_field_breaks_the_server(server: Served, name: str) -> None:
    """H16: each is taken or refused in words."""
    deep = "[" * 200 + "]" * 200
    fields = {key: json.dumps(value) for key, value in ask(max_output_tokens=1).items()}
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
    stream = client.responses.create(**ask(max_output_tokens=1500), stream=True, extra_body={"ignore_eos": True})
    for event in stream:
        if event.type == DELTA:
            break
    stream.close()
    server.until_idle()


def test_a_stream_that_cannot_go_on_says_so(server: Served, client: Any, check: Callable[[str, Any], None]) -> None:
    found = []
    for event in client.responses.create(**ask(max_output_tokens=1500), stream=True, extra_body={"ignore_eos": True}):
        found.append(event)
        if event.type == DELTA:
            abort_all(server)
    assert [event.type for event in found[-2:]] == ["error", "response.failed"]
    assert found[-2].code == "aborted"
    assert found[-1].response.status == "failed"
    assert found[-1].response.error.code == "server_error"
    assert [event.sequence_number for event in found] == list(range(len(found)))
    for event in found[-2:]:
        check(event.type, event.to_dict())
