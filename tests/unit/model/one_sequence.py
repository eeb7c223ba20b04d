"""Runs one sequence through a decoder, without an engine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from support.kv_layers import unwritten_kv

from ramet.core.batch import Batch, PageCopies, RowSampling
from ramet.kernels.backend import Backend, KVFormat
from ramet.kernels.program import NO_ADAPTERS, Adapters
from ramet.model.decoder import Decoder
from ramet.model.spec import Checkpoint

PAGE_SIZE = 16


def int32(values: Sequence[int] | npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    return np.asarray(values, np.int32)


class OneSequence:
    """A decoder with KV for up to ``max_tokens``; ``feed`` gives the logits of every token it is fed.

    Slots that were never written hold NaN.
    """

    def __init__(self, checkpoint: Checkpoint, backend: Backend, max_tokens: int = 512, *, kv: KVFormat = "float32") -> None:
        self.decoder = Decoder(checkpoint, backend)
        spec = checkpoint.spec
        self.layers = unwritten_kv(spec.num_layers, max_tokens, spec.num_kv_heads, spec.head_dim, kv)
        self.num_pages = max_tokens // PAGE_SIZE
        self.length = 0

    def feed(self, tokens: Sequence[int], adapters: Adapters = NO_ADAPTERS) -> npt.NDArray[np.float32]:
        """float32[len(tokens), V]"""
        hidden = self.decoder.forward(self._batch(int32(tokens)), self.layers, int32(range(len(tokens))), adapters)
        self.length += len(tokens)
        return self.decoder.logits(hidden)

    def greedy(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        token = int(self.feed(prompt)[-1].argmax())
        found = [token]
        while len(found) < num_tokens:
            token = int(self.feed([token])[-1].argmax())
            found.append(token)
        return found

    def _batch(self, tokens: npt.NDArray[np.int32]) -> Batch:
        start, end = self.length, self.length + len(tokens)
        pages = np.arange(self.num_pages, dtype=np.int32)[::-1].copy()  # not in order, so that slots differ from positions
        positions = np.arange(start, end, dtype=np.int32)
        none = int32([])
        return Batch(
            step=0,
            page_size=PAGE_SIZE,
            seq_ids=np.zeros(1, np.int64),
            query_indptr=int32([0, len(tokens)]),
            context_lens=int32([end]),
            token_ids=tokens,
            positions=positions,
            slots=pages[positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE,
            page_indptr=int32([0, self.num_pages]),
            page_ids=pages,
            sample_rows=none,
            sampling=_no_rows(),
            prompt_logprob_rows=none,
            prompt_logprob_targets=none,
            prompt_logprob_k=none,
            page_copies=PageCopies(none, none, none),
        )


def _no_rows() -> RowSampling:
    empty = {"seed": np.empty(0, np.uint64), "counter": np.empty(0, np.int64)}
    for name, kind in RowSampling.__annotations__.items():
        if name.endswith("_indptr"):
            empty[name] = int32([0])
        elif name not in empty:
            empty[name] = np.empty(0, {"Float32": np.float32, "UInt32": np.uint32}.get(kind, np.int32))
    return RowSampling(**empty)
