"""What every PrefixCache must do, at every page size. A new implementation adds one line to ``CACHES``."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest

from ramet.core.request import Namespace
from ramet.kv.hashed import HashedCache
from ramet.kv.null import NullCache
from ramet.kv.pool import OwnershipError
from ramet.kv.prefix import PrefixKey
from ramet.kv.radix import RadixCache

KEEPING = {"radix": RadixCache, "hashed": HashedCache}
CACHES = {**KEEPING, "null": NullCache}
SIZES = [1, 4, 16]


@pytest.fixture(params=SIZES)
def size(request):
    return request.param


@pytest.fixture(params=list(CACHES))
def any_cache(request, size):
    return CACHES[request.param](size)


@pytest.fixture(params=list(KEEPING))
def cache(request, size):
    return KEEPING[request.param](size)


def key(tokens, **namespace):
    return PrefixKey(Namespace(**namespace), np.asarray(tokens, np.int32))


def run(*starts, size, tail=0):
    """Tokens of one page for each of ``starts``, all different, and ``tail`` more: run(1, 2) and run(1, 3) share one page."""
    pages = [np.arange(size) + 1000 * start for start in starts]
    return np.concatenate([*pages, np.arange(tail) + 1_000_000]).astype(np.int32)


def store(cache, tokens, first_page, **namespace):
    """Publish the whole pages of ``tokens`` as pages ``first_page``, ...; returns (Inserted, pages given)."""
    whole = len(tokens) // cache.page_size
    lock = cache.lock(cache.match(key(tokens[: whole * cache.page_size], **namespace)))
    given = np.arange(first_page, first_page + whole - lock.num_pages, dtype=np.int32)
    inserted = cache.insert(key(tokens[: whole * cache.page_size], **namespace), given, lock)
    cache.check()
    return inserted, given


def matched(cache, tokens, **namespace):
    """Pages and partial page found; peek must foretell it."""
    foretold = cache.peek(key(tokens, **namespace))
    match = cache.match(key(tokens, **namespace))
    cache.check()
    assert match.num_tokens(cache.page_size) == foretold
    return match.pages.tolist(), match.partial and astuple(match.partial)


def test_an_empty_cache_finds_nothing(any_cache, size):
    assert matched(any_cache, run(1, 2, size=size)) == ([], None)
    assert matched(any_cache, run(size=size)) == ([], None)
    assert any_cache.evict(5).tolist() == []
    assert any_cache.flush().tolist() == []
    assert any_cache.stats().num_nodes == 0
    any_cache.check([])


def test_pages_are_locked_until_unlock(any_cache, size):
    inserted, given = store(any_cache, run(1, 2, 3, size=size), 10)
    assert inserted.pages.tolist() == given.tolist() == [10, 11, 12]
    assert inserted.duplicates.tolist() == []
    assert inserted.lock.num_pages == 3
    assert any_cache.stats().num_locked_pages == 3
    assert sorted(any_cache.owned_pages().tolist()) == [10, 11, 12]
    assert any_cache.evict(3).tolist() == []
    assert any_cache.flush().tolist() == []
    returned = any_cache.unlock(inserted.lock).tolist()
    stats = any_cache.stats()
    assert stats.num_locked_pages == 0
    assert stats.num_evictable_pages + len(returned) == 3
    assert sorted(any_cache.flush().tolist() + returned) == [10, 11, 12]
    assert any_cache.stats().num_nodes == 0
    any_cache.check([])


def test_the_null_cache_gives_all_back(size):
    null = NullCache(size)
    inserted, _ = store(null, run(1, 2, size=size), 10)
    assert matched(null, run(1, 2, size=size)) == ([], None)
    assert null.unlock(inserted.lock).tolist() == [10, 11]


def test_a_sequence_publishes_page_by_page(any_cache, size):
    tokens = run(*range(1, 9), size=size)
    lock = any_cache.lock(any_cache.match(key(tokens[:0])))
    for index in range(8):
        inserted = any_cache.insert(key(tokens[: (index + 1) * size]), np.array([index + 20], np.int32), lock)
        assert inserted.pages.tolist() == [index + 20]
        lock = inserted.lock
        assert lock.num_pages == index + 1
        any_cache.check([lock])
    assert any_cache.stats().num_locked_pages == 8
    returned = any_cache.unlock(lock)
    assert sorted([*any_cache.flush().tolist(), *returned.tolist()]) == list(range(20, 28))


def test_match_finds_whole_pages_and_the_head_of_one(cache, size):
    cache.unlock(store(cache, run(1, 2, 3, size=size), 10)[0].lock)
    assert matched(cache, run(1, 2, 3, size=size)) == ([10, 11, 12], None)
    assert matched(cache, run(1, 2, 3, 4, size=size)) == ([10, 11, 12], None)
    assert matched(cache, run(1, 9, size=size)) == ([10], None)
    for head in range(1, size):
        leaving = run(1, 2, size=size)
        leaving[size + head :] = 7  # leaves the tree inside page 11
        assert matched(cache, leaving) == ([10], (11, head))
        assert matched(cache, run(1, 2, size=size)[: size + head]) == ([10], (11, head))  # ends inside it
        assert matched(cache, run(1, 2, 3, size=size)[:head]) == ([], (10, head))


def test_of_several_pages_the_best_matching_head_is_taken(cache, size):
    if size == 1:
        pytest.skip("a page of one token has no head")
    heads = [1, size - 1, size // 2] if size > 2 else [1]
    for number, head in enumerate(heads):
        tokens = run(1, 2, size=size)
        tokens[size + head :] = 50 + number
        cache.unlock(store(cache, tokens, 10 * (number + 1))[0].lock)
    best = heads.index(size - 1)
    pages, partial = matched(cache, run(1, 2, size=size))
    assert pages == [10]
    first = 10 * (best + 1)
    assert partial == (first if best else first + 1, size - 1)


def test_what_was_cached_already_comes_back_as_duplicate(cache, size):
    tokens = run(1, 2, 3, 4, size=size)
    root = [cache.lock(cache.match(key(tokens[:0]))) for _ in range(2)]  # two sequences start before either has published
    first = cache.insert(key(tokens[: 3 * size]), np.array([10, 11, 12], np.int32), root[0])
    second = cache.insert(key(tokens), np.array([20, 21, 22, 23], np.int32), root[1])
    assert second.pages.tolist() == [10, 11, 12, 23]
    assert second.duplicates.tolist() == [20, 21, 22]
    assert second.lock.num_pages == 4
    cache.check([first.lock, second.lock])
    cache.unlock(first.lock)
    assert cache.evict(10).tolist() == [], "the second sequence still holds them"
    cache.unlock(second.lock)
    assert cache.stats().num_evictable_pages == 4


def test_branches_share_their_prefix(cache, size):
    one, _ = store(cache, run(1, 2, 3, size=size), 10)
    two, given = store(cache, run(1, 2, 4, size=size), 20)
    assert given.tolist() == [20]
    assert two.lock.num_pages == 3
    cache.unlock(one.lock)
    cache.check([two.lock])
    assert (cache.stats().num_locked_pages, cache.stats().num_evictable_pages) == (3, 1)
    assert cache.evict(10).tolist() == [12]
    cache.unlock(two.lock)
    assert matched(cache, run(1, 2, 4, size=size)) == ([10, 11, 20], None)


def test_eviction_takes_the_oldest_leaf_and_its_tail_first(cache, size):
    cache.unlock(store(cache, run(1, 2, 3, size=size), 10)[0].lock)
    cache.unlock(store(cache, run(1, 4, 5, size=size), 20)[0].lock)
    cache.match(key(run(1, 2, 3, size=size)))  # now the younger one
    assert cache.evict(1).tolist() == [21]
    assert cache.evict(1).tolist() == [20]
    cache.check([])
    assert cache.evict(1).tolist() == [12]
    assert matched(cache, run(1, 2, 3, size=size)) == ([10, 11], None)
    assert sorted(cache.evict(10).tolist()) == [10, 11]
    assert cache.stats().num_nodes == 0
    cache.check([])


def test_a_prefix_is_as_young_as_its_last_release(cache, size):
    long_running, _ = store(cache, run(1, 2, size=size), 10)
    cache.unlock(store(cache, run(7, 8, size=size), 20)[0].lock)
    cache.unlock(long_running.lock)  # ends last, though it began first
    assert sorted(cache.evict(2).tolist()) == [20, 21]


def test_peek_changes_nothing(cache, size):
    cache.unlock(store(cache, run(1, size=size), 10)[0].lock)
    cache.unlock(store(cache, run(2, size=size), 20)[0].lock)
    before = cache.stats()
    for _ in range(3):
        assert cache.peek(key(run(1, 5, size=size))) == size
        assert cache.peek(key(run(9, size=size), salt="never seen")) == 0
    assert cache.stats() == before
    assert cache.evict(1).tolist() == [10], "peek must not refresh"


@pytest.mark.parametrize("other", [{"salt": "t"}, {"adapter": "t"}, {"generation": 1}, {"salt": "x", "adapter": "t"}])
def test_namespaces_share_nothing(cache, size, other):
    cache.unlock(store(cache, run(1, 2, size=size), 10)[0].lock)
    assert matched(cache, run(1, 2, size=size), **other) == ([], None)
    cache.unlock(store(cache, run(1, 2, size=size), 20, **other)[0].lock)
    assert matched(cache, run(1, 2, size=size), **other) == ([20, 21], None)
    assert matched(cache, run(1, 2, size=size)) == ([10, 11], None)


def test_a_lock_is_used_once(any_cache, size):
    tokens = run(1, 2, size=size)
    lock = any_cache.lock(any_cache.match(key(tokens)))
    pages = np.array([10, 11], np.int32)
    inserted = any_cache.insert(key(tokens), pages, lock)
    with pytest.raises((OwnershipError, ValueError)):
        any_cache.insert(key(tokens), pages, lock)
    with pytest.raises(OwnershipError):
        any_cache.unlock(lock)
    any_cache.unlock(inserted.lock)
    with pytest.raises(OwnershipError):
        any_cache.unlock(inserted.lock)
    any_cache.check([])


def test_a_strangers_lock_and_an_outdated_match_are_refused(cache, size):
    with pytest.raises(OwnershipError):
        cache.unlock(NullCache(size).lock(NullCache(size).match(key([1]))))
    cache.unlock(store(cache, run(1, 2, size=size), 10)[0].lock)
    match = cache.match(key(run(1, 2, size=size)))
    cache.evict(1)
    with pytest.raises(OwnershipError):
        cache.lock(match)
    cache.check([])


def test_insert_refuses_tokens_that_do_not_fit_the_pages(any_cache, size):
    lock = any_cache.lock(any_cache.match(key([])))
    for tokens, pages in ((run(1, size=size, tail=1), [10]), (run(1, 2, size=size), [10]), (run(1, size=size), [10, 11])):
        with pytest.raises(ValueError, match="tokens are not"):
            any_cache.insert(key(tokens), np.array(pages, np.int32), lock)
    any_cache.unlock(lock)  # a refused insert consumes nothing
    any_cache.check([])


def test_flush_keeps_what_is_locked(cache, size):
    held, _ = store(cache, run(1, 2, size=size), 10)
    cache.unlock(store(cache, run(1, 3, size=size), 20)[0].lock)
    cache.unlock(store(cache, run(5, size=size), 30, salt="t")[0].lock)
    assert sorted(cache.flush().tolist()) == [20, 30]
    cache.check([held.lock])
    assert matched(cache, run(1, 2, size=size)) == ([10, 11], None)


def test_the_check_sees_a_lock_that_nobody_holds(any_cache, size):
    inserted, _ = store(any_cache, run(1, size=size), 10)
    with pytest.raises(AssertionError):
        any_cache.check([])
    any_cache.check([inserted.lock])


@pytest.mark.parametrize("kind", list(CACHES))
def test_a_page_holds_at_least_one_token(kind):
    with pytest.raises(ValueError, match="at least 1"):
        CACHES[kind](0)


def test_what_went_on_behind_a_key_is_known(cache, size):
    tokens = run(1, 2, 3, size=size)
    cache.unlock(store(cache, tokens, 10)[0].lock)
    before = cache.stats()
    for cut in (0, 1, size, size + 1, 2 * size, 3 * size - 1):
        assert cache.continuation(key(tokens[:cut]), 2).tolist() == tokens[cut : cut + 2].tolist()
    assert cache.continuation(key(tokens), 9).tolist() == []
    assert cache.continuation(key([*tokens[:size], 5_000_000]), 9).tolist() == []
    assert cache.continuation(key(tokens[:size], salt="t"), 9).tolist() == []
    assert cache.stats() == before


def test_of_several_continuations_one_is_told_whole(cache, size):
    ways = [run(1, 2, 4, size=size), run(1, 3, 5, size=size)]
    for number, tokens in enumerate(ways):
        cache.unlock(store(cache, tokens, 10 * (number + 1))[0].lock)
    assert cache.continuation(key(ways[0][:size]), 2 * size).tolist() == ways[1][size:].tolist(), "the newest"


def test_a_cache_that_keeps_nothing_knows_no_continuation():
    assert NullCache(4).continuation(key([1, 2]), 5).tolist() == []
