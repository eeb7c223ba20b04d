"""From decisions (``Chunk``) to arrays (``Batch``).

Everything is copied out of the sequences, so a batch stays what it was while its step runs. One native call does it: between two
steps the caches hold weights, and a dozen small numpy operations take 100 us there.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from ramet._native import lay_out
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
    tokens = [c.sequence.tokens.view(c.start, c.end) if not c.drafts else _with_drafts(c) for c in chunks]
    starts = [c.start for c in chunks]
    tables = [c.sequence.pages.view() for c in chunks]
    num_sampled = [len(c.drafts) + 1 if c.samples else 0 for c in chunks]
    laid = np.frombuffer(lay_out(page_size, starts, tokens, tables, num_sampled), np.int32)
    num_seqs, num_rows = len(chunks), sum(map(len, tokens))
    num_pages = len(laid) - 3 * num_seqs - 2 - 3 * num_rows - len(sampling)
    sizes = num_seqs + 1, num_seqs, num_rows, num_rows, num_rows, num_seqs + 1, num_pages, len(sampling)
    query_indptr, context_lens, token_ids, positions, slots, page_indptr, page_ids, sample_rows = _cut(laid, sizes)
    rows, targets, best = _prompt_logprobs(chunks, query_indptr)
    return Batch(
        step=step,
        page_size=page_size,
        seq_ids=np.array([c.sequence.seq_id for c in chunks], np.int64),
        query_indptr=query_indptr,
        context_lens=context_lens,
        token_ids=token_ids,
        positions=positions,
        slots=slots,
        page_indptr=page_indptr,
        page_ids=page_ids,
        sample_rows=sample_rows,
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


def _with_drafts(chunk: Chunk) -> Int32:
    return np.concatenate([chunk.sequence.tokens.view(chunk.start, chunk.end), np.array(chunk.drafts, np.int32)])


def _adapters(chunks: list[Chunk]) -> Int32:
    """What a sequence's KV is filed under is what it is computed with: both are its namespace's generation."""
    namespaces = [chunk.sequence.request.namespace for chunk in chunks]
    if not any(namespace.adapter for namespace in namespaces):
        return _NO_INTS
    return np.array([namespace.generation if namespace.adapter else 0 for namespace in namespaces], np.int32)


def _cut(values: Int32, sizes: Iterable[int]) -> list[Int32]:
    """Parts of these sizes, one behind the other, sharing memory."""
    parts, end = [], 0
    for size in sizes:
        start, end = end, end + size
        parts.append(values[start:end])
    return parts


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
