import time

import numpy as np
import pytest

from ramet.core.request import Namespace
from ramet.kv.prefix import PartialPage, PrefixKey
from ramet.kv.radix import RadixCache


def key(tokens, **namespace):
    return PrefixKey(Namespace(**namespace), np.array(tokens, np.int32))


def store(cache, tokens, first_page=0):
    lock = cache.lock(cache.match(key(tokens)))
    num_new = len(tokens) // cache.page_size - lock.num_pages
    return cache.insert(key(tokens), np.arange(first_page, first_page + num_new, dtype=np.int32), lock).lock


def test_b010_the_matched_node_itself_is_locked():
    cache = RadixCache(1)
    cache.unlock(store(cache, range(1, 9)))
    lock = cache.lock(cache.match(key(range(1, 9))))
    assert cache.evict(8).tolist() == []
    cache.unlock(lock)
    assert cache.stats().num_evictable_pages == 8
    cache.check([])
    assert len(cache.evict(8)) == 8


def test_b011_a_partial_match_splits_before_it_is_locked():
    cache = RadixCache(1)
    cache.unlock(store(cache, range(1, 11)))
    match = cache.match(key([1, 2, 3, 4, 5, 6, 99]))
    assert match.pages.tolist() == [0, 1, 2, 3, 4, 5]
    lock = cache.lock(match)
    assert cache.stats().num_locked_pages == 6, "not the segment of 10 that it is a part of"
    other = store(cache, [1, 2, 3, 4, 5, 6, 77, 78], 20)
    cache.check([lock, other])
    cache.unlock(lock)
    cache.unlock(other)
    cache.check([])
    assert cache.stats().num_locked_pages == 0
    assert cache.stats().num_evictable_pages == 12


def test_a_split_leaves_locks_on_the_lower_part():
    cache = RadixCache(2)
    lock = store(cache, range(12))
    match = cache.match(key([0, 1, 2, 3, 4, 9]))
    assert match.pages.tolist() == [0, 1]
    assert match.partial == PartialPage(2, 1)
    cache.check([lock])
    assert cache.evict(9).tolist() == []
    assert lock.num_pages == 6
    cache.unlock(lock)
    cache.check([])


def test_a_decoding_sequence_makes_one_node():
    cache = RadixCache(4)
    tokens = list(range(400))
    lock = cache.lock(cache.match(key([])))
    for end in range(4, 401, 4):
        lock = cache.insert(key(tokens[:end]), np.array([end], np.int32), lock).lock
    assert cache.stats().num_nodes == 1
    assert lock.num_pages == 100


def test_a_leaf_that_others_hold_does_not_grow():
    cache = RadixCache(1)
    first = store(cache, [1, 2])
    second = cache.lock(cache.match(key([1, 2])))
    first = cache.insert(key([1, 2, 3]), np.array([7], np.int32), first).lock
    second = cache.insert(key([1, 2, 4]), np.array([8], np.int32), second).lock
    cache.check([first, second])
    assert cache.stats().num_nodes == 3
    cache.unlock(first)
    assert cache.evict(9).tolist() == [7]
    cache.unlock(second)


def test_growth_stays_cheap_in_a_very_long_sequence():
    cache = RadixCache(1)
    lock = cache.lock(cache.match(key([])))
    tokens = np.arange(20_000, dtype=np.int32)
    for end in range(500, 20_001, 500):
        lock = cache.insert(PrefixKey(Namespace(), tokens[:end]), tokens[end - 500 : end], lock).lock
    assert 4 <= cache.stats().num_nodes <= 5, "a leaf of over 4096 tokens gets a child instead of being copied again"
    assert cache.peek(PrefixKey(Namespace(), tokens)) == 20_000
    cache.unlock(lock)
    cache.check([])


def test_the_heap_is_never_larger_than_the_tree():
    cache = RadixCache(1)
    for round_ in range(50):
        for branch in range(6):
            cache.unlock(store(cache, [1, branch, 3], 100 * round_ + 10 * branch))
            cache.match(key([1, branch]))
        cache.evict(2)
        assert len(cache._heap) <= cache.stats().num_nodes
        cache.check([])


def test_a_leaf_that_got_children_while_in_the_heap_outlives_them():
    cache = RadixCache(1)
    cache.unlock(store(cache, [1]))
    locks = [cache.lock(cache.match(key([1]))) for _ in range(2)]  # two, so that it gets children instead of growing
    for child, lock in enumerate(locks, start=2):
        cache.unlock(cache.insert(key([1, child]), np.array([child], np.int32), lock).lock)
    cache.check([])
    assert [int(cache.evict(1)[0]) for _ in range(3)] == [2, 3, 0]


def test_the_order_of_eviction_is_the_order_of_use():
    """Against a plain list: 200 leaves, touched in random order, go in the order of their last use."""
    rng = np.random.default_rng(1)
    cache = RadixCache(2)
    for leaf in range(200):
        cache.unlock(store(cache, [leaf, leaf], leaf))
    order = list(range(200))
    for leaf in rng.integers(0, 200, 1000).tolist():
        if rng.random() < 0.5:
            cache.match(key([leaf, leaf]))
        else:
            cache.unlock(cache.lock(cache.match(key([leaf, leaf]))))
        order.remove(leaf)
        order.append(leaf)
    assert [int(cache.evict(1)[0]) for _ in range(200)] == order


def test_an_unused_namespace_leaves_nothing():
    cache = RadixCache(4)
    for number in range(20):
        asked = cache.match(key(range(8), salt=str(number)))
        late = cache.match(key(range(8), salt=str(number)))
        cache.unlock(cache.lock(asked))
        cache.unlock(cache.lock(late))  # its root was forgotten meanwhile, which does not matter
    assert not cache._roots
    lock = store(cache, range(8))
    assert len(cache._roots) == 1
    cache.unlock(lock)
    cache.flush()
    assert not cache._roots


@pytest.mark.parametrize("page_size", [1, 16])
def test_evicting_does_not_depend_on_the_size_of_the_tree(page_size):
    """20 times the leaves may not cost 5 times as much (a scan would); medians, and the best of three tries."""

    def median_us(num_leaves):
        cache = RadixCache(page_size)
        for leaf in range(num_leaves):
            cache.unlock(store(cache, np.full(4 * page_size, leaf), 4 * leaf))
        durations = []
        for _ in range(100):
            start = time.perf_counter_ns()
            cache.evict(4)
            durations.append(time.perf_counter_ns() - start)
        return float(np.median(durations))

    assert any(median_us(4000) < 5 * median_us(200) for _ in range(3))
