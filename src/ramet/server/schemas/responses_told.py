"""OpenAI's Responses: what is answered, whole and in events."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from ramet.server.schemas.openai import TokenLogprob
from ramet.server.schemas.responses import FunctionTool, TextOptions

__all__ = [
    "ArgumentsDelta",
    "ArgumentsDone",
    "ErrorEvent",
    "FunctionCall",
    "Incomplete",
    "InputDetails",
    "ItemEvent",
    "OutputDetails",
    "OutputItem",
    "OutputMessage",
    "OutputText",
    "PartEvent",
    "Reasoning",
    "ReasoningDelta",
    "ReasoningDone",
    "ReasoningText",
    "ResponseEvent",
    "ResponseFailure",
    "ResponseReply",
    "ResponseUsage",
    "Status",
    "StreamEvent",
    "TextDelta",
    "TextDone",
]

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    text: str
    logprobs: list[TokenLogprob]
    annotations: list[Any] = []


class OutputMessage(msgspec.Struct, tag_field="type", tag="message"):
    id: str
    status: Status
    content: list[OutputText]
    role: str = "assistant"


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    text: str


class Reasoning(msgspec.Struct, tag_field="type", tag="reasoning"):
    """What the model thought, as it is: nobody sums it up."""

    id: str
    status: Status
    content: list[ReasoningText]
    summary: list[Any] = []


class FunctionCall(msgspec.Struct, tag_field="type", tag="function_call"):
    id: str
    status: Status
    call_id: str
    name: str
    arguments: str


OutputItem: TypeAlias = OutputMessage | Reasoning | FunctionCall


class InputDetails(msgspec.Struct):
    """``cache_write_tokens`` is 0: nobody asks for a prefix to be kept, since all that is computed is."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct):
    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct):
    """``input_tokens`` includes the cached ones."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseFailure(msgspec.Struct):
    code: str
    message: str


class Incomplete(msgspec.Struct):
    reason: str


class ResponseReply(msgspec.Struct, kw_only=True):
    """The response object, with the request's fields as they were understood. Times are Unix seconds.

    ``store`` is false whatever was asked. OpenAI's schema lets some fields be missing but not null: those are UNSET.
    """

    id: str
    object: str = "response"
    created_at: int
    status: Status = "in_progress"
    completed_at: int | None = None
    error: ResponseFailure | None = None
    incomplete_details: Incomplete | None = None
    model: str
    output: list[OutputItem] = []
    usage: ResponseUsage | msgspec.UnsetType = msgspec.UNSET
    background: bool = False
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None = None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None = None
    prompt_cache_key: str | None
    reasoning: None = None
    safety_identifier: str | None
    service_tier: str = "default"
    store: bool = False
    temperature: float
    text: TextOptions
    tool_choice: str | dict[str, Any]
    tools: list[FunctionTool]
    top_logprobs: int
    top_p: float
    truncation: str = "disabled"
    user: str | msgspec.UnsetType = msgspec.UNSET


class StreamEvent(msgspec.Struct):
    """What a stream consists of; each event bears its type as its name too. ``sequence_number`` counts them from 0."""

    type: str
    sequence_number: int


class ResponseEvent(StreamEvent):
    """``response.created``, ``.in_progress``, ``.completed``, ``.incomplete`` and ``.failed``."""

    response: ResponseReply


class ErrorEvent(StreamEvent):
    """``error``."""

    code: str | None
    message: str
    param: str | None


class ItemEvent(StreamEvent):
    """``response.output_item.added`` and ``.done``."""

    item: OutputItem
    output_index: int


class PartEvent(StreamEvent):
    """``response.content_part.added`` and ``.done``."""

    item_id: str
    part: OutputText | ReasoningText
    output_index: int
    content_index: int = 0


class TextDelta(StreamEvent):
    """``response.output_text.delta``."""

    item_id: str
    delta: str
    logprobs: list[TokenLogprob]
    output_index: int
    content_index: int = 0


class TextDone(StreamEvent):
    """``response.output_text.done``."""

    item_id: str
    text: str
    logprobs: list[TokenLogprob]
    output_index: int
    content_index: int = 0


class ReasoningDelta(StreamEvent):
    """``response.reasoning_text.delta``."""

    item_id: str
    delta: str
    output_index: int
    content_index: int = 0


class ReasoningDone(StreamEvent):
    """``response.reasoning_text.done``."""

    item_id: str
    text: str
    output_index: int
    content_index: int = 0


class ArgumentsDelta(StreamEvent):
    """``response.function_call_arguments.delta``."""

    item_id: str
    delta: str
    output_index: int


class ArgumentsDone(StreamEvent):
    """``response.function_call_arguments.done``."""

    item_id: str
    name: str
    arguments: str
    output_index: int
