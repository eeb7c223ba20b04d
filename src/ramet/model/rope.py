"""Rotary position embedding: frequency divisors of the known scalings, and the table of cosines and sines.

Source: RoFormer (Su et al., 2021); linear scaling: Chen et al., 2023; llama3 scaling: the Llama 3.1 model card's formula.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ramet.core.ids import Float32, Int32
from ramet.model.spec import RopeSpec

__all__ = ["RopeTable", "inverse_frequencies", "linear_divisors", "llama3_divisors"]

_BLOCK = 1024  # positions computed together, at absolute multiples


def linear_divisors(dim: int, factor: float = 1.0) -> tuple[float, ...]:
    """All pairs slowed alike: positions divided by ``factor``. 1 is no scaling."""
    return (float(factor),) * (dim // 2)


def llama3_divisors(
    dim: int, theta: float, *, factor: float, low: float, high: float, original_max_position: int
) -> tuple[float, ...]:
    """Fast pairs as they are, slow ones divided by ``factor``, those between blended by wavelength.

    A pair is fast where it turns over ``high`` times within ``original_max_position``, slow where under ``low`` times.
    """
    turns = original_max_position * theta ** -(np.arange(0, dim, 2) / dim) / (2 * math.pi)
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return tuple((1.0 / ((1.0 - blend) / factor + blend)).tolist())


def inverse_frequencies(rope: RopeSpec) -> npt.NDArray[np.float64]:
    """float64[dim / 2]: radians a position."""
    pairs = np.arange(0, rope.dim, 2, dtype=np.float64) / rope.dim
    inverse: npt.NDArray[np.float64] = rope.theta**-pairs / np.array(rope.divisors)
    return inverse


class RopeTable:
    """Cosines and sines of positions 0 to as far as anyone asked.

    Rows are computed in float64, in blocks of 1,024 positions at absolute multiples, and rounded once: a position's bits do
    not depend on what was asked before.
    """

    def __init__(self, rope: RopeSpec) -> None:
        self._inverse = inverse_frequencies(rope)
        self._cos: Float32 = np.empty((0, len(self._inverse)), np.float32)
        self._sin: Float32 = np.empty((0, len(self._inverse)), np.float32)

    def reaching(self, positions: Int32) -> tuple[Float32, Float32]:
        """(cos, sin), each float32[P, dim / 2] for positions 0 to P - 1, which are all of the non-negative int32[T] and more."""
        if len(positions):
            self._reach(int(positions.max()))
        return self._cos, self._sin

    def _reach(self, position: int) -> None:
        have, need = len(self._cos) // _BLOCK, position // _BLOCK + 1
        if need <= have:
            return
        need = max(need, have + have // 2)  # grow by half, so that a long decode copies the table seldom
        angles = [np.arange(b * _BLOCK, (b + 1) * _BLOCK)[:, None] * self._inverse for b in range(have, need)]
        self._cos = np.concatenate([self._cos, *(np.cos(a).astype(np.float32) for a in angles)])
        self._sin = np.concatenate([self._sin, *(np.sin(a).astype(np.float32) for a in angles)])
