"""From decisions (``Chunk``) to arrays (``Batch``), vectorised over sequences.

Everything is copied out of the sequences, so a batch stays what it was while its step runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from ramet.core.batch import Batch, PageCopies, RowSampling
from ramet.core.ids import Int32
from ramet.core.request import Sequence

__all__ = ["Chunk", "build_batch", "indptr_of"]


class Chunk(NamedTuple):
    """One sequence's share of a step: ``num_tokens`` known tokens from position ``start``, and ``drafts``, guesses behind them.

    ``samples``: the chunk reaches the last known token and the next one is wanted; only then may there be drafts, and behind
    each of them the next one is wanted too. ``first_prompt_logprob`` and ``num_prompt_logprobs`` say for which prompt positions
    logprobs are wanted; the row before a position gives them.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    samples: bool
    first_prompt_logprob: int = 0
    num_prompt_logprobs: int = 0
    drafts: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """Where its known tokens end."""
        return self.start + self.num_tokens

    @property
    def num_rows(self) -> int:
        return self.num_tokens + len(self.drafts)


def build_batch(step: int, page_size: int, chunks: list[Chunk], page_copies: PageCopies, sampling: RowSampling) -> Batch:
    """Lay ``chunks`` out one after another. Each sequence's pages must cover its chunk's end, drafts included.

    ``sampling`` has a row for each chunk that samples, and one for each draft.
    """
    ends = [c.start + c.num_rows for c in chunks]
    query_indptr = indptr_of([c.num_rows for c in chunks])
    context_lens = np.array(ends, np.int32)
    tables = [c.sequence.pages.view(0, -(-end // page_size)) for c, end in zip(chunks, ends, strict=True)]
    page_indptr = indptr_of(map(len, tables))
    page_ids = np.concatenate(tables)
    if query_indptr[-1] == len(chunks):  # one token each: in the last page of its table
        positions = context_lens - np.int32(1)
        pages = page_ids[page_indptr[1:] - np.int32(1)]
    else:
        lens = query_indptr[1:] - query_indptr[:-1]
        positions = np.arange(query_indptr[-1], dtype=np.int32) + np.repeat(context_lens - query_indptr[1:], lens)
        pages = page_ids[positions // np.int32(page_size) + np.repeat(page_indptr[:-1], lens)]
    rows, targets, best = _prompt_logprobs(chunks, query_indptr)
    return Batch(
        step=step,
        page_size=page_size,
        seq_ids=np.array([c.sequence.seq_id for c in chunks], np.int64),
        query_indptr=query_indptr,
        context_lens=context_lens,
        token_ids=_token_ids(chunks),
        positions=positions,
        slots=pages * np.int32(page_size) + positions % np.int32(page_size),
        page_indptr=page_indptr,
        page_ids=page_ids,
        sample_rows=_sample_rows(chunks, query_indptr),
        sampling=sampling,
        prompt_logprob_rows=rows,
        prompt_logprob_targets=targets,
        prompt_logprob_k=best,
        page_copies=page_copies,
        adapters=_adapters(chunks),
    )


def indptr_of(lens: Iterable[int]) -> Int32:
    """int32[n + 1]: where each of n runs begins, and where the last one ends."""
    return np.array(list(accumulate(lens, initial=0)), np.int32)


_NO_INTS: Int32 = np.empty(0, np.int32)


def _token_ids(chunks: list[Chunk]) -> Int32:
    parts = []
    for chunk in chunks:
        parts.append(chunk.sequence.tokens.view(chunk.start, chunk.end))
        if chunk.drafts:
            parts.append(np.array(chunk.drafts, np.int32))
    return np.concatenate(parts)


def _adapters(chunks: list[Chunk]) -> Int32:
    """What a sequence's KV is filed under is what it is computed with: both are its namespace's generation."""
    namespaces = [chunk.sequence.request.namespace for chunk in chunks]
    if not any(namespace.adapter for namespace in namespaces):
        return _NO_INTS
    return np.array([namespace.generation if namespace.adapter else 0 for namespace in namespaces], np.int32)


def _sample_rows(chunks: list[Chunk], query_indptr: Int32) -> Int32:
    """The last row of each chunk that samples, and before it one for each draft but the last."""
    last_rows = query_indptr[1:] - np.int32(1)
    if not any(chunk.drafts for chunk in chunks):
        return last_rows[[c.samples for c in chunks]]
    rows = [np.arange(last - len(c.drafts), last + 1) for c, last in zip(chunks, last_rows.tolist(), strict=True) if c.samples]
    return np.concatenate(rows).astype(np.int32)


def _prompt_logprobs(chunks: list[Chunk], query_indptr: Int32) -> tuple[Int32, Int32, Int32]:
    """Rows, the prompt token that follows each, and how many of the best are wanted there."""
    wanted = [(int(query_indptr[i]), c) for i, c in enumerate(chunks) if c.num_prompt_logprobs]
    if not wanted:
        return _NO_INTS, _NO_INTS, _NO_INTS
    rows, targets, best = [], [], []
    for first_row, chunk in wanted:
        first, count = chunk.first_prompt_logprob, chunk.num_prompt_logprobs
        rows.append(np.arange(count, dtype=np.int32) + np.int32(first_row + first - 1 - chunk.start))
        targets.append(chunk.sequence.tokens.view(first, first + count))
        best.append(np.full(count, chunk.sequence.request.sampling.prompt_logprobs, np.int32))
    return np.concatenate(rows), np.concatenate(targets), np.concatenate(best)
