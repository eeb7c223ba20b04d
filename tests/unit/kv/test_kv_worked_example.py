"""The worked example of docs/design/prefix-cache.md, Time 1 to Time 7: the page says what this test sees."""

from kv_rig import Rig, make_sequence


def tree(cache):
    """The nodes as {first tokens..., }: a dict from a node's tokens to (its pages, number of locks)."""
    return {
        tuple(memoryview(node.data).cast("i")): (list(memoryview(node.pages).cast("i")), node.num_locks)
        for node in cache._nodes()
    }


def pages(seq):
    return seq.pages.view().tolist()


def test_time_1_to_7():
    rig = Rig(10, 4)
    manager, cache = rig.manager, rig.manager.cache

    # Time 1: A arrives; nothing is cached.
    a = rig.admit([1, 2, 3, 4, 5, 6, 10, 11, 12, 13])
    assert (a.num_computed_tokens, pages(a), a.lock.num_pages) == (0, [0, 1, 2], 0)

    # Time 2: the prompt is computed; two whole pages are published, the third stays A's own.
    rig.compute(a)
    assert tree(cache) == {(1, 2, 3, 4, 5, 6, 10, 11): ([0, 1], 1)}
    assert a.lock.num_pages == 2

    # Time 3: B leaves the tree in the middle of page 1.
    b = rig.admit([1, 2, 3, 4, 5, 6, 20, 21, 22])
    assert tree(cache) == {(1, 2, 3, 4): ([0], 2), (5, 6, 10, 11): ([1], 1)}
    assert (b.num_computed_tokens, pages(b), b.lock.num_pages) == (6, [0, 3, 4], 1)
    copies = manager.pending_copies()
    assert (copies.src.tolist(), copies.dst.tolist(), copies.num_tokens.tolist()) == ([1], [3], [2])

    # Time 4: B's prompt is computed and branches off; A fills page 2 with two tokens it has drawn, and its leaf grows.
    rig.compute(b)
    for token in (14, 15):
        a.tokens.append(token)
        rig.compute(a)
    assert tree(cache) == {
        (1, 2, 3, 4): ([0], 2),
        (5, 6, 10, 11, 12, 13, 14, 15): ([1, 2], 1),
        (5, 6, 20, 21): ([3], 1),
    }

    # Time 5: A has drawn two more and computed one of them; C forks from it.
    a.tokens.append(16)
    rig.compute(a)
    a.tokens.append(17)
    c = make_sequence(a.tokens.view(), num_prompt_tokens=10)
    assert manager.fork(a, c)
    rig.live.append(c)
    rig.audit()
    assert (pages(a), pages(c), c.num_computed_tokens) == ([0, 1, 2, 5], [0, 1, 2, 6], 13)
    copies = manager.take_page_copies()
    assert (copies.src.tolist(), copies.dst.tolist(), copies.num_tokens.tolist()) == ([5], [6], [1])
    assert tree(cache)[(1, 2, 3, 4)] == ([0], 3)

    # Time 6: all finish, A and C first. What they published stays; what was their own is free.
    for seq in (a, c, b):
        rig.finish(seq)
    stats = manager.stats()
    assert (stats.num_free_pages, stats.num_evictable_pages, stats.num_locked_pages) == (6, 4, 0)

    # Time 7: D needs seven pages; the oldest leaf gives its last page, and only that.
    d = rig.admit(list(range(100, 128)))
    assert 2 in pages(d)
    assert tree(cache) == {(1, 2, 3, 4): ([0], 0), (5, 6, 10, 11): ([1], 0), (5, 6, 20, 21): ([3], 0)}
    assert manager.peek(make_sequence([1, 2, 3, 4, 5, 6, 10, 11, 12, 13])) == 8
