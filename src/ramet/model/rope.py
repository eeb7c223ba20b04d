"""Rotary position embedding: divisors and scales of the known scalings, and the table of cosines and sines.

Sources: RoFormer (Su et al., 2021); linear scaling: Chen et al., 2023; llama3: the Llama 3.1 model card's formula; yarn: Peng et
al., 2023; longrope: Ding et al., 2024.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from ramet.core.ids import Float32, Int32
from ramet.kernels.program import Pairs
from ramet.model.spec import RopeSpec

__all__ = [
    "RopeTable",
    "inverse_frequencies",
    "linear_divisors",
    "llama3_divisors",
    "longrope_scale",
    "yarn_divisors",
    "yarn_scale",
]

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


def yarn_divisors(
    dim: int, theta: float, *, factor: float, slow: float, fast: float, original_max_position: int, whole: bool = True
) -> tuple[float, ...]:
    """The same by a ramp over pairs instead: from the one that turns ``fast`` times to the one that turns ``slow`` times.

    ``whole`` widens the ramp to whole pairs. ``theta`` is over 1.
    """

    def pair_turning(times: float) -> float:
        return dim * math.log(original_max_position / (times * 2 * math.pi)) / (2 * math.log(theta))

    first, last = pair_turning(fast), pair_turning(slow)
    if whole:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    width = last - first or 0.001
    slowed = np.clip((np.arange(dim // 2) - first) / width, 0.0, 1.0)
    return tuple((1.0 / (slowed / factor + (1.0 - slowed))).tolist())


def yarn_scale(factor: float, strength: float = 1.0) -> float:
    """What yarn makes of cosines and sines, so that attention over a longer context stays as sharp."""
    return 1.0 if factor <= 1 else 0.1 * strength * math.log(factor) + 1.0


def longrope_scale(factor: float, original_max_position: int) -> float:
    """The same for longrope."""
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original_max_position))


def inverse_frequencies(rope: RopeSpec) -> npt.NDArray[np.float64]:
    """float64[dim / 2]: radians a position."""
    pairs = np.arange(0, rope.dim, 2, dtype=np.float64) / rope.dim
    inverse: npt.NDArray[np.float64] = rope.theta**-pairs / np.array(rope.divisors)
    return inverse


class RopeTable:
    """Cosines and sines of positions 0 to as far as anyone asked, of several kinds of angles side by side.

    Rows are computed in float64, in blocks of 1,024 positions at absolute multiples, and rounded once: a position's bits do
    not depend on what was asked before.
    """

    def __init__(self, ropes: Iterable[RopeSpec]) -> None:
        self._pairs: dict[RopeSpec, Pairs] = {}
        num_columns = 0
        for rope in ropes:
            if rope not in self._pairs:
                self._pairs[rope] = Pairs(num_columns, rope.dim // 2)
                num_columns += rope.dim // 2
        self._inverse = np.concatenate([inverse_frequencies(rope) for rope in self._pairs])
        self._scales = np.concatenate([np.full(rope.dim // 2, rope.scale) for rope in self._pairs])
        self._cos: Float32 = np.empty((0, num_columns), np.float32)
        self._sin: Float32 = np.empty((0, num_columns), np.float32)

    def pairs(self, rope: RopeSpec) -> Pairs:
        """The columns of one of the kinds."""
        return self._pairs[rope]

    def reaching(self, positions: Int32) -> tuple[Float32, Float32]:
        """(cos, sin), each float32[P, columns] for positions 0 to P - 1, which are all of the non-negative int32[T] and more."""
        if len(positions):
            self._reach(max(positions.tolist()))  # numpy's reductions are dear for the few rows of a decode step
        return self._cos, self._sin

    def _reach(self, position: int) -> None:
        have, need = len(self._cos) // _BLOCK, position // _BLOCK + 1
        if need <= have:
            return
        need = max(need, have + have // 2)  # grow by half, so that a long decode copies the table seldom
        angles = [np.arange(b * _BLOCK, (b + 1) * _BLOCK)[:, None] * self._inverse for b in range(have, need)]
        self._cos = np.concatenate([self._cos, *((np.cos(a) * self._scales).astype(np.float32) for a in angles)])
        self._sin = np.concatenate([self._sin, *((np.sin(a) * self._scales).astype(np.float32) for a in angles)])
