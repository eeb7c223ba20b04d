"""A lean GGUF reader: metadata and a table of tensors, nothing computed that was not asked for.

A GGUF file is a header (magic, version, counts), key-value metadata, tensor entries and aligned raw data. Every count, length,
offset and product is compared with the file's size, in Python's unbounded integers, before anything is allocated by it.
Format: ggml-org/ggml, docs/gguf.md. Why an own reader: docs/decisions/0010-own-file-readers.md.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ramet.errors import ModelError, shown
from ramet.kernels.backend import FloatFormat, Weight
from ramet.model.files import map_file, plain
from ramet.model.gguf_types import BLOCK_TYPES, FLOAT_TYPES, BlockType, FloatType, type_name
from ramet.model.grouped import CodedMatrix
from ramet.model.quant import round_to

__all__ = ["GGUFFile", "GGUFTensor", "read_gguf"]

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS: Mapping[int, struct.Struct] = {
    code: struct.Struct("<" + letter)
    for code, letter in {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "B", 10: "Q", 11: "q", 12: "d"}.items()
}
_LENGTH = struct.Struct("<Q")
_MAX_KEY_BYTES = 65_535  # the format's own limit
_MAX_NAME_BYTES = 256  # the format says 64
_MAX_DIMS = 4
_MIN_PAIR_BYTES, _MIN_ENTRY_BYTES = 13, 32  # the least that a pair and a tensor entry take

_TYPES: Mapping[int, FloatType | BlockType] = {**FLOAT_TYPES, **BLOCK_TYPES}


@dataclass(frozen=True, slots=True, eq=False)
class GGUFTensor:
    """One tensor: ``shape`` rows first (the file lists columns first), ``blocks`` uint8[N, K / block * block_bytes], mapped."""

    name: str
    type: FloatType | BlockType
    shape: tuple[int, ...]
    blocks: npt.NDArray[np.uint8]

    def weight(self, rows: npt.NDArray[np.intp] | slice = slice(None), dense: FloatFormat | None = None) -> Weight:
        """The matrix as the kernels hold it (``gguf_types.py``), or its own values rounded once to the format ``dense``.

        ``rows`` are some of the file's, in the order given. Float types stay views where they can. Raises ``ModelError`` where
        a scale is not finite or does not fit.
        """
        type_ = self.type
        if isinstance(type_, FloatType):
            weight = Weight(type_.format, np.ascontiguousarray(self.blocks[rows]).view(type_.dtype))
            return weight if dense is None else round_to(weight, dense)
        matrix = self._coded(type_, rows)
        return matrix.weight() if dense is None else matrix.dense(dense)

    def _coded(self, type_: BlockType, rows: npt.NDArray[np.intp] | slice) -> CodedMatrix:
        order = np.arange(len(self.blocks))[rows]
        blocks = self.blocks.reshape(len(self.blocks), -1, type_.block_bytes)
        shape = len(order), blocks.shape[1] * type_.block
        return CodedMatrix(self.name, shape, type_.format, lambda some: type_.decode(blocks[order[some]]))


@dataclass(frozen=True, slots=True, eq=False)
class GGUFFile:
    """Metadata (numbers, str, bool; arrays are numpy arrays, of strings lists) and tensors by name."""

    path: Path
    metadata: dict[str, object]
    tensors: dict[str, GGUFTensor]


def read_gguf(path: Path) -> GGUFFile:
    """Read a version 2 or 3, little-endian file. Raises ``ModelError`` naming the file and the key or tensor."""
    raw = map_file(path)
    reader = _Reader(raw, path)
    magic = reader.take(4, "the magic number")
    if bytes(magic) != b"GGUF":
        raise ModelError(f"{path} is no GGUF file: it begins with {bytes(magic)!r}")
    version = reader.scalar(4, "the version")
    if version not in (2, 3):
        kind = "big-endian" if isinstance(version, int) and version & 0xFFFF == 0 else f"version {version}"
        raise ModelError(f"{path} is a {kind} GGUF; only little-endian versions 2 and 3 are read")
    num_tensors = reader.count("the number of tensors", _MIN_ENTRY_BYTES)
    num_pairs = reader.count("the number of metadata keys", _MIN_PAIR_BYTES)
    metadata: dict[str, object] = {}
    for _ in range(num_pairs):
        key = reader.string("a metadata key", _MAX_KEY_BYTES)
        if not key or key in metadata:
            raise ModelError(f"{path}: metadata key {shown(key)} is {'there twice' if key else 'empty'}")
        metadata[key] = reader.value(plain(key))
    if num_tensors == 0 and "split.count" not in metadata:  # the first of several files may hold none
        raise ModelError(f"{path} holds no tensors; is it a vocabulary file?")
    entries = [_read_entry(reader, path) for _ in range(num_tensors)]
    return GGUFFile(path, metadata, _place(entries, raw, reader.at, _alignment(metadata, path), path))


class _Reader:
    """A cursor over the mapped bytes that never passes their end."""

    def __init__(self, raw: npt.NDArray[np.uint8], path: Path) -> None:
        self._view = raw.data
        self._path = path
        self.at = 0

    def take(self, size: int, what: str) -> memoryview:
        if size > len(self._view) - self.at:
            left = len(self._view) - self.at
            raise ModelError(f"{self._path}: {what} needs {size} bytes, but {left} are left; the file is cut off or damaged")
        self.at += size
        return self._view[self.at - size : self.at]

    def scalar(self, code: int, what: str) -> int | float:
        layout = _SCALARS[code]
        value: int | float = layout.unpack(self.take(layout.size, what))[0]
        return value

    def count(self, what: str, bytes_each: int) -> int:
        """A count of things that take at least ``bytes_each``, so that no list grows past the file's size."""
        (count,) = _LENGTH.unpack(self.take(8, what))
        if count * bytes_each > len(self._view) - self.at:
            raise ModelError(f"{self._path}: {what} is {count}, more than the {len(self._view) - self.at} bytes left can hold")
        return int(count)

    def string(self, what: str, limit: int | None = None) -> str:
        size = self.count(f"the length of {what}", 1)
        if limit is not None and size > limit:
            raise ModelError(f"{self._path}: {what} is {size} bytes long, over the limit of {limit}")
        try:
            return str(self.take(size, what), "utf-8")
        except UnicodeDecodeError:
            raise ModelError(f"{self._path}: {what} is not UTF-8") from None

    def value(self, key: str) -> object:
        code = self.scalar(4, f"the type of {key}")
        if code == _STRING:
            return self.string(key)
        if code == _ARRAY:
            return self._array(key)
        if code not in _SCALARS:
            raise ModelError(f"{self._path}: {key} has value type {code}, which GGUF does not define")
        value = self.scalar(int(code), key)
        return self._truth(key, [value])[0] if code == _BOOL else value

    def _array(self, key: str) -> object:
        code = int(self.scalar(4, f"the element type of {key}"))
        if code == _STRING:
            return self._strings(key, self.count(f"the length of {key}", 8))
        if code not in _SCALARS:
            kind = "arrays" if code == _ARRAY else f"value type {code}"
            raise ModelError(f"{self._path}: {key} is an array of {kind}, which is not supported")
        layout = _SCALARS[code]
        data = self.take(self.count(f"the length of {key}", layout.size) * layout.size, key)
        values = np.frombuffer(data, np.dtype(layout.format)).copy()
        return self._truth(key, values.tolist()) if code == _BOOL else values

    def _strings(self, key: str, count: int) -> list[str]:
        """The hot loop of opening a file (a vocabulary has 100,000 and more): plain slices, no calls into ``take``."""
        view, at, end, length_of = self._view, self.at, len(self._view), _LENGTH.unpack_from
        strings: list[str] = []
        try:
            for _ in range(count):
                (size,) = length_of(view, at)
                at += 8
                if size > end - at:
                    raise ModelError(f"{self._path}: {key}[{len(strings)}] is {size} bytes long, but {end - at} are left")
                strings.append(str(view[at : at + size], "utf-8"))
                at += size
        except struct.error:
            raise ModelError(f"{self._path}: {key}[{len(strings)}] is cut off") from None
        except UnicodeDecodeError:
            raise ModelError(f"{self._path}: {key}[{len(strings)}] is not UTF-8") from None
        self.at = at
        return strings

    def _truth(self, key: str, values: Iterable[float]) -> list[bool]:
        bools = list(values)
        if any(v not in (0, 1) for v in bools):
            raise ModelError(f"{self._path}: {key} is a truth value that is neither 0 nor 1")
        return [v == 1 for v in bools]


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    type: FloatType | BlockType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def _read_entry(reader: _Reader, path: Path) -> _Entry:
    name = reader.string("a tensor name", _MAX_NAME_BYTES)
    if not name:
        raise ModelError(f"{path}: a tensor without a name")
    where = f"{path}: tensor {shown(name, 100)}"
    num_dims = int(reader.scalar(4, f"the rank of {plain(name)}"))
    if not 1 <= num_dims <= _MAX_DIMS:
        raise ModelError(f"{where} has {num_dims} dimensions; 1 to {_MAX_DIMS} are allowed")
    dims = [int(reader.scalar(10, f"the shape of {plain(name)}")) for _ in range(num_dims)]
    code = int(reader.scalar(4, f"the type of {plain(name)}"))
    offset = int(reader.scalar(10, f"the offset of {plain(name)}"))
    if code not in _TYPES:
        supported = ", ".join(t.name for t in _TYPES.values())
        raise ModelError(f"{where} is of type {type_name(code)}, which is not supported; supported: {supported}")
    type_ = _TYPES[code]
    if any(d < 1 for d in dims) or dims[0] % type_.block:
        raise ModelError(f"{where}: dimensions {dims} are no whole number of {type_.name} blocks of {type_.block}")
    return _Entry(name, type_, tuple(reversed(dims)), offset, math.prod(dims) // type_.block * type_.block_bytes)


def _alignment(metadata: dict[str, object], path: Path) -> int:
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1) or alignment > 1 << 20:
        raise ModelError(f"{path}: general.alignment is a power of two from 8 to 1048576, not {shown(alignment)}")
    return alignment


def _place(entries: list[_Entry], raw: npt.NDArray[np.uint8], at: int, alignment: int, path: Path) -> dict[str, GGUFTensor]:
    """Cut the data section into tensors. Each must be aligned, inside the file, and apart from the others."""
    data = raw[min(len(raw), -(-at // alignment) * alignment) :]
    tensors: dict[str, GGUFTensor] = {}
    end = 0
    for entry in sorted(entries, key=lambda e: e.offset):
        where = f"{path}: tensor {shown(entry.name, 100)}"
        if entry.name in tensors:
            raise ModelError(f"{where} is there twice")
        if entry.offset % alignment:
            raise ModelError(f"{where} begins at {entry.offset}, which is no multiple of the alignment {alignment}")
        if entry.offset < end:
            raise ModelError(f"{where} at {entry.offset} overlaps the one before it, which ends at {end}")
        end = entry.offset + entry.nbytes
        if end > len(data):
            raise ModelError(f"{where} ends at byte {end} of {len(data)} bytes of data; the file is cut off")
        rows = math.prod(entry.shape[:-1])
        tensors[entry.name] = GGUFTensor(entry.name, entry.type, entry.shape, data[entry.offset : end].reshape(rows, -1))
    return tensors
