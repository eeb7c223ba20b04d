"""KV memory for tests."""

from __future__ import annotations

import numpy as np

from ramet.kernels.backend import KVFormat, KVLayer
from ramet.runner.kv_tensors import allocate_kv

__all__ = ["KV_FORMATS", "unwritten_kv"]

KV_FORMATS: tuple[KVFormat, ...] = ("float32", "bfloat16", "int8")


def unwritten_kv(num_layers: int, num_slots: int, num_kv_heads: int, head_dim: int, dtype: KVFormat) -> list[KVLayer]:
    """Layers that are NaN wherever nothing has been written: their numbers, or the scales of their codes."""
    layers = allocate_kv(num_layers, num_slots, num_kv_heads, head_dim, dtype)
    for layer in layers:
        for store in (layer.keys, layer.values):
            store.view(np.uint16)[:] = 0x7FC1
    return layers
