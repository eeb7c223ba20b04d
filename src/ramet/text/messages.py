"""Chat messages as a request brings them, made into what chat templates expect. Bad ones raise ``InvalidRequest``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ramet.errors import InvalidRequest, shown
from ramet.text.utf8 import check_unicode

__all__ = ["MessageRules", "plain_data", "plain_messages", "plain_tools"]

_MAX_DEPTH = 64
_REASONING = ("reasoning_content", "thinking", "reasoning")


@dataclass(frozen=True, slots=True)
class MessageRules:
    """What one template needs. ``knows_developer``: it speaks of that role; else developer messages go in as system ones.
    ``takes_tools``: it has a place for them; else a request with tools is refused or they are told, never left out.
    ``tells_null``: it asks whether a content is none; else null goes in as the empty string, which adds to strings.
    ``adds_arguments``: it puts a call's arguments behind a text with ``+``, so they stay JSON text; else they go in as an object.
    """

    knows_developer: bool
    takes_tools: bool
    tells_null: bool
    adds_arguments: bool


def plain_messages(messages: object, rules: MessageRules) -> list[dict[str, Any]]:
    """Copies of the messages, of plain data, by these rules:

    * a list of text parts becomes one string, the parts on lines of their own; other kinds of part are refused
    * null (or no, or an empty list of) content is for assistant messages alone
    * the arguments of a tool call, a JSON text on the wire, become the object they spell, unless the template adds to them
    * keys that are null are left out, and reasoning is there by each name templates use for it
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise InvalidRequest("messages is a list of at least one message", "messages")
    return [_message(message, f"messages[{i}]", rules) for i, message in enumerate(messages)]


def plain_tools(tools: object) -> list[dict[str, Any]] | None:
    """Copies of the tools; None where there are none, since templates ask for that."""
    if tools is None:
        return None
    if not isinstance(tools, list | tuple):
        raise InvalidRequest("tools is a list of objects", "tools")
    for i, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise InvalidRequest(f"tools[{i}] is an object, not {shown(tool)}", "tools")
    copied: list[dict[str, Any]] = plain_data(list(tools), "tools")
    return copied or None


def plain_data(value: object, where: str, depth: int = 0) -> Any:
    """A copy of null, booleans, numbers, strings, lists and objects with string keys; anything else is refused."""
    if depth > _MAX_DEPTH:
        raise InvalidRequest(f"{where} is nested over {_MAX_DEPTH} levels deep", where)
    if value is None or type(value) in (bool, int):
        return value
    if isinstance(value, str):
        return _text(str.__str__(value), where)  # a plain string, without what a subclass may add
    if type(value) is float:
        if not math.isfinite(value):
            raise InvalidRequest(f"{where} is {value}, which JSON does not have", where)
        return value
    if isinstance(value, Mapping):
        copied = {}
        for key, item in value.items():
            if type(key) is not str:
                raise InvalidRequest(f"{where} has the key {shown(key)}; keys are strings", where)
            copied[_text(key, where)] = plain_data(item, f"{where}.{key}", depth + 1)
        return copied
    if isinstance(value, list | tuple):
        return [plain_data(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    raise InvalidRequest(f"{where} is a {type(value).__name__}, which JSON does not have", where)


def _message(message: object, where: str, rules: MessageRules) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{where} is an object with role and content, not {shown(message)}", where)
    copied = {key: value for key, value in plain_data(message, where).items() if value is not None}
    role = copied.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequest(f"{where}.role is a string such as 'user', not {shown(role)}", f"{where}.role")
    if role == "developer" and not rules.knows_developer:
        copied["role"] = "system"
    text = _content(copied.get("content"), f"{where}.content")
    if text is None and role != "assistant":
        raise InvalidRequest(f"{where}.content is missing; only an assistant message may be without", f"{where}.content")
    copied["content"] = "" if text is None and not rules.tells_null else text
    if "tool_calls" in copied:
        copied["tool_calls"] = _tool_calls(copied["tool_calls"], f"{where}.tool_calls", rules)
        if not copied["tool_calls"]:
            del copied["tool_calls"]
    reasoning = next((copied[name] for name in _REASONING if name in copied), None)
    if reasoning is not None:
        copied = {"thinking": reasoning, **copied, "reasoning_content": reasoning}
    return copied


def _content(content: object, where: str) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(f"{where} is a string or a list of parts, not {shown(content)}", where)
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text":
            found = shown(part if kind is None else kind)
            raise InvalidRequest(f'{where}[{i}] is {found}; only parts {{"type": "text", "text": ...}} are supported', where)
        if not isinstance(part.get("text"), str):
            raise InvalidRequest(f"{where}[{i}].text is a string, not {shown(part.get('text'))}", where)
        texts.append(part["text"])
    return "\n".join(texts) if texts else None


def _tool_calls(calls: object, where: str, rules: MessageRules) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise InvalidRequest(f"{where} is a list, not {shown(calls)}", where)
    for i, call in enumerate(calls):
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidRequest(f"{where}[{i}] is an object with function.name and function.arguments", where)
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            spelled = _arguments(arguments, f"{where}[{i}].function.arguments")
            function["arguments"] = (arguments if arguments.strip() else "{}") if rules.adds_arguments else spelled
        elif arguments is not None and rules.adds_arguments:
            function["arguments"] = json.dumps(arguments, ensure_ascii=False)
    return calls


def _arguments(text: str, where: str) -> dict[str, Any]:
    """The object a tool call's arguments spell; none at all is the empty one."""
    try:
        arguments = json.loads(text, parse_constant=_no_constant) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{where} is not JSON: {error}", where) from error
    if not isinstance(arguments, dict):
        raise InvalidRequest(f"{where} spells {shown(arguments)}, not an object", where)
    copied: dict[str, Any] = plain_data(arguments, where)
    return copied


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _text(text: str, where: str) -> str:
    check_unicode(text, where, where)
    return text
