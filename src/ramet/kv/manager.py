"""The only one who changes page ownership: gives sequences their pages, publishes what they computed, takes pages back."""

from __future__ import annotations

import msgspec
import numpy as np

from ramet.core.batch import PageCopies
from ramet.core.ports import CacheLock
from ramet.core.request import Sequence
from ramet.kv.pool import Owner, OwnershipError, PagePool
from ramet.kv.prefix import Match, PartialPage, PrefixCache, PrefixKey

__all__ = ["KVManager", "KVStats"]


_NO_COPIES = PageCopies(*[np.empty(0, np.int32)] * 3)


class KVStats(msgspec.Struct, frozen=True):
    """Pages by owner, cached ones by standing, and totals since the start.

    ``num_query_tokens`` and ``num_hit_tokens`` count each sequence once, at its first admission: a resumed one asks again, but
    finds what it computed itself.
    """

    num_pages: int
    num_free_pages: int
    num_private_pages: int
    num_locked_pages: int
    num_evictable_pages: int
    num_nodes: int
    num_query_tokens: int
    num_hit_tokens: int
    num_evicted_pages: int


class KVManager:
    """Pages of sequences. Pages are of ``page_size`` tokens, in ``pool`` and in ``cache`` alike.

    Calls that find no room return False and leave sequence, pool and locks as they were. Callers are one thread.

    Page copies are queued in the order in which they were asked for and are done in that order before the next step computes.
    So a page may be evicted or released, and be given to another sequence, while a queued copy still reads it: what it held
    stays there until that step computes, and a later copy onto it comes later in the queue.
    """

    def __init__(self, pool: PagePool, cache: PrefixCache, page_size: int) -> None:
        self.pool = pool
        self.cache = cache
        self.page_size = page_size
        self._copies: list[tuple[int, int, int]] = []  # source, destination, tokens
        self._num_query_tokens = 0
        self._num_hit_tokens = 0
        self._num_evicted_pages = 0

    def fits(self, num_tokens: int) -> bool:
        """Whether a sequence of that many tokens can ever be held: the bound of validation and of admission alike."""
        return self._pages_for(num_tokens) <= self.pool.num_pages

    def peek(self, seq: Sequence) -> int:
        """Tokens that ``admit`` would take from the cache. Changes nothing."""
        return self.cache.peek(self._key(seq, self._num_reusable(seq)))

    def num_shared(self, seq: Sequence, other: Sequence) -> int:
        """Tokens that ``admit`` could take for ``seq`` once all of ``other``'s are computed and published, from those alone."""
        if seq.request.namespace != other.request.namespace:
            return 0
        most = min(self._num_reusable(seq), self.cache.num_kept(len(other.tokens)))
        differs = np.flatnonzero(seq.tokens.view(0, most) != other.tokens.view(0, most))
        return int(differs[0]) if len(differs) else most

    def continuation(self, seq: Sequence, num_tokens: int) -> list[int]:
        """Up to so many tokens that another sequence had behind all of this one's, where the cache knows of one."""
        found: list[int] = self.cache.continuation(self._key(seq, len(seq.tokens)), num_tokens).tolist()
        return found

    def admit(self, seq: Sequence, reserve_pages: int = 0) -> bool:
        """Give a sequence without pages all that its tokens need, cached ones first; False if there is no room.

        Room means that ``reserve_pages`` more could be allocated afterwards. On success ``num_computed_tokens`` is what the cache
        had, always less than ``len(tokens)``: the last token is computed, for its logits are needed.
        """
        match = self.cache.match(self._key(seq, self._num_reusable(seq)))
        is_first = seq.num_cached_tokens is None
        if not self._begin(seq, match, match.partial, reserve_pages):
            return False
        if is_first:
            self._num_query_tokens += len(seq.tokens)
            self._num_hit_tokens += seq.num_computed_tokens
        return True

    def fork(self, parent: Sequence, child: Sequence) -> bool:
        """Start ``child``, whose tokens are a prefix of ``parent``'s, on the KV that the parent has computed.

        Whole pages are published and shared, at most one partial page is copied. False if there is no room or the cache keeps
        nothing; the child is then admitted in the ordinary way. Raises ``OwnershipError`` where it is no child of this parent.
        """
        length = len(child.tokens)
        is_prefix = length <= len(parent.tokens) and np.array_equal(parent.tokens.view(0, length), child.tokens.view())
        if not is_prefix or child.request.namespace != parent.request.namespace:
            raise OwnershipError(f"sequence {child.seq_id} does not continue a prefix of {parent.seq_id}")
        self.commit(parent)
        num_tokens = min(self._num_reusable(child), parent.num_computed_tokens)
        num_whole, num_tail = divmod(num_tokens, self.page_size)
        match = self.cache.match(self._key(child, num_tokens))
        if match.handle is None or len(match.pages) < num_whole:
            return False
        # The parent's own page has all the tail, cached or not; the cache may know a shorter head of it, or none.
        partial = PartialPage(parent.pages[num_whole], num_tail) if num_tail else None
        return self._begin(child, match, partial, 0)

    def covers(self, seq: Sequence, num_tokens: int) -> bool:
        """Whether the page table is long enough for ``num_tokens`` beyond those computed and in flight."""
        return seq.num_computed_tokens + seq.num_in_flight_tokens + num_tokens <= len(seq.pages) * self.page_size

    def grow(self, seq: Sequence, num_tokens: int) -> bool:
        """Make the page table long enough for ``num_tokens`` beyond those computed and in flight; False if there is no room."""
        if self.covers(seq, num_tokens):
            return True
        total = seq.num_computed_tokens + seq.num_in_flight_tokens + num_tokens
        need = self._pages_for(total) - len(seq.pages)
        if seq.lock is None:
            raise OwnershipError(f"sequence {seq.seq_id} was not admitted")
        if not self._make_room(need, 0):
            return False
        seq.pages.extend(self.pool.allocate(need))
        return True

    def commit(self, seq: Sequence) -> None:
        """Publish every whole page of computed tokens. Idempotent. The step that filled them must have finished.

        Pages that another sequence published first are swapped for those, and its own go back to the pool. So do those beyond its
        tokens, which guesses that failed were to fill: nobody shall find the pool empty for them.
        """
        if seq.lock is None:
            return
        self._trim(seq)
        start, stop = seq.lock.num_pages, seq.num_computed_tokens // self.page_size
        if stop <= start:
            return
        own = seq.pages.view(start, stop).copy()
        inserted = self.cache.insert(self._key(seq, stop * self.page_size), own, seq.lock)
        seq.lock = inserted.lock
        seq.pages.replace(start, inserted.pages)
        self.pool.transfer(own, Owner.PRIVATE, Owner.CACHED)
        self.pool.transfer(inserted.duplicates, Owner.CACHED, Owner.FREE)

    def _trim(self, seq: Sequence) -> None:
        needed = self._pages_for(max(len(seq.tokens), seq.num_computed_tokens + seq.num_in_flight_tokens))
        if needed < len(seq.pages):
            self.pool.transfer(seq.pages.view(needed).copy(), Owner.PRIVATE, Owner.FREE)
            seq.pages.truncate(needed)

    def release(self, seq: Sequence) -> None:
        """Take lock and pages back, of whatever sequence and as often as you like; what was not committed is lost."""
        if seq.lock is not None:
            private = seq.pages.view(seq.lock.num_pages)
            self._unlock(seq.lock)
            self.pool.transfer(private, Owner.PRIVATE, Owner.FREE)
        seq.lock = None
        seq.pages.clear()
        seq.num_computed_tokens = 0

    def take_page_copies(self) -> PageCopies:
        """The queued copies, for the next launched batch, which must do them; the queue is empty afterwards."""
        copies = self.pending_copies()
        self._copies.clear()
        return copies

    def pending_copies(self) -> PageCopies:
        """The queued copies; they stay queued."""
        if not self._copies:
            return _NO_COPIES
        rows = np.array(self._copies, np.int32).reshape(-1, 3)
        return PageCopies(rows[:, 0].copy(), rows[:, 1].copy(), rows[:, 2].copy())

    def books(self, seq: Sequence) -> tuple[object, ...]:
        """What a call for ``seq`` that failed must have left as it was, for the fault to be that sequence's alone."""
        return self.pool.num_free, self.cache.stats(), len(seq.pages), seq.lock

    def flush(self) -> int:
        """Forget all cached KV that no sequence uses. Returns the number of pages freed."""
        pages = self.cache.flush()
        self.pool.transfer(pages, Owner.CACHED, Owner.FREE)
        return len(pages)

    def stats(self) -> KVStats:
        cached = self.cache.stats()
        return KVStats(
            num_pages=self.pool.num_pages,
            num_free_pages=self.pool.num_free,
            num_private_pages=self.pool.count(Owner.PRIVATE),
            num_locked_pages=cached.num_locked_pages,
            num_evictable_pages=cached.num_evictable_pages,
            num_nodes=cached.num_nodes,
            num_query_tokens=self._num_query_tokens,
            num_hit_tokens=self._num_hit_tokens,
            num_evicted_pages=self._num_evicted_pages,
        )

    def _begin(self, seq: Sequence, match: Match, partial: PartialPage | None, reserve_pages: int) -> bool:
        if seq.lock is not None or len(seq.pages):
            raise OwnershipError(f"sequence {seq.seq_id} has pages already; release it first")
        # Locked before anything is evicted, or making room could take the very pages that were matched. The partial page is not:
        # its copy is safe all the same (see the class), and holding it would refuse a sequence that fills the pool exactly.
        lock = self.cache.lock(match)
        need = self._pages_for(len(seq.tokens)) - len(match.pages)
        if not self._make_room(need, reserve_pages):
            self._unlock(lock)
            return False
        own = self.pool.allocate(need)
        if partial is not None and partial.page_id != own[0]:  # equal where it was just evicted: then the head is in place
            self._copies.append((partial.page_id, int(own[0]), partial.num_tokens))
        seq.lock = lock
        seq.pages.extend(match.pages)
        seq.pages.extend(own)
        seq.num_computed_tokens = len(match.pages) * self.page_size + (partial.num_tokens if partial else 0)
        if seq.num_cached_tokens is None:
            seq.num_cached_tokens = min(seq.num_computed_tokens, max(0, seq.num_prompt_tokens - 1))
        return True

    def _unlock(self, lock: CacheLock) -> None:
        self.pool.transfer(self.cache.unlock(lock), Owner.CACHED, Owner.FREE)

    def _make_room(self, num_pages: int, reserve_pages: int) -> bool:
        """Have ``num_pages`` free, evicting as many as are short; False, changing nothing, if even that leaves no reserve."""
        short = num_pages - self.pool.num_free
        if short + reserve_pages <= 0:
            return True
        if short + reserve_pages > self.cache.stats().num_evictable_pages:
            return False
        if short > 0:
            pages = self.cache.evict(short)
            self.pool.transfer(pages, Owner.CACHED, Owner.FREE)
            self._num_evicted_pages += len(pages)
        return True

    def _num_reusable(self, seq: Sequence) -> int:
        """How many leading tokens may come from the cache: all but the last one, and none that still owes prompt logprobs."""
        if len(seq.tokens) == 0:
            raise OwnershipError(f"sequence {seq.seq_id} has no tokens")
        limit = len(seq.tokens) - 1
        owed = seq.request.sampling.prompt_logprobs is not None and seq.num_prompt_logprobs < seq.num_prompt_tokens - 1
        return min(limit, seq.num_prompt_logprobs) if owed else limit

    def _key(self, seq: Sequence, num_tokens: int) -> PrefixKey:
        return PrefixKey(seq.request.namespace, seq.tokens.view(0, num_tokens))

    def _pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)
