"""What the radix and the hash cache share: children ordered by their first page, and locks that are used once."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np

from ramet import _native
from ramet.core.ids import Int32
from ramet.core.ports import CacheLock
from ramet.kv.pool import OwnershipError

__all__ = ["TOKEN_BYTES", "Children", "TreeLock", "check_insert", "count_locks", "int32_view", "require"]

TOKEN_BYTES = 4

T = TypeVar("T")
N = TypeVar("N", bound="_Linked")
_INT32 = np.dtype(np.int32)


class _Linked(Protocol):
    """A node that knows its parent."""

    @property
    def parent(self: N) -> N | None: ...


class Children(Generic[T]):
    """Items under distinct keys of one length, the bytes of a page of int32 tokens: a dict, and its keys in sorted order.

    Of all keys, the one that shares the longest head with a probe stands next to the place where the probe would be inserted.
    So one binary search finds the best partly matching page, whatever the number of children.
    """

    __slots__ = ("items", "keys")

    def __init__(self) -> None:
        self.items: dict[bytes, T] = {}
        self.keys: list[bytes] = []

    def nearest(self, probe: bytes) -> tuple[T | None, int]:
        """The item whose key shares most leading tokens with ``probe`` (a page or less), and how many; (None, 0) if none."""
        at, common = _native.nearest(self.keys, probe)
        return (self.items[self.keys[at]], common // TOKEN_BYTES) if common else (None, 0)

    def put(self, key: bytes, item: T) -> None:
        """Add ``item``, in place of the one under the same key if there is one."""
        if key not in self.items:
            insort(self.keys, key)
        self.items[key] = item

    def remove(self, key: bytes) -> None:
        del self.items[key]
        del self.keys[bisect_left(self.keys, key)]


class TreeLock(Generic[T]):
    """A hold on a node and all its ancestors. Consumed by ``insert`` or ``unlock``; any use after that raises."""

    __slots__ = ("node", "num_pages")

    def __init__(self, node: T, num_pages: int) -> None:
        self.node: T | None = node
        self.num_pages = num_pages

    @staticmethod
    def consume(lock: CacheLock, kind: type[T]) -> T:
        """The node held, which the caller now answers for. Raises ``OwnershipError`` where the lock is spent or a stranger's."""
        if not isinstance(lock, TreeLock) or not isinstance(lock.node, kind):
            raise OwnershipError("the lock was given back already, or is another cache's")
        node = lock.node
        lock.node = None
        return node


def count_locks(locks: Sequence[CacheLock], kind: type[N]) -> dict[N, int]:
    """How many of ``locks``, all live and of one cache, are on each node or below it: for the audit."""
    counts: dict[N, int] = {}
    for lock in locks:
        if not isinstance(lock, TreeLock) or not isinstance(lock.node, kind):
            raise AssertionError("a live lock is spent, or another cache's")
        node: N | None = lock.node
        while node is not None:
            counts[node] = counts.get(node, 0) + 1
            node = node.parent
    return counts


def require(holds: bool, text: str) -> None:
    """Raise ``AssertionError(text)`` where an invariant does not hold; unlike ``assert`` it stays under ``python -O``."""
    if not holds:
        raise AssertionError(f"broken: {text}")


def check_insert(num_tokens: int, num_pages: int, num_locked: int, page_size: int) -> None:
    """Raise ``ValueError`` where ``insert`` was given tokens and pages that do not fit together."""
    if num_tokens != (num_locked + num_pages) * page_size:
        raise ValueError(
            f"{num_tokens} tokens are not {num_locked} locked and {num_pages} new pages of {page_size}; "
            "publish whole pages, from the lock's end on"
        )


def int32_view(data: bytes) -> Int32:
    """int32[len(data) / 4], read-only, sharing memory."""
    return np.frombuffer(data, _INT32)
