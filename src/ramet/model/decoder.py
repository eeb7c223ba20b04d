"""The one decoder: every family of families.py is this code with other switches.

x = embed(tokens); for each layer x += attention(norm(x)), x += mlp(norm(x)); logits = head(norm(x)). Each result row depends
on its own token (and in attention on the keys and values before it) alone, so batching changes no bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ramet.core.batch import Batch
from ramet.core.ids import Float32
from ramet.kernels.backend import AttentionPlan, Backend, KVLayer, PackedWeight
from ramet.model.rope import RopeTable
from ramet.model.spec import Checkpoint, ModelSpec, Progress, Tensors, silent

__all__ = ["Decoder"]


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """One layer's weights, in the backend's layout: q, k and v in one product, gate and up in another."""

    attn_norm: Float32
    qkv: PackedWeight
    qkv_bias: Float32 | None
    out: PackedWeight
    out_bias: Float32 | None
    q_norm: Float32 | None
    k_norm: Float32 | None
    mlp_norm: Float32
    gate_up: PackedWeight
    down: PackedWeight

    @property
    def packed(self) -> dict[str, PackedWeight]:
        """By name, in the order in which a step reads them."""
        return {"qkv": self.qkv, "out": self.out, "gate_up": self.gate_up, "down": self.down}


class Decoder:
    """A model's weights on one backend. Stateless between calls but for the table of rotary angles.

    Weights are packed one at a time; the checkpoint's own arrays are not kept.
    """

    def __init__(self, checkpoint: Checkpoint, backend: Backend, progress: Progress = silent) -> None:
        spec, tensors = checkpoint.spec, checkpoint.tensors
        self.spec: ModelSpec = spec
        self._backend = backend
        self._rope = RopeTable(spec.rope)
        self._scale = 1.0 / math.sqrt(spec.head_dim)
        self._layers: list[_Layer] = []
        for i, layer in enumerate(_pack_layers(spec, tensors, backend)):
            self._layers.append(layer)
            progress("packing weights", i + 1, spec.num_layers + 1)
        self._final_norm = tensors.vector("final_norm")
        self._embed = backend.pack([tensors.matrix("embed")])
        self._head = self._embed if spec.tie_embeddings else backend.pack([tensors.matrix("head")])
        progress("packing weights", spec.num_layers + 1, spec.num_layers + 1)

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weights."""
        looked_up = 0 if self._embed is self._head else self._embed.nbytes
        return looked_up + sum(weight.nbytes for weight in self.products.values())

    @property
    def products(self) -> dict[str, PackedWeight]:
        """The weight of each matrix product of a step, in order: ``layers.0.qkv`` and so on, ``head`` last."""
        of_layers = {f"layers.{i}.{name}": w for i, layer in enumerate(self._layers) for name, w in layer.packed.items()}
        return of_layers | {"head": self._head}

    def forward(self, batch: Batch, kv_layers: Sequence[KVLayer]) -> Float32:
        """float32[T, hidden]: what the last layer gives for every token, before the final norm.

        Writes the tokens' keys and values to ``batch.slots``. The batch's page copies must be done.
        """
        backend = self._backend
        plan = backend.plan(batch)
        cos, sin = self._rope.rows(batch.positions)
        x = backend.embed(self._embed, batch.token_ids)
        for layer, kv in zip(self._layers, kv_layers, strict=True):
            q, k, v = self._project(layer, x, cos, sin)
            backend.write_kv(kv, k, v, batch.slots)
            backend.add(x, self._attend(layer, q, kv, plan))
            gate_up = backend.linear(backend.rms_norm(x, layer.mlp_norm, self.spec.rms_eps), layer.gate_up)
            backend.add(x, backend.linear(backend.silu_mul(gate_up), layer.down))
        return x

    def logits(self, hidden: Float32) -> Float32:
        """float32[R, V] for the rows of ``forward`` that need them: the final norm, then the output projection."""
        normed = self._backend.rms_norm(np.ascontiguousarray(hidden), self._final_norm, self.spec.rms_eps)
        return self._backend.linear(normed, self._head)

    def _project(self, layer: _Layer, x: Float32, cos: Float32, sin: Float32) -> tuple[Float32, Float32, Float32]:
        """(q [T, Hq, D], k [T, Hkv, D], v [T, Hkv, D]), normed where the family does so, q and k rotated."""
        spec, backend = self.spec, self._backend
        qkv = backend.linear(backend.rms_norm(x, layer.attn_norm, spec.rms_eps), layer.qkv, layer.qkv_bias)
        heads = qkv.reshape(len(x), -1, spec.head_dim)
        first_k, first_v = spec.num_heads, spec.num_heads + spec.num_kv_heads
        q = np.ascontiguousarray(heads[:, :first_k])  # views, not copies, where T is 1
        k = np.ascontiguousarray(heads[:, first_k:first_v])
        v = np.ascontiguousarray(heads[:, first_v:])
        if layer.q_norm is not None:
            q = backend.rms_norm(q.reshape(-1, spec.head_dim), layer.q_norm, spec.rms_eps).reshape(q.shape)
        if layer.k_norm is not None:
            k = backend.rms_norm(k.reshape(-1, spec.head_dim), layer.k_norm, spec.rms_eps).reshape(k.shape)
        backend.rope(q, cos, sin)
        backend.rope(k, cos, sin)
        return q, k, v

    def _attend(self, layer: _Layer, q: Float32, kv: KVLayer, plan: AttentionPlan) -> Float32:
        mixed = self._backend.attention(q, kv, plan, self._scale)
        return self._backend.linear(mixed, layer.out, layer.out_bias)


def _pack_layers(spec: ModelSpec, tensors: Tensors, backend: Backend) -> Iterator[_Layer]:
    for i in range(spec.num_layers):
        prefix = f"layers.{i}."

        def vector(name: str, prefix: str = prefix) -> Float32:
            return tensors.vector(prefix + name)

        def pack(*names: str, prefix: str = prefix) -> PackedWeight:
            return backend.pack([tensors.matrix(prefix + name) for name in names])

        yield _Layer(
            attn_norm=vector("attn_norm"),
            qkv=pack("q", "k", "v"),
            qkv_bias=np.concatenate([vector("q_bias"), vector("k_bias"), vector("v_bias")]) if spec.qkv_bias else None,
            out=pack("o"),
            out_bias=vector("o_bias") if spec.output_bias else None,
            q_norm=vector("q_norm") if spec.qk_norm else None,
            k_norm=vector("k_norm") if spec.qk_norm else None,
            mlp_norm=vector("mlp_norm"),
            gate_up=pack("gate", "up"),
            down=pack("down"),
        )
