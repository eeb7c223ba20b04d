"""The fields of a request that say how tokens are chosen: the same in every dialect that has them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from ramet.core.sampling import MAX_LOGPROBS
from ramet.errors import InvalidRequest, shown

__all__ = ["MaxTokens", "NumLogprobs", "SamplingFields"]

MaxTokens = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
NumLogprobs = Annotated[int, msgspec.Meta(ge=0, le=MAX_LOGPROBS)]

_MAX_BIASES = 4096


class SamplingFields(msgspec.Struct, kw_only=True):
    """OpenAI's fields and the extra ones in wide use, by their names on the wire. None, null and left out are one."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None

    def sampling_fields(self) -> dict[str, Any]:
        """By their names in ``SamplingParams``, which checks the values. Raises ``InvalidRequest``."""
        fields = {name: getattr(self, name) for name in SamplingFields.__struct_fields__}
        fields["logit_bias"] = _by_token_id(self.logit_bias)
        if self.seed is not None and -(2**63) <= self.seed < 0:
            fields["seed"] = self.seed + 2**64  # OpenAI's seeds are signed, and as good as others
        return fields


def _by_token_id(bias: dict[str, float] | None) -> dict[int, float] | None:
    """JSON has only texts for keys."""
    if bias is None:
        return None
    if len(bias) > _MAX_BIASES:
        raise InvalidRequest(f"logit_bias has {len(bias):,} entries, over {_MAX_BIASES:,}", "logit_bias")
    for key in bias:
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise InvalidRequest(f"logit_bias has the key {shown(key)}; keys are token ids", "logit_bias")
    return {int(key): value for key, value in bias.items()}
