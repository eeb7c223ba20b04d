"""A client of the two OpenAI endpoints that holds every answer and every chunk against OpenAI's own schema, where it is there."""

from __future__ import annotations

import functools
import gzip
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from support.http import Served, chunks, texts

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "hi"}]
LETTERS = list(range(97, 123))  # the tiny model's tokens are bytes
EOS_ID = 256

Check = Callable[[Any], None]


@functools.cache
def schema_check(name: str) -> Check | None:
    """What raises where a value is not of that schema; None without OpenAI's schema, or without the package that reads it."""
    shared = Path(os.environ.get("RAMET_SHARED") or Path(__file__).resolve().parents[3] / "shared")
    path = shared / "data" / "openai-openapi" / "openapi.serving-slice.json.gz"
    try:
        import jsonschema
    except ModuleNotFoundError:
        return None
    if not path.exists():
        return None
    document = _nulls_allowed(json.loads(gzip.decompress(path.read_bytes())))
    schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    validator = jsonschema.Draft202012Validator(schema)
    return validator.validate  # type: ignore[no-any-return]


def _nulls_allowed(node: Any) -> Any:
    """``nullable`` is of an older OpenAPI than the document says it is of; here it is what it means."""
    if isinstance(node, list):
        return [_nulls_allowed(item) for item in node]
    if not isinstance(node, dict):
        return node
    told = {key: _nulls_allowed(value) for key, value in node.items()}
    return {"anyOf": [told, {"type": "null"}]} if node.get("nullable") is True else told


def check_answer(path: str, answer: Mapping[str, Any]) -> None:
    if path == CHAT:
        check = schema_check("CreateChatCompletionResponse")
    else:
        check, answer = schema_check("CreateCompletionResponse"), _as_told(answer)
    if check is not None:
        check(answer)


def check_chunk(path: str, chunk: Mapping[str, Any]) -> None:
    if path == CHAT:
        check = schema_check("CreateChatCompletionStreamResponse")
    else:
        check, chunk = schema_check("CreateCompletionResponse"), _as_told(chunk)
    if check is not None:
        check(chunk)


def _as_told(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The old form without its nulls, which OpenAI sends and its schema does not know: the end of a choice that goes on, the
    usage of a chunk before the last, and the logprobs of the first token of a prompt.
    """
    told = json.loads(json.dumps(answer))
    if told.get("usage", 0) is None:
        del told["usage"]
    for choice in told["choices"]:
        choice["finish_reason"] = choice["finish_reason"] or "stop"
        for name in ("token_logprobs", "top_logprobs"):
            if choice["logprobs"] is not None and choice["logprobs"][name][:1] == [None]:
                del choice["logprobs"][name][0]
    return dict(told)


@dataclass(frozen=True)
class OpenAIClient:
    server: Served

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        return self.server.post(path, body, **headers)

    def whole(self, path: str, **body: Any) -> dict[str, Any]:
        response = self.post(path, body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        check_answer(path, answer)
        return answer

    def stream(self, path: str, **body: Any) -> list[dict[str, Any]]:
        response = self.post(path, body | {"stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        found = chunks(response.text)
        for chunk in found:
            check_chunk(path, chunk)
        assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in found}) == 1
        return found

    def chat(self, messages: Any = None, **body: Any) -> dict[str, Any]:
        return self.whole(CHAT, messages=USER if messages is None else messages, **body)

    def text(self, prompt: Any, **body: Any) -> dict[str, Any]:
        return self.whole(TEXT, prompt=prompt, **body)

    def refused(self, path: str, body: Any, status: int = 400) -> dict[str, Any]:
        """The error of a request that has to be refused, in OpenAI's shape."""
        response = self.post(path, body)
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == "application/json"
        error: dict[str, Any] = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        return error

    def both_ways(self, path: str, **body: Any) -> dict[str, Any]:
        """The whole answer, after its stream has said the same: texts, ids, logprobs, ends, and the usage."""
        answer = self.whole(path, **body, return_token_ids=True)
        found = self.stream(path, **body, return_token_ids=True, stream_options={"include_usage": True})
        assert found[-1]["choices"] == []
        cached = [one["usage"].pop("prompt_tokens_details")["cached_tokens"] for one in (answer, found[-1])]
        assert 0 <= cached[0] <= answer["usage"]["prompt_tokens"]
        assert found[-1]["usage"] == answer["usage"]
        for choice in answer["choices"]:
            said = [one for chunk in found for one in chunk["choices"] if one["index"] == choice["index"]]
            whole = choice["text"] if path == TEXT else choice["message"]["content"]
            assert texts(found, choice["index"]) == whole
            assert [i for one in said for i in one.get("token_ids", ())] == choice["token_ids"]
            assert [one["finish_reason"] for one in said if one["finish_reason"]] == [choice["finish_reason"]]
            assert said[-1]["finish_reason"] == choice["finish_reason"]
            assert said[-1].get("stop_reason") == choice["stop_reason"]
            assert _joined([one["logprobs"] for one in said if one["logprobs"]]) == choice["logprobs"]
        return answer


def _joined(pieces: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The logprobs of a choice's chunks, put together."""
    if not pieces:
        return None
    return {key: None if first is None else [one for p in pieces for one in p[key]] for key, first in pieces[0].items()}


def rendered(answer: Mapping[str, Any]) -> str:
    """The prompt that was made of a conversation, by its token ids."""
    return "".join(chr(i) if i < 128 else f"<{i}>" for i in answer["prompt_token_ids"])
