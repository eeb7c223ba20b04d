"""Writes the tiny checkpoints of tiny_families.py in the formats people have. GGUF files need the ``gguf`` package, tokenizers
the ``tokenizers`` package.

The same ``TinyModel`` written as a folder and as a GGUF file (in F32) computes the same numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tiny_families import GGUF_MODELS, ORIGINAL_CONTEXT, TINY_MODELS, VOCAB_SIZE, TinyModel, tiny_config

__all__ = [
    "GGUF_MODELS",
    "INTERLEAVED",
    "ORIGINAL_CONTEXT",
    "TINY_MODELS",
    "VOCAB_SIZE",
    "TinyModel",
    "gguf_name",
    "interleave",
    "tiny_config",
    "write_folder",
    "write_gguf",
    "write_safetensors",
]

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|pad|>")
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_folder(model: TinyModel, folder: Path, *, dtype: str = "F32", tokenizer: bool = True) -> Path:
    """Write config.json, one safetensors file (F32, F16 or BF16) and, unless told not to, a byte-level tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(model.config))
    write_safetensors(folder / "model.safetensors", {name: (dtype, t) for name, t in model.tensors.items()})
    if tokenizer:
        _write_tokenizer(folder)
    return folder


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, npt.NDArray[Any]]]) -> None:
    """Tensors as (type, float32 values); BF16 is rounded half to even. Whole numbers are written as they are."""
    header: dict[str, Any] = {}
    body = b""
    for name, (dtype, values) in tensors.items():
        data = _encode(dtype, values)
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def _encode(dtype: str, values: npt.NDArray[Any]) -> bytes:
    if values.dtype.kind in "iu":
        return values.tobytes()
    if dtype == "BF16":
        bits = np.ascontiguousarray(values).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()
    return values.astype({"F32": np.float32, "F16": np.float16}[dtype]).tobytes()


def _write_tokenizer(folder: Path) -> None:
    """Every byte is a token (ids 0 to 255), then the special ones; no merges."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocab = {symbol: byte for byte, symbol in enumerate(_byte_symbols())}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in _SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"chat_template": _CHAT_TEMPLATE, "eos_token": _SPECIAL[0], "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _byte_symbols() -> list[str]:
    """GPT-2's printable stand-in of each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


INTERLEAVED = ("llama", "smollm3", "granite")
_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "block_sparse_moe.experts.w1": "ffn_gate_exps",
    "block_sparse_moe.experts.w3": "ffn_up_exps",
    "block_sparse_moe.experts.w2": "ffn_down_exps",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_GEMMA = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm"}
_GGUF_OWN_NAMES = {"olmo2": {"post_attention_layernorm": "post_attention_norm"}, "gemma2": _GEMMA, "gemma3": _GEMMA}


def write_gguf(
    model: TinyModel,
    path: Path,
    *,
    type_name: str = "F32",
    extra: Mapping[str, Any] | None = None,
    values: Mapping[str, npt.NDArray[np.float32]] | None = None,
    stored: Mapping[str, npt.NDArray[np.uint8]] | None = None,
    split: Mapping[str, Any] | None = None,
) -> Path:
    """Write a GGUF file with the ``gguf`` package; matrices in ``type_name``, vectors in F32.

    ``extra`` adds string or integer keys. q and k of some architectures are stored interleaved, as llama.cpp wants them.
    ``values`` (float32) or ``stored`` (blocks of ``type_name``), as they are to stand in the file, replace the model's tensors.
    ``split`` are the package's options for several files (``split_max_tensors``); the first one's path comes back.
    """
    import gguf

    assert model.gguf_arch is not None, f"{model.name} has no GGUF form"
    config, type_ = model.config, gguf.GGMLQuantizationType[type_name]
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, model.gguf_arch, **(split or {}))
    _write_gguf_keys(writer, config)
    for key, value in (extra or {}).items():
        (writer.add_string if isinstance(value, str) else writer.add_uint32)(key, value)
    for name, tensor in _stacked(values or model.tensors).items():
        file_name = gguf_name(name, model.gguf_arch)
        if values is None and model.gguf_arch in INTERLEAVED and ("q_proj" in name or "k_proj" in name):
            tensor = interleave(tensor, config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"])
        if values is None and model.gguf_arch in ("gemma2", "gemma3") and tensor.ndim == 1:
            tensor = tensor + np.float32(1)
        if stored and name in stored:
            writer.add_tensor(file_name, stored[name], raw_dtype=type_)
        elif tensor.ndim == 1 or type_name == "F32":
            writer.add_tensor(file_name, tensor)
        else:
            writer.add_tensor(file_name, gguf.quants.quantize(tensor, type_), raw_dtype=type_)
    _write_rope_factors(writer, config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if split is None else min(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))


def _stacked(tensors: Mapping[str, npt.NDArray[np.float32]]) -> dict[str, npt.NDArray[np.float32]]:
    """Experts' matrices in one tensor a layer and kind: its name has no number."""
    found: dict[str, Any] = {}
    for name, tensor in tensors.items():
        head, is_one, rest = name.partition(".experts.")
        if is_one:
            found.setdefault(f"{head}.experts.{rest.partition('.')[2]}", []).append(tensor)
        else:
            found[name] = tensor
    return {name: np.stack(one) if isinstance(one, list) else one for name, one in found.items()}


def _write_gguf_keys(writer: Any, config: Mapping[str, Any]) -> None:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim", config["hidden_size"] // heads)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(int(head_dim * config.get("partial_rotary_factor", 1.0)))
    _write_rope_keys(writer, config)
    if num_experts := config.get("num_experts") or config.get("num_local_experts"):
        writer.add_expert_count(num_experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    if "attn_logit_softcapping" in config:
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if "residual_multiplier" in config:
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*_byte_symbols(), *_SPECIAL])
    writer.add_token_types([1] * 256 + [3] * len(_SPECIAL))
    writer.add_token_merges([])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_chat_template(_CHAT_TEMPLATE)


def _write_rope_keys(writer: Any, config: Mapping[str, Any]) -> None:
    import gguf

    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(scaling["factor"])
    if kind in ("yarn", "longrope"):
        writer.add_rope_scaling_orig_ctx_len(ORIGINAL_CONTEXT)
    if kind == "longrope":
        stretch = config["max_position_embeddings"] / ORIGINAL_CONTEXT
        writer.add_rope_scaling_attn_factors(np.sqrt(1 + np.log(stretch) / np.log(ORIGINAL_CONTEXT)))


def _write_rope_factors(writer: Any, config: Mapping[str, Any]) -> None:
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_factors(config, scaling))
    for length in ("long", "short"):
        if f"{length}_factor" in scaling:
            writer.add_tensor(f"rope_factors_{length}.weight", np.array(scaling[f"{length}_factor"], np.float32))


def gguf_name(name: str, architecture: str) -> str:
    """What GGUF files of an architecture call a tensor."""
    stem, _, kind = name.rpartition(".")
    names = _GGUF_NAMES | _GGUF_OWN_NAMES.get(architecture, {})
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{names[part]}.{kind}"
    return f"{names[stem]}.{kind}"


def interleave(values: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Rows of q or k with the two members of a rotary pair side by side."""
    halves = values.reshape(num_heads, 2, len(values) // num_heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def _llama3_factors(config: Mapping[str, Any], scaling: Mapping[str, Any]) -> npt.NDArray[np.float32]:
    """Divisors of the rotary frequencies, by the published rule, pair by pair."""
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    original, low, high = (scaling[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"))
    factors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * np.pi * config["rope_theta"] ** (i / head_dim)
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(scaling["factor"])
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(factors, np.float32)
