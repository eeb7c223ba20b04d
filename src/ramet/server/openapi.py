"""``GET /openapi.json``: what the endpoints take and give, made of their routes and of the structs that decode and encode it.

A schema has the types; what values are good (a temperature, a stop string) is said by the error of a request that has others.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ramet.server import admin, completions, messages, native, openai_chat, responses
from ramet.server.errors import Dialect, dialect_of
from ramet.server.schemas.admin import (
    Aborted,
    AbortRequest,
    AdapterLoaded,
    AdapterUnloaded,
    Flushed,
    FlushRequest,
    Health,
    LoadAdapterRequest,
    Model,
    Models,
    ServerInfo,
    UnloadAdapterRequest,
    Version,
    Welcome,
)
from ramet.server.schemas.anthropic import (
    BlockDelta,
    BlockStart,
    BlockStop,
    ConversationRequest,
    MessageDelta,
    MessageReply,
    MessageRequest,
    MessageStart,
    MessageStop,
    Ping,
    TokenCount,
)
from ramet.server.schemas.native import (
    Detokenized,
    DetokenizeRequest,
    GenerateAnswer,
    GenerateRequest,
    Tokenized,
    TokenizeRequest,
)
from ramet.server.schemas.openai import ChatChunk, ChatCompletion, ChatRequest, TextCompletion, TextRequest
from ramet.server.schemas.responses import ResponseRequest
from ramet.server.schemas.responses_told import (
    ArgumentsDelta,
    ArgumentsDone,
    ErrorEvent,
    ItemEvent,
    PartEvent,
    ReasoningDelta,
    ReasoningDone,
    ResponseEvent,
    ResponseReply,
    TextDelta,
    TextDone,
)
from ramet.server.services import services_of

__all__ = ["document", "openapi_route"]

_REFS = "#/components/schemas/{name}"


@dataclass(frozen=True, slots=True)
class _Told:
    """Of one endpoint: what its body decodes to, and what its answer is, or the events of it where one may ask for those."""

    about: str
    gives: Any
    takes: Any = None
    example: Any = None
    events: tuple[Any, ...] = ()
    needs_body: bool = True
    flags: tuple[str, ...] = ()

    @property
    def kinds(self) -> tuple[Any, ...]:
        return (self.gives, *self.events, *(() if self.takes is None else (self.takes,)))


_HI = [{"role": "user", "content": "hi"}]
_ADAPTER = {"lora_name": "mine", "lora_path": "folder"}
_ENDPOINTS = {
    admin.welcome: _Told("What this server is.", Welcome),
    admin.health: _Told("Whether requests are taken; 503, with a reason, where not.", Health),
    admin.metrics: _Told("Prometheus's text format.", str),
    admin.version: _Told("The server's version.", Version),
    admin.server_info: _Told("State, sizes and numbers.", ServerInfo),
    admin.flush_cache: _Told(
        "Forget all cached KV, and how earlier answers were written.", Flushed, FlushRequest, needs_body=False, flags=("force",)
    ),
    admin.abort_request: _Told("End requests early.", Aborted, AbortRequest, {"rid": "mine"}),
    admin.load_lora_adapter: _Told("Load an adapter of the model.", AdapterLoaded, LoadAdapterRequest, _ADAPTER),
    admin.unload_lora_adapter: _Told("Take an adapter out.", AdapterUnloaded, UnloadAdapterRequest, {"lora_name": "mine"}),
    admin.list_models: _Told("The model, by each of its names, and its adapters.", Models),
    admin.get_model: _Told("The model, by one of its names.", Model),
    openai_chat.chat_completions: _Told(
        "OpenAI's chat completions.", ChatCompletion, ChatRequest, {"messages": _HI, "max_tokens": 8}, (ChatChunk,)
    ),
    completions.completions: _Told(
        "OpenAI's completions.", TextCompletion, TextRequest, {"prompt": "hi", "max_tokens": 8}, (TextCompletion,)
    ),
    responses.create_response: _Told(
        "OpenAI's responses; none is stored.",
        ResponseReply,
        ResponseRequest,
        {"input": "hi", "max_output_tokens": 8},
        (
            *(ResponseEvent, ItemEvent, PartEvent, TextDelta, TextDone, ErrorEvent),
            *(ReasoningDelta, ReasoningDone, ArgumentsDelta, ArgumentsDone),
        ),
    ),
    messages.create_message: _Told(
        "Anthropic's messages.",
        MessageReply,
        MessageRequest,
        {"messages": _HI, "max_tokens": 8},
        (MessageStart, BlockStart, Ping, BlockDelta, BlockStop, MessageDelta, MessageStop),
    ),
    messages.count_tokens: _Told("The tokens of the same message.", TokenCount, ConversationRequest, {"messages": _HI}),
    native.tokenize: _Told("The token ids of a text or a conversation.", Tokenized, TokenizeRequest, {"prompt": "hi"}),
    native.detokenize: _Told("The text of token ids.", Detokenized, DetokenizeRequest, {"tokens": [1, 2]}),
    native.generate: _Told(
        "SGLang's generate.",
        GenerateAnswer | list[GenerateAnswer],
        GenerateRequest,
        {"text": "hi", "sampling_params": {"max_new_tokens": 8}},
        (GenerateAnswer,),
    ),
}

_TEXT_PART = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
}
_CHAT_MESSAGE = {  # templates take these as they are, so no struct has them; ``ramet.text.messages`` is what checks them
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"type": "string", "minLength": 1},  # those that the model's template knows
        "content": {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": _TEXT_PART}]},
    },
}
_TEXT = {"type": "string"}
_FLAG = {"enum": ["", "true", "false", "1", "0"]}
_OPENAI_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": _TEXT,
                "type": _TEXT,
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
            "additionalProperties": False,
        }
    },
    "additionalProperties": False,
}
_ANTHROPIC_ERROR = {
    "type": "object",
    "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"const": "error"},
        "error": {"type": "object", "required": ["type", "message"], "properties": {"type": _TEXT, "message": _TEXT}},
        "request_id": _TEXT,
    },
    "additionalProperties": False,
}


def openapi_route(described: Sequence[Route]) -> Route:
    """The route of the document about these routes. It is for servers without keys alone (T34)."""

    @functools.cache
    def body(version: str, model_names: tuple[str, ...]) -> bytes:
        return msgspec.json.encode(document(described, version, model_names))

    async def openapi(request: Request) -> Response:
        services = services_of(request.scope)
        told = await services.translator.run(lambda: body(services.version, services.model_names))
        return Response(told, media_type="application/json")

    return Route("/openapi.json", openapi, methods=["GET"])


def document(described: Sequence[Route], version: str, model_names: Sequence[str]) -> dict[str, Any]:
    """OpenAPI 3.2, of routes that are all told of here: a ``KeyError`` for one that is not."""
    told = [(route, _ENDPOINTS[route.endpoint]) for route in described]
    kinds = list(dict.fromkeys(kind for _, one in told for kind in one.kinds))
    refs, schemas = msgspec.json.schema_components(kinds, ref_template=_REFS)
    of_kind = dict(zip(kinds, refs, strict=True))
    schemas["ChatRequest"]["properties"]["messages"] = {"type": "array", "minItems": 1, "items": _CHAT_MESSAGE}
    model = {"enum": list(model_names)}
    for _, one in told:
        if one.takes is not None and "model" in one.takes.__struct_fields__:
            schemas[one.takes.__name__]["properties"]["model"] = {"anyOf": [model, {"type": "null"}]}
    paths = {_path(route): _operation(route, one, of_kind, model) for route, one in told}
    errors = {"Error": _OPENAI_ERROR, "AnthropicError": _ANTHROPIC_ERROR}
    return {
        "openapi": "3.2.0",
        "info": {"title": "ramet", "version": version},
        "paths": paths,
        "components": {"schemas": schemas | errors},
    }


def _path(route: Route) -> str:
    return route.path.replace(":path}", "}")


def _operation(route: Route, told: _Told, of_kind: dict[Any, Any], model: dict[str, Any]) -> dict[str, Any]:
    path = _path(route)
    (method,) = (route.methods or set()) - {"HEAD"}
    error = "AnthropicError" if dialect_of(path) is Dialect.ANTHROPIC else "Error"
    answer = {"text/plain" if told.gives is str else "application/json": {"schema": of_kind[told.gives]}}
    if told.events:
        answer["text/event-stream"] = {"itemSchema": _event([of_kind[kind] for kind in told.events])}
    answers = {
        "200": {"description": "The answer.", "content": answer},
        "default": {"description": "An error.", "content": {"application/json": {"schema": {"$ref": _REFS.format(name=error)}}}},
    }
    if told.gives is Health:
        answers["503"] = {"description": "Requests are not taken.", "content": answer}
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": told.about,
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": model} for name in re.findall(r"{(\w+)}", path)),
            *({"name": name, "in": "query", "schema": _FLAG} for name in told.flags),
        ],
        "responses": answers,
    }
    if told.takes is not None:
        body = {"schema": of_kind[told.takes]} | ({} if told.example is None else {"example": told.example})
        operation["requestBody"] = {"required": told.needs_body, "content": {"application/json": body}}
    return {method.lower(): operation}


def _event(schemas: list[Any]) -> dict[str, Any]:
    """A server-sent event, whose data is the JSON of one of these, or the ``[DONE]`` that ends OpenAI's streams."""
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": {"anyOf": schemas}}
    end = {"const": "[DONE]"}
    return {"type": "object", "required": ["data"], "properties": {"event": _TEXT, "data": {"anyOf": [data, end]}}}
