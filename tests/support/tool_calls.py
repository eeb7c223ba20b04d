"""Two tools as each dialect writes them, and answers as OpenAI's and Anthropic's own clients see them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from support.http import MODEL_NAME, Served
from support.openai_api import USER

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"const": 2}, "b": {"const": [1, "x}"]}, "c": {"type": "boolean"}},
    "required": ["a", "b", "c"],
    "additionalProperties": False,
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "f", "description": "does f", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "g"}},
]
RESPONSES_TOOLS = [{"type": "function", "strict": False, "parameters": None, **tool["function"]} for tool in TOOLS]
ANTHROPIC_TOOLS = [
    {"name": "f", "input_schema": PARAMETERS},
    {"name": "g", "input_schema": {"type": "object", "additionalProperties": False}},
]
NAMED = {"type": "function", "function": {"name": "f"}}
F = '{"a": 2, "b": [1, "x}"], "c": true}'  # arguments of a call
HERMES_CALLS = (  # a call of f and one of g
    f'<tool_call>\n{{"name": "f", "arguments": {F}}}\n</tool_call>\n<tool_call>{{"name": "g", "arguments": {{}}}}</tool_call>'
)


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
