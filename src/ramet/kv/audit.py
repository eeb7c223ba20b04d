"""Whole-state check of the KV layer: owners partition the pages, and locks are exactly the references."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ramet.core.ids import Int32
from ramet.core.request import Sequence
from ramet.kv.manager import KVManager
from ramet.kv.pool import Owner, PagePool
from ramet.kv.tree import require

__all__ = ["audit"]


def audit(manager: KVManager, sequences: Iterable[Sequence]) -> None:
    """Raise ``AssertionError``, saying what is wrong, where pool, cache and ``sequences`` (all live ones) disagree.

    O(pages + nodes + page tables): for tests, and for an engine that looks into a fault.
    """
    seqs = list(sequences)
    for seq in seqs:
        _check_sequence(seq, manager.page_size)
    private = [seq.pages.view(seq.lock.num_pages) for seq in seqs if seq.lock is not None]
    shared = [seq.pages.view(0, seq.lock.num_pages) for seq in seqs if seq.lock is not None]
    _same("free list", manager.pool.free_list(), manager.pool, Owner.FREE)
    _same("private pages of sequences", _joined(private), manager.pool, Owner.PRIVATE)
    _same("pages of the cache", manager.cache.owned_pages(), manager.pool, Owner.CACHED)
    require(manager.pool.count(Owner.MOVING) == 0, "pages are MOVING, but nobody moves pages")
    stats = manager.stats()
    held = len(np.unique(_joined(shared)))
    require(stats.num_locked_pages == held, f"{stats.num_locked_pages} pages are locked, {held} are used by sequences")
    cached = stats.num_locked_pages + stats.num_evictable_pages
    require(cached == manager.pool.count(Owner.CACHED), f"the cache counts {cached} pages, the pool otherwise")
    stray = np.setdiff1d(_joined(shared), manager.cache.owned_pages())
    require(len(stray) == 0, f"pages {stray.tolist()} are shared but not the cache's")
    manager.cache.check([seq.lock for seq in seqs if seq.lock is not None])
    _check_copies(manager)


def _check_sequence(seq: Sequence, page_size: int) -> None:
    name = f"sequence {seq.seq_id}"
    num_locked = 0 if seq.lock is None else seq.lock.num_pages
    require(seq.lock is not None or len(seq.pages) == 0, f"{name} has pages and no lock")
    require(
        num_locked * page_size <= seq.num_computed_tokens <= len(seq.tokens),
        f"I1 of {name}: {num_locked} locked pages, {seq.num_computed_tokens} tokens computed of {len(seq.tokens)}",
    )
    require(
        len(seq.pages) * page_size >= seq.num_computed_tokens + seq.num_in_flight_tokens,
        f"I2 of {name}: {len(seq.pages)} pages for {seq.num_computed_tokens} + {seq.num_in_flight_tokens} tokens",
    )
    require(num_locked <= len(seq.pages), f"I3 of {name}: {num_locked} locked pages of {len(seq.pages)}")
    done = seq.is_finished and seq.num_in_flight_tokens == 0
    require(not done or (seq.lock is None and len(seq.pages) == 0), f"I4 of {name}: finished but holds pages")


def _check_copies(manager: KVManager) -> None:
    copies = manager.pending_copies()
    for source, target, num_tokens in zip(copies.src.tolist(), copies.dst.tolist(), copies.num_tokens.tolist(), strict=True):
        in_pool = 0 <= source < manager.pool.num_pages and 0 <= target < manager.pool.num_pages
        sound = in_pool and source != target and 1 <= num_tokens < manager.page_size
        require(sound, f"copy of {num_tokens} tokens from page {source} to {target} is unsound")


def _joined(rows: list[Int32]) -> Int32:
    return np.concatenate([np.empty(0, np.int32), *rows])


def _same(what: str, pages: Int32, pool: PagePool, owner: Owner) -> None:
    """``pages`` must be each page that the pool books on ``owner``, once."""
    booked = pool.owned_by(owner)
    require(
        np.array_equal(np.sort(pages), booked),
        f"{what} are {np.sort(pages).tolist()}, but the pool books {booked.tolist()} as {owner.name}",
    )
    require(len(booked) == pool.count(owner), f"the pool counts {pool.count(owner)} pages {owner.name}, has {len(booked)}")
