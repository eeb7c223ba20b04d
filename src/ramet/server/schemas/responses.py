"""OpenAI's Responses: what is asked.

Items become messages in the shape that chat templates are written for: ``function_call`` items tool calls of the assistant
message that they follow, ``function_call_output`` items messages of the role tool, ``reasoning`` items that of the assistant
message that comes next.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from ramet.errors import InvalidRequest, shown
from ramet.server.schemas.body import MAX_ITEMS, MAX_TOOLS
from ramet.server.schemas.constraints import ConstraintFields, constraint_of_schema
from ramet.server.schemas.sampling import MaxTokens, NumLogprobs
from ramet.text.tools.tool import ToolChoice, choice_of

__all__ = [
    "FunctionTool",
    "Item",
    "Part",
    "ResponseRequest",
    "TextFormat",
    "TextOptions",
]

_LOGPROBS = "message.output_text.logprobs"
_ROLES = ("user", "assistant", "system", "developer")
_TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text")
_CONSTRAINED = {"json_schema", "json_object"}


class Part(msgspec.Struct):
    """A part of an item's content, of any type."""

    type: str
    text: str | None = None
    refusal: str | None = None


class Item(msgspec.Struct):
    """An item of any type; which fields it needs, its type says. A message may come without a type."""

    type: str | None = None
    role: str | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None


class FunctionTool(msgspec.Struct):
    """A tool of the client's own, as asked and as told back."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class TextFormat(msgspec.Struct, omit_defaults=True):
    type: str
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, omit_defaults=True):
    format: TextFormat | None = None
    verbosity: str | None = None


class ResponseRequest(ConstraintFields, kw_only=True):
    """Fields that only name, keep or bill something (``user``, ``store``, ``metadata`` ...) are taken and change no token.

    Nothing is stored: a conversation is sent whole each time, which costs little where the tree has its beginning.
    ``stop``, ``seed`` and their like, ``cache_salt`` and ``priority`` are beyond OpenAI's own.
    """

    input: str | Annotated[list[Item], msgspec.Meta(max_length=MAX_ITEMS)]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: MaxTokens | None = None
    top_logprobs: NumLogprobs | None = None
    include: list[str] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    tools: Annotated[list[FunctionTool], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    background: bool | None = None
    truncation: str | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: str | None = None
    priority: int | None = None

    def check_served(self) -> None:
        """Raise ``InvalidRequest`` for what the answer would have to be other than asked without."""
        for name in ("previous_response_id", "conversation", "prompt"):
            if getattr(self, name) is not None:
                raise InvalidRequest(
                    f"{name} names what a server has stored, and this one stores nothing; send all items as input "
                    "(what was sent before is still in the KV cache, so that costs little)",
                    name,
                )
        if self.background:
            raise InvalidRequest("background responses would have to be stored; stream this one, or wait for it", "background")
        if self.truncation not in (None, "disabled"):
            raise InvalidRequest("input that is too long is refused, never cut; leave truncation out", "truncation")

    def unserved(self) -> list[str]:
        """Fields that are known and have no effect here."""
        verbosity = None if self.text is None else self.text.verbosity
        found = {"reasoning": self.reasoning, "text.verbosity": verbosity}
        return [name for name, value in found.items() if value]

    @property
    def wants_logprobs(self) -> bool:
        return _LOGPROBS in (self.include or ()) or bool(self.top_logprobs)

    def chosen_by(self) -> dict[str, Any]:
        """The fields of ``SamplingParams``."""
        fields = self.sampling_fields() | {"max_tokens": self.max_output_tokens}
        if self.wants_logprobs:
            fields["logprobs"] = self.top_logprobs or 0
        form = None if self.text is None else self.text.format
        forms = {} if form is None or form.type == "text" else {"text.format": _constraint(form)}
        return fields | {"structured_outputs": self.constraint(forms)}

    def chat_messages(self) -> list[dict[str, Any]]:
        """The conversation as chat templates take it. Raises ``InvalidRequest`` naming the item that cannot be served."""
        if not self.input:
            raise InvalidRequest("input is empty; it needs a text or at least one item", "input")
        chat: list[dict[str, Any]] = []
        if self.instructions is not None:
            chat.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            return [*chat, {"role": "user", "content": self.input}]
        for i, item in enumerate(self.input):
            _add(chat, item, f"input[{i}]")
        return chat

    def chat_tools(self) -> list[dict[str, Any]]:
        """The tools in the shape of Chat Completions."""
        return [_function(tool, f"tools[{i}]") for i, tool in enumerate(self.tools or ())]

    def choice(self) -> ToolChoice:
        """What is said of their use."""
        match self.tool_choice:
            case {"type": "function", "name": str(name)}:
                named: str | None = name
            case _:
                named = None
        return choice_of(self.tool_choice, named, '{"type": "function", "name": ...}', self.parallel_tool_calls)


def _constraint(form: TextFormat) -> dict[str, object]:
    if form.type not in _CONSTRAINED:
        raise InvalidRequest(
            f"text.format is of type text, json_object or json_schema, not {shown(form.type)}", "text.format.type"
        )
    if form.type == "json_object":
        return {"json_object": True}
    return constraint_of_schema({"schema": form.schema, "strict": form.strict}, "text.format", "text.format.schema")


def _add(chat: list[dict[str, Any]], item: Item, where: str) -> None:
    match item.type:
        case None | "message":
            if item.role not in _ROLES:
                raise InvalidRequest(
                    f"{where}.role is user, assistant, system or developer, not {shown(item.role)}", f"{where}.role"
                )
            content = _content(item.content, f"{where}.content")
            if item.role == "assistant" and chat and _is_thought(chat[-1]):
                chat[-1]["content"] = content
            else:
                chat.append({"role": item.role, "content": content})
        case "function_call":
            if item.call_id is None or item.name is None or item.arguments is None:
                raise InvalidRequest(f"{where} needs call_id, name and arguments", where)
            if not chat or chat[-1]["role"] != "assistant":
                chat.append({"role": "assistant", "content": None})
            function = {"name": item.name, "arguments": item.arguments}
            call = {"id": item.call_id, "type": "function", "function": function}
            chat[-1].setdefault("tool_calls", []).append(call)
        case "function_call_output":
            if item.call_id is None:
                raise InvalidRequest(f"{where}.call_id is missing", f"{where}.call_id")
            content = "" if item.output == [] else _content(item.output, f"{where}.output")
            chat.append({"role": "tool", "tool_call_id": item.call_id, "content": content})
        case "reasoning":
            texts = [_text(part, f"{where}.content") for part in item.content or () if isinstance(part, Part)]
            thought = "\n".join(part["text"] for part in texts)
            chat.append({"role": "assistant", "content": None, "reasoning_content": thought})
        case _:
            raise InvalidRequest(
                f"{where} is an item of type {shown(item.type)}; this server takes message, reasoning, function_call and "
                "function_call_output",
                f"{where}.type",
            )


def _is_thought(message: dict[str, Any]) -> bool:
    """Whether it has reasoning and nothing else."""
    return "reasoning_content" in message and message["content"] is None and "tool_calls" not in message


def _content(content: str | list[Part] | None, where: str) -> str | list[dict[str, str]]:
    if isinstance(content, str):
        return content
    if not content:
        raise InvalidRequest(f"{where} is missing or empty", where)
    return [_text(part, f"{where}[{i}]") for i, part in enumerate(content)]


def _text(part: Part, where: str) -> dict[str, str]:
    text = part.refusal if part.type == "refusal" else part.text if part.type in _TEXT_PARTS else None
    if text is None:
        raise InvalidRequest(f"{where} is of type {shown(part.type)}, or without its text; this model takes text alone", where)
    return {"type": "text", "text": text}


def _function(tool: FunctionTool, where: str) -> dict[str, Any]:
    if tool.type != "function":
        raise InvalidRequest(f"{where} is of type {shown(tool.type)}; only functions of the client's own are run", where)
    if not tool.name:
        raise InvalidRequest(f"{where}.name is missing", f"{where}.name")
    given = {"description": tool.description, "parameters": tool.parameters, "strict": tool.strict}
    told = {key: value for key, value in given.items() if value is not None}
    return {"type": "function", "function": {"name": tool.name, **told}}
