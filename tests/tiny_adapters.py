"""Adapters of the tiny checkpoints, as folders that PEFT would write and as GGUF files. The latter need the ``gguf`` package."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tiny_models import INTERLEAVED, TINY_MODELS, TinyModel, gguf_name, interleave, write_safetensors

__all__ = ["TINY_ADAPTERS", "TinyAdapter", "make_adapter", "write_adapter", "write_gguf_adapter"]

Matrices = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]
_EVERY = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qkv_proj", "gate_up_proj")


@dataclass(frozen=True)
class TinyAdapter:
    """``pairs`` are A [r, K] and B [N, r] by module (``model.layers.0.self_attn.q_proj``)."""

    model: str
    config: Mapping[str, Any]
    pairs: Mapping[str, Matrices] = field(repr=False)

    def scale(self, module: str) -> float:
        """By PEFT's documentation: alpha over the rank, or over its root; each may be another for some modules."""
        ends = {end: value for end, value in self.config.get("alpha_pattern", {}).items() if f".{module}".endswith(f".{end}")}
        alpha, rank = next(iter(ends.values()), self.config["lora_alpha"]), len(self.pairs[module][0])
        return float(alpha / (math.sqrt(rank) if self.config.get("use_rslora") else rank))


def make_adapter(
    model: str,
    seed: int,
    rank: int = 4,
    *,
    targets: Sequence[str] = _EVERY,
    ranks: Mapping[str, int] | None = None,
    **config: Any,
) -> TinyAdapter:
    """Random, and large enough to change every answer. ``ranks`` by ends of modules' names; ``config`` is further fields."""
    rng = np.random.default_rng(seed)
    pairs: dict[str, Matrices] = {}
    for name, tensor in TINY_MODELS[model].tensors.items():
        module = name.removesuffix(".weight")
        if module.rpartition(".")[2] not in targets or ".experts." in module or tensor.ndim != 2:
            continue
        r = next((r for end, r in (ranks or {}).items() if f".{module}".endswith(f".{end}")), rank)
        (n, k), size = tensor.shape, np.abs(tensor).mean()
        shapes = (r, k), (n, r)
        a, b = ((rng.standard_normal(shape) * math.sqrt(size / r)).astype(np.float32) for shape in shapes)
        pairs[module] = a, b
    found = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank, "bias": "none", **config}
    found |= {"rank_pattern": dict(ranks or {}), "target_modules": sorted({module.rpartition(".")[2] for module in pairs})}
    return TinyAdapter(model, found, pairs)


TINY_ADAPTERS: Mapping[str, TinyAdapter] = {
    "llama": make_adapter("llama3", 1),
    "qwen2-attention": make_adapter(
        "qwen2", 2, targets=("q_proj", "v_proj"), ranks={"layers.0.self_attn.q_proj": 7}, alpha_pattern={"v_proj": 3}
    ),
    "phi3-fused": make_adapter("phi3", 3, use_rslora=True),
    "gemma2": make_adapter("gemma2", 4),
    "granite": make_adapter("granite", 5, targets=("down_proj", "k_proj", "o_proj")),
    "qwen3moe-attention": make_adapter("qwen3moe", 6),
}
"""Those whose logits are in ``golden/lora_logits.json``."""


def write_adapter(adapter: TinyAdapter, folder: Path, *, dtype: str = "F32", **changes: Any) -> Path:
    """adapter_config.json, with ``changes`` to it, and adapter_model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({**adapter.config, **changes}))
    tensors = {
        f"base_model.model.{module}.lora_{half}.weight": (dtype, values)
        for module, pair in adapter.pairs.items()
        for half, values in zip("AB", pair, strict=True)
    }
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    return folder


def write_gguf_adapter(adapter: TinyAdapter, path: Path, **changes: Any) -> Path:
    """As llama.cpp's converter does it; ``changes`` are to its string keys."""
    import gguf

    model: TinyModel = TINY_MODELS[adapter.model]
    assert model.gguf_arch is not None
    keys = {"general.type": "adapter", "adapter.type": "lora", **changes}
    writer = gguf.GGUFWriter(path, keys.pop("general.architecture", model.gguf_arch))
    for key, value in keys.items():
        writer.add_string(key, value)
    writer.add_float32("adapter.lora.alpha", float(adapter.config["lora_alpha"]))
    for module, (a, b) in adapter.pairs.items():
        if model.gguf_arch in INTERLEAVED and module.endswith(("q_proj", "k_proj")):
            b = interleave(b, model.config["num_attention_heads" if module.endswith("q_proj") else "num_key_value_heads"])
        name = gguf_name(f"{module}.weight", model.gguf_arch)
        writer.add_tensor(f"{name}.lora_a", a)
        writer.add_tensor(f"{name}.lora_b", b)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
