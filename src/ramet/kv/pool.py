"""Who owns each page: a free list and one owner byte a page.

A page changes hands only through ``allocate`` and ``transfer``, which consume one owner and give the next. A transfer from
an owner that does not have the page (a double free, a page published twice) is a defect and always raises.
"""

from __future__ import annotations

import enum

import numpy as np

from ramet.core.ids import Int32

__all__ = ["Owner", "OwnershipError", "PagePool"]


class OwnershipError(RuntimeError):
    """Pages, locks or matches were used by someone who does not hold them: a defect of the engine, never the caller's fault."""


class Owner(enum.IntEnum):
    """The one owner of a page.

    FREE is the pool, PRIVATE one sequence, CACHED the prefix cache, MOVING a page operation in flight.
    """

    FREE = 0
    PRIVATE = 1
    CACHED = 2
    MOVING = 3


class PagePool:
    """``num_pages`` pages, all FREE at first. Last freed, first allocated, so that warm memory is used again."""

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise ValueError(f"a pool has at least 1 page, not {num_pages}")
        self.num_pages = num_pages
        self._owners = np.zeros(num_pages, np.uint8)
        self._free: Int32 = np.arange(num_pages - 1, -1, -1, dtype=np.int32)  # a stack, its top at [_num_free - 1]
        self._counts = [0] * len(Owner)
        self._counts[Owner.FREE] = num_pages
        self._rank: Int32 = np.zeros(num_pages, np.int32)  # scratch: finds a page named twice in one transfer

    @property
    def num_free(self) -> int:
        return self._counts[Owner.FREE]

    def count(self, owner: Owner) -> int:
        """Pages that ``owner`` has."""
        return self._counts[owner]

    def owned_by(self, owner: Owner) -> Int32:
        """Page ids that ``owner`` has, rising; O(num_pages), for the audit."""
        return np.flatnonzero(self._owners == owner).astype(np.int32)

    def free_list(self) -> Int32:
        """The free stack, for the audit."""
        return self._free[: self.num_free].copy()

    def allocate(self, num_pages: int) -> Int32:
        """Take pages from FREE to PRIVATE: int32[num_pages]. The caller has made room; too few is a defect."""
        have = self.num_free
        if not 0 <= num_pages <= have:
            raise OwnershipError(f"{num_pages} pages asked for, {have} free")
        pages = self._free[have - num_pages : have][::-1].copy()
        self._change(pages, Owner.FREE, Owner.PRIVATE)
        return pages

    def transfer(self, pages: Int32, source: Owner, target: Owner) -> None:
        """Hand int32[n] pages from ``source``, which must have every one of them once, to ``target``.

        Raises ``OwnershipError``, having changed nothing, where a page is out of range, named twice or not ``source``'s.
        """
        if source == Owner.FREE:
            raise OwnershipError("free pages are taken by allocate() only")
        if len(pages) == 0:
            return
        self._check(pages, source)
        if target == Owner.FREE:
            have = self.num_free
            self._free[have : have + len(pages)] = pages
        self._change(pages, source, target)

    def _change(self, pages: Int32, source: Owner, target: Owner) -> None:
        self._owners[pages] = target
        self._counts[source] -= len(pages)
        self._counts[target] += len(pages)

    def _check(self, pages: Int32, source: Owner) -> None:
        if int(pages.min()) < 0 or int(pages.max()) >= self.num_pages:
            raise OwnershipError(f"pages {pages.tolist()} are not all in 0 to {self.num_pages - 1}")
        wrong = pages[self._owners[pages] != source]
        if len(wrong):
            owners = {int(page): Owner(self._owners[page]).name for page in wrong[:8]}
            raise OwnershipError(f"pages should be {source.name} but are {owners}")
        ranks = np.arange(len(pages), dtype=np.int32)
        self._rank[pages] = ranks
        twice = pages[self._rank[pages] != ranks]  # the later mention overwrote the earlier one's rank
        if len(twice):
            raise OwnershipError(f"pages {twice[:8].tolist()} are named twice in one transfer")
