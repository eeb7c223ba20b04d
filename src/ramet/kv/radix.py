"""A radix tree over pages of tokens: the default index of reusable KV.

One root per namespace; a node holds one or more whole pages, so nodes split at page borders only. The idea of a radix tree
with locks and leaf-first LRU is SGLang's RadixAttention (Zheng et al., 2024); page-granular nodes found by binary search among
sorted first pages, in-place growth of a leaf and the lazy heap of evictable leaves are chosen here for cost: no operation
looks at more than one path of the tree.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Sequence

from ramet import _native
from ramet.core.ids import Int32
from ramet.core.ports import CacheLock
from ramet.core.request import Namespace
from ramet.kv.pool import OwnershipError
from ramet.kv.prefix import CacheStats, Inserted, Match, PartialPage, PrefixKey
from ramet.kv.tree import TOKEN_BYTES, Children, TreeLock, check_insert, count_locks, int32_view, require

__all__ = ["RadixCache"]

_ID_BYTES = 4
_FIRST_ID = struct.Struct("=i")
_GROWTH_LIMIT = 4096 * TOKEN_BYTES  # a longer leaf gets a child instead: growing copies the leaf, and that must stay cheap


class _Node:
    """One stretch of tokens and its pages, both as bytes of int32, which are cheap to cut, join and compare.

    ``start`` and ``end`` count pages from the root.
    ``num_locks`` counts the locks on this node and on all below it. A node out of the tree has ``parent`` None and is no root.
    """

    __slots__ = (
        "children",
        "data",
        "end",
        "in_heap",
        "last_access",
        "num_locks",
        "pages",
        "parent",
        "root_of",
        "serial",
        "start",
    )

    def __init__(self, data: bytes, pages: bytes, parent: _Node | None, start: int, serial: int) -> None:
        self.data = data
        self.pages = pages
        self.parent = parent
        self.start = start
        self.end = start + len(pages) // _ID_BYTES
        self.serial = serial
        self.children: Children[_Node] = Children()
        self.num_locks = 0
        self.last_access = 0
        self.in_heap = False
        self.root_of: Namespace | None = None


class RadixCache:
    """The radix tree. Match O(tokens compared), insert O(new tokens), evict amortised O(pages taken + log leaves).

    Recency is a counter of calls, no clock. A node is evictable when no lock is on it or below it; only leaves are taken, so
    prefixes outlive suffixes, and of the last leaf only as many tail pages as are asked for.
    """

    def __init__(self, page_size: int) -> None:
        if page_size < 1:
            raise ValueError(f"page_size is at least 1, not {page_size}")
        self.page_size = page_size
        self._page_bytes = page_size * TOKEN_BYTES
        self._roots: dict[Namespace, _Node] = {}
        self._tick = 0
        self._serial = 0
        self._num_nodes = 0  # roots not counted
        self._num_evictable = 0
        self._num_locked = 0
        # Every unlocked leaf has exactly one entry (time, serial, node). Its time may lag behind the node's, and it may have
        # been locked or got children since: both are put right when the entry comes up. So entries never outnumber nodes.
        self._heap: list[tuple[int, int, _Node]] = []

    def peek(self, key: PrefixKey) -> int:
        root = self._roots.get(key.namespace)
        if root is None:
            return 0
        path, _, common = self._walk(root, key.tokens.tobytes())
        return path[-1].end * self.page_size + common

    def match(self, key: PrefixKey) -> Match:
        root = self._roots.get(key.namespace) or self._new_root(key.namespace)
        path, near, common = self._walk(root, key.tokens.tobytes())
        if near is not None and common >= self.page_size:
            path.append(self._split(near, common // self.page_size))
            common %= self.page_size
        self._tick = tick = self._tick + 1
        pages = []
        for node in path:
            node.last_access = tick
            pages.append(node.pages)
        partial = None
        if near is not None and common:
            near.last_access = tick
            partial = PartialPage(_FIRST_ID.unpack_from(near.pages)[0], common)
        return Match(int32_view(b"".join(pages)), partial, path[-1])

    def lock(self, match: Match) -> TreeLock[_Node]:
        node = match.handle
        if not isinstance(node, _Node) or node.end != len(match.pages):
            raise OwnershipError("the match is out of date: pages were inserted or evicted since")
        if node.root_of is not None:  # the match of nothing; an empty root is not kept, so it may be another one by now
            node = self._roots.setdefault(node.root_of, node)
        self._hold(node, None)
        return TreeLock(node, node.end)

    def unlock(self, lock: CacheLock) -> Int32:
        held = TreeLock.consume(lock, _Node)
        self._tick = tick = self._tick + 1
        node: _Node | None = held
        while node is not None:
            node.num_locks -= 1
            node.last_access = tick  # in use until now: no prefix may look older than what hangs on it
            if node.num_locks == 0:
                num_pages = node.end - node.start
                self._num_locked -= num_pages
                self._num_evictable += num_pages
                self._now_evictable(node)
            node = node.parent
        return int32_view(b"")

    def insert(self, key: PrefixKey, pages: Int32, lock: CacheLock) -> Inserted:
        start = lock.num_pages
        check_insert(len(key.tokens), len(pages), start, self.page_size)
        held = TreeLock.consume(lock, _Node)
        data = key.tokens[start * self.page_size :].tobytes()
        path, near, common = self._walk(held, data)
        if near is not None and common >= self.page_size:
            path.append(self._split(near, common // self.page_size))
        last = path[-1]
        num_found = last.end - start
        self._hold(last, held)
        new_pages = pages.tobytes()[num_found * _ID_BYTES :]
        canonical = b"".join([node.pages for node in path[1:]]) + new_pages
        if new_pages:
            last = self._append(last, data[num_found * self._page_bytes :], new_pages)
        return Inserted(TreeLock(last, last.end), int32_view(canonical), pages[:num_found])

    def evict(self, num_pages: int) -> Int32:
        taken: list[bytes] = []
        wanted = num_pages
        heap = self._heap
        while wanted > 0 and heap:
            time, _, leaf = heap[0]
            if leaf.num_locks or leaf.children.items:
                heapq.heappop(heap)
                leaf.in_heap = False
            elif time != leaf.last_access:
                heapq.heapreplace(heap, (leaf.last_access, leaf.serial, leaf))
            elif leaf.end - leaf.start > wanted:
                taken.append(self._truncate(leaf, wanted))
                wanted = 0
            else:
                heapq.heappop(heap)
                leaf.in_heap = False
                taken.append(leaf.pages)
                wanted -= leaf.end - leaf.start
                self._remove(leaf)
        row = int32_view(b"".join(taken))
        self._num_evictable -= len(row)
        return row

    def flush(self) -> Int32:
        return self.evict(self._num_evictable)

    def num_kept(self, num_tokens: int) -> int:
        return num_tokens - num_tokens % self.page_size

    def continuation(self, key: PrefixKey, num_tokens: int) -> Int32:
        root = self._roots.get(key.namespace)
        if root is None:
            return int32_view(b"")
        data = key.tokens.tobytes()
        path, near, common = self._walk(root, data)
        passed = path[-1].end * self._page_bytes + common * TOKEN_BYTES
        if passed < len(data):
            return int32_view(b"")
        node = path[-1] if near is None else near
        found = b"" if near is None else near.data[common * TOKEN_BYTES :]
        while len(found) < num_tokens * TOKEN_BYTES and node.children.items:
            node = max(node.children.items.values(), key=lambda child: child.last_access)
            found += node.data
        return int32_view(found[: num_tokens * TOKEN_BYTES])

    def stats(self) -> CacheStats:
        return CacheStats(self._num_nodes, self._num_evictable, self._num_locked)

    def _walk(self, node: _Node, data: bytes) -> tuple[list[_Node], _Node | None, int]:
        """Follow the tokens in ``data`` down from ``node``; changes nothing.

        Returns the path of nodes that agree as a whole, ``node`` first; then the child of the last one that goes on longest with
        some, though not all, of its tokens, and how many: less than a page unless its first page agrees.
        """
        path = [node]
        at, size = 0, self._page_bytes
        while child := node.children.items.get(data[at : at + size]):  # never under less than a page
            common = _native.common_prefix(data, at, child.data)
            if common < len(child.data):
                return path, child, common // TOKEN_BYTES
            at += common
            path.append(child)
            node = child
        if self.page_size == 1:  # less than a page of one token is nothing
            return path, None, 0
        return path, *node.children.nearest(data[at : at + size])

    def _split(self, node: _Node, num_pages: int) -> _Node:
        """Cut ``num_pages`` off the head of ``node`` into a new parent, and return that.

        The old object stays the lower part, so whoever holds it (a lock, the heap) still holds the same prefix. The new one has
        no time of last use yet: the caller is about to touch it or to lock it.
        """
        parent = node.parent
        if parent is None:
            raise OwnershipError("a root cannot be split")
        cut = num_pages * self._page_bytes
        cut_ids = num_pages * _ID_BYTES
        upper = self._new_node(node.data[:cut], node.pages[:cut_ids], parent, node.start)
        upper.num_locks = node.num_locks
        parent.children.put(upper.data[: self._page_bytes], upper)
        node.data, node.pages, node.parent, node.start = node.data[cut:], node.pages[cut_ids:], upper, upper.end
        upper.children.put(node.data[: self._page_bytes], node)
        return upper

    def _append(self, node: _Node, data: bytes, pages: bytes) -> _Node:
        """Put new pages, which the caller's lock on ``node`` is to hold as well, below it; returns the node they are in.

        A leaf that this lock alone holds grows in place, so a sequence that adds a page at a time makes one node.
        """
        num_pages = len(pages) // _ID_BYTES
        self._num_locked += num_pages
        if node.num_locks == 1 and node.root_of is None and not node.children.items and len(node.data) < _GROWTH_LIMIT:
            node.data += data
            node.pages += pages
            node.end += num_pages
        else:
            parent, node = node, self._new_node(data, pages, node, node.end)
            node.num_locks = 1
            parent.children.put(data[: self._page_bytes], node)
        return node

    def _truncate(self, leaf: _Node, num_pages: int) -> bytes:
        """Take the last ``num_pages`` of a longer leaf."""
        leaf.end -= num_pages
        kept = leaf.end - leaf.start
        tail = leaf.pages[kept * _ID_BYTES :]
        leaf.pages = leaf.pages[: kept * _ID_BYTES]
        leaf.data = leaf.data[: kept * self._page_bytes]
        return tail

    def _remove(self, leaf: _Node) -> None:
        parent = leaf.parent
        if parent is None:
            raise OwnershipError("a root cannot be evicted")
        parent.children.remove(leaf.data[: self._page_bytes])
        leaf.parent = None
        leaf.end = 0
        self._num_nodes -= 1
        if parent.num_locks == 0:
            self._now_evictable(parent)

    def _hold(self, node: _Node, stop: _Node | None) -> None:
        """One lock more on ``node`` and its ancestors up to, not including, ``stop``."""
        walker: _Node | None = node
        while walker is not stop and walker is not None:
            if walker.num_locks == 0:
                num_pages = walker.end - walker.start
                self._num_evictable -= num_pages
                self._num_locked += num_pages
            walker.num_locks += 1
            walker = walker.parent

    def _now_evictable(self, node: _Node) -> None:
        """``node`` has just lost its last lock or child: if that makes it an unlocked leaf, list it (a root: forget it)."""
        if node.children.items:
            return
        if node.root_of is not None:
            self._roots.pop(node.root_of, None)
        elif not node.in_heap:
            node.in_heap = True
            heapq.heappush(self._heap, (node.last_access, node.serial, node))

    def _new_node(self, data: bytes, pages: bytes, parent: _Node, start: int) -> _Node:
        self._serial += 1
        self._num_nodes += 1
        return _Node(data, pages, parent, start, self._serial)

    def _new_root(self, namespace: Namespace) -> _Node:
        """A root that ``lock`` will register, so that a namespace asked for in vain leaves nothing behind."""
        root = _Node(b"", b"", None, 0, 0)
        root.root_of = namespace
        return root

    def owned_pages(self) -> Int32:
        return int32_view(b"".join([node.pages for node in self._nodes()]))

    def check(self, locks: Sequence[CacheLock] | None = None) -> None:
        nodes = self._nodes()
        for node in nodes:
            self._check_node(node)
        for node in [*self._roots.values(), *nodes]:
            children = node.children.items
            require(node.children.keys == sorted(children), "the keys of children are sorted")
            require(all(child.data[: self._page_bytes] == key for key, child in children.items()), "keys are first pages")
            require(all(child.parent is node for child in children.values()), "a child knows its parent")
            require(bool(node.root_of is None or children or node.num_locks), "an empty root is forgotten")
        listed = {id(entry[2]) for entry in self._heap}
        require(len(listed) == len(self._heap), "a node is in the heap once")
        require(listed == {id(node) for node in nodes if node.in_heap}, "the heap holds nodes of the tree")
        require(self._num_nodes == len(nodes), "the count of nodes is right")
        locked = sum(node.end - node.start for node in nodes if node.num_locks)
        total = sum(node.end - node.start for node in nodes)
        require((locked, total - locked) == (self._num_locked, self._num_evictable), "the counts of pages are right")
        if locks is not None:
            counts = count_locks(locks, _Node)
            for node in [*self._roots.values(), *nodes]:
                require(counts.pop(node, 0) == node.num_locks, "each node is locked as often as live locks say")
            require(not counts, "live locks are on nodes of the tree")

    def _check_node(self, node: _Node) -> None:
        parent = node.parent
        if parent is None or len(node.pages) == 0:
            raise AssertionError("a node has a parent and pages")
        num_pages = len(node.pages) // _ID_BYTES
        require(len(node.data) == num_pages * self._page_bytes, "a node has as many tokens as its pages hold")
        require(node.start == parent.end and node.end == node.start + num_pages, "a node starts where its parent ends")
        require(node.num_locks <= parent.num_locks, "a lock on a node is on its ancestors")
        require(bool(node.num_locks or node.children.items or node.in_heap), "an unlocked leaf is in the heap")
        held = node.num_locks or parent.num_locks  # a locked node's time is set when it is unlocked
        require(bool(held or node.last_access <= parent.last_access), "no prefix looks older than what hangs on it")

    def _nodes(self) -> list[_Node]:
        """All nodes but the roots; parents come before children."""
        found = [child for root in self._roots.values() for child in root.children.items.values()]
        for node in found:  # grows while it is walked
            found.extend(node.children.items.values())
        return found
