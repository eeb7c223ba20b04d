"""Writes a model folder of a well-known shape with random weights in bfloat16, to measure loading and speed with.

usage: python tools/make_checkpoint.py 1b|3b FOLDER

Shapes are those of Llama 3.2 1B and 3B. There is no tokenizer: prompts are token ids. Values are of all signs and of four powers
of two around 2**-8, so that logits stay finite; they mean nothing. int8 and int4 come about at the start: ``--quantization``.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

__all__ = ["SHAPES", "main", "write_checkpoint"]

SHAPES: Mapping[str, Mapping[str, int]] = {
    "1b": {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "head_dim": 64},
    "3b": {"hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 24, "head_dim": 128},
}
_COMMON = {"num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256}
_REST = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
_ONE = 0x3F80  # 1.0 in bfloat16
_KEPT, _EXPONENT = 0x81FF, 116 << 7  # sign, two bits of the exponent, fraction; 2**(116 - 127) and three powers over it
_CHUNK_VALUES = 1 << 24


def write_checkpoint(shape: Mapping[str, int], folder: Path, seed: int = 0) -> Path:
    """config.json and model.safetensors; as fast as the disk takes them."""
    config = {**_REST, **_COMMON, **shape}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    header, at = {}, 0
    tensors = _tensors(config)
    for name, dims in tensors.items():
        end = at + 2 * math.prod(dims)
        header[name] = {"dtype": "BF16", "shape": dims, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(seed)
    with (folder / "model.safetensors").open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for dims in tensors.values():
            left = math.prod(dims)
            if len(dims) == 1:
                out.write(np.full(left, _ONE, np.uint16).data)
                continue
            while left:
                bits = np.frombuffer(rng.bytes(2 * min(left, _CHUNK_VALUES)), np.uint16)
                out.write((bits & np.uint16(_KEPT) | np.uint16(_EXPONENT)).data)
                left -= len(bits)
    return folder


def _tensors(config: Mapping[str, object]) -> dict[str, list[int]]:
    def size(name: str) -> int:
        value = config[name]
        assert isinstance(value, int)
        return value

    hidden, inner = size("hidden_size"), size("intermediate_size")
    queries, keys = (size(n) * size("head_dim") for n in ("num_attention_heads", "num_key_value_heads"))
    found = {"model.embed_tokens.weight": [size("vocab_size"), hidden], "model.norm.weight": [hidden]}
    for i in range(size("num_hidden_layers")):
        for name, dims in {
            "input_layernorm": [hidden],
            "self_attn.q_proj": [queries, hidden],
            "self_attn.k_proj": [keys, hidden],
            "self_attn.v_proj": [keys, hidden],
            "self_attn.o_proj": [hidden, queries],
            "post_attention_layernorm": [hidden],
            "mlp.gate_proj": [inner, hidden],
            "mlp.up_proj": [inner, hidden],
            "mlp.down_proj": [hidden, inner],
        }.items():
            found[f"model.layers.{i}.{name}.weight"] = dims
    return found


def main(arguments: list[str]) -> int:
    if len(arguments) != 2 or arguments[0] not in SHAPES:
        print(__doc__, file=sys.stderr)
        return 2
    write_checkpoint(SHAPES[arguments[0]], Path(arguments[1]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
