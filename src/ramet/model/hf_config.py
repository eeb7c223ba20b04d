"""config.json to a ``ModelSpec``: whatever would change the arithmetic is read, or refused by name."""

from __future__ import annotations

from collections.abc import Mapping

from ramet.errors import shown
from ramet.model.families import HF_FAMILIES, Family, family_of
from ramet.model.files import Fields, few
from ramet.model.rope_config import RopeContext, rope_of
from ramet.model.spec import MAX_EXPERTS, NO_ROPE, Activation, Experts, LayerSpec, ModelSpec, RopeSpec

__all__ = ["read_spec"]

_ACTIVATIONS: Mapping[str, Activation] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_NEUTRAL: Mapping[str, object] = {"mlp_bias": False, "rope_interleaved": False, "use_bidirectional_attention": False}
# Keys of some families, and the value at which each does nothing; None where there is no such value.
_MULTIPLIERS: Mapping[str, object] = {
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
    "attention_multiplier": None,
}
_GEMMA: Mapping[str, object] = {
    "query_pre_attn_scalar": None,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
}
_LAYER_KINDS = ("full_attention", "sliding_attention")


def read_spec(config: Fields, generation: Fields, served: int | None) -> ModelSpec:
    """The model that config.json describes; end tokens of generation_config.json win. ``served`` as for ``load_folder``."""
    names = config.strings("architectures")
    if len(names) != 1:
        raise config.fail("architectures", f"names one architecture, not {len(names)}")
    family = family_of(names[0], HF_FAMILIES, config.where)
    _check_switches(config, family)
    num_heads, num_kv_heads, head_dim = _heads(config)
    vocab_size = config.integer("vocab_size")
    attention_bias = config.boolean("attention_bias", False)
    if attention_bias and family.qkv_bias == "never":
        raise config.fail("attention_bias", "is true, which this architecture does not have")

    def has_bias(rule: str) -> bool:
        return rule == "always" or (rule == "by_file" and attention_bias)

    eos_source = generation if generation.has("eos_token_id") else config
    bos = config.token_ids("bos_token_id", vocab_size)
    return ModelSpec(
        architecture=names[0],
        layers=_layers(config, family, head_dim, served),
        hidden_size=config.integer("hidden_size", high=1 << 20),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=config.integer(family.experts.width if family.experts else "intermediate_size"),
        vocab_size=vocab_size,
        max_position=config.integer("max_position_embeddings"),
        rms_eps=config.number("rms_norm_eps"),
        tie_embeddings=config.boolean("tie_word_embeddings", family.ties_by_default),
        attention_scale=_attention_scale(config, family, head_dim),
        norms=family.norms,
        qk_norm=family.qk_norm,
        activation=_activation(config, family),
        experts=_experts(config, family),
        qkv_bias=has_bias(family.qkv_bias),
        output_bias=has_bias(family.output_bias),
        embedding_scale=_embedding_scale(config, family),
        residual_scale=config.number("residual_multiplier", 1.0),
        logit_scale=1.0 / config.number("logits_scaling", 1.0),
        attention_cap=_cap(config, "attn_logit_softcapping"),
        logit_cap=_cap(config, "final_logit_softcapping"),
        eos_ids=eos_source.token_ids("eos_token_id", vocab_size),
        bos_id=bos[0] if bos else None,
    )


def _heads(config: Fields) -> tuple[int, int, int]:
    """Heads of queries, heads of keys and values, dims of a head."""
    hidden_size, num_heads = config.integer("hidden_size", high=1 << 20), config.integer("num_attention_heads", high=1 << 16)
    num_kv_heads = config.integer("num_key_value_heads", num_heads, high=num_heads)
    if num_heads % num_kv_heads:
        raise config.fail("num_key_value_heads", f"{num_kv_heads} does not divide num_attention_heads {num_heads}")
    if not config.has("head_dim") and hidden_size % num_heads:
        raise config.fail("hidden_size", f"{hidden_size} is no multiple of {num_heads} heads, and there is no head_dim")
    head_dim = config.integer("head_dim", hidden_size // num_heads, high=1 << 16)
    if head_dim % 2:
        raise config.fail("head_dim", f"is even (rotary pairs), not {head_dim}")
    return num_heads, num_kv_heads, head_dim


def _check_switches(config: Fields, family: Family) -> None:
    """Refuse, by name, whatever would change the arithmetic and is not implemented."""
    neutral = dict(_NEUTRAL)
    for keys, has_them in ((_MULTIPLIERS, family.has_multipliers), (_GEMMA, family.is_gemma)):
        neutral |= {} if has_them else keys
    for key, value in neutral.items():
        if config.has(key) and config.raw(key) != value:
            only = "" if value is None else f"; only {value!r} is"
            raise config.fail(key, f"{shown(config.raw(key), 60)} is not supported in this architecture{only}")


def _activation(config: Fields, family: Family) -> Activation:
    key = "hidden_activation" if config.has("hidden_activation") else "hidden_act"  # Gemma's, which wins there
    if not config.has(key):
        return family.activation
    name = config.text(key)
    if name not in _ACTIVATIONS:
        raise config.fail(key, f"{shown(name, 60)} is not supported; supported: {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _experts(config: Fields, family: Family) -> Experts | None:
    keys = family.experts
    if keys is None:
        return None
    if config.integer("decoder_sparse_step", 1) != 1 or config.raw("mlp_only_layers") not in (None, []):
        key = "mlp_only_layers" if config.raw("mlp_only_layers") else "decoder_sparse_step"
        raise config.fail(key, f"is {shown(config.raw(key), 60)}; layers without experts among those with them are not supported")
    num = config.integer(keys.num, high=MAX_EXPERTS)
    is_normalized = True if keys.normalized is None else config.boolean(keys.normalized, False)
    return Experts(num, config.integer("num_experts_per_tok", high=num), is_normalized)


def _attention_scale(config: Fields, family: Family, head_dim: int) -> float:
    if family.has_multipliers:
        return config.number("attention_multiplier", 1.0)
    return float((config.number("query_pre_attn_scalar") if family.is_gemma else head_dim) ** -0.5)


def _embedding_scale(config: Fields, family: Family) -> float:
    return float(config.integer("hidden_size") ** 0.5) if family.is_gemma else config.number("embedding_multiplier", 1.0)


def _cap(config: Fields, key: str) -> float | None:
    return config.number(key) if config.has(key) else None


def _layers(config: Fields, family: Family, head_dim: int, served: int | None) -> tuple[LayerSpec, ...]:
    num_layers = config.integer("num_hidden_layers", high=1024)
    whole, local = _ropes(config, family, head_dim, served)
    layers = []
    for rotates, slides in zip(_rotates(config, family, num_layers), _slides(config, family, num_layers), strict=True):
        rope = (local if slides else whole) if rotates else NO_ROPE
        layers.append(LayerSpec(rope, _window(config) if slides else None))
    return tuple(layers)


def _window(config: Fields) -> int | None:
    """None where it is as long as the context, and so of no effect."""
    window = config.integer("sliding_window")
    return window if window < config.integer("max_position_embeddings") else None


def _slides(config: Fields, family: Family, num_layers: int) -> list[bool]:
    """Which layers see a window: those that ``layer_types`` names, or else those of the family's rule."""
    is_on = config.has("sliding_window") and config.boolean("use_sliding_window", not family.has_window_switch)
    if is_on and family.windows == "none" and (window := _window(config)) is not None:
        raise config.fail("sliding_window", f"of {window} tokens is in use, which this architecture does not have")
    if not config.has("layer_types"):
        return _slides_by_rule(config, family, num_layers) if is_on else [False] * num_layers
    listed = config.strings("layer_types")
    supported = _LAYER_KINDS[:1] if family.windows == "none" else _LAYER_KINDS
    if other := sorted(set(listed) - set(supported)):
        raise config.fail("layer_types", f"{few(other)} is not supported; supported: {', '.join(supported)}")
    if len(listed) != num_layers:
        raise config.fail("layer_types", f"has {len(listed)} entries for {num_layers} layers")
    slides = [kind == "sliding_attention" for kind in listed]
    if any(slides) and not is_on:
        raise config.fail("layer_types", "has layers with a window, but none is set (sliding_window, use_sliding_window)")
    return slides


def _slides_by_rule(config: Fields, family: Family, num_layers: int) -> list[bool]:
    if family.windows == "none":
        return [False] * num_layers
    if family.windows == "upper":
        first = config.integer("max_window_layers", low=0)
        return [i >= first for i in range(num_layers)]
    if family.windows == "between":
        every = config.integer("sliding_window_pattern", family.full_every)
        return [(i + 1) % every != 0 for i in range(num_layers)]
    return [True] * num_layers


def _rotates(config: Fields, family: Family, num_layers: int) -> list[bool]:
    """Which layers have rotary angles: ``no_rope_layers`` lists 1 for those that do, in spite of its name."""
    if not family.no_rope_every:
        return [True] * num_layers
    listed = config.raw("no_rope_layers")
    if listed is None:
        every = config.integer("no_rope_layer_interval", family.no_rope_every)
        return [(i + 1) % every != 0 for i in range(num_layers)]
    if not isinstance(listed, list) or any(isinstance(one, bool) or one not in (0, 1) for one in listed):
        raise config.fail("no_rope_layers", "is a list of 0 and 1")
    if len(listed) != num_layers:
        raise config.fail("no_rope_layers", f"has {len(listed)} entries for {num_layers} layers")
    return [one == 1 for one in listed]


def _ropes(config: Fields, family: Family, head_dim: int, served: int | None) -> tuple[RopeSpec, RopeSpec]:
    """Rotary angles of layers that see all, and of those with a window.

    From ``rope_parameters`` (transformers 5), or ``rope_theta`` and ``rope_scaling`` (before).
    """
    if config.has("rope_parameters") and config.has("rope_scaling"):
        raise config.fail("rope_scaling", "stands beside rope_parameters; it is not clear which one counts")
    parameters = config.mapping("rope_parameters" if config.has("rope_parameters") else "rope_scaling")
    max_position = config.integer("max_position_embeddings")
    context = RopeContext(config, head_dim, max_position, served or max_position, family.may_rotate_partly)

    def rope(parameters: Fields, theta_key: str, default: float | None) -> RopeSpec:
        own = parameters.has("rope_theta")
        theta = parameters.number("rope_theta") if own else config.number(theta_key, default)
        return rope_of(parameters, theta, context)

    if family.local_theta is None:
        whole = rope(parameters, "rope_theta", family.default_theta)
        return whole, whole
    by_kind = {kind: parameters.mapping(kind) for kind in _LAYER_KINDS}
    whole = rope(
        by_kind["full_attention"] if parameters.has("full_attention") else parameters, "rope_theta", family.default_theta
    )
    return whole, rope(by_kind["sliding_attention"], "rope_local_base_freq", family.local_theta)
