"""Random walks over manager and cache, against a model that knows every page by the prefix it should hold.

A fake memory holds, for each slot, the history of tokens whose KV was written there. So a page table that names a page with other
content is seen at once, as is a copy that comes too late. The model is a dict from (namespace, prefix) to page, kept up by
watching commits and evictions; it foretells exactly what each admission must find.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from ramet.core.ids import IntBuffer
from ramet.core.request import Namespace, Request, Sequence
from ramet.core.sampling import SamplingParams
from ramet.kv.audit import audit
from ramet.kv.hashed import HashedCache
from ramet.kv.manager import KVManager
from ramet.kv.null import NullCache
from ramet.kv.pool import PagePool
from ramet.kv.radix import RadixCache

_TOKENS = st.integers(0, 1)
# Prompts are heads of these, so that they meet often and part at all kinds of places, and a drawn tail of up to two tokens.
_LINES = [[0] * 20, [0] * 6 + [1] * 14, [0] * 3 + [1, 0] * 8, [1] * 20]
_PROMPTS = st.builds(
    lambda line, length, tail: line[:length] + tail, st.sampled_from(_LINES), st.integers(1, 18), st.lists(_TOKENS, max_size=2)
)
_NAMESPACES = [Namespace(), Namespace(salt="b")]
_MAX_TOKENS = 24


class KVMachine(RuleBasedStateMachine):
    """Subclasses say how a cache is made and whether it keeps anything."""

    keeps = True
    num_steps = 0

    def make_cache(self, page_size):
        raise NotImplementedError

    @initialize(page_size=st.sampled_from([1, 2, 4, 8]), num_pages=st.integers(5, 16))
    def start(self, page_size, num_pages):
        self.size = page_size
        self.cache = self.make_cache(page_size)
        self.manager = KVManager(PagePool(num_pages), self.cache, page_size)
        self.memory = {}  # slot -> (namespace, tokens up to and with the one whose KV is there)
        self.known = {}  # (namespace, tokens of whole pages) -> page
        self.seqs = []
        self.next_id = 0
        for name in ("evict", "flush"):
            setattr(self.cache, name, self._watched(getattr(self.cache, name)))

    def _watched(self, call):
        def watched(*args):
            pages = call(*args)
            gone = set(pages.tolist())
            assert len(gone) == len(pages)
            assert not gone & self._locked_pages(), "a page in use was evicted"
            self.known = {prefix: page for prefix, page in self.known.items() if page not in gone}
            for namespace, tokens in self.known:
                assert len(tokens) == self.size or (namespace, tokens[: -self.size]) in self.known, (
                    "a prefix went before its suffix"
                )
            return pages

        return watched

    def _locked_pages(self):
        return {p for s in self.seqs if s.lock for p in s.pages.view(0, s.lock.num_pages).tolist()}

    def _history(self, seq, length):
        return seq.request.namespace, tuple(seq.tokens.view(0, length).tolist())

    def _slot(self, seq, position):
        return seq.pages[position // self.size] * self.size + position % self.size

    def _expected_hit(self, seq, limit):
        """Tokens of the longest known prefix of seq, counted to the token."""
        namespace, tokens = self._history(seq, limit)
        best = 0
        for known_namespace, known in self.known:
            if known_namespace == namespace:
                common = next((i for i, (a, b) in enumerate(zip(known, tokens, strict=False)) if a != b), min(len(known), limit))
                best = max(best, common)
        return best

    def _limit(self, seq):
        owes = seq.request.sampling.prompt_logprobs is not None and seq.num_prompt_logprobs < seq.num_prompt_tokens - 1
        return min(len(seq.tokens) - 1, seq.num_prompt_logprobs) if owes else len(seq.tokens) - 1

    def _new_sequence(self, tokens, namespace, **sampling):
        self.next_id += 1
        prompt = np.array(tokens, np.int32)
        request = Request(str(self.next_id), prompt, SamplingParams(**sampling), 0, 8, namespace=namespace)
        seq = Sequence(self.next_id, request, tokens=IntBuffer(prompt), num_prompt_tokens=len(tokens))
        self.seqs.append(seq)
        return seq

    def _launch(self):
        """What a runner does first: the copies, in order. Then nothing that any sequence counts as computed may be wrong."""
        copies = self.manager.take_page_copies()
        for source, target, count in zip(copies.src.tolist(), copies.dst.tolist(), copies.num_tokens.tolist(), strict=True):
            for offset in range(count):
                self.memory[target * self.size + offset] = self.memory.get(source * self.size + offset)
        for seq in self.seqs:
            for position in range(seq.num_computed_tokens):
                assert self.memory[self._slot(seq, position)] == self._history(seq, position + 1), "a page holds other KV"

    def _waiting(self):
        return [s for s in self.seqs if s.lock is None]

    def _started(self):
        return [s for s in self.seqs if s.lock is not None]

    @precondition(lambda self: len(self.seqs) < 6)
    @rule(tokens=_PROMPTS, namespace=st.sampled_from(_NAMESPACES), logprobs=st.integers(0, 7))
    def submit(self, tokens, namespace, logprobs):
        self._admit(self._new_sequence(tokens, namespace, prompt_logprobs=1 if logprobs == 0 else None), 0)

    @rule(tokens=_PROMPTS)
    def serve(self, tokens):
        """A whole life at once, so that the cache fills up."""
        seq = self._new_sequence(tokens, _NAMESPACES[0])
        self._admit(seq, 0)
        if seq.lock is not None:
            self._compute(seq, len(seq.tokens) - seq.num_computed_tokens)
            self._commit(seq)
        self.manager.release(seq)
        self.seqs.remove(seq)

    @precondition(lambda self: self._waiting())
    @rule(data=st.data(), reserve=st.sampled_from([0, 0, 0, 2]))
    def admit(self, data, reserve):
        self._admit(data.draw(st.sampled_from(self._waiting())), reserve)

    def _admit(self, seq, reserve):
        expected = self._expected_hit(seq, self._limit(seq)) if self.keeps else 0
        before = self.manager.stats()
        first = seq.num_cached_tokens is None
        assert self.manager.peek(seq) == expected
        needed = -(-len(seq.tokens) // self.size)
        if not self.manager.admit(seq, reserve):
            assert seq.lock is None
            assert len(seq.pages) == 0
            assert self.manager.stats().num_free_pages == before.num_free_pages
            assert not self._would_fit(seq, needed + reserve, expected), "refused, though there was room"
            return
        assert seq.num_computed_tokens == expected < len(seq.tokens)
        assert len(seq.pages) == needed
        after = self.manager.stats()
        assert after.num_free_pages + after.num_evictable_pages >= reserve
        assert after.num_hit_tokens - before.num_hit_tokens == (expected if first else 0)
        assert after.num_query_tokens - before.num_query_tokens == (len(seq.tokens) if first else 0)
        assert 0 <= seq.num_cached_tokens < max(1, seq.num_prompt_tokens)

    def _would_fit(self, seq, needed, expected):
        """Whether pages that nobody holds suffice; matched ones that others hold cost nothing."""
        namespace, tokens = self._history(seq, expected // self.size * self.size)
        prefixes = [(namespace, tokens[:end]) for end in range(self.size, len(tokens) + 1, self.size)]
        locked = self._locked_pages()
        shared = sum(self.known[prefix] in locked for prefix in prefixes)
        held = len(locked) + self.manager.stats().num_private_pages
        return needed - shared <= self.manager.pool.num_pages - held

    @precondition(lambda self: self._started())
    @rule(data=st.data(), count=st.integers(1, 12), commit=st.booleans())
    def step(self, data, count, commit):
        """One sequence computes some tokens; where it comes to its end it draws another one."""
        seq = data.draw(st.sampled_from(self._started()))
        count = min(count, len(seq.tokens) - seq.num_computed_tokens)
        if count == 0:
            if len(seq.tokens) == _MAX_TOKENS:
                return
            seq.tokens.append(data.draw(_TOKENS))
            count = 1
        if self.manager.grow(seq, count):
            self._compute(seq, count)
            if commit:
                self._commit(seq)

    def _compute(self, seq, count):
        seq.num_in_flight_tokens = count
        if self.next_id % 2:
            self._commit(seq)  # with a step in flight, what it computes is not published
        audit(self.manager, self.seqs)
        self._launch()
        for position in range(seq.num_computed_tokens, seq.num_computed_tokens + count):
            self.memory[self._slot(seq, position)] = self._history(seq, position + 1)
        seq.num_in_flight_tokens = 0
        seq.num_computed_tokens += count
        if seq.request.sampling.prompt_logprobs is not None:
            seq.num_prompt_logprobs = max(seq.num_prompt_logprobs, min(seq.num_computed_tokens, seq.num_prompt_tokens - 1))

    def _commit(self, seq):
        for _ in range(2):  # the second time does nothing
            self.manager.commit(seq)
            assert seq.lock.num_pages == seq.num_computed_tokens // self.size
        self._learn(seq)

    def _learn(self, seq):
        if self.keeps and seq.lock is not None:
            for index in range(seq.lock.num_pages):
                page = self.known.setdefault(self._history(seq, (index + 1) * self.size), seq.pages[index])
                assert page == seq.pages[index], "the sequence does not use the canonical page"

    @precondition(lambda self: self._started() and len(self.seqs) < 7)
    @rule(data=st.data())
    def fork(self, data):
        parent = data.draw(st.sampled_from(self._started()))
        length = data.draw(st.integers(1, len(parent.tokens)))
        child = self._new_sequence(parent.tokens.view(0, length).tolist(), parent.request.namespace)
        if self.manager.fork(parent, child):
            assert self.keeps
            assert child.num_computed_tokens == min(length - 1, parent.num_computed_tokens)
            assert child.lock.num_pages == child.num_computed_tokens // self.size
        else:
            assert child.lock is None
            assert child.num_computed_tokens == 0
        self._learn(parent)

    @precondition(lambda self: self.seqs)
    @rule(data=st.data(), keep=st.booleans(), finish=st.booleans())
    def release(self, data, keep, finish):
        """Preempt, abort or finish."""
        seq = data.draw(st.sampled_from(self.seqs))
        if keep and seq.lock is not None:
            self._commit(seq)
        self.manager.release(seq)
        self.manager.release(seq)
        assert seq.lock is None
        assert len(seq.pages) == 0
        if finish:
            seq.finish_reason = "stop"
            self.seqs.remove(seq)

    @precondition(lambda self: self.next_id % 7 == 6 and self.manager.stats().num_evictable_pages > 3)
    @rule()
    def flush(self):
        evictable = self.manager.stats().num_evictable_pages
        assert self.manager.flush() == evictable
        assert self.manager.stats().num_evictable_pages == 0

    @invariant()
    def sound(self):
        type(self).num_steps += 1
        audit(self.manager, self.seqs)
        assert not self.keeps or set(self.known.values()) == set(self.cache.owned_pages().tolist())

    def teardown(self):
        if not hasattr(self, "manager"):
            return
        for seq in self.seqs:
            self.manager.release(seq)
        audit(self.manager, self.seqs)
        self.manager.flush()
        assert self.manager.stats().num_free_pages == self.manager.pool.num_pages, "pages were lost"
        assert self.cache.stats().num_nodes == 0


class RadixMachine(KVMachine):
    def make_cache(self, page_size):
        return RadixCache(page_size)


class HashedMachine(KVMachine):
    def make_cache(self, page_size):
        return HashedCache(page_size)


class CollidingMachine(KVMachine):
    """Every digest is the same: only the comparison of tokens keeps prefixes apart."""

    def make_cache(self, page_size):
        return HashedCache(page_size, digest=lambda data: b"same")


class NullMachine(KVMachine):
    keeps = False

    def make_cache(self, page_size):
        return NullCache(page_size)


@pytest.mark.parametrize(
    ("machine", "num_walks"), [(RadixMachine, 30), (HashedMachine, 12), (CollidingMachine, 5), (NullMachine, 4)]
)
def test_random_walks_keep_every_invariant(machine, num_walks):
    num_walks *= 4 if os.environ.get("RAMET_EXACT") == "full" else 1
    machine.num_steps = 0
    walk = settings(
        max_examples=num_walks,
        stateful_step_count=50,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=walk)
    assert machine.num_steps >= 20 * num_walks, "the walks hardly moved"
