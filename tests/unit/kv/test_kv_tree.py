import numpy as np
import pytest

from ramet import _native
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


@pytest.mark.parametrize("start", [0, 1, 40])
@pytest.mark.parametrize("at", [0, 1, 15, 16, 17, 255, 256, 1023, 1999])
def test_common_prefix_stops_at_the_first_other_token(start, at):
    """Only the last byte of one token differs: blocks of every width see it, and no part of a token counts."""
    tokens = np.arange(start + 2000, dtype=np.int32)
    other = tokens[start:].copy()
    other[at] ^= 1 << 24
    assert _native.common_prefix(tokens.tobytes(), 4 * start, other.tobytes()) == 4 * at


def test_common_prefix_ends_with_the_shorter_row():
    tokens = np.arange(2000, dtype=np.int32).tobytes()
    assert _native.common_prefix(tokens, 0, tokens) == len(tokens)
    assert _native.common_prefix(tokens, 0, tokens[:2800]) == 2800
    assert _native.common_prefix(tokens, 7200, tokens[7200:] + tokens) == 800
    assert _native.common_prefix(tokens, 0, b"") == _native.common_prefix(tokens, len(tokens), tokens) == 0


@pytest.mark.parametrize(
    ("tokens", "start", "other"),
    [(b"aaaa", 8, b"aaaa"), (b"aaaa", -4, b"aaaa"), (b"aaaa", 2, b"aaaa"), (b"aaaaa", 0, b"aaaa"), (b"aaaa", 0, b"aaaaa")],
)
def test_common_prefix_reads_whole_tokens_within_bounds(tokens, start, other):
    with pytest.raises(ValueError, match=r"start|whole int32"):
        _native.common_prefix(tokens, start, other)


def test_common_prefix_and_nearest_take_bytes_only():
    array = np.zeros(4, np.int32)
    with pytest.raises(TypeError):
        _native.common_prefix(array, 0, b"")
    with pytest.raises(TypeError):
        _native.nearest([b""], array)
    with pytest.raises(TypeError):
        _native.nearest([array], b"aaaa")
    with pytest.raises(ValueError, match="whole int32"):
        _native.nearest([b"aaaaa"], b"aaaa")


def test_nearest_of_no_keys_shares_nothing():
    assert _native.nearest([], b"aaaa") == (0, 0)


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
