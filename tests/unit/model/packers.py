"""Packs matrices the way the tools that people use do, one number at a time, from the formats' own descriptions.

Each packer takes float32[N, K] and returns the tensors of one matrix (end of name -> type, numbers) and what they stand for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Tensors = dict[str, tuple[str, npt.NDArray[Any]]]
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Packed:
    tensors: Tensors
    values: npt.NDArray[np.float32]


def rounded(values: Array, dtype: str) -> npt.NDArray[np.float32]:
    """Scales as their type holds them (BF16: cut off, which is one of its numbers too)."""
    if dtype == "BF16":
        return (np.ascontiguousarray(values, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return values.astype({"F16": np.float16, "F32": np.float32}[dtype]).astype(np.float32)


def words(codes: Array, bits: int, order: list[int] | None = None) -> npt.NDArray[np.int32]:
    """int32[m, ceil(n * bits / 32)] of codes [m, n]: place i of a word holds its number ``order[i]``."""
    per_word = 32 // bits
    packed = np.zeros((codes.shape[0], -(-codes.shape[1] // per_word)), np.uint64)
    for word in range(packed.shape[1]):
        for place in range(per_word):
            column = word * per_word + (order[place] if order else place)
            if column < codes.shape[1]:
                packed[:, word] |= codes[:, column].astype(np.uint64) << np.uint64(bits * place)
    return packed.astype(np.uint32).view(np.int32)


def affine(weights: Array, groups: Array, bits: int, dtype: str, *, symmetric: bool) -> tuple[Array, Array, Array]:
    """Unsigned codes [N, K], scales and zero points [N, G]: by least and largest weight of each group of inputs."""
    num_outputs, num_groups, top = len(weights), int(groups.max()) + 1, (1 << bits) - 1
    codes = np.zeros(weights.shape, np.int64)
    scales, zeros = np.zeros((num_outputs, num_groups), np.float32), np.zeros((num_outputs, num_groups), np.int64)
    for g in range(num_groups):
        inside = weights[:, groups == g]
        low, high = inside.min(axis=1), inside.max(axis=1)
        if symmetric:
            scales[:, g] = rounded(np.maximum(-low, high) / (top / 2), dtype)
            zeros[:, g] = (top + 1) // 2
        else:
            scales[:, g] = rounded((np.maximum(high, 0) - np.minimum(low, 0)) / top, dtype)
            zeros[:, g] = np.clip(np.round(-np.minimum(low, 0) / scales[:, g]), 0, top)
        codes[:, groups == g] = np.clip(np.round(inside / scales[:, g : g + 1]) + zeros[:, g : g + 1], 0, top)
    return codes, scales, zeros


def in_order(num_inputs: int, group_size: int) -> Array:
    return np.arange(num_inputs) // group_size


def difference_times_scale(codes: Array, zeros: Array, scales: Array, groups: Array) -> npt.NDArray[np.float32]:
    return (codes - zeros[:, groups]).astype(np.float32) * scales[:, groups]


def awq(weights: Array, *, group_size: int = 32) -> Packed:
    groups = in_order(weights.shape[1], group_size)
    codes, scales, zeros = affine(weights, groups, 4, "F16", symmetric=False)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    tensors: Tensors = {
        "qweight": ("I32", words(codes.T, 4, order)),
        "qzeros": ("I32", words(zeros.T, 4, order)),
        "scales": ("F16", scales.T),
    }
    return Packed(tensors, difference_times_scale(codes, zeros, scales, groups))


def gptq(
    weights: Array, *, bits: int = 4, group_size: int = 32, symmetric: bool = False, version: int = 1, act_order: bool = False
) -> Packed:
    groups = in_order(weights.shape[1], group_size)
    if act_order:
        groups = np.random.default_rng(4).permutation(groups)
    codes, scales, zeros = affine(weights, groups, bits, "F16", symmetric=symmetric)
    stored = words(zeros.T, bits)
    if version == 1:  # one less in each place, by one subtraction of whole words
        stored = (stored.view(np.uint32) - np.uint32(0x11111111 if bits == 4 else 0x01010101)).view(np.int32)
    tensors: Tensors = {
        "qweight": ("I32", np.ascontiguousarray(words(codes, bits).T)),
        "qzeros": ("I32", stored),
        "scales": ("F16", scales.T),
        "g_idx": ("I32", groups.astype(np.int32)),
    }
    return Packed(tensors, difference_times_scale(codes, zeros, scales, groups))


def pack_quantized(
    weights: Array, *, bits: int = 4, group_size: int = 32, symmetric: bool = True, act_order: bool = False, dtype: str = "BF16"
) -> Packed:
    """compressed-tensors: codes stand around zero and are moved up by half their range when they are packed."""
    groups = in_order(weights.shape[1], group_size)
    if act_order:
        groups = np.random.default_rng(4).permutation(groups)
    codes, scales, zeros = affine(weights, groups, bits, dtype, symmetric=symmetric)
    tensors: Tensors = {
        "weight_packed": ("I32", words(codes, bits)),
        "weight_scale": (dtype, scales),
        "weight_shape": ("I64", np.array(weights.shape, np.int64)),
    }
    if not symmetric:
        tensors["weight_zero_point"] = ("I32", np.ascontiguousarray(words(zeros.T, bits).T))
    if act_order:
        tensors["weight_g_idx"] = ("I32", groups.astype(np.int32))
    return Packed(tensors, difference_times_scale(codes, zeros, scales, groups))


def int_quantized(weights: Array, *, group_size: int | None = None, symmetric: bool = True, one_scale: bool = False) -> Packed:
    groups = in_order(weights.shape[1], group_size or weights.shape[1])
    if one_scale:
        scale = rounded(np.abs(weights).max().reshape(1) / 127, "F32")
        codes = np.round(weights / scale).astype(np.int8)
        return Packed({"weight": ("I8", codes), "weight_scale": ("F32", scale)}, codes.astype(np.float32) * scale)
    codes, scales, zeros = affine(weights, groups, 8, "BF16", symmetric=symmetric)
    tensors: Tensors = {"weight": ("I8", (codes - 128).astype(np.int8)), "weight_scale": ("BF16", scales)}
    if not symmetric:
        tensors["weight_zero_point"] = ("I8", (zeros - 128).astype(np.int8))
    return Packed(tensors, difference_times_scale(codes, zeros, scales, groups))


def e4m3(code: int) -> float:
    """What a byte of E4M3 (without infinities) stands for, NaN for 0x7f and 0xff."""
    sign, exponent, fraction = -1 if code & 0x80 else 1, code >> 3 & 15, code & 7
    if exponent == 15 and fraction == 7:
        return float("nan")
    return sign * (fraction / 8 * 2.0**-6 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7))


_E4M3 = np.array([e4m3(code) for code in range(256)], np.float32)


def float8(weights: Array, *, scale: str = "block", block: tuple[int, int] = (16, 32), name: str = "weight_scale_inv") -> Packed:
    """``scale``: one for the ``tensor``, for each output (``channel``), or for each ``block`` of outputs and inputs."""
    num_outputs, num_inputs = weights.shape
    height, width = {"tensor": (num_outputs, num_inputs), "channel": (1, num_inputs), "block": block}[scale]
    scales = np.zeros((-(-num_outputs // height), -(-num_inputs // width)), np.float32)
    codes, values = np.zeros(weights.shape, np.uint8), np.zeros(weights.shape, np.float32)
    finite = np.array([c for c in range(256) if np.isfinite(_E4M3[c])])
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            at = slice(i * height, (i + 1) * height), slice(j * width, (j + 1) * width)
            scales[i, j] = np.float32(np.abs(weights[at]).max() / 448)
            nearest = np.abs((weights[at] / scales[i, j])[..., None] - _E4M3[finite]).argmin(axis=-1)
            codes[at] = finite[nearest]
            values[at] = _E4M3[codes[at]] * scales[i, j]
    stored = scales.reshape(()) if scale == "tensor" else scales
    return Packed({"weight": ("F8_E4M3", codes), name: ("F32", stored)}, values)


def pack_model(
    tensors: Mapping[str, npt.NDArray[np.float32]], pack: Any
) -> tuple[Tensors, dict[str, tuple[str, npt.NDArray[np.float32]]]]:
    """A model's tensors with the matrices of its layers packed, and the same as float32; embedding, head and norms stay."""
    packed: Tensors = {}
    plain: dict[str, tuple[str, npt.NDArray[np.float32]]] = {}
    for name, values in tensors.items():
        if not name.endswith("_proj.weight"):
            packed[name] = plain[name] = "F32", values
            continue
        one = pack(values)
        packed |= {f"{name.removesuffix('weight')}{kind}": tensor for kind, tensor in one.tensors.items()}
        plain[name] = "F32", one.values
    return packed, plain
