import numpy as np
import pytest

from ramet.kv.pool import OwnershipError
from ramet.kv.tree import Children, TreeLock


def common(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@pytest.mark.parametrize("num_tokens", [1, 3, 4])
def test_nearest_is_the_best_of_all_children(num_tokens):
    """Against looking at every child: few distinct tokens, large ones too, so that byte order is not the order of numbers."""
    rng = np.random.default_rng(num_tokens)
    alphabet = np.array([0, 1, 255, 256, 65_536, 2**31 - 1], np.int32)
    for _ in range(300):
        children = Children()
        keys = {tuple(rng.choice(alphabet, num_tokens).tolist()) for _ in range(rng.integers(0, 9))}
        for key in keys:
            children.put(np.array(key, np.int32).tobytes(), key)
        probe = tuple(rng.choice(alphabet, rng.integers(1, num_tokens + 1)).tolist())
        found, num_common = children.nearest(np.array(probe, np.int32).tobytes())
        assert num_common == max((common(key, probe) for key in keys), default=0)
        assert (found is None) if num_common == 0 else (common(found, probe) == num_common)


def test_put_replaces_and_remove_forgets():
    children = Children()
    children.put(b"bbbb", 1)
    children.put(b"aaaa", 2)
    children.put(b"bbbb", 3)
    assert (children.keys, children.items) == ([b"aaaa", b"bbbb"], {b"aaaa": 2, b"bbbb": 3})
    children.remove(b"aaaa")
    assert (children.keys, children.items) == ([b"bbbb"], {b"bbbb": 3})


def test_a_lock_is_consumed_once_and_by_its_own_kind():
    lock = TreeLock("node", 3)
    with pytest.raises(OwnershipError):
        TreeLock.consume(lock, int)
    assert TreeLock.consume(lock, str) == "node"
    with pytest.raises(OwnershipError):
        TreeLock.consume(lock, str)
