"""The contract of an index of reusable KV.

A ``PrefixCache`` owns the pages that were given to ``insert``. Sharing is several locks on one cached prefix, so pages
need no reference counts of their own. The order of calls for one sequence::

    match -> lock -> [compute, insert(consumes the lock, returns the next)]* -> unlock

Results are made at every lookup, so they are slotted dataclasses that are not frozen: a frozen one, or a named tuple, costs twice
as much to make. Nobody changes one all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from ramet.core.ids import Int32, PageId
from ramet.core.ports import CacheLock
from ramet.core.request import Namespace

__all__ = ["CacheStats", "Inserted", "Match", "PartialPage", "PrefixCache", "PrefixKey"]


@dataclass(frozen=True, slots=True, eq=False)
class PrefixKey:
    """``tokens`` int32[n] under a namespace; two keys share KV only where both agree."""

    namespace: Namespace
    tokens: Int32


@dataclass(slots=True)
class PartialPage:
    """The head of a cached page that agrees with the key: ``num_tokens`` in [1, S - 1] slots of ``page_id``."""

    page_id: PageId
    num_tokens: int


@dataclass(slots=True, eq=False)
class Match:
    """What a key finds: whole pages in order, then at most one partly matching page, to be copied, never shared.

    ``handle`` is the cache's own, None where it keeps nothing. A match is only good until pages are next inserted or evicted;
    lock it first (a lock on an outdated match raises).
    """

    pages: Int32
    partial: PartialPage | None
    handle: object

    def num_tokens(self, page_size: int) -> int:
        return len(self.pages) * page_size + (self.partial.num_tokens if self.partial else 0)


@dataclass(slots=True, eq=False)
class Inserted:
    """Result of an insert: the new lock; ``pages``, the canonical row that the caller must use from now on (those of the
    key's pages from the old lock's end on); ``duplicates``, pages the caller gave that were cached already, its own again.
    """

    lock: CacheLock
    pages: Int32
    duplicates: Int32


class CacheStats(msgspec.Struct, frozen=True):
    """Pages by standing, and how many nodes (or entries) hold them."""

    num_nodes: int
    num_evictable_pages: int
    num_locked_pages: int


class PrefixCache(Protocol):
    """One index: radix, hashed or null. Pages are all of one size, known to the constructor."""

    def peek(self, key: PrefixKey) -> int:
        """Tokens that ``match`` would find. Changes nothing: policies and routers call it."""
        ...

    def match(self, key: PrefixKey) -> Match:
        """The longest cached prefix. May split nodes and refreshes recency; takes no lock."""
        ...

    def lock(self, match: Match) -> CacheLock:
        """Hold the match's whole pages (the matched node itself and all its ancestors). Before anything that may evict."""
        ...

    def unlock(self, lock: CacheLock) -> Int32:
        """Give the hold back. Returns the pages the cache does not want to keep (radix: none; null: all)."""
        ...

    def insert(self, key: PrefixKey, pages: Int32, lock: CacheLock) -> Inserted:
        """Publish filled pages. Consumes ``lock``.

        ``key.tokens`` is the whole prefix, a multiple of S long; ``pages`` its pages from ``lock.num_pages`` on. Owner of those
        pages becomes the cache, but for the duplicates.
        """
        ...

    def evict(self, num_pages: int) -> Int32:
        """Take up to ``num_pages`` pages that no lock holds, least recently used first, prefixes outliving suffixes."""
        ...

    def flush(self) -> Int32:
        """Forget all that no lock holds. Returns its pages."""
        ...

    def num_kept(self, num_tokens: int) -> int:
        """Of a published sequence of that many tokens, how many another one could find."""
        ...

    def continuation(self, key: PrefixKey, num_tokens: int) -> Int32:
        """Up to ``num_tokens`` tokens that are cached behind all of ``key``'s, of the newest of several; changes nothing."""
        ...

    def stats(self) -> CacheStats: ...

    def owned_pages(self) -> Int32:
        """Every page the cache owns, in no particular order: for the audit."""
        ...

    def check(self, locks: Sequence[CacheLock] | None = None) -> None:
        """Raise ``AssertionError`` where an invariant of the index itself is broken.

        ``locks``, where given, are all that are live: every count of locks must then be exactly theirs.
        """
        ...
