"""The manager, by the faults that others met (numbers B...: docs of the project's fault list) and the rules of its own."""

import numpy as np
import pytest
from kv_rig import Rig, make_sequence

from ramet.kv.hashed import HashedCache
from ramet.kv.manager import KVManager
from ramet.kv.null import NullCache
from ramet.kv.pool import Owner, OwnershipError, PagePool
from ramet.kv.radix import RadixCache


@pytest.fixture(params=[RadixCache, HashedCache])
def cache(request):
    return request.param


def ids(start, stop):
    return list(range(start, stop + 1))


def test_b001_a_page_handed_out_again_is_not_found_under_its_old_tokens(cache):
    rig = Rig(4, 4, cache)
    assert rig.serve(ids(1, 8)) == 0
    assert rig.manager.stats().num_evictable_pages == 2
    assert rig.serve(ids(50, 65)) == 0
    assert rig.serve(ids(1, 8)) == 0


def test_b002_a_page_taken_for_writing_is_no_longer_cached(cache):
    rig = Rig(3, 4, cache)
    rig.serve(ids(1, 4))
    cached = rig.manager.cache.owned_pages().tolist()
    writer = rig.admit(ids(50, 60))
    assert set(cached) <= set(writer.pages.view().tolist()), "the pool is so small that it had to be taken"
    assert rig.manager.peek(make_sequence(ids(1, 8))) == 0


def test_b005_a_full_hit_computes_one_token_and_later_prompts_hit_all(cache):
    rig = Rig(16, 4, cache)
    assert rig.serve(ids(1, 12)) == 0
    assert rig.serve(ids(1, 12)) == 11
    assert rig.serve(ids(1, 20)) == 12


def test_b007_what_was_never_computed_is_never_found(cache):
    rig = Rig(16, 4, cache)
    dropped = rig.admit(ids(1, 12))
    assert rig.manager.grow(dropped, 12)
    dropped.num_in_flight_tokens = 12
    rig.manager.commit(dropped)  # launched, not computed
    assert rig.manager.peek(make_sequence(ids(1, 12))) == 0
    dropped.num_in_flight_tokens = 0
    rig.finish(dropped)
    assert rig.serve(ids(1, 12)) == 0


def test_b008_an_abort_between_chunks_leaves_whole_and_filled_pages_only(cache):
    rig = Rig(8, 16, cache)
    aborted = rig.admit(ids(1, 48))
    rig.compute(aborted, 16)
    rig.compute(aborted, 16)
    rig.finish(aborted)
    assert rig.manager.peek(make_sequence(ids(1, 48))) == 32
    for start in (100, 200, 300):
        rig.serve(ids(start, start + 60))
    assert rig.serve(ids(1, 48)) in (0, 16, 32)


def test_b013_an_abort_in_the_middle_of_a_page_frees_each_page_once(cache):
    rig = Rig(4, 4, cache)
    seq = rig.admit(ids(1, 10))
    rig.compute(seq, 6)
    rig.finish(seq)
    assert rig.manager.flush() == 1
    assert sorted(rig.manager.pool.free_list().tolist()) == [0, 1, 2, 3]


def test_b014_committing_twice_does_nothing_the_second_time(cache):
    rig = Rig(8, 4, cache)
    seq = rig.admit(ids(1, 10))
    rig.compute(seq)
    lock, pages, stats = seq.lock, seq.pages.view().tolist(), rig.manager.stats()
    rig.manager.commit(seq)
    assert seq.lock is lock
    assert lock.num_pages == 2
    assert seq.pages.view().tolist() == pages
    assert rig.manager.stats() == stats


def test_b016_b017_a_resumed_sequence_counts_neither_as_cached_nor_as_hit(cache):
    rig = Rig(64, 4, cache)
    rng = np.random.default_rng(0)
    for _ in range(40):
        seq = rig.admit(rng.integers(0, 50_000, 20))
        rig.compute(seq)
        rig.manager.release(seq)
        assert rig.manager.admit(seq)
        assert seq.num_computed_tokens > 0, "it finds its own pages"
        assert seq.num_cached_tokens == 0
        rig.finish(seq)
    stats = rig.manager.stats()
    assert stats.num_hit_tokens == 0
    assert stats.num_query_tokens == 40 * 20


@pytest.mark.parametrize(("given_out", "found"), [(0, 0), (5, 5), (20, 20), (31, 31), (32, 32)])
def test_b019_b020_positions_that_owe_logprobs_are_computed(cache, given_out, found):
    rig = Rig(16, 16, cache)
    rig.serve([*ids(0, 32), 7, 7, 7])
    seq = make_sequence([*ids(0, 32), 7, 7, 8], num_prompt_tokens=33, prompt_logprobs=1)
    seq.num_prompt_logprobs = given_out
    assert rig.manager.peek(seq) == found
    assert rig.manager.admit(seq)
    assert seq.num_computed_tokens == found


def test_a_sequence_that_has_given_out_its_prompt_logprobs_is_resumed_like_any_other(cache):
    rig = Rig(16, 16, cache)
    seq = rig.admit(ids(0, 32), prompt_logprobs=1)
    rig.compute(seq)
    seq.num_prompt_logprobs = 32
    seq.tokens.extend(np.arange(33, 50, dtype=np.int32))
    rig.compute(seq)
    rig.manager.release(seq)
    assert rig.manager.admit(seq)
    assert seq.num_computed_tokens == 48, "more than the prompt"


def test_b022_tokens_beyond_those_computed_are_not_published(cache):
    rig = Rig(8, 4, cache)
    seq = rig.admit(ids(1, 7))
    rig.compute(seq)
    seq.tokens.append(8)  # drawn, its KV not yet computed
    rig.manager.commit(seq)
    assert seq.lock.num_pages == 1
    rig.finish(seq)
    assert rig.manager.peek(make_sequence([*ids(1, 8), 9])) == 4


def test_b025_salts_share_nothing(cache):
    rig = Rig(32, 4, cache)
    prompt = ids(1, 9)
    assert [rig.serve(prompt, salt=salt) for salt in ("t1", "t2", "t1", "")] == [0, 0, 8, 0]


def test_b028_b029_adapters_and_generations_share_nothing(cache):
    rig = Rig(32, 4, cache)
    spaces = [{}, {"adapter": "a"}, {"adapter": "b"}, {"adapter": "a", "generation": 1}]
    assert [rig.serve(ids(1, 9), **space) for space in spaces] == [0, 0, 0, 0]
    assert [rig.serve(ids(1, 9), **space) for space in spaces] == [8, 8, 8, 8]


def test_b032_b035_a_preempted_sequence_finds_its_own_pages(cache):
    rig = Rig(10, 16, cache)
    seq = rig.admit(ids(1, 34))
    rig.compute(seq)
    seq.tokens.append(35)
    rig.manager.release(seq)
    assert seq.lock is None
    assert seq.num_computed_tokens == 0
    assert rig.manager.admit(seq)
    assert seq.num_computed_tokens == 32
    rig.compute(seq)
    rig.finish(seq)


def test_b034_admission_does_not_evict_what_it_has_matched(cache):
    rig = Rig(8, 4, cache)
    rig.serve(ids(1, 16))  # oldest
    rig.serve(ids(50, 65))
    seq = rig.admit(ids(1, 25))
    assert seq.num_cached_tokens == 16
    assert rig.manager.peek(make_sequence(ids(50, 65))) < 15, "the others made room"


@pytest.mark.parametrize(("num_tokens", "fits"), [(60, True), (61, True), (64, True), (65, False)])
def test_b040_what_needs_exactly_the_pool_fits(cache, num_tokens, fits):
    rig = Rig(16, 4, cache)
    assert rig.manager.fits(num_tokens) is fits
    assert (rig.admit(ids(1, num_tokens)) is not None) is fits


def test_b041_validation_and_admission_draw_the_same_line(cache):
    for length in range(24, 36):
        rig = Rig(8, 4, cache)
        rig.serve(ids(1, 30))  # all in use by the cache
        seq = rig.admit(ids(2, length + 1))
        assert (seq is not None) == rig.manager.fits(length)
        if seq:
            rig.finish(seq)
        assert rig.serve([5, 5, 5]) == 0


def test_a_sequence_that_fills_the_pool_may_reuse_even_the_page_it_copies(cache):
    """The partly matching page is not held, so it can be evicted to be the very page that it was to be copied to."""
    rig = Rig(2, 4, cache)
    rig.serve(ids(1, 4))
    rig.serve(ids(11, 14))
    seq = rig.admit([1, 2, 3, 50, 51, 52, 53, 54])
    assert seq.num_computed_tokens == 3
    assert seq.pages[0] == 0, "where ids 1 to 4 were, and their head still is"
    assert len(rig.manager.pending_copies()) == 0


def test_partial_pages_are_copied_never_shared(cache):
    rig = Rig(16, 4, cache)
    rig.serve(ids(1, 12))
    seq = rig.admit([1, 2, 3, 4, 5, 6, 99, 98])
    assert seq.num_computed_tokens == 6
    assert seq.lock.num_pages == 1
    copies = rig.manager.take_page_copies()
    assert copies.dst.tolist() == [seq.pages[1]]
    assert copies.num_tokens.tolist() == [2]
    assert copies.src.dtype == copies.dst.dtype == copies.num_tokens.dtype == np.int32
    assert copies.src[0] in rig.manager.cache.owned_pages()
    assert len(rig.manager.take_page_copies()) == 0


def test_a_refused_admission_changes_nothing(cache):
    rig = Rig(6, 4, cache)
    rig.serve(ids(1, 8))
    holder = rig.admit(ids(50, 61))
    before = rig.manager.stats()
    waiting = make_sequence(ids(1, 20))
    assert not rig.manager.admit(waiting)
    assert rig.manager.stats().num_evictable_pages == before.num_evictable_pages == 2
    assert rig.manager.stats().num_free_pages == before.num_free_pages
    assert rig.manager.stats().num_query_tokens == before.num_query_tokens
    assert waiting.lock is None
    assert waiting.num_cached_tokens is None
    assert len(rig.manager.pending_copies()) == 0
    rig.finish(holder)
    assert rig.manager.admit(waiting)
    assert waiting.num_cached_tokens == 8


def test_a_reserve_is_left_free(cache):
    rig = Rig(6, 4, cache)
    assert not rig.manager.admit(make_sequence(ids(1, 16)), reserve_pages=3)
    seq = make_sequence(ids(1, 16))
    assert rig.manager.admit(seq, reserve_pages=2)
    assert rig.manager.stats().num_free_pages == 2


def test_growth_evicts_and_then_fails_without_a_trace(cache):
    rig = Rig(4, 4, cache)
    rig.serve(ids(50, 57))
    seq = rig.admit(ids(1, 8))
    rig.compute(seq)
    assert rig.manager.grow(seq, 0)
    assert len(seq.pages) == 2
    assert rig.manager.grow(seq, 8)
    assert len(seq.pages) == 4
    assert rig.manager.stats().num_evicted_pages == 2
    before = rig.manager.stats()
    assert not rig.manager.grow(seq, 9)
    assert rig.manager.stats() == before
    assert len(seq.pages) == 4


def test_growth_counts_tokens_in_flight(cache):
    rig = Rig(4, 4, cache)
    seq = rig.admit(ids(1, 4))
    rig.compute(seq, 3)
    seq.num_in_flight_tokens = 1
    assert rig.manager.grow(seq, 1)
    assert len(seq.pages) == 2


def test_two_sequences_that_compute_the_same_end_with_the_same_pages(cache):
    rig = Rig(8, 4, cache)
    one, two = rig.admit(ids(1, 9)), rig.admit(ids(1, 9))
    assert not set(one.pages.view().tolist()) & set(two.pages.view().tolist())
    rig.compute(one)
    rig.compute(two)
    assert one.pages.view(0, 2).tolist() == two.pages.view(0, 2).tolist()
    assert one.pages[2] != two.pages[2]
    assert rig.manager.stats().num_free_pages == 8 - 4
    rig.finish(one)
    rig.finish(two)


def test_a_fork_shares_whole_pages_and_copies_one(cache):
    rig = Rig(16, 4, cache)
    parent = rig.admit(ids(1, 10))
    rig.compute(parent)
    children = [make_sequence(ids(1, 10)) for _ in range(3)]
    for child in children:
        assert rig.manager.fork(parent, child)
        rig.live.append(child)
        rig.audit()
        assert child.num_computed_tokens == child.num_cached_tokens == 9, "the last one is computed, for its logits"
        assert child.pages.view(0, 2).tolist() == parent.pages.view(0, 2).tolist()
    assert rig.manager.stats().num_private_pages == 4
    copies = rig.manager.take_page_copies()
    assert copies.src.tolist() == [parent.pages[2]] * 3
    assert copies.num_tokens.tolist() == [1, 1, 1]
    assert rig.manager.stats().num_query_tokens == 10, "a fork is no question to the cache"
    for seq in [parent, *children]:
        rig.finish(seq)
    assert rig.manager.stats().num_private_pages == 0


def test_a_copy_of_a_copy_comes_after_it(cache):
    rig = Rig(16, 4, cache)
    parent = rig.admit(ids(1, 7))
    rig.compute(parent)
    child, grandchild = make_sequence(ids(1, 7)), make_sequence(ids(1, 7))
    assert rig.manager.fork(parent, child)
    assert rig.manager.fork(child, grandchild)
    copies = rig.manager.take_page_copies()
    assert copies.src.tolist() == [parent.pages[1], child.pages[1]]
    assert copies.dst.tolist() == [child.pages[1], grandchild.pages[1]]


@pytest.mark.parametrize(("length", "whole", "tail"), [(1, 0, 0), (3, 0, 2), (4, 0, 3), (5, 1, 0), (9, 2, 0), (10, 2, 1)])
def test_a_fork_may_begin_anywhere_in_its_parent(cache, length, whole, tail):
    rig = Rig(16, 4, cache)
    parent = rig.admit(ids(1, 10))
    rig.compute(parent)
    child = make_sequence(ids(1, length))
    assert rig.manager.fork(parent, child)
    rig.live.append(child)
    rig.audit()
    assert child.lock.num_pages == whole
    copies = rig.manager.take_page_copies()
    assert copies.num_tokens.tolist() == [tail] * (tail > 0)
    assert child.num_computed_tokens == length - 1


def test_a_fork_takes_only_what_its_parent_has_computed(cache):
    rig = Rig(16, 4, cache)
    parent = rig.admit(ids(1, 10))
    rig.compute(parent, 5)
    child = make_sequence(ids(1, 10))
    assert rig.manager.fork(parent, child)
    assert child.num_computed_tokens == 5


def test_a_fork_without_room_changes_nothing(cache):
    rig = Rig(3, 4, cache)
    parent = rig.admit(ids(1, 10))
    rig.compute(parent)
    child = make_sequence(ids(1, 10))
    assert not rig.manager.fork(parent, child)
    assert child.lock is None
    assert len(child.pages) == 0
    assert child.num_cached_tokens is None
    rig.audit()
    rig.finish(parent)


def test_a_fork_of_a_stranger_is_refused(cache):
    rig = Rig(16, 4, cache)
    parent = rig.admit(ids(1, 10))
    for stranger in (make_sequence(ids(2, 5)), make_sequence(ids(1, 11)), make_sequence(ids(1, 5), salt="t")):
        with pytest.raises(OwnershipError, match="prefix"):
            rig.manager.fork(parent, stranger)


def test_without_a_cache_nothing_is_reused_and_nothing_lost():
    rig = Rig(8, 4, NullCache)
    parent = rig.admit(ids(1, 10))
    rig.compute(parent)
    assert not rig.manager.fork(parent, make_sequence(ids(1, 10)))
    assert not rig.manager.fork(parent, make_sequence(ids(1, 3)))
    rig.finish(parent)
    assert rig.manager.stats().num_free_pages == 8
    assert rig.serve(ids(1, 10)) == 0


def test_release_is_repeatable_and_admission_is_not(cache):
    rig = Rig(8, 4, cache)
    seq = rig.admit(ids(1, 10))
    with pytest.raises(OwnershipError, match="release it first"):
        rig.manager.admit(seq)
    rig.finish(seq)
    rig.manager.release(seq)
    assert rig.manager.pool.count(Owner.FREE) == 8
    with pytest.raises(OwnershipError, match="not admitted"):
        rig.manager.grow(seq, 1)
    with pytest.raises(OwnershipError, match="no tokens"):
        rig.manager.admit(make_sequence([]))


def test_flush_forgets_what_nobody_uses(cache):
    rig = Rig(16, 4, cache)
    rig.serve(ids(50, 57))
    seq = rig.admit(ids(1, 10))
    rig.compute(seq)
    assert rig.manager.flush() == 2
    assert rig.manager.peek(make_sequence(ids(50, 57))) == 0
    assert rig.manager.peek(make_sequence(ids(1, 10))) == 8
    rig.audit()


def test_stats_add_up(cache):
    rig = Rig(16, 4, cache)
    rig.serve(ids(1, 8))
    rig.admit(ids(1, 13))
    stats = rig.manager.stats()
    assert (stats.num_locked_pages, stats.num_evictable_pages, stats.num_private_pages, stats.num_free_pages) == (2, 0, 2, 12)
    assert (stats.num_query_tokens, stats.num_hit_tokens, stats.num_evicted_pages) == (21, 8, 0)


def test_page_size_one_has_no_partial_pages(cache):
    manager = KVManager(PagePool(40), cache(1), 1)
    first = make_sequence(ids(1, 12))
    assert manager.admit(first)
    first.num_computed_tokens = 12
    manager.commit(first)
    second = make_sequence([*ids(1, 7), 99])
    assert manager.admit(second)
    assert second.num_computed_tokens == second.lock.num_pages == 7
    assert len(manager.take_page_copies()) == 0
