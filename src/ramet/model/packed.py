"""Quantised matrices in safetensors: which tensors make one up, and how its codes are laid out in them.

N outputs, K inputs, G groups of inputs. Codes of 4 or 8 bits lie in int32 words, the first in the lowest bits:

============================  ===================================  ============================================  ================
layout                        codes                                scales; zero points                           value
============================  ===================================  ============================================  ================
AWQ, "gemm" (AutoAWQ)         qweight [K, N/8], along N, shuffled  scales [G, N]; qzeros [G, N/8], shuffled      s (q - z)
GPTQ (AutoGPTQ, GPTQModel)    qweight [K/8, N], along K            scales [G, N]; qzeros [G, N/8]; g_idx [K]     s (q - z)
pack-quantized                weight_packed [N, K/8], along K      weight_scale [N, G]; weight_zero_point        s (q - z)
(compressed-tensors)                                               [N/8, G]; weight_g_idx [K]
int-quantized                 weight int8 [N, K]                   weight_scale [N, G]; weight_zero_point int8   s (q - z)
FP8 (and float-quantized)     weight E4M3 [N, K]                   weight_scale(_inv): one, [N, 1], or a block   s w
============================  ===================================  ============================================  ================

Where inputs of one group are not neighbours (act-order, ``g_idx``), each input brings a scale of its own. Sizes are those of
mapped tensors, so nothing is allocated by a number that a file claims. Sources: the projects named, read for the layouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ramet.core.ids import Float32
from ramet.errors import ModelError
from ramet.kernels.backend import FloatFormat
from ramet.model.files import plain
from ramet.model.grouped import CodedMatrix, Grouped, Loose
from ramet.model.quant import as_float32
from ramet.model.safetensors import StoredTensor

__all__ = ["Parts", "awq", "float8", "gptq", "int8", "pack_quantized"]

_AWQ_ORDER = np.array([0, 4, 1, 5, 2, 6, 3, 7])  # output i of a word is at this place in it
_IN_ORDER = np.arange(8)
_WORD_BITS = 32


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The tensors that make up the matrix ``name``, by the last part of their names."""

    name: str
    tensors: Mapping[str, StoredTensor]

    def has(self, kind: str) -> bool:
        return kind in self.tensors

    def fail(self, kind: str, why: str) -> ModelError:
        """An error about one of the tensors, to be raised."""
        return ModelError(f"tensor {plain(self.name)}.{kind} {why}")

    def get(self, kind: str, dtype: str, shape: tuple[int, ...] | None = None) -> npt.NDArray[np.generic]:
        """The numbers of a tensor, which must be of that type and shape."""
        if kind not in self.tensors:
            raise self.fail(kind, "is missing")
        tensor = self.tensors[kind]
        if tensor.dtype != dtype:
            raise self.fail(kind, f"holds {tensor.dtype}, not {dtype}")
        if shape is None and len(tensor.shape) != 2:
            raise self.fail(kind, f"is {list(tensor.shape)}, no matrix")
        if shape is not None and tensor.shape != shape:
            raise self.fail(kind, f"is {list(tensor.shape)}, but the other tensors make it {list(shape)}")
        return tensor.data

    def floats(self, kind: str) -> StoredTensor:
        """A tensor of scales, in any float type."""
        if kind not in self.tensors:
            raise self.fail(kind, "is missing")
        if self.tensors[kind].dtype not in ("F32", "F16", "BF16"):
            raise self.fail(kind, f"holds {self.tensors[kind].dtype}, no floats")
        return self.tensors[kind]


@dataclass(frozen=True, slots=True, eq=False)
class _Scales:
    """Scales as they are stored, seen as [N, G]."""

    format: FloatFormat
    data: npt.NDArray[np.generic]

    def of(self, rows: slice) -> Float32:
        """float32[n, G]"""
        return as_float32(self.format, np.ascontiguousarray(self.data[rows]))


def gptq(parts: Parts, bits: int, group_size: int, zero_offset: int) -> CodedMatrix:
    """``zero_offset``: what is to be added to zero points, 1 in the format's first version. ``group_size`` -1: all inputs."""
    words = parts.get("qweight", "I32")
    per_word = _WORD_BITS // bits
    num_inputs, num_outputs = words.shape[0] * per_word, words.shape[1]
    num_groups = _num_groups(parts, "qweight", num_inputs, group_size)
    scales = _by_group(parts, num_groups, num_outputs)
    zeros = parts.get("qzeros", "I32", (num_groups, _words(parts, num_outputs, per_word)))
    # The first version subtracted one from all places of a word at once, borrows and all; so it is added.
    ones = zero_offset * sum(1 << at for at in range(0, _WORD_BITS, bits))
    order = _act_order(parts, "g_idx", num_inputs, num_groups)

    def read(rows: slice) -> Grouped:
        codes = _unpack(np.ascontiguousarray(words[:, rows].T), bits)
        return _grouped(codes, scales.of(rows), _columns(zeros, rows, bits, _IN_ORDER, ones).T, order, bits)

    return CodedMatrix(parts.name, (num_outputs, num_inputs), "q4" if bits == 4 and order is None else "q8", read)


def awq(parts: Parts, group_size: int) -> CodedMatrix:
    """4 bits, in the "gemm" layout."""
    words = parts.get("qweight", "I32")
    num_inputs, num_outputs = words.shape[0], words.shape[1] * 8
    num_groups = _num_groups(parts, "qweight", num_inputs, group_size)
    scales = _by_group(parts, num_groups, num_outputs)
    zeros = parts.get("qzeros", "I32", (num_groups, words.shape[1]))

    def read(rows: slice) -> Grouped:
        codes = np.ascontiguousarray(_columns(words, rows, 4, _AWQ_ORDER).T)
        return _grouped(codes, scales.of(rows), _columns(zeros, rows, 4, _AWQ_ORDER).T, None, 4)

    return CodedMatrix(parts.name, (num_outputs, num_inputs), "q4", read)


def pack_quantized(parts: Parts) -> CodedMatrix:
    """compressed-tensors' words of 4 or 8 bits, as their number says; without zero points the middle of the range is zero."""
    words = parts.get("weight_packed", "I32")
    num_outputs, num_inputs = _said_shape(parts)
    widths = [n for n in (4, 8) if words.shape == (num_outputs, -(-num_inputs * n // _WORD_BITS))]
    if not widths:
        raise parts.fail("weight_packed", f"is {list(words.shape)}, which is not [{num_outputs}, {num_inputs}] in 4 or 8 bits")
    bits = widths[0]
    per_word = _WORD_BITS // bits
    scales = _by_row(parts, num_outputs, num_inputs)
    num_groups = scales.data.shape[1]
    zeros: npt.NDArray[np.generic] | None = None
    if parts.has("weight_zero_point"):
        zeros = parts.get("weight_zero_point", "I32", (-(-num_outputs // per_word), num_groups))
    order = _act_order(parts, "weight_g_idx", num_inputs, num_groups)

    def read(rows: slice) -> Grouped:
        codes = _unpack(np.ascontiguousarray(words[rows]), bits)[:, :num_inputs]
        if zeros is None:
            zero_points = np.full((len(codes), num_groups), 1 << bits - 1, np.uint8)
        else:
            zero_points = _columns(zeros.T, rows, bits, _IN_ORDER).T
        return _grouped(codes, scales.of(rows), zero_points, order, bits)

    return CodedMatrix(parts.name, (num_outputs, num_inputs), "q4" if bits == 4 and order is None else "q8", read)


def int8(parts: Parts) -> CodedMatrix:
    """compressed-tensors' whole bytes."""
    codes = parts.get("weight", "I8")
    num_outputs, num_inputs = codes.shape
    scales = _by_row(parts, num_outputs, num_inputs)
    num_groups = scales.data.shape[1]
    zeros = parts.get("weight_zero_point", "I8", scales.data.shape) if parts.has("weight_zero_point") else None

    def read(rows: slice) -> Grouped:
        cut = codes[rows].reshape(-1, num_groups, num_inputs // num_groups).view(np.int8)
        return Grouped(cut, scales.of(rows), None, 128) if zeros is None else _differences(cut, zeros[rows], scales.of(rows))

    return CodedMatrix(parts.name, (num_outputs, num_inputs), "q8", read)


def float8(parts: Parts, block: tuple[int, int] | None) -> CodedMatrix:
    """E4M3 with one scale, or one for each output, group of inputs, or ``block`` (outputs, inputs)."""
    stored = parts.get("weight", "F8_E4M3")
    num_outputs, num_inputs = stored.shape
    kind = "weight_scale_inv" if parts.has("weight_scale_inv") else "weight_scale"  # a factor in both, in spite of its name
    stored_scales = parts.floats(kind)
    if block is not None and stored_scales.shape == (-(-num_outputs // block[0]), -(-num_inputs // block[1])):
        height, width, scales = *block, _Scales(stored_scales.format, stored_scales.data)
    else:
        scales = _by_row(parts, num_outputs, num_inputs, kind)
        height, width = 1, max(1, num_inputs // scales.data.shape[1])

    def read(rows: slice) -> Loose:
        values = _E4M3[stored[rows]]
        first = rows.start // height
        of_blocks = scales.of(slice(first, -(-rows.stop // height)))
        with np.errstate(invalid="ignore", over="ignore"):  # Loose looks for what is not finite
            values *= of_blocks[np.arange(rows.start, rows.stop) // height - first][:, np.arange(num_inputs) // width]
        return Loose(values)

    return CodedMatrix(parts.name, (num_outputs, num_inputs), "q8", read)


def _e4m3_values() -> Float32:
    """float32[256]: sign, 4 bits of exponent (bias 7), 3 of fraction; the largest code of each sign is no number."""
    codes = np.arange(256)
    exponents, fractions = codes >> 3 & 15, codes & 7
    sizes = np.ldexp(np.where(exponents > 0, fractions + 8, fractions).astype(np.float32), np.maximum(exponents, 1) - 10)
    sizes[codes & 127 == 127] = np.nan
    values: Float32 = np.where(codes < 128, sizes, -sizes).astype(np.float32)
    return values


_E4M3 = _e4m3_values()


def _unpack(words: npt.NDArray[np.generic], bits: int) -> npt.NDArray[np.uint8]:
    """uint8[m, W * 32 / bits] of int32[m, W]."""
    packed = words.view(np.uint8)
    if bits == 8:
        return packed
    codes = np.empty((*packed.shape, 2), np.uint8)
    np.bitwise_and(packed, 15, out=codes[:, :, 0])
    np.right_shift(packed, 4, out=codes[:, :, 1])
    return codes.reshape(len(packed), -1)


def _columns(
    words: npt.NDArray[np.generic], columns: slice, bits: int, order: npt.NDArray[np.intp], plus: int = 0
) -> npt.NDArray[np.uint8]:
    """uint8[m, columns]: some of the columns that lie, in this order, in each word of int32[m, W], to which ``plus`` is added."""
    per_word = _WORD_BITS // bits
    first = columns.start // per_word
    cut = np.ascontiguousarray(words[:, first : -(-columns.stop // per_word)])
    codes = _unpack(cut.view(np.uint32) + np.uint32(plus) if plus else cut, bits)
    codes = codes.reshape(len(codes), -1, per_word)[:, :, order[:per_word]].reshape(len(codes), -1)
    return codes[:, columns.start - first * per_word : columns.stop - first * per_word]


def _grouped(
    codes: npt.NDArray[np.uint8],
    scales: Float32,
    zeros: npt.NDArray[np.uint8],
    order: npt.NDArray[np.int32] | None,
    bits: int,
) -> Grouped:
    """``scales * (codes - zeros)`` of codes [n, K], and scales and zero points [n, G]."""
    if order is not None:
        return _differences(codes[:, :, None], zeros[:, order], scales[:, order], limit=1 << bits)
    cut = codes.reshape(len(codes), scales.shape[1], -1)
    if bits == 8:
        return _differences(cut, zeros, scales)
    with np.errstate(invalid="ignore"):  # infinity times 0: Grouped looks for what is not finite
        mins = -(scales * zeros.astype(np.float32))
    return Grouped(cut, np.ascontiguousarray(scales), mins, 15)


def _differences(codes: npt.NDArray[np.generic], zeros: npt.NDArray[np.generic], scales: Float32, limit: int = 255) -> Grouped:
    """Codes less their zero points, int16."""
    found = codes.astype(np.int16) - zeros.astype(np.int16)[:, :, None]
    return Grouped(found, np.ascontiguousarray(scales), None, limit)


def _num_groups(parts: Parts, kind: str, num_inputs: int, group_size: int) -> int:
    size = num_inputs if group_size == -1 else group_size
    if num_inputs == 0 or num_inputs % size:
        raise parts.fail(kind, f"has {num_inputs} inputs, no whole number of groups of {size}")
    return num_inputs // size


def _words(parts: Parts, num_outputs: int, per_word: int) -> int:
    if num_outputs % per_word:
        raise parts.fail("qweight", f"has {num_outputs} outputs, no multiple of the {per_word} in a word of zero points")
    return num_outputs // per_word


def _by_group(parts: Parts, num_groups: int, num_outputs: int) -> _Scales:
    """Of a tensor [G, N]."""
    scales = parts.floats("scales")
    if scales.shape != (num_groups, num_outputs):
        raise parts.fail("scales", f"is {list(scales.shape)}, but the other tensors make it [{num_groups}, {num_outputs}]")
    return _Scales(scales.format, scales.data.T)


def _by_row(parts: Parts, num_outputs: int, num_inputs: int, kind: str = "weight_scale") -> _Scales:
    """Of one number, [N], [N, 1] or [N, G]."""
    scales = parts.floats(kind)
    data = scales.data.reshape(len(scales.data), 1) if scales.data.ndim == 1 else scales.data
    if data.size == 1:
        data = np.broadcast_to(data.reshape(1, 1), (num_outputs, 1))
    if data.ndim != 2 or len(data) != num_outputs or data.shape[1] == 0 or num_inputs % data.shape[1]:
        raise parts.fail(kind, f"is {list(scales.shape)}, which does not fit a matrix of [{num_outputs}, {num_inputs}]")
    return _Scales(scales.format, data)


def _act_order(parts: Parts, kind: str, num_inputs: int, num_groups: int) -> npt.NDArray[np.int32] | None:
    """int32[K]: each input's group; None where groups are neighbours, in order."""
    if not parts.has(kind):
        return None
    groups = parts.get(kind, "I32", (num_inputs,)).astype(np.int32)
    if groups.min() < 0 or groups.max() >= num_groups:
        raise parts.fail(kind, f"has groups from {groups.min()} to {groups.max()}, but there are {num_groups}")
    return None if np.array_equal(groups, np.arange(num_inputs) // (num_inputs // num_groups)) else groups


def _said_shape(parts: Parts) -> tuple[int, int]:
    dtype = parts.tensors["weight_shape"].dtype if parts.has("weight_shape") else "I64"
    num_outputs, num_inputs = (int(n) for n in parts.get("weight_shape", "I32" if dtype == "I32" else "I64", (2,)))
    if num_outputs < 1 or num_inputs < 1:
        raise parts.fail("weight_shape", f"is [{num_outputs}, {num_inputs}]")
    return num_outputs, num_inputs
