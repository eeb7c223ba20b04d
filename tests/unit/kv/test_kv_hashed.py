import os
import subprocess
import sys

import numpy as np
import pytest

from ramet.core.request import Namespace
from ramet.kv.hashed import HashedCache, page_digests, sha256
from ramet.kv.prefix import PrefixKey


def key(tokens, **namespace):
    return PrefixKey(Namespace(**namespace), np.array(tokens, np.int32))


def store(cache, tokens, first_page, **namespace):
    lock = cache.lock(cache.match(key(tokens, **namespace)))
    num_new = len(tokens) // cache.page_size - lock.num_pages
    inserted = cache.insert(key(tokens, **namespace), np.arange(first_page, first_page + num_new, dtype=np.int32), lock)
    cache.unlock(inserted.lock)


def test_b023_colliding_digests_never_share():
    cache = HashedCache(2, digest=lambda data: b"constant")
    store(cache, [1, 2], 10)
    assert cache.peek(key([3, 4])) == 0
    assert cache.peek(key([1, 2], salt="other")) == 0
    store(cache, [3, 4, 1, 2], 20)
    store(cache, [1, 2], 30, salt="other")
    cache.check([])
    for tokens, namespace, pages in (
        ([1, 2], {}, [10]),
        ([3, 4, 1, 2], {}, [20, 21]),
        ([1, 2, 1, 2], {}, [10]),  # the page [1, 2] under [3, 4] has the same digest and tokens, but another parent
        ([1, 2], {"salt": "other"}, [30]),
    ):
        assert cache.match(key(tokens, **namespace)).pages.tolist() == pages
    assert sorted(cache.flush().tolist()) == [10, 20, 21, 30]
    assert not cache._table


def test_b026_b028_b029_every_field_of_the_namespace_is_in_every_digest():
    spaces = [
        Namespace(),
        Namespace(salt="x"),
        Namespace(salt="y"),
        Namespace(adapter="x"),
        Namespace(adapter="y"),
        Namespace(generation=1),
        Namespace(generation=2),
        Namespace(salt="x", adapter="x"),
        Namespace(salt="xx"),  # not the joined string of the one before
        Namespace(salt="1"),  # nor a number
    ]
    tokens = np.arange(12, dtype=np.int32)
    chains = [page_digests(PrefixKey(space, tokens), 4) for space in spaces]
    digests = [digest for chain in chains for digest in chain]
    assert len(digests) == 3 * len(spaces)
    assert len(set(digests)) == len(digests)
    assert all(len(digest) == 32 for digest in digests)


def test_digests_chain_on_the_parent():
    one, two = page_digests(key([1, 2, 9, 9]), 2), page_digests(key([3, 4, 9, 9]), 2)
    assert one[1] != two[1], "equal tokens after different ones"
    assert page_digests(key([1, 2, 9, 9, 5]), 2) == one, "a page that is not whole has no digest"


def test_the_cache_uses_the_digests_that_others_can_compute():
    cache = HashedCache(2, digest=sha256)
    store(cache, [1, 2, 3, 4], 0, salt="t")
    assert set(cache._table) == set(page_digests(key([1, 2, 3, 4], salt="t"), 2))


def test_b031_digests_are_the_same_in_every_process():
    code = (
        "import numpy as np; from ramet.core.request import Namespace; from ramet.kv.hashed import page_digests;"
        "from ramet.kv.prefix import PrefixKey;"
        "print(page_digests(PrefixKey(Namespace('s', 'a', 3), np.array([1, 2, 3], np.int32)), 3)[0].hex())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    here = page_digests(PrefixKey(Namespace("s", "a", 3), np.array([1, 2, 3], np.int32)), 3)[0].hex()
    assert found == {here + "\n"}


def test_a_field_without_an_encoding_is_refused():
    with pytest.raises(TypeError, match="generation is a float"):
        page_digests(PrefixKey(Namespace(generation=1.5), np.arange(2, dtype=np.int32)), 2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="salt is a NoneType"):
        page_digests(PrefixKey(Namespace(salt=None), np.arange(2, dtype=np.int32)), 2)  # type: ignore[arg-type]


def test_children_go_before_their_parent_whoever_was_used_last():
    cache = HashedCache(1)
    store(cache, [1, 2, 3], 10)
    store(cache, [1, 2, 4], 20)
    cache.match(key([1]))
    cache.match(key([1, 2, 3]))
    cache.match(key([1, 2]))
    cache.check([])
    assert cache.evict(4).tolist() == [20, 12, 11, 10]
