"""A hash-chain cache: one entry a page, found by the digest of everything up to its end.

The digest of a page is SHA-256 over its parent's digest and its tokens; that of a chain's start covers every field of the
namespace. It is the same in every process, so it can name pages to other tiers and other machines. Within the cache
it is only a hint: tokens and parent are compared on every hit, so even a colliding digest never shares KV. Hashed blocks with an
LRU queue are vLLM's idea (automatic prefix caching).
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from ramet.core.ids import Int32
from ramet.core.ports import CacheLock
from ramet.core.request import Namespace
from ramet.kv.pool import OwnershipError
from ramet.kv.prefix import CacheStats, Inserted, Match, PartialPage, PrefixKey
from ramet.kv.tree import TOKEN_BYTES, Children, TreeLock, check_insert, count_locks, int32_view, require

__all__ = ["HashedCache", "page_digests", "sha256"]

HashFunction = Callable[[bytes], bytes]


def sha256(data: bytes) -> bytes:
    """The 32 bytes of SHA-256."""
    return hashlib.sha256(data).digest()


def page_digests(key: PrefixKey, page_size: int) -> list[bytes]:
    """Digest of each whole page of ``key``, for whoever names pages outside this cache (tiers, routers)."""
    digest = _root_digest(key.namespace, sha256)
    data = key.tokens.tobytes()
    size = page_size * TOKEN_BYTES
    found = []
    for at in range(0, len(data) - size + 1, size):
        digest = sha256(digest + data[at : at + size])
        found.append(digest)
    return found


def _root_digest(namespace: Namespace, digest: HashFunction) -> bytes:
    """Every field enters with its name, type and length, so no two namespaces are written alike, and none that is added later
    can be left out.
    """
    parts = [b"ramet prefix 1"]
    for name, value in zip(namespace._fields, namespace, strict=True):
        if type(value) not in (str, int):
            raise TypeError(f"namespace field {name} is a {type(value).__name__}; only str and int have an encoding")
        for text in (name, type(value).__name__, str(value)):
            raw = text.encode("utf-8", "surrogatepass")
            parts.append(len(raw).to_bytes(8, "little") + raw)
    return digest(b"".join(parts))


class _Entry:
    """One cached page, or (``root_of`` set, no page) the start of a namespace's chains. ``depth`` counts pages from the root.

    ``num_locks`` counts the locks on this entry and on all below it. An evicted entry has ``parent`` None and is no root.
    """

    __slots__ = ("children", "data", "depth", "digest", "num_locks", "page", "parent", "root_of")

    def __init__(self, digest: bytes, data: bytes, page: int | None, parent: _Entry | None) -> None:
        self.digest = digest
        self.data = data
        self.page = page
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.children: Children[_Entry] = Children()
        self.num_locks = 0
        self.root_of: Namespace | None = None


class HashedCache:
    """Hash-chain index. Every operation costs O(pages it names); ``digest`` can be replaced to test collisions."""

    def __init__(self, page_size: int, digest: HashFunction = sha256) -> None:
        if page_size < 1:
            raise ValueError(f"page_size is at least 1, not {page_size}")
        self.page_size = page_size
        self._digest = digest
        self._page_bytes = page_size * TOKEN_BYTES
        self._roots: dict[Namespace, _Entry] = {}
        self._table: dict[bytes, tuple[_Entry, ...]] = {}  # more than one entry only where digests collide
        # Unlocked entries, next victim first. A child always stands before its parent, so a victim never has children.
        self._queue: OrderedDict[_Entry, None] = OrderedDict()
        self._num_entries = 0

    def peek(self, key: PrefixKey) -> int:
        root = self._roots.get(key.namespace)
        if root is None:
            return 0
        path, _, common = self._walk(root, key.tokens.tobytes())
        return path[-1].depth * self.page_size + common

    def match(self, key: PrefixKey) -> Match:
        root = self._roots.get(key.namespace) or self._new_root(key.namespace)
        path, near, common = self._walk(root, key.tokens.tobytes())
        partial = None
        if near is not None and near.page is not None and common:
            partial = PartialPage(near.page, common)
            path.append(near)
        for entry in reversed(path):
            if entry in self._queue:
                self._queue.move_to_end(entry)
        if partial:
            path.pop()
        return Match(_pages(path[1:]), partial, path[-1])

    def lock(self, match: Match) -> TreeLock[_Entry]:
        entry = match.handle
        if not isinstance(entry, _Entry) or entry.depth != len(match.pages):
            raise OwnershipError("the match is out of date: pages were evicted since")
        if entry.root_of is not None:  # the match of nothing; an empty root is not kept, so it may be another one by now
            entry = self._roots.setdefault(entry.root_of, entry)
        held: _Entry | None = entry
        while held is not None:
            self._hold(held)
            held = held.parent
        return TreeLock(entry, entry.depth)

    def unlock(self, lock: CacheLock) -> Int32:
        entry: _Entry | None = TreeLock.consume(lock, _Entry)
        while entry is not None:  # the tail first: it is to go first
            entry.num_locks -= 1
            if entry.num_locks == 0:
                if entry.root_of is None:
                    self._queue[entry] = None
                else:
                    self._forget_empty(entry)
            entry = entry.parent
        return _pages([])

    def insert(self, key: PrefixKey, pages: Int32, lock: CacheLock) -> Inserted:
        start = lock.num_pages
        check_insert(len(key.tokens), len(pages), start, self.page_size)
        held = TreeLock.consume(lock, _Entry)
        data = key.tokens[start * self.page_size :].tobytes()
        path, _, _ = self._walk(held, data)
        for entry in path[1:]:
            self._hold(entry)
        num_found = len(path) - 1
        last = path[-1]
        for index in range(num_found, len(pages)):
            page_data = data[index * self._page_bytes : (index + 1) * self._page_bytes]
            last = self._add(last, page_data, int(pages[index]))
            path.append(last)
        return Inserted(TreeLock(last, last.depth), _pages(path[1:]), pages[:num_found])

    def evict(self, num_pages: int) -> Int32:
        taken: list[_Entry] = []
        while len(taken) < num_pages and self._queue:
            entry, _ = self._queue.popitem(last=False)
            self._remove(entry)
            taken.append(entry)
        return _pages(taken)

    def flush(self) -> Int32:
        return self.evict(len(self._queue))

    def num_kept(self, num_tokens: int) -> int:
        return num_tokens - num_tokens % self.page_size

    def continuation(self, key: PrefixKey, num_tokens: int) -> Int32:
        root = self._roots.get(key.namespace)
        if root is None:
            return int32_view(b"")
        path, near, common = self._walk(root, key.tokens.tobytes())
        if path[-1].depth * self.page_size + common < len(key.tokens):
            return int32_view(b"")
        entry = path[-1] if near is None else near
        found = b"" if near is None else near.data[common * TOKEN_BYTES :]
        while len(found) < num_tokens * TOKEN_BYTES and entry.children.items:
            entry = next(reversed(entry.children.items.values()))
            found += entry.data
        return int32_view(found[: num_tokens * TOKEN_BYTES])

    def stats(self) -> CacheStats:
        return CacheStats(self._num_entries, len(self._queue), self._num_entries - len(self._queue))

    def owned_pages(self) -> Int32:
        return _pages([entry for twins in self._table.values() for entry in twins])

    def check(self, locks: Sequence[CacheLock] | None = None) -> None:
        entries = [entry for twins in self._table.values() for entry in twins]
        require(len(entries) == self._num_entries, "the count of entries is right")
        seen: set[_Entry] = set()
        for entry in self._queue:
            require(seen.issuperset(entry.children.items.values()), "children are evicted before their parent")
            seen.add(entry)
        for entry in entries:
            parent = entry.parent
            if parent is None:
                raise AssertionError("a cached entry has a parent")
            require((entry in seen) == (entry.num_locks == 0), "the queue holds the unlocked entries")
            require(entry.num_locks <= parent.num_locks, "a lock on an entry is on its ancestors")
            require(entry.depth == parent.depth + 1, "an entry's depth follows its parent's")
            require(parent.children.items.get(entry.data) is entry, "a parent knows its child")
            known = self._table.get(parent.digest, ()) if parent.root_of is None else (self._roots.get(parent.root_of),)
            require(parent in known, "no chain is broken")
            require(entry in self._table[self._digest(parent.digest + entry.data)], "an entry is under its own digest")
        for root in self._roots.values():
            require(bool(root.children.items or root.num_locks), "an empty root is forgotten")
        if locks is not None:
            counts = count_locks(locks, _Entry)
            for entry in [*self._roots.values(), *entries]:
                require(counts.pop(entry, 0) == entry.num_locks, "each entry is locked as often as live locks say")
            require(not counts, "live locks are on entries of the cache")

    def _walk(self, entry: _Entry, data: bytes) -> tuple[list[_Entry], _Entry | None, int]:
        """Follow ``data`` down from ``entry``; changes nothing.

        Returns the path of entries that agree, ``entry`` first; then the child of the last one that agrees longest with what
        follows and in how many tokens, less than a page.
        """
        path = [entry]
        size = self._page_bytes
        for at in range(0, len(data) - size + 1, size):
            child = self._find(entry, data[at : at + size])
            if child is None:
                break
            path.append(child)
            entry = child
        at = (len(path) - 1) * size
        near, common = entry.children.nearest(data[at : at + size]) if at < len(data) else (None, 0)
        return path, near, common

    def _find(self, parent: _Entry, data: bytes) -> _Entry | None:
        for entry in self._table.get(self._digest(parent.digest + data), ()):
            if entry.parent is parent and entry.data == data:
                return entry
        return None

    def _add(self, parent: _Entry, data: bytes, page: int) -> _Entry:
        """A new entry with one lock on it."""
        digest = self._digest(parent.digest + data)
        entry = _Entry(digest, data, page, parent)
        entry.num_locks = 1
        parent.children.put(data, entry)
        self._table[digest] = (*self._table.get(digest, ()), entry)
        self._num_entries += 1
        return entry

    def _remove(self, entry: _Entry) -> None:
        parent = entry.parent
        if parent is None or entry.children.items:
            raise OwnershipError("an entry with children, or a root, cannot be evicted")
        twins = tuple(twin for twin in self._table[entry.digest] if twin is not entry)
        if twins:
            self._table[entry.digest] = twins
        else:
            del self._table[entry.digest]
        parent.children.remove(entry.data)
        entry.parent = None
        entry.depth = 0
        self._num_entries -= 1
        if parent.root_of is not None:
            self._forget_empty(parent)

    def _hold(self, entry: _Entry) -> None:
        if entry.num_locks == 0:
            self._queue.pop(entry, None)  # a root is never in it
        entry.num_locks += 1

    def _forget_empty(self, root: _Entry) -> None:
        if root.root_of is not None and not root.children.items and root.num_locks == 0:
            self._roots.pop(root.root_of, None)

    def _new_root(self, namespace: Namespace) -> _Entry:
        """A root that ``lock`` will register, so that a namespace asked for in vain leaves nothing behind."""
        root = _Entry(_root_digest(namespace, self._digest), b"", None, None)
        root.root_of = namespace
        return root


def _pages(entries: Sequence[_Entry]) -> Int32:
    return np.array([entry.page for entry in entries], np.int32)
