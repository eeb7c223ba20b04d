"""config.json to a ``ModelSpec``: whatever would change the arithmetic is read, or refused by name."""

from __future__ import annotations

from collections.abc import Mapping

from ramet.model.families import HF_FAMILIES, Family, family_of
from ramet.model.files import Fields, few
from ramet.model.rope_config import RopeContext, rope_of
from ramet.model.spec import NO_ROPE, Activation, LayerSpec, ModelSpec, RopeSpec

__all__ = ["read_spec"]

_ACTIVATIONS: Mapping[str, Activation] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_NEUTRAL: Mapping[str, object] = {"mlp_bias": False, "rope_interleaved": False}
# Scales, and the value at which each does nothing: read for families that have them, refused in all others.
_MULTIPLIERS: Mapping[str, float] = {
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
}


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
        intermediate_size=config.integer("intermediate_size"),
        vocab_size=vocab_size,
        max_position=config.integer("max_position_embeddings"),
        rms_eps=config.number("rms_norm_eps"),
        tie_embeddings=config.boolean("tie_word_embeddings", False),
        attention_scale=_attention_scale(config, family, head_dim),
        norms=family.norms,
        qk_norm=family.qk_norm,
        activation=_activation(config),
        qkv_bias=has_bias(family.qkv_bias),
        output_bias=has_bias(family.output_bias),
        embedding_scale=config.number("embedding_multiplier", 1.0),
        residual_scale=config.number("residual_multiplier", 1.0),
        logit_scale=1.0 / config.number("logits_scaling", 1.0),
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
    neutral = _NEUTRAL if family.has_multipliers else {**_NEUTRAL, **_MULTIPLIERS}
    for key, value in neutral.items():
        if config.has(key) and config.raw(key) != value:
            raise config.fail(key, f"{config.raw(key)!r} is not supported; only {value!r} is")
    other = sorted(set(config.strings("layer_types")) - {"full_attention"})
    if other:
        raise config.fail("layer_types", f"{few(other)} is not supported; only full_attention is")
    # use_sliding_window is Qwen's switch; without it a window that is set is in use (Mistral)
    if config.has("sliding_window") and config.boolean("use_sliding_window", True):
        window = config.integer("sliding_window")
        if window < config.integer("max_position_embeddings"):
            raise config.fail("sliding_window", f"of {window} tokens is in use, which is not supported")


def _activation(config: Fields) -> Activation:
    key = "hidden_activation" if config.has("hidden_activation") else "hidden_act"  # Gemma's, which wins there
    name = config.text(key, "silu")
    if name not in _ACTIVATIONS:
        raise config.fail(key, f"{name!r} is not supported; supported: {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _attention_scale(config: Fields, family: Family, head_dim: int) -> float:
    if family.has_multipliers:
        return config.number("attention_multiplier", 1.0)
    if config.has("attention_multiplier"):
        raise config.fail("attention_multiplier", "is not supported in this architecture")
    return float(head_dim**-0.5)


def _layers(config: Fields, family: Family, head_dim: int, served: int | None) -> tuple[LayerSpec, ...]:
    num_layers = config.integer("num_hidden_layers", high=1024)
    rope = _rope(config, family, head_dim, served)
    return tuple(LayerSpec(rope if rotates else NO_ROPE) for rotates in _rotates(config, family, num_layers))


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


def _rope(config: Fields, family: Family, head_dim: int, served: int | None) -> RopeSpec:
    """Rotary angles from ``rope_parameters`` (transformers 5) or ``rope_theta`` and ``rope_scaling`` (before)."""
    if config.has("rope_parameters") and config.has("rope_scaling"):
        raise config.fail("rope_scaling", "stands beside rope_parameters; it is not clear which one counts")
    parameters = config.mapping("rope_parameters" if config.has("rope_parameters") else "rope_scaling")
    theta = (parameters if parameters.has("rope_theta") else config).number("rope_theta", family.default_theta)
    max_position = config.integer("max_position_embeddings")
    context = RopeContext(config, head_dim, max_position, served or max_position, family.may_rotate_partly)
    return rope_of(parameters, theta, context)
