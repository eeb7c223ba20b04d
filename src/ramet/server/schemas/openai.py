"""OpenAI's chat completions and completions: what is asked and what is answered, by their names on the wire."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ramet.engine.assemble import Usage
from ramet.errors import InvalidRequest, shown
from ramet.server.schemas.body import MAX_ITEMS, MAX_TOOLS
from ramet.server.schemas.constraints import ConstraintFields, constraint_of_schema
from ramet.server.schemas.sampling import NumLogprobs
from ramet.text.tools.tool import ToolChoice, choice_of

__all__ = [
    "ChatChoice",
    "ChatChunk",
    "ChatCompletion",
    "ChatFunction",
    "ChatLogprobs",
    "ChatMessage",
    "ChatRequest",
    "ChatToolCall",
    "ChunkChoice",
    "CompletionUsage",
    "Delta",
    "Head",
    "OpenAIFields",
    "PromptLogprob",
    "StreamOptions",
    "TextChoice",
    "TextCompletion",
    "TextLogprobs",
    "TextRequest",
    "Timings",
    "TokenLogprob",
    "TopLogprob",
]

AnswerEnd = Literal["stop", "length"]
ChatEnd = Literal["stop", "length", "tool_calls"]

_MAX_ID_CHARS = 256
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_NOT_DONE = {
    "use_beam_search": "there is no beam search here; leave it out",
    "prompt_embeds": "prompts are texts or token ids here, not embeddings",
    "truncate_prompt_tokens": "prompts are not cut here; send a shorter one",
    "bad_words": "bad_words is not supported; logit_bias with -100 keeps single tokens out",
    "mirostat": "there is no mirostat here; leave it out, or send top_p or min_p",
}
_REFUSED_IN_CHAT = {
    "functions": "functions are OpenAI's old form of tools; send tools",
    "function_call": "function_call is OpenAI's old form of tool_choice; send tool_choice",
    "audio": "this server answers in text alone; leave audio out",
    "chat_template": "a request cannot bring a chat template; start the server with --chat-template",
}


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class OpenAIFields(ConstraintFields, kw_only=True):
    """What both endpoints take. The last six change nothing here: they are for billing and for stores that this is not; those
    before them would change the answer, and are refused.
    """

    model: str | None = None
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n_predict: int | None = None
    repeat_penalty: float | None = None
    best_of: int | None = None
    prompt_logprobs: int | None = None
    response_format: dict[str, Any] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    timings: bool | None = None
    cache_salt: str | None = None
    priority: int | None = None
    request_id: str | None = None
    use_beam_search: Any = None
    prompt_embeds: Any = None
    truncate_prompt_tokens: Any = None
    bad_words: Any = None
    mirostat: Any = None
    user: str | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None

    @property
    def tells_usage(self) -> bool:
        """Whether a stream ends with a chunk of token counts."""
        return self.stream_options is not None and bool(
            self.stream_options.include_usage or self.stream_options.continuous_usage_stats
        )

    @property
    def tells_usage_always(self) -> bool:
        """Whether each chunk of a stream has them."""
        return self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)

    def check(self) -> None:
        """Raise ``InvalidRequest`` for fields that contradict each other, or ask for what this server does not do."""
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options is for streams; send stream: true, or leave it out", "stream_options")
        if self.prompt_logprobs is not None and self.stream:
            raise InvalidRequest("prompt_logprobs are not in streams; leave one of the two out", "prompt_logprobs")
        if self.request_id is not None and not 0 < len(self.request_id) <= _MAX_ID_CHARS:
            raise InvalidRequest(f"request_id is a text of 1 to {_MAX_ID_CHARS} characters", "request_id")
        if self.best_of is not None and self.best_of != (1 if self.n is None else self.n):
            raise InvalidRequest(
                f"best_of is {shown(self.best_of)}; it can only be n, since all answers that are made are given", "best_of"
            )
        for name, why in _NOT_DONE.items():
            if getattr(self, name):
                raise InvalidRequest(why, name)

    def sampling_fields(self) -> dict[str, Any]:
        return ConstraintFields.sampling_fields(self) | {
            "n": self.n,
            "max_tokens": self._one_of("max_tokens", "max_completion_tokens", "n_predict"),
            "repetition_penalty": self._one_of("repetition_penalty", "repeat_penalty"),
            "prompt_logprobs": self.prompt_logprobs,
            "structured_outputs": self.constraint(_constraint_of(self.response_format)),
        }

    def _one_of(self, *names: str) -> Any:
        """The value of a field that has several names."""
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if len(set(given.values())) > 1:
            told = " and ".join(f"{name} is {value}" for name, value in given.items())
            raise InvalidRequest(f"{told}, and they are names for one thing; send one of them", next(iter(given)))
        return next(iter(given.values()), None)


def _constraint_of(form: dict[str, Any] | None) -> dict[str, object]:
    """Of ``response_format``; a ``schema`` of its own is llama.cpp's way, the structural tag xgrammar's."""
    if form is None or form.get("type") == "text":
        return {}
    match form.get("type"):
        case "json_object" if form.get("schema") is not None:
            wanted: dict[str, object] = {"json": form["schema"]}
        case "json_object":
            wanted = {"json_object": True}
        case "json_schema":
            described = form if form.get("json_schema") is None else form["json_schema"]
            wanted = constraint_of_schema(described, "response_format.json_schema", "response_format")
        case "structural_tag":
            wanted = {"structural_tag": form}
        case kind:
            kinds = "text, json_object, json_schema or structural_tag"
            raise InvalidRequest(f"response_format is of type {kinds}, not {shown(kind)}", "response_format")
    return {"response_format": wanted}


class ChatRequest(OpenAIFields, kw_only=True):
    """``messages`` and ``tools`` are as the model's template takes them; ``ramet.text.messages`` looks into them."""

    messages: list[dict[str, Any]]
    logprobs: bool | None = None
    top_logprobs: NumLogprobs | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template: Any = None
    functions: Any = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: Any = None

    def check(self) -> None:
        OpenAIFields.check(self)
        if len(self.messages) > MAX_ITEMS:
            raise InvalidRequest(f"messages has {len(self.messages):,} messages, over {MAX_ITEMS:,}; send fewer", "messages")
        for i, message in enumerate(self.messages):
            if isinstance(role := message.get("role"), str) and role not in _ROLES:  # else text/messages.py says what is wrong
                raise InvalidRequest(
                    f"messages[{i}].role is {shown(role)}; it is one of {', '.join(_ROLES)}", f"messages[{i}].role"
                )
        for name, why in _REFUSED_IN_CHAT.items():
            if getattr(self, name) is not None:
                raise InvalidRequest(why, name)
        for kind in self.modalities or ():
            if kind != "text":
                raise InvalidRequest(f"this server answers in text alone, not {shown(kind)}; leave it out", "modalities")
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs goes with logprobs: true; send both, or neither", "top_logprobs")
        if self.tools is not None and len(self.tools) > MAX_TOOLS:
            raise InvalidRequest(f"tools has {len(self.tools):,} tools, over {MAX_TOOLS}; send fewer", "tools")

    def choice(self) -> ToolChoice:
        """What is said of the use of the tools."""
        match self.tool_choice:
            case {"type": "function", "function": {"name": str(name)}}:
                named: str | None = name
            case _:
                named = None
        return choice_of(self.tool_choice, named, '{"type": "function", "function": {"name": ...}}', self.parallel_tool_calls)

    def sampling_fields(self) -> dict[str, Any]:
        return OpenAIFields.sampling_fields(self) | {"logprobs": (self.top_logprobs or 0) if self.logprobs else None}


class TextRequest(OpenAIFields, kw_only=True):
    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None

    def check(self) -> None:
        OpenAIFields.check(self)
        if self.suffix:
            raise InvalidRequest("suffix is not supported: models here write on from a prompt, not between two", "suffix")

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt as a text or as token ids. Raises ``InvalidRequest`` for a list of both, and for none at all."""
        match self.prompt:
            case str(text):
                return [text]
            case []:
                raise InvalidRequest("prompt is empty; send a text, token ids, or a list of either", "prompt")
        kinds = set(map(type, self.prompt))
        if kinds == {int}:
            return [self.prompt]  # type: ignore[list-item]
        if len(kinds) > 1:
            raise InvalidRequest("prompt is a list of texts, of token ids, or of lists of token ids, not of several", "prompt")
        return self.prompt  # type: ignore[return-value]

    def sampling_fields(self) -> dict[str, Any]:
        """Prompt logprobs are what ``echo`` and ``logprobs`` mean together."""
        asked = [k for k in (self.prompt_logprobs, self.logprobs if self.echo else None) if k is not None]
        prompt_logprobs = max(asked, default=None)
        return OpenAIFields.sampling_fields(self) | {"logprobs": self.logprobs, "prompt_logprobs": prompt_logprobs}


class _PromptTokensDetails(msgspec.Struct):
    cached_tokens: int


class CompletionUsage(msgspec.Struct):
    """Token counts; those of the prompt include the cached ones."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: _PromptTokensDetails

    @classmethod
    def of(cls, usage: Usage) -> CompletionUsage:
        total = usage.prompt_tokens + usage.completion_tokens
        return cls(usage.prompt_tokens, usage.completion_tokens, total, _PromptTokensDetails(usage.cached_tokens))


class Timings(msgspec.Struct, kw_only=True):
    """Milliseconds and tokens. Of several prompts they are from the first one's to the last one's."""

    queue_ms: float
    prefill_ms: float
    decode_ms: float
    prompt_n: int
    cached_n: int
    predicted_n: int
    predicted_per_second: float


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[TokenLogprob]
    refusal: None = None


class PromptLogprob(msgspec.Struct):
    """vLLM's form, in a dict by token id."""

    logprob: float
    rank: int
    decoded_token: str


class TextLogprobs(msgspec.Struct):
    """The old form: four lists of one length. ``top_logprobs`` is empty where none were asked for."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]

    def joined(self, later: TextLogprobs) -> TextLogprobs:
        """These, and those of the text behind it."""
        return TextLogprobs(
            self.text_offset + later.text_offset,
            self.token_logprobs + later.token_logprobs,
            self.tokens + later.tokens,
            self.top_logprobs + later.top_logprobs,
        )


class Head(msgspec.Struct, kw_only=True):
    """What all answers and chunks have; one answer's chunks have it alike."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class ChatFunction(msgspec.Struct, kw_only=True):
    """The name is in a stream's first piece of a call alone."""

    name: str | UnsetType = UNSET
    arguments: str


class ChatToolCall(msgspec.Struct, kw_only=True):
    """A call, or in a stream what is new of the one with this ``index`` among the answer's calls."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: ChatFunction


class ChatMessage(msgspec.Struct, kw_only=True):
    """``content`` is null where all of the answer are calls."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ChatToolCall] | UnsetType = UNSET
    refusal: None = None


class ChatChoice(msgspec.Struct, kw_only=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatEnd
    stop_reason: str | int | None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Head, kw_only=True, tag_field="object", tag="chat.completion"):
    choices: list[ChatChoice]
    usage: CompletionUsage
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: list[dict[int, PromptLogprob] | None] | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET


class Delta(msgspec.Struct, kw_only=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ChatToolCall] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, kw_only=True):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: ChatEnd | None = None
    stop_reason: str | int | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(Head, kw_only=True, tag_field="object", tag="chat.completion.chunk"):
    choices: list[ChunkChoice]
    usage: CompletionUsage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET


class TextChoice(msgspec.Struct, kw_only=True):
    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: AnswerEnd | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: list[dict[int, PromptLogprob] | None] | UnsetType = UNSET


class TextCompletion(Head, kw_only=True, tag_field="object", tag="text_completion"):
    """A whole answer, or a chunk of one: they have one shape."""

    choices: list[TextChoice]
    usage: CompletionUsage | UnsetType | None = UNSET
    timings: Timings | UnsetType = UNSET
