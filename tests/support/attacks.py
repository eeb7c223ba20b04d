"""Bodies that no endpoint should take as they are: every field of every request, with everything wrong that JSON can spell."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import inspect

from ramet.server.schemas import admin, anthropic, native, openai, responses

__all__ = ["ENDPOINTS", "Attack", "Endpoint", "Place", "attacks", "places"]

_ENDS_AT_ONCE = {"logit_bias": {"256": 100}, "seed": 4}  # the tiny model's end: no answer goes on, whatever else is asked for
_HOLE = '"@hole@"'

_SAMPLES: Mapping[type, dict[str, Any]] = {  # what a struct needs to be read at all
    anthropic.Block: {"type": "text", "text": "hi"},
    anthropic.Message: {"role": "user", "content": "hi"},
    anthropic.Tool: {"name": "f", "input_schema": {"type": "object"}},
    anthropic.ToolChoice: {"type": "auto"},
    anthropic.Thinking: {"type": "disabled"},
    anthropic.OutputFormat: {"type": "json_schema", "schema": {"type": "integer"}},
    native.GenerateSampling: {"max_new_tokens": 1, **_ENDS_AT_ONCE},
    responses.FunctionTool: {"type": "function", "name": "f"},
    responses.Item: {"type": "message", "role": "user", "content": "hi"},
    responses.Part: {"type": "input_text", "text": "hi"},
    responses.TextFormat: {"type": "text"},
}


@dataclass(frozen=True)
class Endpoint:
    """``good`` is a body that it answers with 200."""

    path: str
    kind: type[msgspec.Struct]
    good: dict[str, Any]


_CHAT = [{"role": "user", "content": "hi"}]
ENDPOINTS = (
    Endpoint("/v1/chat/completions", openai.ChatRequest, {"messages": _CHAT, "max_tokens": 1, **_ENDS_AT_ONCE}),
    Endpoint("/v1/completions", openai.TextRequest, {"prompt": "hi", "max_tokens": 1, **_ENDS_AT_ONCE}),
    Endpoint("/v1/responses", responses.ResponseRequest, {"input": "hi", "max_output_tokens": 1, **_ENDS_AT_ONCE}),
    Endpoint("/v1/messages", anthropic.MessageRequest, {"messages": _CHAT, "max_tokens": 1, **_ENDS_AT_ONCE}),
    Endpoint("/v1/messages/count_tokens", anthropic.ConversationRequest, {"messages": _CHAT}),
    Endpoint("/tokenize", native.TokenizeRequest, {"prompt": "hi"}),
    Endpoint("/detokenize", native.DetokenizeRequest, {"tokens": [104, 105]}),
    Endpoint("/generate", native.GenerateRequest, {"text": "hi", "sampling_params": {"max_new_tokens": 1, **_ENDS_AT_ONCE}}),
    Endpoint("/flush_cache", admin.FlushRequest, {"force": True}),
    Endpoint("/abort_request", admin.AbortRequest, {"rid": "nobody's"}),
)


@dataclass(frozen=True)
class Place:
    """A field of a body, or of something in it. ``body`` is a good one that has whatever the field is in."""

    endpoint: Endpoint
    field: inspect.Field
    steps: tuple[str | int, ...]
    body: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.endpoint.path} {'.'.join(map(str, self.steps))}"

    @property
    def kinds(self) -> set[type[inspect.Type]]:
        """The types of JSON that it takes."""
        found = self.field.type
        return {type(one) for one in (found.types if isinstance(found, inspect.UnionType) else (found,))}

    def raw(self, value: str | None) -> bytes:
        """The body with this JSON in the place, or without the field."""
        body = json.loads(json.dumps(self.body))
        inside = body
        for step in self.steps[:-1]:
            inside = inside[step]
        inside[self.steps[-1]] = json.loads(_HOLE)
        if value is None:
            del inside[self.steps[-1]]
        return json.dumps(body).replace(_HOLE, value or "").encode("utf-8", "surrogatepass")

    def doubled(self, first: str, second: str) -> bytes:
        """The body with the field twice."""
        return self.raw(f'{first}, "{self.steps[-1]}": {second}')


def places(endpoint: Endpoint) -> Iterator[Place]:
    """Every field of the endpoint's struct and of the structs in it, each struct once."""
    yield from _places(endpoint, endpoint.kind, (), endpoint.good, frozenset())


def _places(
    endpoint: Endpoint, kind: type, steps: tuple[str | int, ...], body: dict[str, Any], around: frozenset[type]
) -> Iterator[Place]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    for field in info.fields:
        here = (*steps, field.encode_name)
        yield Place(endpoint, field, here, body)
        for inner, is_listed in _structs(field.type):
            if inner not in around | {kind}:
                sample = _SAMPLES.get(inner, {})
                within = _with(body, here, [sample] if is_listed else sample)
                yield from _places(endpoint, inner, (*here, 0) if is_listed else here, within, around | {kind})


def _structs(found: inspect.Type, is_listed: bool = False) -> Iterator[tuple[type, bool]]:
    match found:
        case inspect.UnionType(types=types):
            for one in types:
                yield from _structs(one, is_listed)
        case inspect.ListType(item_type=item):
            yield from _structs(item, True)
        case inspect.StructType(cls=cls):
            yield cls, is_listed


def _with(body: dict[str, Any], steps: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    copy: Any = json.loads(json.dumps(body))
    inside = copy
    for step in steps[:-1]:
        inside = inside[step]
    inside[steps[-1]] = value
    found: dict[str, Any] = copy
    return found


@dataclass(frozen=True)
class Attack:
    """``statuses`` are the right ones."""

    name: str
    body: bytes
    statuses: frozenset[int]


_REFUSED = frozenset({400})
_EITHER = frozenset({200, 400})
_WRONG = {
    "true": inspect.BoolType,
    "5": inspect.IntType,
    "1.5": inspect.FloatType,
    '"x"': inspect.StrType,
    "[5]": inspect.ListType,
    '{"a": 5}': inspect.DictType,
}
_NOT_JSON = {
    "NaN": "NaN",
    "1e400": "1e400",
    "a number of 5,000 digits": "9" * 5000,
    "depth 100,000": "[" * 100_000 + "]" * 100_000,
    "objects to a depth of 20,000": '{"a":' * 20_000 + "1" + "}" * 20_000,
    "a lone surrogate": '"a\\ud83d"',
}


def attacks(place: Place, *, long_chars: int) -> Iterator[Attack]:
    """The field missing, null, of wrong types, beyond numbers, not Unicode, ``long_chars`` long, deep, and twice."""
    kinds = place.kinds
    takes_any = inspect.AnyType in kinds
    takes_null = takes_any or inspect.NoneType in kinds
    soft = _EITHER | {404} if place.steps[-1] in ("model", "lora_path") else _EITHER
    yield Attack("missing", place.raw(None), _REFUSED if place.field.required else soft)
    yield Attack("null", place.raw("null"), soft if takes_null else _REFUSED)
    for value, kind in _WRONG.items():
        taken = kind in kinds or takes_any or (kind is inspect.IntType and inspect.FloatType in kinds)
        taken = taken or (kind is inspect.DictType and inspect.StructType in kinds)
        yield Attack(f"wrong type {value}", place.raw(value), soft if taken else _REFUSED)
    for name, value in _NOT_JSON.items():
        yield Attack(name, place.raw(value), _REFUSED)
    for name, value in {"2^63": str(2**63), "-1": "-1", "empty": '""'}.items():
        yield Attack(name, place.raw(value), soft)
    yield Attack(f"{long_chars:,} characters", place.raw('"' + "long " * (long_chars // 5) + '"'), soft | {413})
    yield Attack("twice", place.doubled("5", "null"), soft)
