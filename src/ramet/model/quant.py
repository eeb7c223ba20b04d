"""Changing the type of weights while they are loaded: rounding to another float type, or quantising to 8 or 4 bits.

Quantisation is by groups of 32 inputs, in the formats of ``kernels.backend.Weight``:

* int8: scale = max|w| / 127; code = w / scale, half to even.
* int4: minimum = min w, scale = (max w - min w) / 15; code = (w - minimum) / scale, half to even, 0 to 15. The embedding and
  the output projection become int8 instead: they are where four bits cost the most, and a fraction of the work.

Scales and minima are rounded to float16 first, and codes are chosen for the rounded values; a group whose scale is under half
of float16's least (6e-8) becomes constant. Norms and biases stay float32.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ramet.config import Dtype, Quantization
from ramet.core.ids import Float32
from ramet.errors import ModelError
from ramet.kernels.backend import GROUP, FloatFormat, Weight, WeightFormat
from ramet.kernels.reference import bf16_to_f32, f32_to_bf16
from ramet.model.spec import ALL_ROWS, Checkpoint, Tensors

__all__ = [
    "CONVERSION_VERSION",
    "Float16",
    "as_float32",
    "as_half",
    "convert",
    "dequantize",
    "fit_int4",
    "fit_int8",
    "quantize_int4",
    "quantize_int8",
    "round_rows",
    "round_to",
    "row_chunks",
]

Float16: TypeAlias = npt.NDArray[np.float16]

CONVERSION_VERSION = 1
"""Of how files' values become what kernels hold: here, in grouped.py, packed.py and gguf_types.py. Whoever changes a bit of what
comes out counts it up, as packed weights are kept under it."""

_CHUNK_VALUES = 1 << 18  # values worked on at a time: 1 MiB of float32, which stays in a cache
_FLOATS: Mapping[str, FloatFormat] = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_FLOAT_TYPES: Mapping[FloatFormat, type[np.generic]] = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}
_NOT_INT4 = frozenset({"embed", "head"})


def as_float32(format_: WeightFormat, data: npt.NDArray[np.generic]) -> Float32:
    """Dense values of any shape as float32: exact."""
    return bf16_to_f32(data) if format_ == "bf16" else data.astype(np.float32)


def dequantize(weight: Weight) -> Float32:
    """float32[N, K]: what the weight's codes stand for."""
    values = as_float32(weight.format, weight.data)
    for per_group, apply in ((weight.scales, np.multiply), (weight.mins, np.add)):
        if per_group is not None:
            groups = values.reshape(len(values), -1, GROUP)
            apply(groups, per_group.astype(np.float32)[:, :, None], out=groups)
    return values


def round_to(weight: Weight, format_: FloatFormat) -> Weight:
    """The matrix in a float format, half to even. Raises ``ModelError`` where float16 cannot hold a value."""
    if weight.format == format_:
        return weight
    return round_rows(weight.shape, lambda rows: dequantize(_rows(weight, rows)), format_)


def round_rows(shape: tuple[int, int], values: Callable[[slice], Float32], format_: FloatFormat) -> Weight:
    """``round_to`` of a matrix whose rows are computed when they are asked for, as float32[n, K]."""
    data = np.empty(shape, _FLOAT_TYPES[format_])
    for rows in row_chunks(shape):
        found = values(rows)
        if format_ == "f16":
            with np.errstate(over="ignore"):
                data[rows] = found
            if not np.isfinite(data[rows]).all():
                raise ModelError(f"a weight of {np.abs(found).max():g} does not fit float16; use bfloat16 (--dtype)")
        else:
            data[rows] = f32_to_bf16(found) if format_ == "bf16" else found
    return Weight(format_, data)


def quantize_int8(weight: Weight) -> Weight:
    """A dense matrix as q8. Raises ``ModelError`` where it is quantised already, K is no multiple of 32, or a value overflows."""
    codes, scales = np.empty(weight.shape, np.int8), _per_group(weight)
    for rows, groups in _dense_groups(weight):
        codes[rows], scales[rows] = fit_int8(groups)
    return Weight("q8", codes, scales)


def quantize_int4(weight: Weight) -> Weight:
    """A dense matrix as q4. Raises as ``quantize_int8``."""
    codes, scales, mins = np.empty(weight.shape, np.uint8), _per_group(weight), _per_group(weight)
    for rows, groups in _dense_groups(weight):
        codes[rows], scales[rows], mins[rows] = fit_int4(groups)
    return Weight("q4", codes, scales, mins)


def fit_int8(groups: Float32) -> tuple[Float32, Float16]:
    """Codes [n, K] and scales [n, K / 32] of float32[n, K / 32, 32]."""
    scales = as_half(np.abs(_members(groups)).max(axis=0).reshape(groups.shape[:2]) / np.float32(127))
    return _codes(groups, scales, -127, 127), scales


def fit_int4(groups: Float32) -> tuple[Float32, Float16, Float16]:
    """Codes [n, K], scales and minima [n, K / 32] of float32[n, K / 32, 32]."""
    members = _members(groups)
    low, high = (found.reshape(groups.shape[:2]) for found in (members.min(axis=0), members.max(axis=0)))
    scales, mins = as_half((high - low) / np.float32(15)), as_half(low)
    return _codes(groups - mins.astype(np.float32)[:, :, None], scales, 0, 15), scales, mins


def convert(checkpoint: Checkpoint, dtype: Dtype, quantization: Quantization | None) -> Checkpoint:
    """The checkpoint with its matrices in another type, converted one by one when they are read.

    ``auto`` keeps the stored types. With ``quantization``, values are rounded to ``dtype`` first.
    """
    tensors = checkpoint.tensors
    if dtype != "auto":
        format_ = _FLOATS[dtype]
        tensors = _Converted(tensors, lambda name, of, rows: of.matrix(name, format_, rows), frozenset({format_}), dtype)
    if quantization is not None:
        _refuse_quantized(checkpoint)
        formats: frozenset[WeightFormat] = frozenset({"q8"} if quantization == "int8" else {"q8", "q4"})
        tensors = _Converted(
            tensors, lambda name, of, rows: _quantized(name, of.matrix(name, rows=rows), quantization), formats, quantization
        )
    return replace(checkpoint, tensors=tensors)


class _Converted:
    """``Tensors`` whose matrices a function makes of others', by name and rows."""

    def __init__(
        self,
        tensors: Tensors,
        change: Callable[[str, Tensors, slice], Weight],
        formats: frozenset[WeightFormat],
        label: str,
    ) -> None:
        self._tensors = tensors
        self._change = change
        self._formats = formats
        self._label = label

    def matrix(self, name: str, dense: FloatFormat | None = None, rows: slice = ALL_ROWS) -> Weight:
        try:
            weight = self._change(name, self._tensors, rows)
            return weight if dense is None else round_to(weight, dense)
        except ModelError as error:
            raise ModelError(f"{name}: {error}") from None

    def vector(self, name: str) -> Float32:
        return self._tensors.vector(name)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors.shape(name)

    def formats(self) -> frozenset[WeightFormat]:
        return self._formats

    def release(self) -> None:
        self._tensors.release()

    def files(self) -> tuple[Path, ...]:
        return self._tensors.files()

    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self._tensors.fingerprint()} {self._label}".encode()).hexdigest()


def _quantized(name: str, weight: Weight, quantization: Quantization) -> Weight:
    if name.endswith(".router"):  # which experts are chosen hangs on it, and it is small
        return weight
    return quantize_int8(weight) if quantization == "int8" or name in _NOT_INT4 else quantize_int4(weight)


def _refuse_quantized(checkpoint: Checkpoint) -> None:
    if checkpoint.tensors.formats() & {"q8", "q4"}:
        raise ModelError(f"{checkpoint.description} is quantised already; leave --quantization out, or use the original")


def _per_group(weight: Weight) -> Float16:
    num_outputs, num_inputs = weight.shape
    if weight.scales is not None:
        raise ModelError(f"the matrix is {weight.format} already")
    if num_inputs % GROUP:
        raise ModelError(f"{num_inputs} inputs are no multiple of {GROUP}, which quantisation needs")
    return np.empty((num_outputs, num_inputs // GROUP), np.float16)


def row_chunks(shape: tuple[int, int]) -> list[slice]:
    """Runs of rows, in order, whose values as float32 take a few MiB."""
    num_rows, num_inputs = shape
    step = max(1, _CHUNK_VALUES // max(1, num_inputs))
    return [slice(at, min(at + step, num_rows)) for at in range(0, num_rows, step)]


def _rows(weight: Weight, rows: slice) -> Weight:
    scales, mins = weight.scales, weight.mins
    return Weight(
        weight.format, weight.data[rows], None if scales is None else scales[rows], None if mins is None else mins[rows]
    )


def _dense_groups(weight: Weight) -> Iterator[tuple[slice, Float32]]:
    """Runs of rows with their values, finite ones, as float32[n, K / 32, 32]."""
    for rows in row_chunks(weight.shape):
        values = as_float32(weight.format, weight.data[rows])
        if not np.isfinite(values).all():
            raise ModelError("a weight is not finite")
        yield rows, values.reshape(len(values), -1, GROUP)


def as_half(values: Float32) -> Float16:
    """Scales or minima as float16. Raises ``ModelError`` where one does not fit."""
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    if not np.isfinite(halves).all():
        raise ModelError(f"a weight is too large for a float16 scale: {np.abs(values).max():g}")
    return halves


def _members(groups: Float32) -> Float32:
    """float32[32, n * G]: the first of every group, the second, and so on. Over these rows numpy reduces four times as fast."""
    return np.ascontiguousarray(groups.reshape(-1, groups.shape[2]).T)


def _codes(groups: Float32, scales: Float16, low: int, high: int) -> Float32:
    """float32[n, K]: whole numbers; 0 where the scale is 0."""
    wide = scales.astype(np.float32)[:, :, None]
    wide[wide == 0] = np.inf
    codes: Float32 = groups / wide
    np.rint(codes, out=codes)
    return np.clip(codes, low, high, out=codes).reshape(len(groups), -1)
