"""What /tokenize and /detokenize take and give, in vLLM's shapes, and /generate, in SGLang's."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from ramet.core.grammar import GrammarSpec
from ramet.server.schemas.constraints import one_constraint
from ramet.server.schemas.sampling import SamplingFields

__all__ = [
    "DetokenizeRequest",
    "Detokenized",
    "Ending",
    "GenerateAnswer",
    "GenerateRequest",
    "GenerateSampling",
    "MetaInfo",
    "NamedLogprob",
    "TokenizeRequest",
    "Tokenized",
]

NamedLogprob = tuple[float | None, int, str | None]
"""SGLang's logprob, token id, text."""


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """Either a ``prompt`` or ``messages``.

    ``add_special_tokens`` is for a prompt, true if left out; a conversation has its special tokens once, whatever it says.
    """

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class Tokenized(msgspec.Struct, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    tokens: list[int]
    model: str | None = None


class Detokenized(msgspec.Struct, kw_only=True):
    prompt: str


class GenerateSampling(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """SGLang's ``sampling_params``: its names for what others call otherwise, and what it has besides.

    A name it does not know is an error, as with SGLang: a parameter that is silently ignored gives an answer nobody asked for.
    """

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    n: int | None = None
    sampling_seed: int | None = None
    no_stop_trim: bool | None = None
    spaces_between_special_tokens: bool = True
    json_schema: str | dict[str, Any] | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | dict[str, Any] | None = None

    def constraint(self) -> GrammarSpec | None:
        """What the output must look like. Raises ``InvalidRequest`` naming the field."""
        kinds = {"json_schema": "json", "regex": "regex", "ebnf": "grammar", "structural_tag": "structural_tag"}
        sent = {name: {kind: getattr(self, name)} for name, kind in kinds.items() if getattr(self, name) is not None}
        return one_constraint(sent)


class GenerateRequest(msgspec.Struct, kw_only=True, rename={"token_ids": "input_ids", "names": "rid"}):
    """One prompt or several, as ``text`` or as token ids; ``names`` are ids by which the caller may abort them."""

    text: str | list[str] | None = None
    token_ids: list[int | list[int]] | None = None
    sampling_params: GenerateSampling | list[GenerateSampling] | None = None
    names: str | list[str] | None = None
    stream: bool = False
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    return_text_in_logprobs: bool = False
    priority: int | None = None
    cache_salt: str | None = None
    image_data: Any = None
    video_data: Any = None
    audio_data: Any = None
    input_embeds: Any = None
    lora_path: str | None = None
    session_params: Any = None
    custom_logit_processor: Any = None


class Ending(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How an answer ended: ``matched`` is the stop string or token, ``length`` the limit that was met."""

    type: str
    matched: int | str | None = None
    length: int | None = None


class MetaInfo(msgspec.Struct, kw_only=True):
    """``finish_reason`` is None, and ``e2e_latency`` (seconds) absent, while the answer grows."""

    id: str
    finish_reason: Ending | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    e2e_latency: float | UnsetType = UNSET
    input_token_logprobs: list[NamedLogprob] | UnsetType = UNSET
    output_token_logprobs: list[NamedLogprob] | UnsetType = UNSET
    output_top_logprobs: list[list[NamedLogprob]] | UnsetType = UNSET


class GenerateAnswer(msgspec.Struct, kw_only=True):
    """All of an answer so far. ``index`` tells, in a stream of several answers, which of them it is."""

    text: str
    output_ids: list[int]
    meta_info: MetaInfo
    index: int | UnsetType = UNSET
