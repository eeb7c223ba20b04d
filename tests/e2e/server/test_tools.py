"""Calls of tools and reasoning as OpenAI's and Anthropic's own clients see them, in each family's form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.http import MODEL_NAME, TOOLS_TEMPLATE, Served, serve_tiny, write_tiny
from support.openai_api import USER
from support.scripted import ends, saying

from ramet.core.grammar import GrammarSpec
from ramet.core.sampling import SamplingParams
from ramet.server.conversation import Conversation, prepared
from ramet.text.tools.tool import ToolChoice

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")

MARKS = {  # by which a template is known to be of a family
    "hermes": "<tool_call>",
    "qwen3_coder": "<tool_call><parameter=",
    "llama3_json": "<|python_tag|>",
    "pythonic": "[func_name1(",
    "mistral": "[TOOL_CALLS]",
    "granite": "<|tool_call|>",
    "json": "",
}
F = '{"a": 2, "b": [1, "x}"], "c": true}'
HERMES = (
    f'<tool_call>\n{{"name": "f", "arguments": {F}}}\n</tool_call>\n<tool_call>{{"name": "g", "arguments": {{}}}}</tool_call>'
)
WRITTEN = {  # a word, a call of f and one of g
    "hermes": f"Ah.\n{HERMES}",
    "qwen3_coder": (
        'Ah.\n<tool_call>\n<function=f>\n<parameter=a>\n2\n</parameter>\n<parameter=b>\n[1, "x}"]\n</parameter>\n'
        "<parameter=c>\ntrue\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>"
    ),
    "llama3_json": f'Ah.\n<|python_tag|>{{"name": "f", "parameters": {F}}}; {{"name": "g", "parameters": {{}}}}',
    "pythonic": '<|python_tag|>[f(a=2, b=[1, "x}"], c=True), g()]',
    "mistral": f'Ah.\n[TOOL_CALLS] [{{"name": "f", "arguments": {F}}}, {{"name": "g", "arguments": {{}}}}]',
    "granite": f'Ah.\n<|tool_call|>[{{"name": "f", "arguments": {F}}}, {{"name": "g", "arguments": {{}}}}]',
    "json": f'[{{"name": "f", "arguments": {F}}}, {{"name": "g", "arguments": {{}}}}]',
}
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"const": 2}, "b": {"const": [1, "x}"]}, "c": {"type": "boolean"}},
    "required": ["a", "b", "c"],
    "additionalProperties": False,
}
NAMES = ("f", "g")
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "f", "description": "does f", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "g"}},
]
RESPONSES_TOOLS = [{"type": "function", "strict": False, "parameters": None, **tool["function"]} for tool in TOOLS]
ANTHROPIC_TOOLS = [
    {"name": "f", "input_schema": PARAMETERS},
    {"name": "g", "input_schema": {"type": "object", "additionalProperties": False}},
]
THINKING = TOOLS_TEMPLATE.replace("assistant\n{% endif", "assistant\n<think>\n{% endif") + "{# <tool_call> </think> #}"
NEVER = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 2}}, "required": ["a"]}
NAMED = {"type": "function", "function": {"name": "f"}}


@pytest.fixture(scope="module", params=MARKS)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Served]]:
    template = TOOLS_TEMPLATE + "{# " + MARKS[request.param] + " #}"
    with serve_tiny(write_tiny(tmp_path_factory.mktemp(request.param), chat_template=template)) as served:
        yield request.param, served


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A model that calls tools as Hermes does, and whose template opens its thoughts. Its marks are text."""
    folder = write_tiny(tmp_path_factory.mktemp("thinker"), chat_template=THINKING)
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace("think>", "thinks>"))
    with serve_tiny(folder) as served:
        yield served


@dataclass
class Told:
    """One answer of a chat, however it came."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)


def openai_of(served: Served) -> Any:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, _strict_response_validation=True)


def anthropic_of(served: Served) -> Any:
    return anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0, _strict_response_validation=True)


def whole(client: Any, **body: Any) -> Told:
    [choice] = client.chat.completions.create(model=MODEL_NAME, messages=USER, **body).choices
    message = choice.message
    calls = message.tool_calls or []
    assert {call.type for call in calls} <= {"function"}
    return Told(
        message.content or "",
        getattr(message, "reasoning_content", ""),
        [(call.function.name, call.function.arguments) for call in calls],
        [call.id for call in calls],
        [choice.finish_reason],
    )


def streamed(client: Any, **body: Any) -> Told:
    told = Told()
    for chunk in client.chat.completions.create(model=MODEL_NAME, messages=USER, stream=True, **body):
        [choice] = chunk.choices
        told.content += choice.delta.content or ""
        told.reasoning += getattr(choice.delta, "reasoning_content", "")
        for call in choice.delta.tool_calls or []:
            if call.id is not None:
                assert (call.index, call.type) == (len(told.calls), "function")
                told.calls.append((call.function.name, ""))
                told.ids.append(call.id)
            else:
                assert (call.index, call.function.name) == (len(told.calls) - 1, None)
            name, arguments = told.calls[-1]
            told.calls[-1] = (name, arguments + call.function.arguments)
        if choice.finish_reason is not None:
            told.ends.append(choice.finish_reason)
    return told


def both(served: Served, **body: Any) -> Told:
    """The same whole and in a stream, but for the ids."""
    with openai_of(served) as client:
        first, second = whole(client, **body), streamed(client, **body)
    assert len({*first.ids, *second.ids}) == 2 * len(first.calls) == 2 * len(second.calls)
    first.ids = second.ids = []
    assert first == second
    return first


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


# ---- reasoning


def test_thoughts_are_apart(thinker: Served) -> None:
    written = "hm <tool_call>\n</think>\n\n" + WRITTEN["hermes"]
    with saying(thinker, written):
        told = both(thinker, tools=TOOLS)
        assert (told.reasoning, told.content, told.ends) == ("hm <tool_call>", "Ah.", ["tool_calls"])
        assert [call for call, _ in told.calls] == ["f", "g"]
        plain = both(thinker)
        assert (plain.reasoning, plain.content) == ("hm <tool_call>", WRITTEN["hermes"])
        cut = both(thinker, max_tokens=4)
        assert (cut.reasoning, cut.content, cut.ends) == ("hm", "", ["length"])
        with anthropic_of(thinker) as client:
            body = {"model": MODEL_NAME, "max_tokens": 900, "messages": USER, "tools": ANTHROPIC_TOOLS}
            message = client.messages.create(**body, thinking={"type": "enabled", "budget_tokens": 1024})
            assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
            assert message.content[0].thinking == "hm <tool_call>"
            with client.messages.stream(**body) as stream:
                assert [block.type for block in stream.get_final_message().content] == [block.type for block in message.content]
            back = [*USER, {"role": "assistant", "content": message.content}]
            back.append(
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": message.content[2].id, "content": "4"}]}
            )
            assert client.messages.create(**body | {"messages": back}).content[0].type == "thinking"
        with openai_of(thinker) as client:
            asked = {"model": MODEL_NAME, "tools": RESPONSES_TOOLS}
            response = client.responses.create(**asked, input="hi")
            assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
            assert response.output[0].content[0].text == "hm <tool_call>"
            with client.responses.stream(**asked, input="hi") as stream:
                kinds = [event.type for event in stream]
                assert [item.type for item in stream.get_final_response().output] == [item.type for item in response.output]
            assert kinds.count("response.reasoning_text.done") == 1
            sent = [item.model_dump(exclude_none=True) for item in response.output]
            results = [{"type": "function_call_output", "call_id": sent[2]["call_id"], "output": "4"}]
            assert client.responses.create(**asked, input=[*sent, *results]).output[0].type == "reasoning"


def held_to(served: Served, sampling: SamplingParams, **conversation: Any) -> GrammarSpec:
    wanted = Conversation(messages=USER, **conversation)
    ready = served.run(prepared(served.services, wanted, sampling))
    assert ready.sampling.grammar is not None
    return ready.sampling.grammar


def test_a_thinker_thinks_before_what_it_is_held_to(thinker: Served) -> None:
    call = f'<tool_call>\n{{"name": "f", "arguments": {F}}}\n</tool_call>'
    forced = held_to(thinker, SamplingParams(), tools=TOOLS, choice=ToolChoice("required"))
    assert ends(forced, f"hm</think>\n\n{call}") == ends(forced, f"</think>{call}\n{call}") == "whole"
    assert ends(forced, call) == "open"  # it thinks still
    assert ends(forced, "hm</think>\n\nSo") == "refused"
    document = SamplingParams(structured_outputs={"json": {"type": "object", "required": ["x"]}})
    spec = held_to(thinker, document)
    assert (ends(spec, 'hm</think>{"x": 1}'), ends(spec, "hm</think>[")) == ("whole", "refused")


def test_a_document_or_calls(thinker: Served) -> None:
    """A JSON document may be asked for beside tools: the answer is one of the two."""
    document = SamplingParams(structured_outputs={"json": {"type": "object", "required": ["x"]}})
    spec = held_to(thinker, document, tools=TOOLS)
    assert ends(spec, '</think>{"x": 1}') == "whole"
    assert ends(spec, '</think><tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>') == "whole"
    assert ends(spec, "</think>so") == ends(spec, '</think><tool_call>\n{"name": "h') == "refused"


def test_a_document_is_a_schema_and_no_rules_of_a_grammar(thinker: Served) -> None:
    """Beside tools it becomes a part of a grammar, and a text behind it would be one as well."""
    for text in ('{"type": "integer"}\nmore: "x"', '{"type": "integer"} | /.*/', "{"):
        body = {"messages": USER, "tools": TOOLS, "structured_outputs": {"json": text}}
        answer = thinker.call("/v1/chat/completions", body)
        assert (answer.status, answer.json()["error"]["param"]) == (400, "structured_outputs")


def test_strict_tools_and_single_calls_are_kept_to_where_the_model_chooses(thinker: Served, tools_server: Served) -> None:
    strict = [{"type": "function", "function": TOOLS[0]["function"] | {"strict": True}}, TOOLS[1]]
    spec = held_to(thinker, SamplingParams(), tools=strict)
    call = '\n{"name": "f", "arguments": ' + F + "}\n</tool_call>"
    assert ends(spec, "hm</think>just text, 1 < 2") == "whole"
    assert ends(spec, f"hm</think>well <tool_call>{call} and <tool_call>{call} so") == "whole"
    assert ends(spec, 'hm</think>well <tool_call>\n{"name": "f", "arguments": {"a": 3') == "refused"
    single = held_to(thinker, SamplingParams(), tools=TOOLS, choice=ToolChoice(is_parallel=False))
    assert ends(single, f"hm</think>well <tool_call>{call}") == "whole"
    assert ends(single, f"hm</think>well <tool_call>{call} ") == "refused"
    body = {"messages": USER, "tools": strict, "parallel_tool_calls": False, "max_tokens": 1}
    assert "x-ramet-ignored" not in tools_server.call("/v1/chat/completions", body).headers
    bare = held_to(tools_server, SamplingParams(), tools=strict)
    assert ends(bare, '{"name": "f", "arguments": ' + F + "}") == "whole"
    assert ends(bare, '{"name": "f", "arguments": {"a": 3') == "refused"


def test_what_is_strict_and_not_kept_to_is_said(tmp_path: Path) -> None:
    """Mistral's marks as text: nothing that a grammar could wait for."""
    strict = [{"type": "function", "function": TOOLS[0]["function"] | {"strict": True}}]
    with serve_tiny(write_tiny(tmp_path, chat_template=TOOLS_TEMPLATE + "{# [TOOL_CALLS] #}")) as served:
        body = {"messages": USER, "tools": strict, "parallel_tool_calls": False, "max_tokens": 1}
        answer = served.call("/v1/chat/completions", body)
    assert answer.headers["x-ramet-ignored"] == "tools[0].strict, parallel_tool_calls"


def test_other_constraints_are_of_the_whole_answer(thinker: Served) -> None:
    told = both(thinker, tools=TOOLS, extra_body={"structured_outputs": {"choice": ["yes"]}})
    assert (told.content, told.reasoning, told.calls, told.ends) == ("yes", "", [], ["stop"])


def test_thoughts_may_end_in_a_special_token(tmp_path: Path) -> None:
    with serve_tiny(write_tiny(tmp_path, chat_template=THINKING)) as served:
        spec = held_to(served, SamplingParams(), tools=TOOLS, choice=ToolChoice("required", "g"))
        call = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
        assert ends(spec, f"hm</think>\n\n{call}", special="</think>") == "whole"
        assert ends(spec, call, special="</think>") == "open"
        tokenizer = served.services.translator.tokenizer
        bias = {str(tokenizer.token_id("</think>")): 100}  # a model without sense would never come to it by itself
        body = {"messages": USER, "tools": TOOLS, "tool_choice": NAMED, "logit_bias": bias, "max_tokens": 900}
        message = served.call("/v1/chat/completions", body).json()["choices"][0]["message"]
        assert [one["function"]["name"] for one in message["tool_calls"]] == ["f"]
        assert "reasoning_content" not in message
        assert message["content"] is None


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
