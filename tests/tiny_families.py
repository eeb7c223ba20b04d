"""Tiny checkpoints of every family: their config.json, and random but fixed weights. Needs numpy alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["GGUF_MODELS", "ORIGINAL_CONTEXT", "TINY_MODELS", "VOCAB_SIZE", "TinyModel", "tiny_config"]

VOCAB_SIZE = 304  # 256 bytes, 6 special tokens, padding
ORIGINAL_CONTEXT = 64  # of the models with scaled rotary angles, whose context is 256

_MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Phi3ForCausalLM": "phi3",
    "SmolLM3ForCausalLM": "smollm3",
    "GraniteForCausalLM": "granite",
    "Olmo2ForCausalLM": "olmo2",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
}
_GEMMA = {"Gemma2ForCausalLM", "Gemma3ForCausalLM"}
_HEAD_NORMS = {"Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Gemma3ForCausalLM"}
_NO_NORM_BEFORE = {"Olmo2ForCausalLM"}

Tensor = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TinyModel:
    """One tiny model: its config.json, and its tensors by their names there (float32). ``gguf_arch`` is None where no GGUF file
    can say all that the config does.
    """

    name: str
    config: Mapping[str, Any]
    seed: int
    gguf_arch: str | None
    tensors: Mapping[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", _Weights(self.config, self.seed).tensors())


def tiny_config(architecture: str, **changes: Any) -> dict[str, Any]:
    """config.json of a tiny model, with other values for some keys."""
    return {
        "architectures": [architecture],
        "model_type": _MODEL_TYPES[architecture],
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": 256,
        "pad_token_id": None,
    } | changes


class _Weights:
    """Draws one model's tensors, always in the same order."""

    def __init__(self, config: Mapping[str, Any], seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._config = config
        self._architecture = config["architectures"][0]
        self._hidden, self._inner = config["hidden_size"], config["intermediate_size"]
        head_dim = config.get("head_dim", self._hidden // config["num_attention_heads"])
        self._head_dim = head_dim
        self._q, self._k = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim

    def tensors(self) -> dict[str, Tensor]:
        config = self._config
        # A tied head multiplies by the embedding again: kept small there, lest every token predicts itself.
        tied = config["tie_word_embeddings"]
        embed = self._matrix(config["vocab_size"], self._hidden) * np.float32(0.5 if tied else 8)
        found = {"model.embed_tokens.weight": embed, "model.norm.weight": self._norm(self._hidden)}
        if not tied:
            found["lm_head.weight"] = self._matrix(config["vocab_size"], self._hidden)
        for i in range(config["num_hidden_layers"]):
            layer = dict([*self._attention(), *self._norms(), *self._mlp()])
            if self._architecture == "Phi3ForCausalLM":
                layer = _fused(layer)
            found |= {f"model.layers.{i}.{name}": tensor for name, tensor in layer.items()}
        return found

    def _attention(self) -> Iterator[tuple[str, Tensor]]:
        biased = bool(self._config.get("attention_bias"))
        for letter, size in (("q", self._q), ("k", self._k), ("v", self._k)):
            yield f"self_attn.{letter}_proj.weight", self._matrix(size, self._hidden)
            if biased or self._architecture == "Qwen2ForCausalLM":
                yield f"self_attn.{letter}_proj.bias", self._bias(size)
        yield "self_attn.o_proj.weight", self._matrix(self._hidden, self._q)
        if biased:
            yield "self_attn.o_proj.bias", self._bias(self._hidden)
        whole = self._architecture == "Olmo2ForCausalLM"
        if whole or self._architecture in _HEAD_NORMS:
            yield "self_attn.q_norm.weight", self._norm(self._q if whole else self._head_dim)
            yield "self_attn.k_norm.weight", self._norm(self._k if whole else self._head_dim)

    def _norms(self) -> Iterator[tuple[str, Tensor]]:
        if self._architecture not in _NO_NORM_BEFORE:
            yield "input_layernorm.weight", self._norm(self._hidden)
        yield "post_attention_layernorm.weight", self._norm(self._hidden)
        if self._architecture in _GEMMA:
            yield "pre_feedforward_layernorm.weight", self._norm(self._hidden)
        if self._architecture in _GEMMA | _NO_NORM_BEFORE:
            yield "post_feedforward_layernorm.weight", self._norm(self._hidden)

    def _mlp(self) -> Iterator[tuple[str, Tensor]]:
        config = self._config
        num_experts, width = config.get("num_experts") or config.get("num_local_experts"), config.get("moe_intermediate_size")
        if num_experts:
            block, names = ("mlp", ("gate_proj", "up_proj", "down_proj")) if width else ("block_sparse_moe", ("w1", "w3", "w2"))
            yield f"{block}.gate.weight", self._matrix(num_experts, self._hidden) * np.float32(3)
            for e in range(num_experts):
                for name, rows in zip(names, (width or self._inner, width or self._inner, self._hidden), strict=True):
                    columns = self._hidden if name != names[2] else width or self._inner
                    yield f"{block}.experts.{e}.{name}.weight", self._matrix(rows, columns)
            return
        yield "mlp.gate_proj.weight", self._matrix(self._inner, self._hidden)
        yield "mlp.up_proj.weight", self._matrix(self._inner, self._hidden)
        yield "mlp.down_proj.weight", self._matrix(self._hidden, self._inner)

    def _matrix(self, rows: int, columns: int) -> Tensor:
        return (self._rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    def _norm(self, size: int) -> Tensor:
        offset = 0 if self._architecture in _GEMMA else 1  # Gemma adds it itself
        return (offset + 0.1 * self._rng.standard_normal(size)).astype(np.float32)

    def _bias(self, size: int) -> Tensor:
        return (0.5 * self._rng.standard_normal(size)).astype(np.float32)


def _fused(layer: dict[str, Tensor]) -> dict[str, Tensor]:
    """q, k and v in one tensor, gate and up in another, as Phi-3 has them."""

    def together(names: str, kind: str) -> Tensor:
        return np.concatenate([layer.pop(kind.format(name)) for name in names.split()])

    qkv, gate_up = together("q k v", "self_attn.{}_proj.weight"), together("gate up", "mlp.{}_proj.weight")
    return layer | {"self_attn.qkv_proj.weight": qkv, "mlp.gate_up_proj.weight": gate_up}


_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": ORIGINAL_CONTEXT,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL_CONTEXT}
_LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 5.0],
}
_GEMMAS = {
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "sliding_window": 50,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}
_GRANITE = {"embedding_multiplier": 1.5, "residual_multiplier": 0.4, "attention_multiplier": 0.3, "logits_scaling": 2.5}

TINY_MODELS: Mapping[str, TinyModel] = {
    model.name: model
    for model in (
        TinyModel("llama", tiny_config("LlamaForCausalLM"), 1, "llama"),
        TinyModel("llama3", tiny_config("LlamaForCausalLM", rope_scaling=_LLAMA3, num_hidden_layers=3), 2, "llama"),
        TinyModel(
            "llama-linear",
            tiny_config("LlamaForCausalLM", rope_scaling={"type": "linear", "factor": 4.0}, attention_bias=True),
            13,
            "llama",
        ),
        TinyModel("qwen2", tiny_config("Qwen2ForCausalLM", tie_word_embeddings=True, rms_norm_eps=1e-6), 4, "qwen2"),
        TinyModel("qwen3", tiny_config("Qwen3ForCausalLM", head_dim=32, rope_theta=1e6, tie_word_embeddings=True), 5, "qwen3"),
        TinyModel("qwen3-yarn", tiny_config("Qwen3ForCausalLM", head_dim=32, rope_theta=1e6, rope_scaling=_YARN), 6, "qwen3"),
        TinyModel("llama-dynamic", tiny_config("LlamaForCausalLM", rope_scaling={"type": "dynamic", "factor": 4.0}), 7, "llama"),
        TinyModel(
            "phi3",
            tiny_config(
                "Phi3ForCausalLM",
                rope_scaling=_LONGROPE,
                partial_rotary_factor=0.75,
                original_max_position_embeddings=ORIGINAL_CONTEXT,
            ),
            8,
            "phi3",
        ),
        TinyModel("smollm3", tiny_config("SmolLM3ForCausalLM", num_hidden_layers=4, tie_word_embeddings=True), 9, "smollm3"),
        TinyModel("granite", tiny_config("GraniteForCausalLM", tie_word_embeddings=True, **_GRANITE), 10, "granite"),
        TinyModel("olmo2", tiny_config("Olmo2ForCausalLM"), 11, "olmo2"),
        TinyModel("mistral", tiny_config("MistralForCausalLM", sliding_window=50), 12, "llama"),
        TinyModel(
            "gemma2",
            tiny_config(
                "Gemma2ForCausalLM", **_GEMMAS, num_hidden_layers=3, attn_logit_softcapping=2.0, final_logit_softcapping=1.5
            ),
            14,
            "gemma2",
        ),
        TinyModel(
            "gemma3",
            tiny_config(
                "Gemma3ForCausalLM",
                **_GEMMAS | {"rope_theta": 1e6},
                num_hidden_layers=7,
                sliding_window_pattern=6,
                rope_local_base_freq=1e4,
                rope_scaling={"rope_type": "linear", "factor": 8.0},
            ),
            15,
            "gemma3",
        ),
        TinyModel(
            "qwen3moe",
            tiny_config(
                "Qwen3MoeForCausalLM",
                head_dim=32,
                num_experts=6,
                num_experts_per_tok=2,
                moe_intermediate_size=64,
                norm_topk_prob=True,
                decoder_sparse_step=1,
                mlp_only_layers=[],
            ),
            17,
            "qwen3moe",
        ),
        TinyModel(
            "mixtral",
            tiny_config("MixtralForCausalLM", num_local_experts=4, num_experts_per_tok=2, sliding_window=None),
            18,
            "llama",
        ),
        TinyModel(
            "qwen2-windows",
            tiny_config("Qwen2ForCausalLM", num_hidden_layers=3, use_sliding_window=True, sliding_window=40, max_window_layers=1),
            16,
            None,
        ),
    )
}

GGUF_MODELS: Sequence[str] = [name for name, model in TINY_MODELS.items() if model.gguf_arch]
"""Those that a GGUF file can hold."""
