"""Conversations made ready for an engine: what answers are held to, what is passed over and said so, what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from support.http import MODEL_NAME, TOOLS_TEMPLATE, write_tiny
from support.openai_api import USER
from support.scripted import ends
from support.serving import fake_engine

from ramet.config import ModelConfig, ServerConfig
from ramet.core.grammar import GrammarSpec
from ramet.core.sampling import SamplingParams
from ramet.engine.build import build_text
from ramet.errors import GrammarError, InvalidRequest
from ramet.model.source import open_model
from ramet.server.client import EngineClient
from ramet.server.conversation import Conversation, Prepared, encoded_of, prepared
from ramet.server.metrics import Metrics
from ramet.server.services import Services
from ramet.server.translate import Translator
from ramet.text.tools.tool import ToolChoice

TEXT = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
SHORT = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 1}}, "required": ["a"]}
NOT = {"type": "object", "not": {"required": ["a"]}}
REQUIRED = ToolChoice("required")
HERMES, CODER, LFM, GEMMA, MISTRAL = "<tool_call>", "<parameter=", "<|tool_call_start|>", "<|tool_call>", "[TOOL_CALLS]"
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "x"}}\n</tool_call>'
DOCUMENT = SamplingParams(structured_outputs={"json": {"type": "object", "required": ["x"]}})


def tool(name: str = "f", parameters: Any = TEXT, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


@dataclass
class Edge:
    """A server's text side whose engine is ready, without one."""

    services: Services

    def prepare(self, sampling: SamplingParams | None = None, **conversation: Any) -> Prepared:
        wanted = Conversation(messages=USER, **conversation)
        return asyncio.run(prepared(self.services, wanted, sampling or SamplingParams()))

    def grammar(self, sampling: SamplingParams | None = None, **conversation: Any) -> GrammarSpec:
        spec = self.prepare(sampling, **conversation).sampling.grammar
        assert spec is not None
        return spec


Make = Callable[..., Edge]


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[Make]:
    """One whose template has these marks, and thinks where it has ``</think>``. ``special`` is a token of its vocabulary."""
    made: list[Translator] = []

    def make(marks: str = HERMES, *, prompt_end: str = "", special: str = "", **config: Any) -> Edge:
        source = TOOLS_TEMPLATE.replace("assistant\n{% endif", f"assistant\n{prompt_end}{{% endif") + f"{{# {marks} #}}"
        folder = write_tiny(tmp_path / str(len(made)), chat_template=config.pop("template", source))
        path = folder / "tokenizer.json"  # in which both marks of thoughts are special
        plain = path.read_text().replace("think>", "thinks>")
        path.write_text(plain.replace("</thinks>", special) if special else plain)
        options = ServerConfig(**config)
        text = build_text(open_model(ModelConfig(model=str(folder))))
        made.append(Translator(text, tool_call_parser=options.tool_call_parser, reasoning_parser=options.reasoning_parser))
        assert text.tokenizer is not None
        ready = fake_engine()[1]
        ready = msgspec.structs.replace(ready, limits=replace(ready.limits, vocab_size=text.tokenizer.vocab_size), eos_ids=(256,))
        client = cast(EngineClient, SimpleNamespace(ready=ready))
        return Edge(Services(client, made[-1], Metrics(), options, (MODEL_NAME,), 0, "0.0"))

    yield make
    for translator in made:
        translator.close()


# ---- what nothing is held to


def test_answers_are_free_where_nothing_is_strict(edge: Make) -> None:
    one = edge()
    for conversation in ({}, {"tools": [tool()]}, {"tools": [tool()], "choice": ToolChoice("none")}):
        ready = one.prepare(**conversation)
        assert (ready.sampling.grammar, ready.ignored, ready.opening) == (None, [], "")
    assert one.prepare(choice=ToolChoice(is_parallel=False)).sampling.grammar is None


def test_tools_that_may_not_be_called_are_not_told(edge: Make) -> None:
    one = edge()
    told = one.prepare(tools=[tool("look")]).prompt.text
    untold = one.prepare(tools=[tool("look")], choice=ToolChoice("none")).prompt.text
    assert told is not None
    assert untold is not None
    assert '"look"' in told
    assert "look" not in untold
    wanted = Conversation(messages=USER, tools=[tool("look")])
    assert asyncio.run(encoded_of(one.services.translator, wanted)).text == told


def test_calls_are_read_only_where_there_are_tools(edge: Make) -> None:
    one = edge()
    for tools, kinds in (([tool()], ["call"]), (None, ["text"])):
        parted = one.prepare(tools=tools).parted()
        parted.news(CALL, None)
        assert [part.kind for part in parted.parts] == kinds


# ---- calls that have to come


@pytest.mark.parametrize(
    ("choice", "calls", "held"),
    [
        (REQUIRED, [CALL], "whole"),
        (REQUIRED, [CALL] * 16, "whole"),
        (REQUIRED, [CALL] * 17, "refused"),
        (REQUIRED, [], "open"),
        (REQUIRED, ["So"], "refused"),
        (ToolChoice("required", "f"), [CALL], "whole"),
        (ToolChoice("required", "f"), [CALL] * 2, "refused"),
        (ToolChoice("required", "g"), [CALL], "refused"),
        (ToolChoice("required", is_parallel=False), [CALL] * 2, "refused"),
    ],
)
def test_calls_that_have_to_come(edge: Make, choice: ToolChoice, calls: list[str], held: str) -> None:
    assert ends(edge().grammar(tools=[tool(), tool("g")], choice=choice), "\n".join(calls)) == held


@pytest.mark.parametrize(
    ("marks", "conversation", "sampling", "words"),
    [
        (HERMES, {"choice": REQUIRED}, None, "there are no tools"),
        (HERMES, {"tools": [], "choice": REQUIRED}, None, "there are no tools"),
        (HERMES, {"tools": [tool()], "choice": ToolChoice("required", "h")}, None, "names 'h', and the tools are f"),
        (HERMES, {"tools": [tool(), tool()]}, None, "which tools.0. has too"),
        (HERMES, {"tools": [tool()], "choice": REQUIRED}, DOCUMENT, "send one of them"),
        ("<function=", {"tools": [tool()], "choice": REQUIRED}, None, "see --tool-call-parser"),
    ],
)
def test_what_cannot_be_is_refused(
    edge: Make, marks: str, conversation: dict[str, Any], sampling: SamplingParams | None, words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        edge(marks).prepare(sampling, **conversation)


def test_marks_that_no_grammar_can_spell_are_in_the_prompt(edge: Make) -> None:
    one = edge(MISTRAL + " </think>", special=MISTRAL)
    ready = one.prepare(tools=[tool()], choice=REQUIRED)
    assert ready.opening == MISTRAL
    assert ready.prompt.text is not None
    assert ready.prompt.text.endswith(MISTRAL)
    assert ready.prompt.token_ids[-1] == one.services.translator.tokenizer.token_id(MISTRAL)
    assert ready.form.thinking == "never", "a call has begun"
    assert not ready.sampling.skip_special_tokens, "marks are read"
    parted = ready.parted()
    parted.news('[{"name": "f", "arguments": {}}]', None)
    assert [(part.kind, part.text) for part in parted.parts] == [("call", "{}")]
    assert one.prepare().sampling.skip_special_tokens is False, "it may think"
    assert edge(MISTRAL, special=MISTRAL).prepare().sampling.skip_special_tokens


# ---- what is strict, and what cannot be kept to


@pytest.mark.parametrize(
    ("marks", "parameters", "words"),
    [
        (HERMES, NOT, "the parameters of tools.0. .f., which is strict: .*not is not supported"),
        (CODER, SHORT, "which is strict: maxLength of a, a text cannot be kept to in the form"),
        (GEMMA, {"required": ["a"]}, "required of what is no property cannot be kept to"),
        (CODER, {"properties": {"a": {"$ref": "#"}}}, r"which is strict: \$ref to other places"),
    ],
)
@pytest.mark.parametrize("choice", [ToolChoice(), REQUIRED])
def test_a_strict_tool_is_kept_to_or_refused(
    edge: Make, marks: str, parameters: dict[str, Any], words: str, choice: ToolChoice
) -> None:
    one = edge(marks)
    with pytest.raises(GrammarError, match=words) as raised:
        one.prepare(tools=[tool(parameters=parameters, strict=True)], choice=choice)
    assert raised.value.param == "tools[0].parameters"
    ready = one.prepare(tools=[tool(parameters=parameters)], choice=choice)
    assert ready.ignored == (["tools[0].parameters"] if choice.mode == "required" else [])


def test_of_two_tools_the_strict_one_is_kept_to(edge: Make) -> None:
    spec = edge().grammar(tools=[tool(strict=True), tool("g")])
    for name, written, held in (("f", '{"a": 1', "refused"), ("g", '{"a": 1', "open"), ("h", "", "refused")):
        assert ends(spec, f'So <tool_call>\n{{"name": "{name}", "arguments": {written}') == held
    assert ends(spec, f"So {CALL} and {CALL}") == "whole"
    single = edge().grammar(tools=[tool()], choice=ToolChoice(is_parallel=False))
    assert [ends(single, text) for text in ("So", f"So {CALL}", f"So {CALL} ")] == ["whole", "whole", "refused"]


def test_what_no_grammar_can_wait_for_is_said(edge: Make) -> None:
    ready = edge(MISTRAL).prepare(tools=[tool("g"), tool(strict=True)], choice=ToolChoice(is_parallel=False))
    assert (ready.sampling.grammar, ready.ignored) == (None, ["tools[1].strict", "parallel_tool_calls"])


def test_a_tool_that_nothing_can_be_made_of_is_named(edge: Make) -> None:
    never = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 2}}, "required": ["a"]}
    with pytest.raises(GrammarError, match=r"the parameters of tools\[1\] \(g\)") as raised:
        edge().prepare(tools=[tool(), tool("g", never)], choice=REQUIRED)
    assert raised.value.param == "tools[1].parameters"


# ---- documents and other constraints


@pytest.mark.parametrize("marks", [HERMES, "{"])
def test_a_document_may_be_asked_for_beside_tools(edge: Make, marks: str) -> None:
    spec = edge(marks).grammar(DOCUMENT, tools=[tool()])
    assert ends(spec, '{"x": 1}') == "whole"
    assert ends(spec, "So") == ends(spec, "[") == "refused"
    assert ends(spec, CALL) == ("whole" if marks == HERMES else "refused")
    assert ends(edge(marks).grammar(DOCUMENT), '{"x": 1}') == "whole"


def test_what_is_no_schema_is_no_rule_of_a_grammar(edge: Make) -> None:
    for text in ('{"type": "integer"}\nmore: "x"', "{"):
        with pytest.raises(GrammarError) as raised:
            edge().prepare(SamplingParams(structured_outputs={"json": text}), tools=[tool(strict=True)])
        assert raised.value.param == "structured_outputs"


def test_other_constraints_are_of_all_the_answer(edge: Make) -> None:
    ready = edge(HERMES + "</think>").prepare(SamplingParams(structured_outputs={"choice": ["yes"]}), tools=[tool(strict=True)])
    assert ready.form.is_text
    assert ready.sampling.grammar is not None
    assert (ready.sampling.grammar.kind, ready.sampling.skip_special_tokens) == ("choice", True)


# ---- thoughts


@pytest.mark.parametrize(
    ("marks", "prompt_end", "special", "thoughts", "others"),
    [
        (
            HERMES + "</think>",
            "",
            "",
            ["", "<think>hm</think>", "<think>hm <tool_call></think>\n\n"],
            ["hm</think>", "<think>hm"],
        ),
        (HERMES + "</think>", "<think>\n", "", ["hm</think>", "</think>\n"], ["", "<think>hm"]),
        (HERMES + "</think>", "<think>\n\n</think>\n\n", "", [""], ["<think>hm</think>", "</think>"]),
        (HERMES + "</think>", "", "</think>", ["", "<think>hm</think>"], ["<think></ think>"]),
        (HERMES, "", "", [""], ["<think>hm</think>"]),
        (HERMES + "</seed:think>", "", "", [""], ["<seed:think>hm</seed:think>"]),
    ],
)
def test_thoughts_come_first(
    edge: Make, marks: str, prompt_end: str, special: str, thoughts: list[str], others: list[str]
) -> None:
    one = edge(marks, prompt_end=prompt_end, special=special)
    spec = one.grammar(tools=[tool()], choice=REQUIRED)
    for thought in thoughts:
        assert (thought, ends(spec, thought + CALL, special or "<mark>")) == (thought, "whole")
        parted = one.prepare(tools=[tool()], choice=REQUIRED).parted()
        parted.news(thought + CALL, None)
        kinds = [part.kind for part in parted.parts]
        assert kinds == (["reasoning", "call"] if "hm" in thought else ["call"])
    for other in others:
        assert ends(spec, other + CALL, special or "<mark>") != "whole", other
    assert ends(one.grammar(DOCUMENT), thoughts[-1] + '{"x": 1}', special or "<mark>") == "whole"


def test_a_parser_that_is_named_takes_the_answer_for_thought(edge: Make) -> None:
    one = edge(reasoning_parser="deepseek_r1")
    assert ends(one.grammar(tools=[tool()], choice=REQUIRED), "hm</think>" + CALL) == "whole"
    assert one.prepare().sampling.grammar is None
    parted = one.prepare().parted()
    parted.news("hm</think>so", None)
    assert [(part.kind, part.text) for part in parted.parts] == [("reasoning", "hm"), ("text", "so")]
    assert edge(HERMES + "</think>", reasoning_parser="none").prepare().form.is_text
