import numpy as np
import pytest

from ramet.kv.pool import Owner, OwnershipError, PagePool


def pages(*ids):
    return np.array(ids, np.int32)


def test_pages_go_round():
    pool = PagePool(4)
    first = pool.allocate(3)
    assert first.dtype == np.int32
    assert sorted(first.tolist()) == [0, 1, 2]
    pool.transfer(first[:2], Owner.PRIVATE, Owner.CACHED)
    pool.transfer(first[2:], Owner.PRIVATE, Owner.FREE)
    assert [pool.count(owner) for owner in Owner] == [2, 0, 2, 0]
    pool.transfer(first[:1], Owner.CACHED, Owner.FREE)
    assert pool.num_free == 3
    assert sorted(pool.allocate(3).tolist()) == [0, 2, 3]
    assert pool.num_free == 0
    assert pool.owned_by(Owner.CACHED).tolist() == [1]


def test_the_last_page_freed_is_the_first_allocated():
    pool = PagePool(8)
    pool.allocate(8)
    pool.transfer(pages(5, 2), Owner.PRIVATE, Owner.FREE)
    assert pool.allocate(1).tolist() == [2]


@pytest.mark.parametrize(
    ("wrong", "source", "message"),
    [
        (pages(3), Owner.PRIVATE, "FREE"),  # freed already
        (pages(0, 3), Owner.PRIVATE, "FREE"),  # one of two
        (pages(0), Owner.CACHED, "PRIVATE"),
        (pages(0, 1, 0), Owner.PRIVATE, "twice"),
        (pages(-1), Owner.PRIVATE, "0 to 3"),  # numpy would take it for the last page
        (pages(4), Owner.PRIVATE, "0 to 3"),
        (pages(3), Owner.FREE, "allocate"),
    ],
)
def test_a_wrong_transfer_raises_and_changes_nothing(wrong, source, message):
    pool = PagePool(4)
    pool.allocate(2)
    before = ([pool.count(owner) for owner in Owner], pool.free_list().tolist())
    with pytest.raises(OwnershipError, match=message):
        pool.transfer(wrong, source, Owner.FREE)
    assert ([pool.count(owner) for owner in Owner], pool.free_list().tolist()) == before


def test_allocating_more_than_is_free_raises():
    pool = PagePool(2)
    with pytest.raises(OwnershipError, match="3 pages asked for, 2 free"):
        pool.allocate(3)
    assert pool.allocate(0).tolist() == []
    with pytest.raises(ValueError, match="at least 1"):
        PagePool(0)


def test_b013_a_row_freed_in_two_pieces_frees_each_page_once():
    pool = PagePool(3)
    row = pool.allocate(3)  # 10 tokens in pages of 4; tokens 4 to 5 and 6 to 7 lie in the same page
    pool.transfer(row[:2], Owner.PRIVATE, Owner.FREE)
    with pytest.raises(OwnershipError):
        pool.transfer(row[1:], Owner.PRIVATE, Owner.FREE)
    pool.transfer(row[2:], Owner.PRIVATE, Owner.FREE)
    assert sorted(pool.free_list().tolist()) == [0, 1, 2]
