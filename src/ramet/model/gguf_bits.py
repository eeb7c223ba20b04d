"""Taking the fields out of GGUF blocks, uint8[n, B, block_bytes]: n rows of B blocks each."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ramet.core.ids import Float32

__all__ = ["Bytes", "Codes", "bits", "halves", "runs", "scaled", "signed", "words"]

Bytes: TypeAlias = npt.NDArray[np.uint8]
Codes: TypeAlias = npt.NDArray[np.integer[Any]]


def words(blocks: Bytes, first: int, stop: int, dtype: str) -> Codes:
    """[n, B, count]: the little-endian numbers of ``dtype`` that fill bytes ``first`` to ``stop`` of each block."""
    return np.ascontiguousarray(blocks[..., first:stop]).view(dtype)


def halves(blocks: Bytes, at: int) -> Float32:
    """float32[n, B]: the float16 at byte ``at`` of each block."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2")[..., 0].astype(np.float32)


def scaled(factors: Float32, multipliers: Codes | npt.NDArray[np.floating[Any]]) -> Float32:
    """float32[n, B * s]: each block's s multipliers times its factor."""
    with np.errstate(invalid="ignore"):  # infinity times 0: found, as all that is not finite, by Grouped
        return (factors[..., None] * multipliers.astype(np.float32)).reshape(len(factors), -1)


def bits(packed: Bytes, width: int, parts: int = 1) -> Codes:
    """uint8[n, B, m * 8 / width] of uint8[n, B, m]: in each part the lowest bits of all its bytes, then the next ones."""
    cut = packed.reshape(*packed.shape[:2], parts, 1, -1)
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    return (cut >> shifts & np.uint8((1 << width) - 1)).reshape(*packed.shape[:2], -1)


def runs(codes: Codes, width: int) -> Codes:
    """uint8[n, runs, width] of uint8[n, B, values]."""
    return codes.reshape(len(codes), -1, width)


def signed(codes: Codes, zero: int) -> npt.NDArray[np.int8]:
    """Codes of which ``zero`` stands for 0."""
    return codes.view(np.int8) - np.int8(zero)
