"""The tools of a request, in OpenAI's shape, and what it says of their use."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ramet.errors import InvalidRequest, shown

__all__ = ["Tool", "ToolChoice", "choice_of", "messages_with_tools", "tools_of"]

_NAME = re.compile(r"[\w.:/-]{1,128}")
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call. ``parameters`` is a JSON schema of an object. ``where`` names it in the request."""

    name: str
    parameters: Mapping[str, Any]
    is_strict: bool
    where: str


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """``mode``: none, auto (the model chooses), or required; then ``name`` may say which. ``is_parallel``: several at once."""

    mode: str = "auto"
    name: str | None = None
    is_parallel: bool = True


def choice_of(said: object, name: str | None, shape: str, is_parallel: bool | None) -> ToolChoice:
    """What a request says of the use of its tools: ``name`` is the tool that ``said`` names, if it does, in the dialect's shape.

    Raises ``InvalidRequest``.
    """
    if name is not None:
        return ToolChoice("required", name)
    if said not in (None, "none", "auto", "required"):
        raise InvalidRequest(f'tool_choice is "none", "auto", "required" or {shape}, not {shown(said)}', "tool_choice")
    return ToolChoice("auto" if said is None else str(said), is_parallel=is_parallel is not False)


def tools_of(tools: Sequence[Mapping[str, Any]] | None) -> tuple[Tool, ...]:
    """Raises ``InvalidRequest`` naming the tool that is none."""
    found: dict[str, Tool] = {}
    for i, tool in enumerate(tools or ()):
        one = _tool(tool, f"tools[{i}]")
        if one.name in found:
            raise InvalidRequest(f"{one.where} has the name {shown(one.name)}, which {found[one.name].where} has too", one.where)
        found[one.name] = one
    return tuple(found.values())


def messages_with_tools(messages: Sequence[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The conversation (plain messages) with the tools told in its system message, for a template that has no place for them."""
    told = _TOLD + "\n".join(json.dumps(tool.get("function"), ensure_ascii=False) for tool in tools)
    match [*messages]:
        case [{"role": "system", "content": str(text)} as first, *others]:
            return [{**first, "content": f"{text}\n\n{told}"}, *others]
        case others:
            return [{"role": "system", "content": told}, *others]


_TOLD = (
    'You can call the functions below. To call one, answer with nothing but {"name": its name, "arguments": an object with its '
    "parameters}.\n"
)


def _tool(tool: Mapping[str, Any], where: str) -> Tool:
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, Mapping):
        raise InvalidRequest(f'{where} is {{"type": "function", "function": {{"name": ..., "parameters": ...}}}}', where)
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(f"{where} has the name {shown(name)}; names are 1 to 128 letters, digits or _ - . : /", where)
    if parameters is None:
        parameters = _NO_PARAMETERS
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise InvalidRequest(f"the parameters of {where} are a JSON schema of type object, not {shown(parameters)}", where)
    strict = function.get("strict")
    if not isinstance(strict, bool | None):
        raise InvalidRequest(f"strict of {where} is true or false, not {shown(strict)}", where)
    return Tool(name, {**parameters, "type": "object"}, bool(strict), where)
