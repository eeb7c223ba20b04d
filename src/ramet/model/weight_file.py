"""One file of packed weights: what the kernels hold, byte for byte, with a checksum of every 16 MiB.

::

    byte 0     magic, then where the index is, its length, its CRC-32, the file's size, and a CRC-32 of all these; written last
    4096 ...   pieces of weights, each at a multiple of 4096
    index      JSON: {"key": ..., "weights": {name: {"k": K, "pieces": [[format, rows, offset, [CRC-32 of 16 MiB, ...]], ...]}}}

A file is read, not mapped: its pages would be small ones, which the kernels read slower, and it could be cut off or changed while
it is used. No number in it is believed before the checksum of the index holds, nor a shape that is not the model's.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Self, get_args

import numpy as np
import numpy.typing as npt

from ramet.errors import ModelError
from ramet.kernels.backend import PackedWeight, PieceBackend, WeightFormat
from ramet.model.files import Fields, parse_json

__all__ = ["DamagedWeights", "WeightReader", "WeightWriter"]

_MAGIC = b"RAMETWEIGHTS\0\0\0\1"
_HEAD = struct.Struct("<16sQQIQ")  # magic, offset and length of the index, its CRC-32, size of the file
_CRC = struct.Struct("<I")
_PAGE, _CHUNK_BYTES = 4096, 16 << 20
_MAX_INDEX_BYTES = 64 << 20
_FORMATS: Mapping[str, WeightFormat] = {name: name for name in get_args(WeightFormat)}


class DamagedWeights(Exception):
    """The file is not what it should be, and why: it is to be made anew. Caught by who opened it."""


class WeightReader:
    """``WeightStore`` over a file that is there. Raises ``DamagedWeights`` where anything in it does not fit."""

    doing = "reading packed weights"

    def __init__(self, fd: int, key: str, backend: PieceBackend) -> None:
        """``fd`` is the caller's to close, and the file that is meant to have this ``key``."""
        self._fd = fd
        self._backend = backend
        try:
            self._weights = self._read_index(key)
        except (ModelError, OSError) as error:
            raise DamagedWeights(str(error)) from None
        self._pool = ThreadPoolExecutor(backend.threads, "ramet-load")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def get(self, name: str, shape: tuple[int, int]) -> PackedWeight:
        """The weight, each byte of it checked."""
        try:
            return self._get(name, shape)
        except (ModelError, OSError, ValueError) as error:
            raise DamagedWeights(f"{name}: {error}") from None

    def put(self, name: str, weight: PackedWeight) -> None:
        pass

    def _read_index(self, key: str) -> Fields:
        head = os.pread(self._fd, _HEAD.size + _CRC.size, 0)
        if len(head) < _HEAD.size + _CRC.size or _CRC.pack(zlib.crc32(head[: _HEAD.size])) != head[_HEAD.size :]:
            raise ModelError("it was not written to its end, or its head is damaged")
        magic, at, length, crc, size = _HEAD.unpack(head[: _HEAD.size])
        if magic != _MAGIC or length > _MAX_INDEX_BYTES or size != os.fstat(self._fd).st_size or at + length > size:
            raise ModelError("it is of another kind, or cut off")
        text = os.pread(self._fd, length, at)
        if zlib.crc32(text) != crc:
            raise ModelError("its index is damaged")
        index = Fields(parse_json(text.decode(), "its index"), "its index")
        if index.text("key") != key:
            raise ModelError("it is that of another model")
        return index.mapping("weights")

    def _get(self, name: str, shape: tuple[int, int]) -> PackedWeight:
        entry = self._weights.mapping(name)
        stored = [_stored(one) for one in _list(entry.raw("pieces"))]
        if (sum(rows for _, rows, _, _ in stored), entry.integer("k")) != shape:
            raise ModelError(f"its shape is not {list(shape)}")
        weight = self._backend.room_for([(format_, rows) for format_, rows, _, _ in stored], shape[1])
        jobs: list[tuple[npt.NDArray[np.uint8], int, int]] = []
        for piece, (_, _, offset, sums) in zip(self._backend.pieces(weight), stored, strict=True):
            chunks = list(_chunks(piece.data))
            if len(chunks) != len(sums):
                raise ModelError(f"it has {len(sums)} checksums, not {len(chunks)}")
            jobs += ((chunk, offset + at, crc) for (at, chunk), crc in zip(chunks, sums, strict=True))
        for _ in self._pool.map(self._fill, *zip(*jobs, strict=True)):
            pass
        return weight

    def _fill(self, chunk: npt.NDArray[np.uint8], at: int, crc: int) -> None:
        view, done = chunk.data, 0
        while done < len(view):
            count = os.preadv(self._fd, [view[done:]], at + done)
            if count == 0:
                raise ModelError("it is cut off")
            done += count
        if zlib.crc32(view) != crc:
            raise ModelError(f"its bytes from {at} on are damaged")


class WeightWriter:
    """``WeightStore`` that writes what it is given. Raises ``OSError`` where it cannot."""

    doing = "packing weights"

    def __init__(self, fd: int, key: str, backend: PieceBackend, room: Callable[[int], None]) -> None:
        """``fd`` is the caller's to close. ``room`` is asked with the file's size before it grows to that; it may raise."""
        self._fd = fd
        self._key = key
        self._backend = backend
        self._room = room
        self._end = _PAGE
        self._weights: dict[str, object] = {}

    def get(self, name: str, shape: tuple[int, int]) -> None:
        return None

    def put(self, name: str, weight: PackedWeight) -> None:
        pieces = []
        for piece in self._backend.pieces(weight):
            sums = []
            self._room(self._end + len(piece.data))
            for at, chunk in _chunks(piece.data):
                sums.append(zlib.crc32(chunk.data))
                self._write(chunk.data, self._end + at)
            pieces.append([piece.format, piece.num_outputs, self._end, sums])
            self._end += -(-len(piece.data) // _PAGE) * _PAGE
        self._weights[name] = {"k": weight.shape[1], "pieces": pieces}

    def finish(self) -> None:
        """Write the index, and then the head, without which the file is none."""
        text = json.dumps({"key": self._key, "weights": self._weights}).encode()
        self._room(self._end + len(text))
        self._write(memoryview(text), self._end)
        head = _HEAD.pack(_MAGIC, self._end, len(text), zlib.crc32(text), self._end + len(text))
        self._write(memoryview(head + _CRC.pack(zlib.crc32(head))), 0)

    def _write(self, data: memoryview, at: int) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._fd, data[done:], at + done)


def _chunks(data: npt.NDArray[np.uint8]) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    return ((at, data[at : at + _CHUNK_BYTES]) for at in range(0, len(data), _CHUNK_BYTES))


def _list(value: object) -> list[object]:
    if not isinstance(value, list) or not value:
        raise ModelError("it has no pieces")
    return value


def _stored(value: object) -> tuple[WeightFormat, int, int, list[int]]:
    """Format, rows, offset, checksums."""
    match value:
        case [str(name), int(rows), int(offset), list(sums)] if name in _FORMATS and rows > 0 and offset >= 0:
            return _FORMATS[name], rows, offset, sums
    raise ModelError("a piece of it is none")
