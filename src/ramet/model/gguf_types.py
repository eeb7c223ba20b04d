"""GGUF's tensor types: how many values a block holds in how many bytes, and what its bits mean.

Layouts: ggml-org/ggml, src/ggml-common.h; every type's values are held against the ``gguf`` package, bit for bit. ``decode``
takes blocks as uint8[n, B, block_bytes] and returns the codes, scales and minima that are in them (``Grouped``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ramet.core.ids import Float32
from ramet.kernels.backend import FloatFormat
from ramet.model.gguf_bits import Bytes, Codes, bits, halves, runs, scaled, signed
from ramet.model.gguf_grids import iq1_m, iq1_s, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs
from ramet.model.grouped import Grouped

__all__ = ["BLOCK_TYPES", "FLOAT_TYPES", "BlockType", "FloatType", "type_name"]

# fmt: off
_NAMES = (
    "F32", "F16", "Q4_0", "Q4_1", "Q4_2", "Q4_3", "Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K",
    "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8", "I16", "I32", "I64", "F64", "IQ1_M",
    "BF16", "Q4_0_4_4", "Q4_0_4_8", "Q4_0_8_8", "TQ1_0", "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4", "NVFP4",
)
# fmt: on

_NONLINEAR = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)  # doubled, so that all are whole


@dataclass(frozen=True, slots=True)
class FloatType:
    """A type without blocks."""

    name: str
    format: FloatFormat
    dtype: type[np.generic]
    block: int = 1

    @property
    def block_bytes(self) -> int:
        return np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class BlockType:
    """``block`` neighbouring values in ``block_bytes``; the kernels hold them as ``format``."""

    name: str
    format: Literal["q8", "q4"]
    block: int
    block_bytes: int
    decode: Callable[[Bytes], Grouped]


def type_name(code: int) -> str:
    """A type's name, supported or not, for messages."""
    return _NAMES[code] if 0 <= code < len(_NAMES) else f"number {code}"


def _q4_0(blocks: Bytes) -> Grouped:
    return Grouped(signed(runs(bits(blocks[..., 2:], 4), 32), 8), halves(blocks, 0), None, 8)


def _q4_1(blocks: Bytes) -> Grouped:
    return Grouped(runs(bits(blocks[..., 4:], 4), 32), halves(blocks, 0), halves(blocks, 2), 15)


def _q5_0(blocks: Bytes) -> Grouped:
    return Grouped(signed(runs(_five_bits(blocks[..., 2:]), 32), 16), halves(blocks, 0), None, 16)


def _q5_1(blocks: Bytes) -> Grouped:
    return Grouped(runs(_five_bits(blocks[..., 4:]), 32), halves(blocks, 0), halves(blocks, 2), 31)


def _q8_0(blocks: Bytes) -> Grouped:
    return Grouped(np.ascontiguousarray(blocks[..., 2:]).view(np.int8), halves(blocks, 0), None, 128)


def _q2_k(blocks: Bytes) -> Grouped:
    pairs = blocks[..., :16]
    scales, mins = scaled(halves(blocks, 80), pairs & 15), scaled(halves(blocks, 82), pairs >> 4)
    return Grouped(runs(bits(blocks[..., 16:80], 2, parts=2), 16), scales, -mins, 3)


def _q3_k(blocks: Bytes) -> Grouped:
    codes = bits(blocks[..., 32:96], 2, parts=2) | bits(blocks[..., :32], 1) << 2
    scales = bits(blocks[..., 96:104], 4) | bits(blocks[..., 104:108], 2) << 4
    return Grouped(signed(runs(codes, 16), 4), scaled(halves(blocks, 108), signed(scales, 32)), None, 4)


def _q4_k(blocks: Bytes) -> Grouped:
    return Grouped(runs(bits(blocks[..., 16:], 4, parts=4), 32), *_six_bit_pairs(blocks), 15)


def _q5_k(blocks: Bytes) -> Grouped:
    codes = bits(blocks[..., 48:], 4, parts=4) | bits(blocks[..., 16:48], 1) << 4
    return Grouped(runs(codes, 32), *_six_bit_pairs(blocks), 31)


def _q6_k(blocks: Bytes) -> Grouped:
    codes = bits(blocks[..., :128], 4, parts=2) | bits(blocks[..., 128:192], 2, parts=2) << 4
    scales = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8)
    return Grouped(signed(runs(codes, 16), 32), scaled(halves(blocks, 208), scales), None, 32)


def _iq4_nl(blocks: Bytes) -> Grouped:
    return Grouped(_NONLINEAR[runs(bits(blocks[..., 2:], 4), 32)], halves(blocks, 0), None, 127)


def _iq4_xs(blocks: Bytes) -> Grouped:
    high = bits(blocks[..., 2:4], 2, parts=2)  # of each byte the lowest bits first
    scales = signed(bits(blocks[..., 4:8], 4, parts=4) | high << 4, 32)
    codes = _NONLINEAR[runs(bits(blocks[..., 8:], 4, parts=8), 32)]
    return Grouped(codes, scaled(halves(blocks, 0), scales), None, 127)


def _tq1_0(blocks: Bytes) -> Grouped:
    """Five digits from 0 to 2 in a byte (four in the last ones), a fraction to base 3: three times the rest, over 256, is one."""
    powers = np.array([1, 3, 9, 27, 81], np.uint8)[:, None]
    parts = (blocks[..., None, :32] * powers, blocks[..., None, 32:48] * powers, blocks[..., None, 48:52] * powers[:4])
    rest = np.concatenate([part.reshape(*blocks.shape[:2], -1) for part in parts], axis=2)
    digits = (rest.astype(np.uint16) * np.uint16(3) >> 8).astype(np.uint8)
    return Grouped(signed(digits, 1), halves(blocks, 52), None, 1)


def _tq2_0(blocks: Bytes) -> Grouped:
    return Grouped(signed(bits(blocks[..., :64], 2, parts=2), 1), halves(blocks, 64), None, 2)


def _mxfp4(blocks: Bytes) -> Grouped:
    """The scale is a power of two: 2**(e - 127), halved because codes are doubled."""
    scales = np.ldexp(np.float32(1), blocks[..., 0].astype(np.int32) - 128)
    return Grouped(_E2M1[runs(bits(blocks[..., 1:], 4), 32)], scales, None, 12)


def _nvfp4(blocks: Bytes) -> Grouped:
    """Scales are E4M3 without sign, halved because codes are doubled; 127, which is no number there, is 0 to ggml."""
    stored = blocks[..., :4].astype(np.int32)
    exponents, fractions = stored >> 3 & 15, (stored & 7).astype(np.float32)
    scales = np.ldexp(np.where(exponents > 0, fractions + np.float32(8), fractions), np.maximum(exponents, 1) - 11)
    scales[stored == 127] = 0
    return Grouped(_E2M1[runs(bits(blocks[..., 4:], 4, parts=4), 16)], scales.reshape(len(scales), -1), None, 12)


def _five_bits(packed: Bytes) -> Codes:
    """uint8[n, B, 32]: 32 highest bits in 4 bytes, the lower four in 16."""
    return bits(packed[..., 4:], 4) | np.unpackbits(packed[..., :4], axis=2, bitorder="little") << 4


def _six_bit_pairs(blocks: Bytes) -> tuple[Float32, Float32]:
    """Scales and minima of Q4_K and Q5_K: two float16, then 8 pairs of 6 bits in 12 bytes, the last four pairs in pieces."""
    first, second, third = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = np.concatenate([first & 63, third & 15 | first >> 2 & 48], axis=2)
    mins = np.concatenate([second & 63, third >> 4 | second >> 2 & 48], axis=2)
    return scaled(halves(blocks, 0), scales), -scaled(halves(blocks, 2), mins)


FLOAT_TYPES: Mapping[int, FloatType] = {
    0: FloatType("F32", "f32", np.float32),
    1: FloatType("F16", "f16", np.float16),
    30: FloatType("BF16", "bf16", np.uint16),
}
BLOCK_TYPES: Mapping[int, BlockType] = {
    2: BlockType("Q4_0", "q4", 32, 18, _q4_0),
    3: BlockType("Q4_1", "q4", 32, 20, _q4_1),
    6: BlockType("Q5_0", "q8", 32, 22, _q5_0),
    7: BlockType("Q5_1", "q8", 32, 24, _q5_1),
    8: BlockType("Q8_0", "q8", 32, 34, _q8_0),
    10: BlockType("Q2_K", "q4", 256, 84, _q2_k),
    11: BlockType("Q3_K", "q8", 256, 110, _q3_k),
    12: BlockType("Q4_K", "q4", 256, 144, _q4_k),
    13: BlockType("Q5_K", "q8", 256, 176, _q5_k),
    14: BlockType("Q6_K", "q8", 256, 210, _q6_k),
    16: BlockType("IQ2_XXS", "q8", 256, 66, iq2_xxs),
    17: BlockType("IQ2_XS", "q8", 256, 74, iq2_xs),
    18: BlockType("IQ3_XXS", "q8", 256, 98, iq3_xxs),
    19: BlockType("IQ1_S", "q4", 256, 50, iq1_s),
    20: BlockType("IQ4_NL", "q8", 32, 18, _iq4_nl),
    21: BlockType("IQ3_S", "q8", 256, 110, iq3_s),
    22: BlockType("IQ2_S", "q8", 256, 82, iq2_s),
    23: BlockType("IQ4_XS", "q8", 256, 136, _iq4_xs),
    29: BlockType("IQ1_M", "q8", 256, 56, iq1_m),
    34: BlockType("TQ1_0", "q4", 256, 54, _tq1_0),
    35: BlockType("TQ2_0", "q4", 256, 66, _tq2_0),
    39: BlockType("MXFP4", "q8", 32, 17, _mxfp4),
    40: BlockType("NVFP4", "q8", 64, 36, _nvfp4),
}
