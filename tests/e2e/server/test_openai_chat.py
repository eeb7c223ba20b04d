"""``/v1/chat/completions`` over a tiny model, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.http import MODEL_NAME, Served
from support.openai_api import CHAT, EOS_ID, LETTERS, TEXT, USER, OpenAIClient, rendered, schema_check

USER_IDS = "<257>user\nhi<258>\n"
OPEN = "<257>assistant\n"


@pytest.fixture
def client(server: Served) -> OpenAIClient:
    return OpenAIClient(server)


@pytest.fixture
def tools_client(tools_server: Served) -> OpenAIClient:
    return OpenAIClient(tools_server)


def test_answers_are_held_against_openais_schema() -> None:
    """All answers of these tests are; this one says where they are not."""
    if schema_check("CreateChatCompletionResponse") is None:
        pytest.skip("OpenAI's schema (shared/data/openai-openapi) or jsonschema is not here")
    with pytest.raises(Exception, match="choices"):
        schema_check("CreateChatCompletionResponse")({"id": "1"})  # type: ignore[misc]


def test_an_answer(client: OpenAIClient) -> None:
    answer = client.chat(max_tokens=5, seed=3, allowed_token_ids=LETTERS, model=MODEL_NAME)
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == MODEL_NAME
    assert answer["system_fingerprint"].startswith("ramet-")
    [choice] = answer["choices"]
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "length", None)
    assert choice["message"]["role"] == "assistant"
    assert len(choice["message"]["content"]) == 5
    usage = answer["usage"]
    assert (usage["completion_tokens"], usage["total_tokens"]) == (5, usage["prompt_tokens"] + 5)
    assert client.chat(max_tokens=5, seed=3, allowed_token_ids=LETTERS)["choices"] == [choice]  # the seed's, cached or not


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"n": 3, "temperature": 1.3},
        {"logprobs": True, "top_logprobs": 3},
        {"logprobs": True, "n": 2},
        {"allowed_token_ids": [0xE2, 0x82, 0xAC, 97], "logprobs": True},
        {"temperature": 0, "stop": ["e", "st"]},
    ],
    ids=str,
)
def test_streams_say_what_whole_answers_do(client: OpenAIClient, body: dict[str, Any]) -> None:
    answer = client.both_ways(CHAT, **{"messages": USER, "seed": 5, "max_tokens": 24, "allowed_token_ids": LETTERS, **body})
    assert [choice["index"] for choice in answer["choices"]] == list(range(body.get("n", 1)))


def test_logprobs_of_text_that_is_held_back_are_not_lost(client: OpenAIClient) -> None:
    """A token whose text has to wait has its logprobs told all the same; without logprobs it makes no chunk."""
    body = {"messages": USER, "seed": 5, "max_tokens": 9, "allowed_token_ids": [122], "stop": ["z" * 20]}
    whole = client.chat(**body, logprobs=True)["choices"][0]
    found = client.stream(CHAT, **body, logprobs=True)
    content = [one for chunk in found for one in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert content == whole["logprobs"]["content"]
    assert len(content) == 9
    assert len(client.stream(CHAT, **body)) == 3  # the role, all the text, the end


def test_seeds_may_be_negative(client: OpenAIClient) -> None:
    body = {"max_tokens": 6, "allowed_token_ids": LETTERS, "temperature": 2}
    said = [client.chat(seed=seed, **body)["choices"][0]["message"]["content"] for seed in (-1, 2**64 - 1, -2, -(2**63))]
    assert said[0] == said[1] != said[2]
    assert client.refused(CHAT, {"messages": USER, "seed": -(2**63) - 1})["param"] == "seed"


def test_a_stream_begins_with_roles_and_ends_with_ends(client: OpenAIClient) -> None:
    found = client.stream(CHAT, messages=USER, n=2, seed=1, max_tokens=6, allowed_token_ids=LETTERS)
    assert [chunk["choices"][0]["delta"] for chunk in found[:2]] == [{"role": "assistant", "content": ""}] * 2
    assert [chunk["choices"][0]["index"] for chunk in found[:2]] == [0, 1]
    ends = [chunk["choices"][0] for chunk in found if chunk["choices"][0]["finish_reason"]]
    assert sorted(end["index"] for end in ends) == [0, 1]
    assert all(end["delta"] == {} for end in ends)
    assert not any("usage" in chunk for chunk in found)


def test_usage_in_streams_where_it_is_asked_for(client: OpenAIClient) -> None:
    body = {"messages": USER, "seed": 1, "max_tokens": 6, "allowed_token_ids": LETTERS}
    *before, last = client.stream(CHAT, **body, stream_options={"include_usage": True})
    assert all(chunk["usage"] is None for chunk in before)
    assert last["usage"]["completion_tokens"] == 6
    *before, last = client.stream(CHAT, **body, stream_options={"include_usage": True, "continuous_usage_stats": True})
    counts = [chunk["usage"]["completion_tokens"] for chunk in before]
    assert counts == sorted(counts)
    assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + 6
    error = client.refused(CHAT, body | {"stream_options": {"include_usage": True}})
    assert error["param"] == "stream_options"


def test_without_max_tokens_all_that_fits_is_meant(client: OpenAIClient) -> None:
    short = client.chat(stop_token_ids=LETTERS, allowed_token_ids=LETTERS)
    assert short["choices"][0]["finish_reason"] == "stop"
    assert short["choices"][0]["stop_reason"] in LETTERS
    long = client.chat(messages=[{"role": "user", "content": "x" * 1990}], ignore_eos=True)
    assert long["usage"]["total_tokens"] == 2048


def test_max_tokens_has_three_names(client: OpenAIClient) -> None:
    for body in (
        {"max_tokens": 2},
        {"max_completion_tokens": 2},
        {"max_tokens": 2, "max_completion_tokens": 2},
        {"n_predict": 2},
    ):
        assert client.chat(ignore_eos=True, **body)["usage"]["completion_tokens"] == 2
    error = client.refused(CHAT, {"messages": USER, "max_tokens": 2, "max_completion_tokens": 3})
    assert "names for one thing" in error["message"]
    assert (
        client.refused(CHAT, {"messages": USER, "repetition_penalty": 1.0, "repeat_penalty": 1.1})["param"]
        == "repetition_penalty"
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"use_beam_search": True},
        {"prompt_embeds": "AAAA"},
        {"truncate_prompt_tokens": 5},
        {"bad_words": ["no"]},
        {"mirostat": 2},
        {"best_of": 2},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_would_change_the_answer_is_refused_by_name(client: OpenAIClient, fields: dict[str, Any]) -> None:
    [name] = fields
    assert client.refused(CHAT, {"messages": USER, **fields})["param"] == name
    assert client.refused(TEXT, {"prompt": "a", **fields})["param"] == name
    nothing = {"best_of": 1} if name == "best_of" else {name: type(fields[name])()}
    assert client.chat(max_tokens=1, **nothing)["choices"]


def test_roles_and_the_open_end(client: OpenAIClient) -> None:
    def prompt(messages: Any, **body: Any) -> str:
        return rendered(client.chat(messages=messages, max_tokens=1, return_token_ids=True, **body))

    assert prompt(USER) == USER_IDS + OPEN
    assert prompt(USER, add_generation_prompt=False) == USER_IDS
    developer = [{"role": "developer", "content": "Be kind"}, *USER]  # a role that this template does not know
    assert prompt(developer) == "<257>system\nBe kind<258>\n" + USER_IDS + OPEN
    begun = [*USER, {"role": "assistant", "content": "I th"}]
    assert prompt(begun, continue_final_message=True) == USER_IDS + OPEN + "I th"
    assert prompt(begun, continue_final_message=True, add_generation_prompt=False) == USER_IDS + OPEN + "I th"
    body = {"messages": begun, "continue_final_message": True, "add_generation_prompt": True}
    assert "exclude each other" in client.refused(CHAT, body)["message"]


def test_tools_reach_a_template_that_has_a_place_for_them(client: OpenAIClient, tools_client: OpenAIClient) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    error = client.refused(CHAT, {"messages": USER, "tools": [tool]})
    assert "no place for tools" in error["message"]
    assert "--tool-call-parser" in error["message"]  # what to do about it
    assert error["param"] == "tools"
    body = {"max_tokens": 1, "return_token_ids": True, "parallel_tool_calls": True}
    told = rendered(tools_client.chat(tools=[tool], tool_choice="auto", **body))
    assert told.startswith("<257>tools\n[")
    assert '"name": "look"' in told
    assert rendered(tools_client.chat(tools=[tool], tool_choice="none", **body)) == USER_IDS + OPEN
    for choice in ("any", {"type": "function", "function": {"name": "leap"}}, {"type": "function", "name": "look"}):
        error = tools_client.refused(CHAT, {"messages": USER, "tools": [tool], "tool_choice": choice})
        assert error["param"] == "tool_choice"


def test_calls_and_results_reach_the_prompt(tools_client: OpenAIClient) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "sky"}'}}
    conversation = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "blue"}]},
    ]
    prompt = rendered(tools_client.chat(messages=conversation, max_tokens=1, return_token_ids=True))
    assert prompt.count("look") == prompt.count("sky") == prompt.count("blue") == 1
    assert "<257>tool\nblue<258>" in prompt


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "alloy", "format": "wav"}}, "audio"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages[0].content"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"request_id": ""}, "request_id"),
        ({"request_id": "x" * 257}, "request_id"),
        ({"priority": 2**40}, "priority"),
        ({"n": 0}, "n"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"temperature": -1}, "temperature"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"stop": [""]}, "stop"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_refused_and_by_which_name(client: OpenAIClient, fields: dict[str, Any], param: str) -> None:
    assert client.refused(CHAT, {"messages": USER, **fields})["param"] == param


def test_what_is_taken_without_a_meaning(client: OpenAIClient) -> None:
    taken = {"user": "u", "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "prompt_cache_key": "k"}
    body = {"messages": USER, "max_tokens": 1, "modalities": ["text"], "response_format": {"type": "text"}, "model": "", **taken}
    response = client.post(CHAT, body)
    assert response.status_code == 200, response.text
    assert "x-ramet-ignored" not in response.headers


def test_unknown_fields_are_named_in_a_header(client: OpenAIClient) -> None:
    for path, start in ((CHAT, {"messages": USER}), (TEXT, {"prompt": "hi"})):
        for stream in (False, True):
            body = {**start, "max_tokens": 1, "stream": stream, "best_guess": 1, "naïve\r\nx: y": 2}
            assert client.post(path, body).headers["x-ramet-ignored"] == "best_guess, na?ve??x??y"
    many = {f"field{i}": 0 for i in range(40)} | {"y" * 5000: 0}
    header = client.post(CHAT, {"messages": USER, "max_tokens": 1, **many}).headers["x-ramet-ignored"]
    assert header.endswith("field15, and 25 more")


def test_timings(client: OpenAIClient) -> None:
    body = {"messages": USER, "max_tokens": 8, "ignore_eos": True, "timings": True}
    told = [client.chat(**body)["timings"], client.stream(CHAT, **body)[-1]["timings"]]
    for timings in told:
        assert timings["predicted_n"] == 8
        assert timings["prompt_n"] == 21
        assert 0 <= timings["cached_n"] <= 20
        assert min(timings["prefill_ms"], timings["decode_ms"]) > 0
        assert timings["queue_ms"] >= 0
        assert timings["predicted_per_second"] == pytest.approx(7000 / timings["decode_ms"], rel=0.01)


def test_prompt_logprobs(client: OpenAIClient) -> None:
    answer = client.chat(max_tokens=1, prompt_logprobs=2, return_token_ids=True)
    first, *others = answer["prompt_logprobs"]
    ids = answer["prompt_token_ids"]
    assert first is None
    assert len(others) == len(ids) - 1
    for token_id, one in zip(ids[1:], others, strict=True):
        assert next(iter(one)) == str(token_id)
        assert {"logprob", "rank", "decoded_token"} == set(one[str(token_id)])
        assert 2 <= len(one) <= 3


def test_a_request_is_found_by_its_names(server: Served) -> None:
    body = {"messages": USER, "max_tokens": 1900, "ignore_eos": True, "stream": True, "request_id": "mine", "priority": 3}
    headers = {"content-type": "application/json", "x-request-id": "theirs"}
    with server.http.stream("POST", CHAT, content=json.dumps(body).encode(), headers=headers) as response:
        assert response.headers["x-request-id"] == "theirs"
        [generation] = server.services.client.generations
        assert generation.names == {"mine", "theirs"}
        assert generation.request.priority == 3
        server.run(_abort(generation))
        told = response.read().decode()
    last = json.loads(told.rstrip().rpartition("data: ")[2])
    assert last["error"]["code"] == "aborted"
    assert "[DONE]" not in told
    server.until_idle()


async def _abort(generation: Any) -> None:
    generation.abort()


def test_an_end_by_eos_is_a_stop(client: OpenAIClient) -> None:
    [choice] = client.chat(allowed_token_ids=[EOS_ID])["choices"]
    assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == ("", "stop", None)


SCHEMA = {
    "type": "object",
    "properties": {"digit": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["digit"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "digit", "strict": True, "schema": SCHEMA}}


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": FORM},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"structured_outputs": {"json": SCHEMA}},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
    ],
    ids=lambda fields: str(fields)[:40],
)
def test_answers_in_the_form_that_was_asked_for(client: OpenAIClient, fields: dict[str, Any]) -> None:
    choice = client.both_ways(CHAT, messages=USER, seed=2, max_tokens=200, **fields)["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert 0 <= json.loads(choice["message"]["content"])["digit"] <= 9


def test_other_forms(client: OpenAIClient) -> None:
    for fields, expected in (
        ({"guided_choice": ["yes, of course"]}, "yes, of course"),
        ({"guided_regex": "(ab){3}"}, "ababab"),
        ({"structured_outputs": {"choice": ["no"]}}, "no"),
        ({"guided_grammar": 'root ::= "x" "y"'}, "xy"),
    ):
        assert client.chat(max_tokens=50, **fields)["choices"][0]["message"]["content"] == expected
        assert client.text("go", max_tokens=50, **fields)["choices"][0]["text"] == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "yaml"}}, "response_format"),
        ({"response_format": {}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format"),
        ({"response_format": FORM, "guided_regex": "a"}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": [1]}, "guided_choice[0]"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"structured_outputs": {"jsn": {}}}, "structured_outputs"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_forms_that_are_none(client: OpenAIClient, fields: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        assert client.refused(CHAT, {"messages": USER, "stream": stream, **fields})["param"] == param


def test_forms_that_cannot_be_compiled(client: OpenAIClient) -> None:
    for fields in ({"guided_regex": "a("}, {"guided_json": {"type": "strin"}}, {"guided_grammar": "root ::= nothing"}):
        for stream in (False, True):
            assert client.refused(CHAT, {"messages": USER, "stream": stream, **fields})["code"] == "invalid_value"


def test_a_role_that_is_none_is_refused_by_name(client: OpenAIClient) -> None:
    refused = client.refused(CHAT, {"messages": [{"role": "user", "content": "a"}, {"role": "usr", "content": "b"}]})
    assert refused["param"] == "messages[1].role"
    assert "system, developer, user, assistant, tool" in refused["message"]
