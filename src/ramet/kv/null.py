"""The cache that keeps nothing: the control that shows that reuse is only speed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ramet.core.ids import Int32
from ramet.core.ports import CacheLock
from ramet.kv.pool import OwnershipError
from ramet.kv.prefix import CacheStats, Inserted, Match, PrefixKey
from ramet.kv.tree import check_insert, require

__all__ = ["NullCache"]


_NOTHING: Int32 = np.empty(0, np.int32)


class _Lock:
    """Pages that one sequence published. Nobody else ever finds them; ``unlock`` gives them back."""

    __slots__ = ("pages",)

    def __init__(self, pages: Int32) -> None:
        self.pages = pages

    @property
    def num_pages(self) -> int:
        return len(self.pages)


class NullCache:
    """Matches nothing. Published pages stay with it as long as their lock, so its owner follows the same rules as with others."""

    def __init__(self, page_size: int) -> None:
        if page_size < 1:
            raise ValueError(f"page_size is at least 1, not {page_size}")
        self.page_size = page_size
        self._live: set[_Lock] = set()

    def peek(self, key: PrefixKey) -> int:
        return 0

    def match(self, key: PrefixKey) -> Match:
        return Match(_NOTHING, None, None)

    def lock(self, match: Match) -> _Lock:
        return self._new_lock(_NOTHING)

    def unlock(self, lock: CacheLock) -> Int32:
        return self._consume(lock)

    def insert(self, key: PrefixKey, pages: Int32, lock: CacheLock) -> Inserted:
        check_insert(len(key.tokens), len(pages), lock.num_pages, self.page_size)
        published = np.concatenate((self._consume(lock), pages))
        return Inserted(self._new_lock(published), pages, _NOTHING)

    def evict(self, num_pages: int) -> Int32:
        return _NOTHING

    def flush(self) -> Int32:
        return _NOTHING

    def num_kept(self, num_tokens: int) -> int:
        return 0

    def continuation(self, key: PrefixKey, num_tokens: int) -> Int32:
        return np.empty(0, np.int32)

    def stats(self) -> CacheStats:
        return CacheStats(len(self._live), 0, sum(lock.num_pages for lock in self._live))

    def owned_pages(self) -> Int32:
        return np.concatenate([_NOTHING, *(lock.pages for lock in self._live)])

    def check(self, locks: Sequence[CacheLock] | None = None) -> None:
        require(locks is None or self._live == set(locks), "the live locks are those that were given out")

    def _new_lock(self, pages: Int32) -> _Lock:
        lock = _Lock(pages)
        self._live.add(lock)
        return lock

    def _consume(self, lock: CacheLock) -> Int32:
        if not isinstance(lock, _Lock) or lock not in self._live:
            raise OwnershipError("the lock was given back already, or is another cache's")
        self._live.remove(lock)
        return lock.pages
