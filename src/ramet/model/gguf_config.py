"""A GGUF file's keys to a ``ModelSpec``: whatever would change the arithmetic is read, or refused by name."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ramet.core.ids import Float32
from ramet.errors import ModelError, shown
from ramet.model.families import GGUF_FAMILIES, Family, family_of
from ramet.model.files import Fields
from ramet.model.gguf import GGUFFile, GGUFTensor
from ramet.model.quant import as_float32
from ramet.model.rope import linear_divisors, yarn_divisors, yarn_scale
from ramet.model.spec import MAX_EXPERTS, NO_ROPE, Experts, LayerSpec, ModelSpec, RopeSpec

__all__ = ["ROPE_TENSORS", "dense_vector", "read_gguf_spec"]

_FACTORS, _LONG_FACTORS, _SHORT_FACTORS = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
ROPE_TENSORS = (_FACTORS, _LONG_FACTORS, _SHORT_FACTORS)
"""Divisors of rotary pairs: how llama3 and longrope scaling are stored."""

_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")  # end of sequence, of turn, of message: each ends the output
# Keys that change the arithmetic in ways not implemented, and the value at which they do nothing.
_NEUTRAL: Mapping[str, object] = {
    "attention.causal": True,
    "expert_shared_count": 0,
    "expert_weights_scale": 1.0,
    "expert_gating_func": 1,  # softmax
}
_MULTIPLIERS: Mapping[str, object] = {
    "logit_scale": 1.0,
    "residual_scale": 1.0,
    "embedding_scale": 1.0,
    "attention.scale": 0.0,
}
_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")


def dense_vector(tensor: GGUFTensor) -> Float32:
    """A tensor of one dim in a float type. Raises ``ModelError`` where it is another."""
    if len(tensor.shape) != 1 or tensor.type.format in ("q8", "q4"):
        raise ModelError(f"tensor {tensor.name} is {tensor.type.name} {list(tensor.shape)}; it must be a dense vector")
    weight = tensor.weight()
    return as_float32(weight.format, weight.data[0])


def read_gguf_spec(file: GGUFFile, fields: Fields, served: int | None) -> ModelSpec:
    """The model that the keys describe. ``served`` as for ``load_gguf``."""
    architecture = fields.text("general.architecture")
    family = family_of(architecture, GGUF_FAMILIES, fields.where)

    def key(name: str) -> str:
        return f"{architecture}.{name}"

    _check_switches(fields, architecture, family)
    num_heads, num_kv_heads, head_dim = _heads(fields, architecture)
    experts = _experts(fields, architecture, family)
    vocab_size = _vocab_size(file, fields)
    eos = [i for name in _EOS_KEYS for i in fields.token_ids(f"tokenizer.ggml.{name}", vocab_size)]
    bos = fields.token_ids("tokenizer.ggml.bos_token_id", vocab_size)

    def has_bias(rule: str, tensor: str) -> bool:
        return rule == "always" or (rule == "by_file" and tensor in file.tensors)

    return ModelSpec(
        architecture=architecture,
        layers=_layers(file, fields, architecture, family, head_dim, served),
        hidden_size=fields.integer(key("embedding_length"), high=1 << 20),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=_intermediate_size(fields, architecture, experts),
        vocab_size=vocab_size,
        max_position=fields.integer(key("context_length")),
        rms_eps=fields.number(key("attention.layer_norm_rms_epsilon")),
        tie_embeddings="output.weight" not in file.tensors,
        attention_scale=_attention_scale(fields, architecture, family, head_dim),
        norms=family.norms,
        qk_norm=family.qk_norm,
        activation=family.activation,
        experts=experts,
        qkv_bias=has_bias(family.qkv_bias, "blk.0.attn_q.bias"),
        output_bias=has_bias(family.output_bias, "blk.0.attn_output.bias"),
        embedding_scale=_embedding_scale(fields, architecture, family),
        residual_scale=fields.number(key("residual_scale"), 1.0),
        logit_scale=1.0 / fields.number(key("logit_scale"), 1.0),
        attention_cap=_cap(fields, key("attn_logit_softcapping")),
        logit_cap=_cap(fields, key("final_logit_softcapping")),
        eos_ids=tuple(dict.fromkeys(eos)),
        bos_id=bos[0] if bos else None,
    )


def _heads(fields: Fields, architecture: str) -> tuple[int, int, int]:
    """Heads of queries, heads of keys and values, dims of a head."""

    def key(name: str) -> str:
        return f"{architecture}.{name}"

    hidden_size, num_heads = fields.integer(key("embedding_length"), high=1 << 20), fields.integer(key("attention.head_count"))
    num_kv_heads = fields.integer(key("attention.head_count_kv"), num_heads, high=num_heads)
    if num_heads % num_kv_heads:
        raise fields.fail(key("attention.head_count_kv"), f"{num_kv_heads} does not divide the {num_heads} heads")
    head_dim = fields.integer(key("attention.key_length"), max(1, hidden_size // num_heads), high=1 << 16)
    values = key("attention.value_length")
    if head_dim % 2 or fields.integer(values, head_dim) != head_dim:
        raise fields.fail(
            values, f"is {shown(fields.raw(values), 60)}; only the (even) head length is supported, here {head_dim}"
        )
    return num_heads, num_kv_heads, head_dim


def _experts(fields: Fields, architecture: str, family: Family) -> Experts | None:
    key = f"{architecture}.expert_count"
    num = fields.integer(key, 0, low=0, high=MAX_EXPERTS)
    if num and family.experts is None:
        raise fields.fail(key, f"{num} is not supported in this architecture; only 0 is")
    if num == 0:
        return None
    is_normalized = fields.boolean(f"{architecture}.expert_weights_norm", True)
    return Experts(num, fields.integer(f"{architecture}.expert_used_count", high=num), is_normalized)


def _intermediate_size(fields: Fields, architecture: str, experts: Experts | None) -> int:
    key = f"{architecture}.expert_feed_forward_length"
    return fields.integer(key if experts and fields.has(key) else f"{architecture}.feed_forward_length")


def _attention_scale(fields: Fields, architecture: str, family: Family, head_dim: int) -> float:
    key = f"{architecture}.attention.scale"
    if fields.has(key) and (scale := fields.fraction(key)) > 0:
        return scale
    if fields.integer(f"{architecture}.block_count") == family.gguf_wide_depth:
        width, num_heads = (
            fields.integer(f"{architecture}.embedding_length"),
            fields.integer(f"{architecture}.attention.head_count"),
        )
        return float((width // num_heads) ** -0.5)
    return float(head_dim**-0.5)


def _embedding_scale(fields: Fields, architecture: str, family: Family) -> float:
    if family.is_gemma:
        return float(fields.integer(f"{architecture}.embedding_length") ** 0.5)
    return fields.number(f"{architecture}.embedding_scale", 1.0)


def _cap(fields: Fields, key: str) -> float | None:
    return fields.fraction(key) or None if fields.has(key) else None


def _check_switches(fields: Fields, architecture: str, family: Family) -> None:
    neutral = _NEUTRAL if family.has_multipliers else {**_NEUTRAL, **_MULTIPLIERS}
    for name, value in neutral.items():
        key = f"{architecture}.{name}"
        if fields.has(key) and fields.raw(key) != value:
            raise fields.fail(key, f"{shown(fields.raw(key), 60)} is not supported; only {value!r} is")
    for name in () if family.is_gemma else _CAPS:
        key = f"{architecture}.{name}"
        if fields.has(key) and fields.fraction(key):
            raise fields.fail(key, f"{shown(fields.raw(key), 60)} is not supported in this architecture")


def _vocab_size(file: GGUFFile, fields: Fields) -> int:
    """Rows of the embedding: the key is optional, and the list of tokens may be shorter (padding), never longer."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelError(f"{file.path}: tensor token_embd.weight is missing or no matrix")
    vocab_size = embedding.shape[0]
    tokens = file.metadata.get("tokenizer.ggml.tokens", [])
    if isinstance(tokens, list) and len(tokens) > vocab_size:
        raise fields.fail("tokenizer.ggml.tokens", f"lists {len(tokens)} tokens, but the embedding has {vocab_size} rows")
    return vocab_size


def _layers(
    file: GGUFFile, fields: Fields, architecture: str, family: Family, head_dim: int, served: int | None
) -> tuple[LayerSpec, ...]:
    num_layers = fields.integer(f"{architecture}.block_count", high=1024)
    whole = local = _rope(file, fields, architecture, family, head_dim, served)
    if family.local_theta is not None:
        theta = fields.number(f"{architecture}.rope.freq_base_swa", family.local_theta)
        local = RopeSpec(theta, whole.dim, linear_divisors(whole.dim))
    window, every = _window(fields, architecture, family), family.no_rope_every
    layers = []
    for i, slides in enumerate(_slides(fields, architecture, family, num_layers)):
        rope = NO_ROPE if every and (i + 1) % every == 0 else local if slides else whole
        layers.append(LayerSpec(rope, window if slides else None))
    return tuple(layers)


def _window(fields: Fields, architecture: str, family: Family) -> int | None:
    """None where there is none, or it is as long as the context."""
    key = f"{architecture}.attention.sliding_window"
    window = fields.integer(key, None if family.windows == "between" else 0, low=0)
    if not 0 < window < fields.integer(f"{architecture}.context_length"):
        return None
    if family.windows not in ("all", "between"):
        raise fields.fail(key, f"of {window} tokens is in use, which this architecture does not have")
    return window


def _slides(fields: Fields, architecture: str, family: Family, num_layers: int) -> list[bool]:
    """Which layers see a window, if there is one: by the file's pattern (a period, or layer by layer), or the family's."""
    if family.windows != "between":
        return [True] * num_layers
    key = f"{architecture}.attention.sliding_window_pattern"
    listed = fields.raw(key)
    if isinstance(listed, np.ndarray):
        if len(listed) != num_layers:
            raise fields.fail(key, f"has {len(listed)} entries for {num_layers} layers")
        return [bool(slides) for slides in listed]
    every = fields.integer(key, family.full_every)
    return [(i + 1) % every != 0 for i in range(num_layers)]


def _rope(file: GGUFFile, fields: Fields, architecture: str, family: Family, head_dim: int, served: int | None) -> RopeSpec:
    """Rotary angles: a kind of scaling in the keys, and factors of pairs in tensors, as llama.cpp combines them."""
    prefix = f"{architecture}.rope."
    dim_key, kind_key, factor_key = prefix + "dimension_count", prefix + "scaling.type", prefix + "scaling.factor"
    dim = fields.integer(dim_key, head_dim)
    if dim % 2 or dim > head_dim or (dim < head_dim and not family.may_rotate_partly):
        raise fields.fail(dim_key, f"is {dim}, which this architecture does not have with heads of {head_dim}")
    theta = fields.number(prefix + "freq_base", 10_000.0)  # the format's default
    if not fields.has(factor_key):
        factor_key = prefix + "scale_linear"  # its name before there were other kinds
    kind = fields.text(kind_key, "linear" if fields.has(factor_key) else "none")
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise fields.fail(
            kind_key, f"{shown(kind, 60)} is not supported; supported: none, linear, yarn, longrope, and factors in {_FACTORS}"
        )
    divisors, scale = linear_divisors(dim), fields.number(prefix + "scaling.attn_factor", 1.0)
    if kind == "linear":
        divisors = linear_divisors(dim, fields.number(factor_key))
    if kind == "yarn":
        if theta <= 1:
            raise fields.fail(prefix + "freq_base", f"{theta} is not over 1, which yarn needs")
        factor = fields.number(factor_key)
        original = _original_context(fields, architecture)
        divisors = yarn_divisors(dim, theta, factor=factor, slow=1.0, fast=32.0, original_max_position=original)
        scale *= yarn_scale(factor)
    if name := _factors_name(file, fields, architecture, served):
        divisors = tuple(d * f for d, f in zip(divisors, _factors(file, name, len(divisors)), strict=True))
    return RopeSpec(theta, dim, divisors, scale)


def _original_context(fields: Fields, architecture: str) -> int:
    key = f"{architecture}.rope.scaling.original_context_length"
    return fields.integer(key, fields.integer(f"{architecture}.context_length"))


def _factors_name(file: GGUFFile, fields: Fields, architecture: str, served: int | None) -> str | None:
    """The tensor of factors that counts: longrope's depend on the longest context that requests may have."""
    if _LONG_FACTORS in file.tensors and _SHORT_FACTORS in file.tensors:
        longest = served or fields.integer(f"{architecture}.context_length")
        return _LONG_FACTORS if longest > _original_context(fields, architecture) else _SHORT_FACTORS
    return next((name for name in ROPE_TENSORS if name in file.tensors), None)


def _factors(file: GGUFFile, name: str, num: int) -> list[float]:
    factors: list[float] = dense_vector(file.tensors[name]).tolist()
    if len(factors) != num or not all(0 < f < math.inf for f in factors):
        raise ModelError(f"{file.path}: tensor {name} is {num} finite numbers over 0, which it is not")
    return factors
