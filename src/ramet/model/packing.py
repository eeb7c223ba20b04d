"""From a checkpoint's matrices to packed weights: read and converted by all threads, a few MiB each, packed in order.

Beside the packed weights there are never more than ``threads + 2`` slabs of 4 million values, what converting them takes, and
16 MiB of the mapped file, whose pages are let go of as they have been read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Protocol, Self

from ramet.kernels.backend import Backend, PackedWeight, Weight
from ramet.model.spec import Tensors

__all__ = ["NO_STORE", "Packer", "WeightStore"]

_SLAB_VALUES, _SLAB_ROWS = 1 << 22, 64  # values read at a time, and rows that backends pack without a rest
_KEPT_BYTES = 16 << 20  # read of the file before its pages are let go of


class WeightStore(Protocol):
    """Where packed weights may be had from, and are kept for the next time. ``doing`` says what a caller waits for."""

    @property
    def doing(self) -> str: ...

    def get(self, name: str, shape: tuple[int, int]) -> PackedWeight | None:
        """The weight that was put under this name, of this shape; None where it is to be packed."""
        ...

    def put(self, name: str, weight: PackedWeight) -> None: ...


class _NoStore:
    doing = "packing weights"

    def get(self, name: str, shape: tuple[int, int]) -> None:
        return None

    def put(self, name: str, weight: PackedWeight) -> None:
        pass


NO_STORE: WeightStore = _NoStore()


class Packer:
    """Packs matrices by their names, as long as it is open: ``with Packer(...) as packer: packer.pack("embed")``."""

    def __init__(self, tensors: Tensors, backend: Backend, store: WeightStore) -> None:
        self._tensors = tensors
        self._backend = backend
        self._store = store
        self._pool = ThreadPoolExecutor(backend.threads, "ramet-load")
        self._read_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._tensors.release()

    def pack(self, *names: str) -> PackedWeight:
        """The matrices stacked, in this order."""
        whole = "+".join(names)
        num_outputs, num_inputs = sum(self._tensors.shape(name)[0] for name in names), self._tensors.shape(names[0])[1]
        weight = self._store.get(whole, (num_outputs, num_inputs))
        if weight is None:
            weight = self._backend.pack(self._slabs(names), num_outputs)
            self._store.put(whole, weight)
        return weight

    def _slabs(self, names: tuple[str, ...]) -> Iterator[Weight]:
        """Runs of rows, in order, some of them read ahead."""
        ahead: deque[Future[Weight]] = deque()
        for name, rows in self._runs(names):
            ahead.append(self._pool.submit(self._tensors.matrix, name, None, rows))
            if len(ahead) > self._backend.threads:
                yield from self._taken(ahead)
        while ahead:
            yield from self._taken(ahead)

    def _runs(self, names: tuple[str, ...]) -> Iterator[tuple[str, slice]]:
        for name in names:
            num_rows, num_inputs = self._tensors.shape(name)
            step = max(_SLAB_ROWS, _SLAB_VALUES // num_inputs // _SLAB_ROWS * _SLAB_ROWS)
            yield from ((name, slice(first, min(first + step, num_rows))) for first in range(0, num_rows, step))

    def _taken(self, ahead: deque[Future[Weight]]) -> Iterator[Weight]:
        weight = ahead.popleft().result()
        yield weight
        self._read_bytes += weight.data.nbytes
        if self._read_bytes >= _KEPT_BYTES:
            self._tensors.release()
            self._read_bytes = 0
