"""Codes by groups: what all quantised files boil down to, and the way from there to what the kernels hold.

A value is ``scale * code + minimum``, with a scale (and a minimum) for each run of neighbouring inputs. Files have runs of 1, 16,
32, 64, 128 or all inputs, scales of up to 24 bits and codes of 2 to 8; the kernels have runs of 32, float16 scales, and codes
of 4 bits with a minimum or of 8 without (``kernels.backend.Weight``). What fits keeps its codes, and its scale is rounded to
float16, which most files store in the first place; what does not is fitted anew, and ``Grouped`` states the error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from ramet.core.ids import Float32
from ramet.errors import ModelError
from ramet.kernels.backend import GROUP, FloatFormat, Weight
from ramet.model.files import plain
from ramet.model.quant import Float16, as_half, fit_int4, fit_int8, round_rows, row_chunks

__all__ = ["Coded", "CodedMatrix", "Grouped", "Loose"]

Codes: TypeAlias = npt.NDArray[np.integer[Any]] | Float32


class Coded(Protocol):
    """Some rows of a matrix, read from a file."""

    def values(self) -> Float32:
        """float32[n, K]: what the file says, in float32 arithmetic."""
        ...

    def int8(self) -> tuple[Codes, Float16]:
        """Codes [n, K] and scales [n, K / 32] of a q8 weight."""
        ...

    def int4(self) -> tuple[Codes, Float16, Float16]:
        """Codes [n, K], scales and minima [n, K / 32] of a q4 weight."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Grouped:
    """Rows whose values are ``scales * codes + mins``: codes [n, G, width], scales and mins float32[n, G].

    ``limit`` bounds the codes: without minima they are from -limit to limit (to limit - 1 where it is a power of two), with them
    from 0 to limit. Raises ``ModelError`` where a scale or a minimum is not finite.

    What the kernels' form is off by, beside float16's rounding of scales and minima (2**-11 of each, 2**-25 of small ones):

    * nothing where runs are of 32 or a multiple, and codes have 8 bits and no minima (int8) or 4 bits (int4);
    * int8, shorter runs, no minima: nothing in the runs with the largest scale of their 32; elsewhere half a step, which is that
      scale divided by 128 // limit, and a whole one at the end of the grid where scales of a group differ in sign;
    * else half a step, of 1/127 of the group's largest value (int8) or of 1/15 of its range (int4).
    """

    codes: npt.NDArray[np.integer[Any]]
    scales: Float32
    mins: Float32 | None
    limit: int

    def __post_init__(self) -> None:
        for name, per_run in (("scale", self.scales), ("minimum", self.mins)):
            if per_run is not None and not np.isfinite(per_run).all():
                raise ModelError(f"a {name} is not finite; the file is damaged")

    def values(self) -> Float32:
        return self._values().reshape(len(self.codes), -1)

    def int8(self) -> tuple[Codes, Float16]:
        if self.mins is not None:
            return fit_int8(self._groups())
        if self.limit <= 128:
            return self._whole() if self._is_whole() else self._aligned()
        return self._whole_rows() if self._is_whole() else fit_int8(self._groups())

    def int4(self) -> tuple[Codes, Float16, Float16]:
        if self._is_whole() and self.mins is None and self.limit <= 8:
            codes, scales = self._whole()
            return codes + np.int8(8), scales, as_half(np.float32(-8) * scales.astype(np.float32))
        if self._is_whole() and self.mins is not None and self.limit <= 15:
            return *self._whole(), as_half(self._per_group(self.mins))
        return fit_int4(self._groups())

    def _values(self) -> Float32:
        values = self.codes.astype(np.float32)
        values *= self.scales[:, :, None]
        if self.mins is not None:
            values += self.mins[:, :, None]
        return values

    def _groups(self) -> Float32:
        return self._values().reshape(len(self.codes), -1, GROUP)

    def _is_whole(self) -> bool:
        return bool(self.codes.shape[2] % GROUP == 0)

    def _whole(self) -> tuple[Codes, Float16]:
        return self.codes.reshape(len(self.codes), -1), as_half(self._per_group(self.scales))

    def _whole_rows(self) -> tuple[Codes, Float16]:
        """Codes as they are in rows where all have 8 bits, fitted in the others: a row's bits are a matter of that row alone."""
        codes, scales = self._whole()
        fitted = (codes < -128).any(axis=1) | (codes > 127).any(axis=1)
        if fitted.any():
            codes, scales = codes.copy(), scales.copy()
            codes[fitted], scales[fitted] = fit_int8(self._groups()[fitted])
        return codes, scales

    def _per_group(self, per_run: Float32) -> Float32:
        return np.repeat(per_run, self.codes.shape[2] // GROUP, axis=1)

    def _aligned(self) -> tuple[Codes, Float16]:
        """Codes on a grid that divides the largest scale of each 32 inputs, so that the codes it belongs to stay exact."""
        by_group = self.scales.reshape(len(self.scales), -1, GROUP // self.codes.shape[2])
        at = np.abs(by_group).argmax(axis=2, keepdims=True)
        steps = as_half(np.take_along_axis(by_group, at, axis=2) / np.float32(128 // self.limit))
        wide = steps.astype(np.float32)
        ratios = np.divide(by_group, wide, out=np.zeros_like(by_group), where=wide != 0).reshape(self.scales.shape)
        codes = np.rint(self.codes * ratios[:, :, None])
        return np.clip(codes, -128, 127).reshape(len(codes), -1), steps[:, :, 0]


@dataclass(frozen=True, slots=True, eq=False)
class Loose:
    """Rows of small floats (FP8), float32[n, K]: fitted, with the error of ``Grouped``'s last case. Raises as that does."""

    floats: Float32

    def __post_init__(self) -> None:
        if not np.isfinite(self.floats).all():
            raise ModelError("a weight or its scale is not finite; the file is damaged")

    def values(self) -> Float32:
        return self.floats

    def int8(self) -> tuple[Codes, Float16]:
        return fit_int8(self._groups())

    def int4(self) -> tuple[Codes, Float16, Float16]:
        return fit_int4(self._groups())

    def _groups(self) -> Float32:
        return self.floats.reshape(len(self.floats), -1, GROUP)


@dataclass(frozen=True, slots=True, eq=False)
class CodedMatrix:
    """A quantised matrix in a file: its shape, the form in which the kernels hold it, and a way to read some of its rows.

    Errors name ``name``. A few MiB of rows are worked on at a time.
    """

    name: str
    shape: tuple[int, int]
    format: Literal["q8", "q4"]
    read: Callable[[slice], Coded]

    def part(self, rows: slice) -> CodedMatrix:
        """Some of its rows."""
        first, stop, _ = rows.indices(self.shape[0])
        shape = max(0, stop - first), self.shape[1]
        return CodedMatrix(self.name, shape, self.format, lambda of: self.read(slice(first + of.start, first + of.stop)))

    def weight(self) -> Weight:
        """The matrix as the kernels hold it."""
        num_rows, num_inputs = self.shape
        if num_inputs % GROUP:
            raise ModelError(
                f"tensor {plain(self.name)}: {num_inputs} inputs are no multiple of {GROUP}; load it as --dtype bfloat16"
            )
        groups = (num_rows, num_inputs // GROUP)
        codes = np.empty(self.shape, np.int8 if self.format == "q8" else np.uint8)
        scales, mins = np.empty(groups, np.float16), None if self.format == "q8" else np.empty(groups, np.float16)
        for rows in row_chunks(self.shape):
            try:
                if mins is None:
                    codes[rows], scales[rows] = self.read(rows).int8()
                else:
                    codes[rows], scales[rows], mins[rows] = self.read(rows).int4()
            except ModelError as error:
                raise ModelError(f"tensor {plain(self.name)}: {error}") from None
        return Weight(self.format, codes, scales, mins)

    def dense(self, format_: FloatFormat) -> Weight:
        """The matrix's own values, rounded once to ``format_``."""
        try:
            return round_rows(self.shape, lambda rows: self.read(rows).values(), format_)
        except ModelError as error:
            raise ModelError(f"tensor {plain(self.name)}: {error}") from None
