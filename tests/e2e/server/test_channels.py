"""Answers in channels, as gpt-oss writes them: thoughts, text and calls are apart, with tools in the request or without."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.http import MODEL_NAME, TOOLS_TEMPLATE, Served, serve_tiny, write_tiny
from support.openai_api import USER
from support.scripted import saying

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"const": 2}}}}}
THOUGHT = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    template = TOOLS_TEMPLATE + "{# <|channel|> #}"
    with serve_tiny(write_tiny(tmp_path_factory.mktemp("channels"), chat_template=template)) as one:
        yield one


def chat(served: Served, **body: Any) -> dict[str, Any]:
    answer = httpx.post(f"{served.url}/v1/chat/completions", json={"model": MODEL_NAME, "messages": USER, **body}, timeout=60)
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


@pytest.mark.parametrize("fields", [{}, {"tools": [TOOL]}], ids=["alone", "tools"])
def test_no_mark_is_told(served: Served, fields: dict[str, Any]) -> None:
    with saying(served, f"{THOUGHT}<|channel|>final<|message|>Yes: 1 < 2."):
        message = chat(served, **fields)["message"]
    assert (message["content"], message["reasoning_content"]) == ("Yes: 1 < 2.", "hm")
    assert not message.get("tool_calls")


def test_a_call_ends_the_answer(served: Served) -> None:
    with saying(served, f'{THOUGHT}<|channel|>commentary to=functions.f <|constrain|>json<|message|>{{"a": 2}}'):
        choice = chat(served, tools=[TOOL])
    assert (choice["finish_reason"], choice["message"]["reasoning_content"]) == ("tool_calls", "hm")
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 2}'}


def test_a_document_is_one(served: Served) -> None:
    choice = chat(served, response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": {"a": 2}}}})
    assert json.loads(choice["message"]["content"]) == {"a": 2}
