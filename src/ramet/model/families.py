"""The families Ramet knows, as data: which switches each has, and what its tensors are called in each kind of file.

Anything that is not in these tables is refused by name: a wrong guess gives fluent nonsense.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from ramet.errors import ModelError
from ramet.model.files import few
from ramet.model.spec import ModelSpec

__all__ = ["GGUF_FAMILIES", "HF_FAMILIES", "Expected", "Family", "Naming", "check_tensors", "expected_tensors", "family_of"]

Naming = Literal["hf", "gguf"]
Bias = Literal["never", "always", "by_file"]  # by_file: config.json's attention_bias, or the tensor's presence in a GGUF


@dataclass(frozen=True, slots=True)
class Family:
    """Switches of one family.

    ``gguf_interleaved``: its GGUF files store q and k rows so that rotary pairs are neighbours; Ramet rotates halves.
    ``default_theta``: rotary base where a config has none, for families whose early configs had none.
    """

    qkv_bias: Bias
    output_bias: Bias
    qk_norm: bool = False
    gguf_interleaved: bool = False
    default_theta: float | None = None


_LLAMA = Family(qkv_bias="by_file", output_bias="by_file", gguf_interleaved=True, default_theta=10_000.0)
_MISTRAL = Family(qkv_bias="never", output_bias="never")
_QWEN2 = Family(qkv_bias="always", output_bias="never")
_QWEN3 = Family(qkv_bias="by_file", output_bias="by_file", qk_norm=True)

HF_FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _MISTRAL,
    "Qwen2ForCausalLM": _QWEN2,
    "Qwen3ForCausalLM": _QWEN3,
}
GGUF_FAMILIES: Mapping[str, Family] = {"llama": _LLAMA, "qwen2": _QWEN2, "qwen3": _QWEN3}


@dataclass(frozen=True, slots=True)
class _Role:
    """One tensor of a model. ``shape`` in letters (see ``_sizes``); ``when`` says for which specs it is there."""

    hf: str
    gguf: str
    shape: str
    when: Callable[[ModelSpec], bool] = lambda spec: True


_TOP: Mapping[str, _Role] = {
    "embed": _Role("model.embed_tokens.weight", "token_embd.weight", "VH"),
    "final_norm": _Role("model.norm.weight", "output_norm.weight", "H"),
    "head": _Role("lm_head.weight", "output.weight", "VH", lambda spec: not spec.tie_embeddings),
}
_HF, _GGUF = "model.layers.{}.", "blk.{}."
_LAYER: Mapping[str, _Role] = {
    "attn_norm": _Role(_HF + "input_layernorm.weight", _GGUF + "attn_norm.weight", "H"),
    "q": _Role(_HF + "self_attn.q_proj.weight", _GGUF + "attn_q.weight", "QH"),
    "k": _Role(_HF + "self_attn.k_proj.weight", _GGUF + "attn_k.weight", "KH"),
    "v": _Role(_HF + "self_attn.v_proj.weight", _GGUF + "attn_v.weight", "KH"),
    "o": _Role(_HF + "self_attn.o_proj.weight", _GGUF + "attn_output.weight", "HQ"),
    "q_bias": _Role(_HF + "self_attn.q_proj.bias", _GGUF + "attn_q.bias", "Q", lambda spec: spec.qkv_bias),
    "k_bias": _Role(_HF + "self_attn.k_proj.bias", _GGUF + "attn_k.bias", "K", lambda spec: spec.qkv_bias),
    "v_bias": _Role(_HF + "self_attn.v_proj.bias", _GGUF + "attn_v.bias", "K", lambda spec: spec.qkv_bias),
    "o_bias": _Role(_HF + "self_attn.o_proj.bias", _GGUF + "attn_output.bias", "H", lambda spec: spec.output_bias),
    "q_norm": _Role(_HF + "self_attn.q_norm.weight", _GGUF + "attn_q_norm.weight", "D", lambda spec: spec.qk_norm),
    "k_norm": _Role(_HF + "self_attn.k_norm.weight", _GGUF + "attn_k_norm.weight", "D", lambda spec: spec.qk_norm),
    "mlp_norm": _Role(_HF + "post_attention_layernorm.weight", _GGUF + "ffn_norm.weight", "H"),
    "gate": _Role(_HF + "mlp.gate_proj.weight", _GGUF + "ffn_gate.weight", "FH"),
    "up": _Role(_HF + "mlp.up_proj.weight", _GGUF + "ffn_up.weight", "FH"),
    "down": _Role(_HF + "mlp.down_proj.weight", _GGUF + "ffn_down.weight", "HF"),
}


@dataclass(frozen=True, slots=True)
class Expected:
    """Where a tensor stands in the file, and its shape in rows and columns."""

    file_name: str
    shape: tuple[int, ...]


def family_of(architecture: str, known: Mapping[str, Family], where: str) -> Family:
    """The family of an architecture name. Raises ``ModelError`` with the known ones."""
    if architecture not in known:
        raise ModelError(f"{where}: architecture {architecture!r} is not supported; supported: {', '.join(known)}")
    return known[architecture]


def expected_tensors(spec: ModelSpec, naming: Naming) -> dict[str, Expected]:
    """Every tensor that a model of this shape has, by its name in Ramet (``embed``, ``layers.3.q``)."""
    sizes = _sizes(spec)

    def expected(role: _Role, layer: int) -> Expected:
        return Expected(getattr(role, naming).format(layer), tuple(sizes[letter] for letter in role.shape))

    top = {name: expected(role, 0) for name, role in _TOP.items() if role.when(spec)}
    layers = {
        f"layers.{i}.{name}": expected(role, i)
        for i in range(spec.num_layers)
        for name, role in _LAYER.items()
        if role.when(spec)
    }
    return top | layers


def check_tensors(
    expected: Iterable[Expected], shapes: Mapping[str, tuple[int, ...]], where: str, ignored: Callable[[str], bool]
) -> None:
    """Compare a file's tensors (name -> shape) with what the model must have: none missing, none over, no other shape.

    Raises ``ModelError`` with names and numbers.
    """
    wanted = {one.file_name: one.shape for one in expected}
    missing = [name for name in wanted if name not in shapes]
    if missing:
        raise ModelError(f"{where}: missing tensors: {few(missing)}")
    unexpected = [name for name in shapes if name not in wanted and not ignored(name)]
    if unexpected:
        raise ModelError(f"{where}: unexpected tensors, of another architecture or a variant of it: {few(unexpected)}")
    for name, shape in wanted.items():
        if shapes[name] != shape:
            raise ModelError(f"{where}: tensor {name} is {list(shapes[name])}, but the configuration makes it {list(shape)}")


def _sizes(spec: ModelSpec) -> dict[str, int]:
    return {
        "V": spec.vocab_size,
        "H": spec.hidden_size,
        "Q": spec.num_heads * spec.head_dim,
        "K": spec.num_kv_heads * spec.head_dim,
        "D": spec.head_dim,
        "F": spec.intermediate_size,
    }
