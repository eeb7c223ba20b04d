"""Calls of tools as OpenAI's and Anthropic's own clients see them, in each family's form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.http import MODEL_NAME, TOOLS_TEMPLATE, Served, serve_tiny, write_tiny
from support.openai_api import USER
from support.scripted import saying
from support.tool_calls import (
    ANTHROPIC_TOOLS,
    HERMES_CALLS,
    NAMED,
    RESPONSES_TOOLS,
    TOOLS,
    F,
    anthropic_of,
    both,
    openai_of,
    whole,
)

MARKS = {  # by which a template is known to be of a family
    "hermes": "<tool_call>",
    "qwen3_coder": "<tool_call><parameter=",
    "llama3_json": "<|python_tag|>",
    "pythonic": "[func_name1(",
    "mistral": "[TOOL_CALLS]",
    "granite": "<|tool_call|>",
    "lfm2": "<|tool_call_start|>",
    "minimax_m2": "<minimax:tool_call>",
    "gemma4": "<|tool_call>",
    "json": "",
}
WRITTEN = {  # a word, a call of f and one of g
    "hermes": f"Ah.\n{HERMES_CALLS}",
    "qwen3_coder": (
        'Ah.\n<tool_call>\n<function=f>\n<parameter=a>\n2\n</parameter>\n<parameter=b>\n[1, "x}"]\n</parameter>\n'
        "<parameter=c>\ntrue\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>"
    ),
    "llama3_json": f'Ah.\n<|python_tag|>{{"name": "f", "parameters": {F}}}; {{"name": "g", "parameters": {{}}}}',
    "pythonic": '<|python_tag|>[f(a=2, b=[1, "x}"], c=True), g()]',
    "mistral": f'Ah.\n[TOOL_CALLS] [{{"name": "f", "arguments": {F}}}, {{"name": "g", "arguments": {{}}}}]',
    "granite": f'Ah.\n<|tool_call|>[{{"name": "f", "arguments": {F}}}, {{"name": "g", "arguments": {{}}}}]',
    "lfm2": 'Ah.\n<|tool_call_start|>[f(a=2, b=[1, "x}"], c=True), g()]<|tool_call_end|>',
    "minimax_m2": (
        'Ah.\n<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">2</parameter>\n'
        '<parameter name="b">[1, "x}"]</parameter>\n<parameter name="c">true</parameter>\n</invoke>\n'
        '<invoke name="g">\n</invoke>\n</minimax:tool_call>'
    ),
    "gemma4": 'Ah.\n<|tool_call>call:f{a:2,b:[1,<|"|>x}<|"|>],c:true}<tool_call|><|tool_call>call:g{}<tool_call|>',
    "json": f'[{{"name": "f", "arguments": {F}}}, {{"name": "g", "arguments": {{}}}}]',
}
NAMES = ("f", "g")
NEVER = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 2}}, "required": ["a"]}


@pytest.fixture(scope="module", params=MARKS)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Served]]:
    template = TOOLS_TEMPLATE + "{# " + MARKS[request.param] + " #}"
    with serve_tiny(write_tiny(tmp_path_factory.mktemp(request.param), chat_template=template)) as served:
        yield request.param, served


# ---- scripted


def test_scripted_calls_b122_b125(family: tuple[str, Served]) -> None:
    name, served = family
    with saying(served, WRITTEN[name]):
        told = both(served, tools=TOOLS)
        assert told.content == ("Ah." if WRITTEN[name].startswith("Ah") else "")
        assert [call for call, _ in told.calls] == ["f", "g"]
        assert [json.loads(arguments) for _, arguments in told.calls] == [json.loads(F), {}]
        assert told.ends == ["tool_calls"]
        untold = both(served, tools=TOOLS, tool_choice="none")
        assert (untold.content, untold.calls, untold.ends) == (WRITTEN[name], [], ["stop"])


def test_calls_that_are_cut_end_by_length_b122(family: tuple[str, Served]) -> None:
    name, served = family
    with saying(served, WRITTEN[name]):
        for num_tokens in range(1, len(WRITTEN[name]), 13):
            told = both(served, tools=TOOLS, max_tokens=num_tokens)
            assert told.ends == ["length"]
            if name not in ("json", "llama3_json"):  # a bracket without a mark may be text
                assert "Ah.".startswith(told.content.strip())
            if told.calls:
                assert told.calls[0][0] == "f"
                assert F.replace(" ", "").startswith(told.calls[0][1].replace(" ", ""))


def test_a_stop_string_in_a_call_is_a_stop(family: tuple[str, Served]) -> None:
    name, served = family
    with saying(served, WRITTEN[name]):
        told = both(served, tools=TOOLS, stop=["[1"])
    assert told.ends == ["stop"]
    assert told.calls[0][0] == "f"
    assert told.content in ("", "Ah.")


def test_other_dialects_tell_the_same_calls(family: tuple[str, Served]) -> None:
    name, served = family
    said = ["Ah."] if WRITTEN[name].startswith("Ah") else []
    with saying(served, WRITTEN[name]), anthropic_of(served) as client:
        body = {"model": MODEL_NAME, "max_tokens": 400, "messages": USER, "tools": ANTHROPIC_TOOLS}
        message = client.messages.create(**body)
        assert message.stop_reason == "tool_use"
        assert [block.text for block in message.content if block.type == "text"] == said
        calls = [block for block in message.content if block.type == "tool_use"]
        assert [(call.name, call.input) for call in calls] == [("f", json.loads(F)), ("g", {})]
        with client.messages.stream(**body) as stream:
            final = stream.get_final_message()
        assert final.stop_reason == "tool_use"
        assert [block.model_dump(exclude={"id"}) for block in final.content] == [
            block.model_dump(exclude={"id"}) for block in message.content
        ]
        cut = client.messages.create(**body | {"max_tokens": WRITTEN[name].index("x}")})
        assert (cut.stop_reason, cut.content[-1].type, cut.content[-1].input) == ("max_tokens", "tool_use", {})
    with saying(served, WRITTEN[name]), openai_of(served) as client:
        asked = {"model": MODEL_NAME, "input": "hi", "tools": RESPONSES_TOOLS}
        response = client.responses.create(**asked)
        assert response.status == "completed"
        assert [item.content[0].text for item in response.output if item.type == "message"] == said
        called = [item for item in response.output if item.type == "function_call"]
        assert [(item.name, json.loads(item.arguments)) for item in called] == [("f", json.loads(F)), ("g", {})]
        with client.responses.stream(**asked) as stream:
            events = list(stream)
            final = stream.get_final_response()
        assert [item.type for item in final.output] == [item.type for item in response.output]
        assert [event.arguments for event in events if event.type == "response.function_call_arguments.done"] == [
            item.arguments for item in called
        ]
        deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
        assert "".join(deltas) == "".join(item.arguments for item in called)


def test_several_answers_and_logprobs(family: tuple[str, Served]) -> None:
    name, served = family
    body = {"messages": USER, "tools": TOOLS, "n": 2, "logprobs": True, "stream_options": {"include_usage": True}, "stream": True}
    with saying(served, WRITTEN[name]), openai_of(served) as client:
        chunks = list(client.chat.completions.create(model=MODEL_NAME, **body))
    for index in (0, 1):
        choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["tool_calls"]
        tokens = [token for choice in choices if choice.logprobs for token in choice.logprobs.content]
        assert len(tokens) == len(WRITTEN[name].encode())
        assert {call.index for choice in choices for call in choice.delta.tool_calls or []} == {0, 1}


# ---- held to calls


def test_required_and_named_tools_are_called_b124_b125(family: tuple[str, Served]) -> None:
    """The reason is ``tool_calls`` in each case, whole and in a stream, where OpenAI says ``stop`` for a named tool."""
    _, served = family
    body = {"tools": TOOLS, "seed": 1, "max_tokens": 1500}
    named = both(served, tool_choice=NAMED, **body)
    assert [call for call, _ in named.calls] == ["f"]
    arguments = json.loads(named.calls[0][1])
    assert {**arguments, "c": True} == json.loads(F)
    assert (named.content, named.ends) == ("", ["tool_calls"])
    single = both(served, tool_choice="required", parallel_tool_calls=False, **body)
    assert len(single.calls) == 1
    several = both(served, tool_choice="required", **body)
    assert 1 <= len(several.calls) <= 16
    for call, arguments in (*single.calls, *several.calls):
        assert call in NAMES
        assert json.loads(arguments) == {} if call == "g" else json.loads(arguments)["b"] == [1, "x}"]
    assert single.ends == several.ends == ["tool_calls"]
    assert single.content == several.content == ""


def test_other_dialects_force_calls_too(family: tuple[str, Served]) -> None:
    _, served = family
    with anthropic_of(served) as client:
        body = {"model": MODEL_NAME, "max_tokens": 1500, "messages": USER, "tools": ANTHROPIC_TOOLS}
        for choice, names in (({"type": "tool", "name": "g"}, {"g"}), ({"type": "any"}, {"f", "g"})):
            message = client.messages.create(**body, tool_choice=choice)
            assert message.stop_reason == "tool_use"
            assert {block.name for block in message.content} <= names
    with openai_of(served) as client:
        for choice in ({"type": "function", "name": "g"}, "required"):
            response = client.responses.create(model=MODEL_NAME, input="hi", tools=RESPONSES_TOOLS, tool_choice=choice)
            assert {item.type for item in response.output} == {"function_call"}


def test_a_model_without_a_place_for_tools_is_told_of_them(server: Served) -> None:
    with openai_of(server) as client:
        told = whole(client, tools=TOOLS, tool_choice=NAMED, extra_body={"return_token_ids": True})
        assert [call for call, _ in told.calls] == ["f"]
        answer = client.chat.completions.create(
            model=MODEL_NAME, messages=USER, tools=TOOLS, tool_choice="required", extra_body={"return_token_ids": True}
        )
        prompt = "".join(chr(i) for i in answer.prompt_token_ids if i < 128)
        assert "does f" in prompt.partition("user")[0]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tool_choice": "required"}, "there are no tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "h"}}}, "names 'h', and the tools are f, g"),
        ({"tools": TOOLS, "tool_choice": "must"}, "not 'must'"),
        ({"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}}, "send one of them"),
        ({"tools": [*TOOLS, TOOLS[0]]}, "has the name 'f'"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"not": {}}}}]},
            "the parameters of tools[0] (f), which is strict",
        ),
        (
            {
                "tools": [TOOLS[1], {"type": "function", "function": {"name": "f", "parameters": NEVER, "strict": True}}],
                "tool_choice": "required",
            },
            "the parameters of tools[1] (f): the JSON schema",
        ),
    ],
)
def test_what_cannot_be_called_is_refused(tools_server: Served, fields: dict[str, Any], words: str) -> None:
    for stream in (False, True):
        answer = tools_server.call("/v1/chat/completions", {"messages": USER, "stream": stream, **fields})
        assert answer.status == 400
        assert words in answer.json()["error"]["message"]


def test_what_no_grammar_keeps_to_is_said(tools_server: Served) -> None:
    loose = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "not": {}}}}
    answer = tools_server.call(
        "/v1/chat/completions", {"messages": USER, "tools": [loose], "tool_choice": "required", "max_tokens": 100}
    )
    assert answer.status == 200
    assert answer.headers["x-ramet-ignored"] == "tools[0].parameters"


def test_what_is_strict_and_not_kept_to_is_said(tmp_path: Path) -> None:
    """Mistral's marks as text: nothing that a grammar could wait for."""
    strict = [{"type": "function", "function": TOOLS[0]["function"] | {"strict": True}}]
    with serve_tiny(write_tiny(tmp_path, chat_template=TOOLS_TEMPLATE + "{# [TOOL_CALLS] #}")) as served:
        body = {"messages": USER, "tools": strict, "parallel_tool_calls": False, "max_tokens": 1}
        answer = served.call("/v1/chat/completions", body)
    assert answer.headers["x-ramet-ignored"] == "tools[0].strict, parallel_tool_calls"


def test_special_marks_are_seen_and_put_into_prompts(tmp_path: Path) -> None:
    """A mark that is a special token of the vocabulary is not of its text, so a grammar cannot ask for it: the prompt has it."""
    folder = write_tiny(tmp_path, chat_template="{{ tools }}{{ messages[0]['content'] }}{# [TOOL_CALLS] #}")
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace("<|im_start|>", "[TOOL_CALLS]"))
    with serve_tiny(folder) as served:
        assert served.services.translator.has_special_marks
        body = {"messages": USER, "tools": TOOLS, "tool_choice": NAMED, "return_token_ids": True, "max_tokens": 1500}
        answer = served.call("/v1/chat/completions", body).json()
        assert answer["prompt_token_ids"][-1] == served.services.translator.tokenizer.token_id("[TOOL_CALLS]")
        [call] = answer["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] == "f"
        assert (len(call["id"]), call["id"].isalnum()) == (9, True)
