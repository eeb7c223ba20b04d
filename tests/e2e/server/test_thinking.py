"""Thoughts beside calls of tools, and what a model that thinks is held to behind them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.http import MODEL_NAME, TOOLS_TEMPLATE, Served, serve_tiny, write_tiny
from support.openai_api import USER
from support.scripted import ends, saying
from support.tool_calls import ANTHROPIC_TOOLS, HERMES_CALLS, NAMED, RESPONSES_TOOLS, TOOLS, F, anthropic_of, both, openai_of

from ramet.core.grammar import GrammarSpec
from ramet.core.sampling import SamplingParams
from ramet.server.conversation import Conversation, prepared
from ramet.text.tools.tool import ToolChoice

CALLS = f"Ah.\n{HERMES_CALLS}"
THINKING = TOOLS_TEMPLATE.replace("assistant\n{% endif", "assistant\n<think>\n{% endif") + "{# <tool_call> </think> #}"


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A model that calls tools as Hermes does, and whose template opens its thoughts. Its marks are text."""
    folder = write_tiny(tmp_path_factory.mktemp("thinker"), chat_template=THINKING)
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace("think>", "thinks>"))
    with serve_tiny(folder) as served:
        yield served


def test_thoughts_are_apart(thinker: Served) -> None:
    written = "hm <tool_call>\n</think>\n\n" + CALLS
    with saying(thinker, written):
        told = both(thinker, tools=TOOLS)
        assert (told.reasoning, told.content, told.ends) == ("hm <tool_call>", "Ah.", ["tool_calls"])
        assert [call for call, _ in told.calls] == ["f", "g"]
        plain = both(thinker)
        assert (plain.reasoning, plain.content) == ("hm <tool_call>", CALLS)
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


def test_thoughts_have_the_marks_of_the_family(tmp_path: Path) -> None:
    """Gemma's, of which the last is a special token here and the first is text."""
    folder = write_tiny(tmp_path, chat_template=TOOLS_TEMPLATE + "{# <|tool_call> <channel|> #}")
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace("</think>", "<channel|>"))
    call = "<|tool_call>call:g{}<tool_call|>"
    with serve_tiny(folder) as served:
        spec = held_to(served, SamplingParams(), tools=TOOLS, choice=ToolChoice("required", "g"))
        assert ends(spec, f"<|channel>thought\nhm<channel|>\n{call}", special="<channel|>") == "whole"
        assert ends(spec, call, special="<channel|>") == "whole"
        assert ends(spec, f"<|channel>x\nhm<channel|>{call}", special="<channel|>") == "refused"
    path.write_text(path.read_text().replace("<channel|>", "<other>"))
    with serve_tiny(folder) as served, saying(served, f"<|channel>thought\nhm\n<channel|>Ah. {call}"):
        told = both(served, tools=TOOLS)
        assert (told.reasoning, told.content, told.calls) == ("hm", "Ah.", [("g", "{}")])
        plain = both(served)
        assert (plain.reasoning, plain.content, plain.calls) == ("hm", f"Ah. {call}", [])
