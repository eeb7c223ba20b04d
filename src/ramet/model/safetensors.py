"""A strict, mapped safetensors reader: 8 bytes of header length, a JSON header, then raw little-endian tensors.

Why not the `safetensors` package: without torch it cannot hand out bfloat16, nor views into the mapping
(docs/decisions/0010-own-file-readers.md). Format: https://github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

import numpy as np
import numpy.typing as npt

from ramet.core.ids import Float32
from ramet.errors import ModelError, shown
from ramet.kernels.backend import FloatFormat, Weight
from ramet.model.files import few, map_file, parse_json, plain, read_json
from ramet.model.quant import as_float32, round_to

__all__ = ["INDEX_NAME", "SINGLE_NAME", "StoredTensor", "read_folder", "read_index", "read_safetensors"]

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_DTYPES: Mapping[str, type[np.generic]] = {
    "F32": np.float32,
    "F16": np.float16,
    "BF16": np.uint16,
    "F8_E4M3": np.uint8,
    "I64": np.int64,
    "I32": np.int32,
    "I8": np.int8,
}
_FLOATS: Mapping[str, FloatFormat] = {"F32": "f32", "F16": "f16", "BF16": "bf16"}


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """A tensor in a mapped file: ``data`` is a read-only view (bfloat16 as uint16, FP8 as uint8)."""

    name: str
    dtype: str
    data: npt.NDArray[np.generic]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def format(self) -> FloatFormat:
        """Raises ``ModelError`` where its numbers are no floats, and mean nothing by themselves."""
        if self.dtype not in _FLOATS:
            raise ModelError(
                f"tensor {plain(self.name)} holds {self.dtype}, but no quantization_config says what that stands for"
            )
        return _FLOATS[self.dtype]

    def part(self, rows: slice) -> StoredTensor:
        """Some of its rows."""
        return StoredTensor(self.name, self.dtype, self.data[rows])

    def floats(self) -> Float32:
        """float32, of the tensor's shape: exact."""
        return as_float32(self.format, self.data)

    def weight(self) -> Weight:
        """The matrix, a view where its bytes are aligned."""
        return Weight(self.format, np.require(self.data, requirements=["C", "A"]))

    def dense(self, format_: FloatFormat) -> Weight:
        """The matrix, rounded to ``format_``."""
        return round_to(self.weight(), format_)


def read_folder(folder: Path) -> dict[str, StoredTensor]:
    """All tensors of a model folder.

    With an index, only the files it names are read, and each tensor only from the file it is mapped to: a stale copy
    elsewhere, or a stray file, changes nothing. Raises ``ModelError`` where a shard or a tensor is missing.
    """
    index_path = folder / INDEX_NAME
    if not index_path.exists():
        return read_safetensors(folder / SINGLE_NAME)
    shards: dict[str, dict[str, StoredTensor]] = {}
    tensors: dict[str, StoredTensor] = {}
    for name, shard in read_index(index_path).items():
        if shard not in shards:
            if not (folder / shard).exists():
                raise ModelError(f"{index_path}: shard {plain(shard)} is not in the folder; the download is incomplete")
            shards[shard] = read_safetensors(folder / shard)
        if name not in shards[shard]:
            raise ModelError(f"{folder / shard}: tensor {plain(name)} is missing, though the index maps it there")
        tensors[name] = shards[shard][name]
    return tensors


def read_index(path: Path) -> dict[str, str]:
    """The shard that holds each tensor. Raises ``ModelError`` where there is none, or one is no plain file name."""
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{path}: weight_map is missing or empty")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors") or len(shard) > 255:
            raise ModelError(f"{path}: {plain(name)} is mapped to {shown(shard, 60)}, which is no .safetensors file name")
    return weight_map


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """Tensors of one file, in the order of the header."""
    raw = map_file(path)
    if len(raw) < 8:
        raise ModelError(f"{path} is {len(raw)} bytes long: no safetensors file")
    header_bytes = int.from_bytes(raw[:8].tobytes(), "little")
    if not 2 <= header_bytes <= min(_MAX_HEADER_BYTES, len(raw) - 8):
        raise ModelError(f"{path}: header of {header_bytes} bytes in a file of {len(raw)}: cut off, or no safetensors file")
    try:
        text = raw[8 : 8 + header_bytes].tobytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: the header is not UTF-8 at byte {error.start}") from None
    header = parse_json(text, f"{path}: the header")
    header.pop("__metadata__", None)
    body = raw[8 + header_bytes :]
    spans: list[tuple[int, int, str]] = []
    tensors: dict[str, StoredTensor] = {}
    for name, entry in header.items():
        dtype, shape, start, end = _entry(entry, f"{path}: tensor {plain(name)}", len(body))
        numbers = _DTYPES[dtype]
        view = body[start:end].view(numbers).reshape(shape) if start < end else np.empty(shape, numbers)
        tensors[name] = StoredTensor(name, dtype, view)
        spans.append((start, end, name))
    _check_spans(spans, len(body), path)
    return tensors


def _entry(entry: object, where: str, body_bytes: int) -> tuple[str, tuple[int, ...], int, int]:
    if not isinstance(entry, dict):
        raise ModelError(f"{where}: its header entry is no object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise ModelError(f"{where}: type {shown(dtype, 40)} is not supported; supported: {', '.join(_DTYPES)}")
    if not _are_sizes(shape) or len(shape) > 8:
        raise ModelError(f"{where}: shape {shown(shape, 60)} is no list of sizes")
    if not _are_sizes(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= body_bytes:
        raise ModelError(f"{where}: data_offsets {shown(offsets, 60)} are not within the {body_bytes} bytes of data")
    size = math.prod(shape) * np.dtype(_DTYPES[dtype]).itemsize  # Python integers: no overflow
    if size != offsets[1] - offsets[0]:
        raise ModelError(f"{where}: shape {shape} of {dtype} is {size} bytes, the offsets hold {offsets[1] - offsets[0]}")
    return dtype, tuple(shape), offsets[0], offsets[1]


def _are_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in value)


def _check_spans(spans: list[tuple[int, int, str]], body_bytes: int, path: Path) -> None:
    """The format wants the data covered exactly: no overlap, no hole, no tail."""
    at = 0
    for start, end, name in sorted(spans):
        if start != at:
            what = "overlaps its neighbour" if start < at else "leaves a hole before it"
            raise ModelError(f"{path}: tensor {plain(name)} at byte {start} {what} (byte {at})")
        at = end
    if at != body_bytes:
        raise ModelError(f"{path}: the tensors end at byte {at}, the data at {body_bytes}: {few([s[2] for s in spans], 2)}")
