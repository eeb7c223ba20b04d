"""Anthropic's Messages: what is asked and what is answered.

A conversation in its blocks becomes one in OpenAI's shape, which chat templates are written for: ``tool_use`` blocks become
tool calls of an assistant message, ``tool_result`` blocks messages of the role tool, ``thinking`` blocks its reasoning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

from ramet.errors import InvalidRequest, shown
from ramet.server.schemas.body import MAX_ITEMS, MAX_TOOLS
from ramet.server.schemas.constraints import one_constraint
from ramet.server.schemas.sampling import MaxTokens, SamplingFields
from ramet.text.tools.tool import ToolChoice

__all__ = [
    "Block",
    "BlockDelta",
    "BlockStart",
    "BlockStop",
    "Choice",
    "ConversationRequest",
    "InputDelta",
    "Message",
    "MessageDelta",
    "MessageReply",
    "MessageRequest",
    "MessageStart",
    "MessageStop",
    "MessageUsage",
    "OutputConfig",
    "OutputFormat",
    "Ping",
    "Stopped",
    "StreamEvent",
    "TextBlock",
    "TextDelta",
    "Thinking",
    "ThinkingBlock",
    "ThinkingDelta",
    "TokenCount",
    "Tool",
    "ToolUseBlock",
]

_StopReason = Literal["end_turn", "tool_use", "max_tokens", "stop_sequence", "model_context_window_exceeded"]

_ROLES = ("user", "assistant", "system")
_THINKING = ("enabled", "disabled", "adaptive", "between_tools")


# ---- what is asked


class Block(msgspec.Struct):
    """A content block of any type; which fields it needs, its type says. ``cache_control`` is no field: all is cached."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Block] | None = None


class Message(msgspec.Struct):
    role: str
    content: str | list[Block]


class Tool(msgspec.Struct):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class Choice(msgspec.Struct):
    """``type`` is auto, any, tool (of that ``name``) or none."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct):
    type: str
    budget_tokens: int | None = None


class OutputFormat(msgspec.Struct):
    type: str
    schema: dict[str, Any] | None = None


class OutputConfig(msgspec.Struct):
    format: OutputFormat | None = None
    effort: str | None = None


class ConversationRequest(SamplingFields, kw_only=True):
    """What a prompt is made of: all that counting its tokens needs. Sampling fields count for nothing there.

    ``output_format`` is the older name of ``output_config.format``.
    """

    messages: Annotated[list[Message], msgspec.Meta(max_length=MAX_ITEMS)]
    model: str | None = None
    system: str | list[Block] | None = None
    tools: Annotated[list[Tool], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    cache_control: Any = None
    chat_template_kwargs: dict[str, Any] | None = None

    def chat_messages(self) -> list[dict[str, Any]]:
        """The conversation as chat templates take it. Raises ``InvalidRequest`` naming the block that cannot be served."""
        if self.thinking is not None and self.thinking.type not in _THINKING:
            raise InvalidRequest(f"thinking is {', '.join(_THINKING)}, not {shown(self.thinking.type)}", "thinking")
        if not self.messages:
            raise InvalidRequest("messages is empty; it needs at least one message", "messages")
        chat: list[dict[str, Any]] = []
        if self.system:
            chat.append({"role": "system", "content": _texts(self.system, "system")})
        for i, message in enumerate(self.messages):
            chat += _chat_messages(message, f"messages[{i}]")
        if self.is_prefilled and "tool_calls" in chat[-1]:
            where = f"messages[{len(self.messages) - 1}]"
            raise InvalidRequest(f"{where} calls tools, and no message behind it has their results", where)
        return chat

    @property
    def is_prefilled(self) -> bool:
        """The last message is the beginning of the answer, which goes on where it ends."""
        return self.messages[-1].role == "assistant"

    def chat_tools(self) -> list[dict[str, Any]]:
        """The tools in OpenAI's shape."""
        return [_function(tool, f"tools[{i}]") for i, tool in enumerate(self.tools or ())]

    def choice(self) -> ToolChoice:
        """What is said of their use."""
        asked = self.tool_choice or Choice("auto")
        is_parallel = not asked.disable_parallel_tool_use
        match asked:
            case Choice(type="auto" | "none" as mode):
                return ToolChoice(mode, is_parallel=is_parallel)
            case Choice(type="any"):
                return ToolChoice("required", is_parallel=is_parallel)
            case Choice(type="tool", name=str(name)):
                return ToolChoice("required", name)
        raise InvalidRequest(
            f"tool_choice is of type auto, any, none, or tool with its name, not {shown(asked.type)}", "tool_choice"
        )

    @property
    def wants_thinking(self) -> bool:
        return self.thinking is not None and self.thinking.type == "enabled"

    def variables(self) -> dict[str, Any]:
        """For the template; where thinking is disabled, by the name that templates have for it."""
        is_disabled = self.thinking is not None and self.thinking.type == "disabled"
        return ({"enable_thinking": False} if is_disabled else {}) | (self.chat_template_kwargs or {})

    def unserved(self) -> list[str]:
        """Fields that are known and have no effect here."""
        found = {
            "output_config.effort": None if self.output_config is None else self.output_config.effort,
            "thinking.budget_tokens": None if self.thinking is None else self.thinking.budget_tokens,
        }
        return [name for name, value in found.items() if value is not None]


class MessageRequest(ConversationRequest, kw_only=True):
    """``metadata``, ``service_tier`` and ``cache_control`` change nothing. ``cache_salt`` and ``priority`` are our own."""

    max_tokens: MaxTokens
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    cache_salt: str | None = None
    priority: int | None = None

    def chosen_by(self) -> dict[str, Any]:
        """The fields of ``SamplingParams``."""
        fields = self.sampling_fields() | {"max_tokens": self.max_tokens}
        if self.stop_sequences is not None:
            fields["stop"] = self.stop_sequences
        config = None if self.output_config is None else self.output_config.format
        forms = {"output_config.format": config, "output_format": self.output_format}
        sent = {name: _constraint(form, name) for name, form in forms.items() if form is not None}
        return fields | {"structured_outputs": one_constraint(sent)}


def _constraint(form: OutputFormat, name: str) -> dict[str, object]:
    if form.type != "json_schema" or form.schema is None:
        raise InvalidRequest(f'{name} is {{"type": "json_schema", "schema": ...}}', name)
    return {"json": form.schema}


def _chat_messages(message: Message, where: str) -> Iterator[dict[str, Any]]:
    if message.role not in _ROLES:
        raise InvalidRequest(f"{where}.role is user, assistant or system, not {shown(message.role)}", f"{where}.role")
    where = f"{where}.content"
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
        return
    if not message.content:
        raise InvalidRequest(f"{where} is empty; it needs at least one block", where)
    if message.role == "assistant":
        yield _assistant_message(message.content, where)
    else:
        yield from _with_results(message.role, message.content, where)


def _assistant_message(blocks: list[Block], where: str) -> dict[str, Any]:
    texts, thoughts, calls = [], [], []
    for i, block in enumerate(blocks):
        match block:
            case Block(type="tool_use", id=str(), name=str(), input=dict()):
                function = {"name": block.name, "arguments": block.input}
                calls.append({"id": block.id, "type": "function", "function": function})
            case Block(type="thinking", thinking=str(thought)):
                thoughts.append(thought)
            case _:
                texts.append(_text(block, f"{where}[{i}]"))
    message: dict[str, Any] = {"role": "assistant", "content": texts}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _with_results(role: str, blocks: list[Block], where: str) -> Iterator[dict[str, Any]]:
    """The results of tools are messages of their own; the texts between them stay where they are."""
    texts: list[dict[str, str]] = []
    for i, block in enumerate(blocks):
        if block.type != "tool_result" or role != "user":
            texts.append(_text(block, f"{where}[{i}]"))
            continue
        if block.tool_use_id is None:
            raise InvalidRequest(f"{where}[{i}].tool_use_id is missing", f"{where}[{i}].tool_use_id")
        if texts:
            yield {"role": role, "content": texts}
            texts = []
        result = _texts(block.content, f"{where}[{i}].content") if block.content else ""
        yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": result}
    if texts:
        yield {"role": role, "content": texts}


def _texts(content: str | list[Block], where: str) -> str | list[dict[str, str]]:
    if isinstance(content, str):
        return content
    return [_text(block, f"{where}[{i}]") for i, block in enumerate(content)]


def _text(block: Block, where: str) -> dict[str, str]:
    if block.type == "text":
        if block.text is None:
            raise InvalidRequest(f"{where}.text is missing", f"{where}.text")
        return {"type": "text", "text": block.text}
    if block.type in ("tool_use", "thinking", "tool_result"):
        raise InvalidRequest(f"{where} is a {block.type} block in the wrong place, or without a field it needs", where)
    raise InvalidRequest(f"{where} is a block of type {shown(block.type)}; this model takes text alone", where)


def _function(tool: Tool, where: str) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise InvalidRequest(f"{where} is of type {shown(tool.type)}; only tools of the client's own are run", where)
    if tool.input_schema is None:
        raise InvalidRequest(f"{where}.input_schema is missing", f"{where}.input_schema")
    described = {} if tool.description is None else {"description": tool.description}
    strict = {} if tool.strict is None else {"strict": tool.strict}
    return {"type": "function", "function": {"name": tool.name, **described, "parameters": tool.input_schema, **strict}}


# ---- what is answered


class TokenCount(msgspec.Struct):
    input_tokens: int


class MessageUsage(msgspec.Struct):
    """The prompt's tokens are ``input_tokens``, which were computed, plus ``cache_read_input_tokens``.

    ``cache_creation_input_tokens`` is 0: nobody asks for a prefix to be kept, since all that is computed is.
    """

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    """``signature`` is empty: thoughts may come back as they are, or not at all."""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class Stopped(msgspec.Struct):
    """``stop_sequence`` is the one that came, where one did."""

    stop_reason: _StopReason | None = None
    stop_sequence: str | None = None


class MessageReply(msgspec.Struct, tag_field="type", tag="message", kw_only=True):
    """The whole answer; in ``message_start`` without content and reason."""

    id: str
    role: str = "assistant"
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock] = []
    stop_reason: _StopReason | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


class StreamEvent(msgspec.Struct, tag_field="type"):
    """What a stream consists of; each event bears its type as its name too."""

    @property
    def name(self) -> str:
        return str(self.__struct_config__.tag)


class MessageStart(StreamEvent, tag="message_start"):
    message: MessageReply


class BlockStart(StreamEvent, tag="content_block_start"):
    content_block: TextBlock | ThinkingBlock | ToolUseBlock
    index: int


class Ping(StreamEvent, tag="ping"):
    pass


class TextDelta(msgspec.Struct, tag_field="type", tag="text_delta"):
    text: str


class ThinkingDelta(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    thinking: str


class InputDelta(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    partial_json: str


class BlockDelta(StreamEvent, tag="content_block_delta"):
    delta: TextDelta | ThinkingDelta | InputDelta
    index: int


class BlockStop(StreamEvent, tag="content_block_stop"):
    index: int


class MessageDelta(StreamEvent, tag="message_delta"):
    delta: Stopped
    usage: MessageUsage


class MessageStop(StreamEvent, tag="message_stop"):
    pass
