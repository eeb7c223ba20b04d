"""Names for the integers that travel through the engine, and a growable int32 array."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Float32", "Int32", "Int64", "IntBuffer", "PageId", "RequestId", "SeqId", "UInt32"]

PageId: TypeAlias = int
SeqId: TypeAlias = int
RequestId: TypeAlias = str

Int32: TypeAlias = npt.NDArray[np.int32]
Int64: TypeAlias = npt.NDArray[np.int64]
UInt32: TypeAlias = npt.NDArray[np.uint32]
Float32: TypeAlias = npt.NDArray[np.float32]


class IntBuffer:
    """A growable int32 array: append and extend in amortised constant time, views without copies.

    Views are only valid until the next ``append``/``extend``; whoever keeps one copies it.
    """

    __slots__ = ("_data", "_size")

    def __init__(self, values: Iterable[int] | Int32 = ()) -> None:
        self._data: Int32 = values.astype(np.int32) if isinstance(values, np.ndarray) else np.fromiter(values, np.int32)
        self._size = len(self._data)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> int:
        if not -self._size <= index < self._size:
            raise IndexError(index)
        return int(self._data[index if index >= 0 else self._size + index])

    def view(self, start: int = 0, stop: int | None = None) -> Int32:
        """int32[stop - start], sharing memory."""
        stop = self._size if stop is None else min(stop, self._size)
        return self._data[start:stop]

    def append(self, value: int) -> None:
        if self._size == len(self._data):  # appended to at every token, so the common case costs no call
            self._reserve(1)
        self._data[self._size] = value
        self._size += 1

    def extend(self, values: Int32) -> None:
        self._reserve(len(values))
        self._data[self._size : self._size + len(values)] = values
        self._size += len(values)

    def replace(self, start: int, values: Int32) -> None:
        """Overwrite ``len(values)`` entries from ``start``; the size does not change."""
        if start + len(values) > self._size:
            raise IndexError(start + len(values))
        self._data[start : start + len(values)] = values

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` values, or all where there are fewer."""
        self._size = min(self._size, length)

    def clear(self) -> None:
        self._size = 0

    def _reserve(self, extra: int) -> None:
        need = self._size + extra
        if need > len(self._data):
            grown: Int32 = np.empty(max(16, need, 2 * len(self._data)), np.int32)
            grown[: self._size] = self._data[: self._size]
            self._data = grown
