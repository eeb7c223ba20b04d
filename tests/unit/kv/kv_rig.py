"""Sequences and a manager for tests of the KV layer, without scheduler and runner."""

from __future__ import annotations

import itertools

import numpy as np

from ramet.core.ids import IntBuffer
from ramet.core.request import Namespace, Request, Sequence
from ramet.core.sampling import SamplingParams
from ramet.kv.audit import audit
from ramet.kv.manager import KVManager
from ramet.kv.pool import PagePool
from ramet.kv.radix import RadixCache

_ids = itertools.count(1)


def make_sequence(tokens, *, num_prompt_tokens=None, prompt_logprobs=None, **namespace):
    tokens = np.array(tokens, np.int32)
    sampling = SamplingParams(prompt_logprobs=prompt_logprobs)
    request = Request(f"r{next(_ids)}", tokens, sampling, 0, 16, namespace=Namespace(**namespace))
    num_prompt_tokens = len(tokens) if num_prompt_tokens is None else num_prompt_tokens
    return Sequence(next(_ids), request, tokens=IntBuffer(tokens), num_prompt_tokens=num_prompt_tokens)


class Rig:
    """A manager over a small pool, and the sequences it is audited with."""

    def __init__(self, num_pages, page_size, cache=RadixCache):
        self.manager = KVManager(PagePool(num_pages), cache(page_size), page_size)
        self.live = []

    def admit(self, tokens, **options):
        seq = make_sequence(tokens, **options)
        if not self.manager.admit(seq):
            return None
        self.live.append(seq)
        self.audit()
        return seq

    def compute(self, seq, num_tokens=None):
        """As if a step had computed that many tokens, all by default."""
        num_tokens = len(seq.tokens) - seq.num_computed_tokens if num_tokens is None else num_tokens
        assert self.manager.grow(seq, num_tokens)
        self.manager.take_page_copies()
        seq.num_computed_tokens += num_tokens
        self.manager.commit(seq)
        self.audit()

    def finish(self, seq):
        self.manager.release(seq)
        self.live.remove(seq)
        self.audit()

    def serve(self, tokens, **options):
        """Run a sequence from admission to its end; returns the tokens it found cached."""
        seq = self.admit(tokens, **options)
        assert seq is not None, "no room"
        self.compute(seq)
        self.finish(seq)
        return seq.num_cached_tokens

    def audit(self):
        audit(self.manager, self.live)
