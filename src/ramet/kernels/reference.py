"""The definition of every op, in numpy: slow, plain, and as exact in its rows as the kernels that are held against it.

Sums over K run as one chain in order, so no BLAS kernel decides what a row's bits are. Dot products of integers are exact in
float64, whatever the order, and may use BLAS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ramet.core.batch import Batch, PageCopies
from ramet.core.ids import Float32, Int32
from ramet.kernels.backend import (
    ATTENTION_SPAN,
    GROUP,
    KV_SCALE_BYTES,
    AttentionPlan,
    Choosing,
    KVLayer,
    PackedWeight,
    Picks,
    RowLogprobs,
    Weight,
)
from ramet.kernels.composed import ComposedProgram
from ramet.kernels.program import Program
from ramet.kernels.reference_sampling import logprob_rows, sample_rows

__all__ = ["ReferenceBackend", "bf16_to_f32", "check_parts", "f32_to_bf16", "kv_to_f32", "quantize_heads", "quantize_rows"]


_MAX_CODES = {"q8": np.float32(32767), "q4": np.float32(2047)}  # of inputs, by what they meet
_MAX_KV_CODE = np.float32(127)
_GELU_LINEAR = 2 * math.sqrt(2 / math.pi)
_GELU_CUBIC = 0.044715 * _GELU_LINEAR
_TINY = np.float32(1e-30)  # a group with nothing larger rounds to zeros


def f32_to_bf16(x: Float32) -> npt.NDArray[np.uint16]:
    """Upper halves of float32, rounded half to even; NaN stays NaN (quiet), infinities stay."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1)).astype(np.uint32)) >> 16
    quiet = (bits >> 16) | 0x40
    return np.where(np.isnan(x), quiet, rounded).astype(np.uint16)


def bf16_to_f32(halves: npt.NDArray[np.generic]) -> Float32:
    return (halves.astype(np.uint32) << 16).view(np.float32)


def quantize_rows(x: Float32, max_code: np.float32) -> tuple[npt.NDArray[np.int16], Float32]:
    """int16[T, K] codes and float32[T, K/32] scales of float32[T, K]: scale = max|x| / max_code, code = x / scale, half to even.

    A group with NaN or infinity has scale NaN and codes 0.
    """
    groups = x.reshape(len(x), x.shape[1] // GROUP, GROUP)
    largest = np.abs(groups).max(axis=2)
    finite = np.isfinite(largest)
    scales = np.where(finite, largest, np.float32(np.nan)) * (1 / max_code)
    inverse = np.divide(max_code, largest, out=np.zeros_like(largest), where=finite & (largest > _TINY))
    codes = np.rint(np.where(finite[:, :, None], groups, np.float32(0)) * inverse[:, :, None]).astype(np.int16)
    return codes.reshape(x.shape), scales


def quantize_heads(x: Float32) -> npt.NDArray[np.int8]:
    """int8[T, H, D + 4] rows (``KVLayer``) of float32[T, H, D]: scale = max|x| / 127, code = x / scale, half to even.

    A row with NaN or infinity has scale NaN and codes 0.
    """
    largest = np.abs(x).max(axis=2, keepdims=True)
    finite = np.isfinite(largest)
    scales = np.where(finite, largest, np.float32(np.nan)) * (1 / _MAX_KV_CODE)
    inverse = np.divide(_MAX_KV_CODE, largest, out=np.zeros_like(largest), where=finite & (largest > _TINY))
    codes = np.rint(np.where(finite, x, np.float32(0)) * inverse).astype(np.int8)
    return np.concatenate([codes, scales.view(np.int8)], axis=2)


def check_parts(parts: Sequence[Weight]) -> None:
    """Raise ``ValueError`` where parts cannot be stacked: no part, K that differs, K of a quantised part not in whole groups."""
    if not parts:
        raise ValueError("pack needs at least one matrix")
    widths = sorted({part.shape[1] for part in parts})
    if len(widths) > 1:
        raise ValueError(f"matrices that are packed together have one K, not {widths}")
    if widths[0] % GROUP and any(part.format in ("q8", "q4") for part in parts):
        raise ValueError(f"K of a quantised matrix is a multiple of {GROUP}, not {widths[0]}")


@dataclass(frozen=True, slots=True, eq=False)
class _ReferenceWeight:
    parts: tuple[Weight, ...]

    @property
    def shape(self) -> tuple[int, int]:
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]

    @property
    def nbytes(self) -> int:
        arrays = [a for part in self.parts for a in (part.data, part.scales, part.mins)]
        return sum(a.nbytes for a in arrays if a is not None)


@dataclass(frozen=True, slots=True, eq=False)
class _ReferencePlan:
    """``slots[t]``: where the keys of positions 0 to p of row t are."""

    slots: tuple[Int32, ...]


class ReferenceBackend:
    """``Backend`` in numpy."""

    name = "reference"
    isa = "numpy"
    threads = 1

    def pack(self, parts: Iterable[Weight], num_outputs: int = 0) -> PackedWeight:
        found = tuple(parts)
        check_parts(found)
        return _ReferenceWeight(found)

    def compile(self, program: Program) -> ComposedProgram:
        return ComposedProgram(self, program)

    def embed(self, table: PackedWeight, token_ids: Int32) -> Float32:
        num_outputs, _ = table.shape
        if len(token_ids) and not 0 <= token_ids.min() <= token_ids.max() < num_outputs:
            raise ValueError(f"token ids are from 0 to {num_outputs - 1}, not {token_ids.min()} to {token_ids.max()}")
        out: Float32 = np.empty((len(token_ids), table.shape[1]), np.float32)
        start = 0
        for part in _reference_weight(table).parts:
            inside = (token_ids >= start) & (token_ids < start + part.shape[0])
            out[inside] = _dequantize(part, token_ids[inside] - start)
            start += part.shape[0]
        return out

    def linear(self, x: Float32, weight: PackedWeight, bias: Float32 | None = None) -> Float32:
        if x.shape[1] != weight.shape[1]:
            raise ValueError(f"K is {x.shape[1]} in x and {weight.shape[1]} in the weight")
        outputs = [
            _linear_dense(x, part) if part.scales is None else _linear_quantized(x, part, part.scales)
            for part in _reference_weight(weight).parts
        ]
        out: Float32 = np.concatenate(outputs, axis=1)
        return out if bias is None else out + bias

    def rms_norm(self, x: Float32, weight: Float32, eps: float) -> Float32:
        mean: Float32 = np.square(x).mean(axis=-1, keepdims=True)
        mean += np.float32(eps)
        out: Float32 = (x / np.sqrt(mean) * weight).astype(np.float32, copy=False)
        return out

    def add(self, x: Float32, y: Float32) -> None:
        x += y

    def silu_mul(self, gate_up: Float32) -> Float32:
        gate, up = np.split(gate_up, 2, axis=1)
        with np.errstate(over="ignore"):  # exp(-gate) of a very negative gate: infinity, and silu 0
            denominator: Float32 = np.exp(-gate)
            denominator += np.float32(1)
            out: Float32 = gate / denominator * up
        return out

    def gelu_mul(self, gate_up: Float32) -> Float32:
        gate, up = np.split(gate_up, 2, axis=1)
        with np.errstate(over="ignore"):  # as above
            inner: Float32 = gate * (np.float32(_GELU_LINEAR) + np.float32(_GELU_CUBIC) * np.square(gate))
            denominator: Float32 = np.exp(-inner)
            denominator += np.float32(1)
            out: Float32 = gate / denominator * up
        return out

    def soft_cap(self, x: Float32, limit: float) -> None:
        x[:] = np.tanh(x / np.float32(limit)) * np.float32(limit)

    def choose_experts(self, scores: Float32, num_chosen: int, is_normalized: bool) -> None:
        if not 1 <= num_chosen <= scores.shape[1]:
            raise ValueError(f"from 1 to {scores.shape[1]} experts are chosen, not {num_chosen}")
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        chosen = np.argsort(-weights, axis=1, kind="stable")[:, :num_chosen]
        best = np.take_along_axis(weights, chosen, axis=1)
        total = (best if is_normalized else weights).sum(axis=1, keepdims=True)
        total = np.where(np.isfinite(scores).all(axis=1, keepdims=True), total, np.float32(np.nan))
        scores[:] = 0
        np.put_along_axis(scores, chosen, best / total, axis=1)

    def rope(self, x: Float32, cos: Float32, sin: Float32) -> None:
        half = cos.shape[1]
        low, high = x[:, :, :half].copy(), x[:, :, half : 2 * half].copy()
        c, s = cos[:, None, :], sin[:, None, :]
        x[:, :, :half] = low * c - high * s
        x[:, :, half : 2 * half] = high * c + low * s

    def write_kv(self, layer: KVLayer, keys: Float32, values: Float32, slots: Int32) -> None:
        for store, new in ((layer.keys, keys), (layer.values, values)):
            store[slots] = _KV_ROUNDINGS[store.dtype.type](new)

    def copy_pages(self, layers: Sequence[KVLayer], copies: PageCopies, page_size: int) -> None:
        for src, dst, num_tokens in zip(copies.src, copies.dst, copies.num_tokens, strict=True):
            for store in (store for layer in layers for store in (layer.keys, layer.values)):
                store[dst * page_size :][:num_tokens] = store[src * page_size :][:num_tokens]

    def plan(self, batch: Batch) -> _ReferencePlan:
        offsets = np.arange(batch.page_size, dtype=np.int32)
        slots: list[Int32] = []
        for b in range(batch.num_seqs):
            pages = batch.page_ids[batch.page_indptr[b] : batch.page_indptr[b + 1]]
            all_slots = (pages[:, None] * batch.page_size + offsets).reshape(-1)
            positions = batch.positions[batch.query_indptr[b] : batch.query_indptr[b + 1]]
            slots += [all_slots[: p + 1] for p in positions]
        return _ReferencePlan(tuple(slots))

    def attention(
        self,
        q: Float32,
        layer: KVLayer,
        plan: AttentionPlan,
        scale: float,
        window: int | None = None,
        cap: float | None = None,
    ) -> Float32:
        if not isinstance(plan, _ReferencePlan):
            raise TypeError(f"a {type(plan).__name__} was planned by another backend")
        num_tokens, num_heads, head_dim = q.shape
        out: Float32 = np.empty((num_tokens, num_heads * head_dim), np.float32)
        for t in range(num_tokens):
            slots = plan.slots[t]
            first = max(0, len(slots) - (window or len(slots)))
            out[t] = _attend(q[t] * np.float32(scale), layer, slots, first, cap).reshape(-1)
        return out

    def sample(self, logits: Float32, choosing: Choosing) -> Picks:
        return sample_rows(logits, choosing)

    def logprobs(self, logits: Float32, token_ids: Int32, num_best: Int32) -> RowLogprobs:
        return logprob_rows(logits, token_ids, num_best)


def _reference_weight(weight: PackedWeight) -> _ReferenceWeight:
    if not isinstance(weight, _ReferenceWeight):
        raise TypeError(f"a {type(weight).__name__} was packed by another backend")
    return weight


def _dequantize(part: Weight, rows: Int32 | slice) -> Float32:
    """float32[n, K]: the chosen rows."""
    data = part.data[rows]
    if part.format == "bf16":
        return bf16_to_f32(data)
    values: Float32 = data.astype(np.float32)
    if part.scales is not None:
        values *= np.repeat(part.scales[rows].astype(np.float32), GROUP, axis=1)
    if part.mins is not None:
        values += np.repeat(part.mins[rows].astype(np.float32), GROUP, axis=1)
    return values


def _linear_dense(x: Float32, part: Weight) -> Float32:
    weight = np.ascontiguousarray(_dequantize(part, slice(None)).T)
    out: Float32 = np.zeros((len(x), part.shape[0]), np.float32)
    with np.errstate(invalid="ignore"):  # infinity times zero: NaN
        for k in range(len(weight)):
            out += x[:, k, None] * weight[k]
    return out


def _linear_quantized(x: Float32, part: Weight, scales: npt.NDArray[np.float16]) -> Float32:
    codes, x_scales = quantize_rows(x, _MAX_CODES[part.format])
    out: Float32 = np.zeros((len(x), part.shape[0]), np.float32)
    for g in range(scales.shape[1]):
        group = slice(g * GROUP, (g + 1) * GROUP)
        x_codes, x_scale = codes[:, group].astype(np.float64), x_scales[:, g, None]
        dots = x_codes @ part.data[:, group].astype(np.float64).T  # under 2**27: exact in any order
        out += dots.astype(np.float32) * (x_scale * scales[:, g].astype(np.float32))
        if part.mins is not None:
            sums = x_codes.sum(axis=1, keepdims=True).astype(np.float32)
            out += x_scale * sums * part.mins[:, g].astype(np.float32)
    return out


_KV_ROUNDINGS: Mapping[type[np.generic], Callable[[Float32], npt.NDArray[np.generic]]] = {
    np.float32: np.asarray,
    np.uint16: f32_to_bf16,
    np.int8: quantize_heads,
}


def kv_to_f32(stored: npt.NDArray[np.generic]) -> Float32:
    """The numbers that rows of a ``KVLayer`` stand for: float32[..., D]."""
    if stored.dtype == np.int8:
        codes, scales = stored[..., :-KV_SCALE_BYTES], stored[..., -KV_SCALE_BYTES:]
        return codes.astype(np.float32) * np.ascontiguousarray(scales).view(np.float32)
    return bf16_to_f32(stored) if stored.dtype == np.uint16 else stored.astype(np.float32)


def _attend(q: Float32, layer: KVLayer, slots: Int32, first: int, cap: float | None) -> Float32:
    """One row's float32[Hq, D] (scaled) against the keys at ``slots`` from ``first`` on: span by span, merged as they come."""
    grouped = q.reshape(layer.keys.shape[1], -1, q.shape[1])
    largest = np.full(grouped.shape[:2], -np.inf, np.float32)
    total: Float32 = np.zeros(grouped.shape[:2], np.float32)
    out: Float32 = np.zeros(grouped.shape, np.float32)
    for start in range(first // ATTENTION_SPAN * ATTENTION_SPAN, len(slots), ATTENTION_SPAN):
        span = slots[max(start, first) : start + ATTENTION_SPAN]
        keys, values = (kv_to_f32(store[span]) for store in (layer.keys, layer.values))
        scores = (keys[:, :, None, :] * grouped).sum(axis=3)
        if cap is not None:
            scores = np.tanh(scores / np.float32(cap)) * np.float32(cap)
        own_largest = scores.max(axis=0)
        weights = np.exp(scores - own_largest)
        sums = (weights[:, :, :, None] * values[:, :, None, :]).sum(axis=0)
        new_largest = np.maximum(largest, own_largest)
        shrink, own_shrink = np.exp(largest - new_largest), np.exp(own_largest - new_largest)
        total = total * shrink + weights.sum(axis=0) * own_shrink
        out = out * shrink[:, :, None] + sums * own_shrink[:, :, None]
        largest = new_largest
    return out / total[:, :, None]
