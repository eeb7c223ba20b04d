"""Holds a batch against the memory it may touch, before anything is computed.

A slot out of range would be a write outside the pool, a page of another sequence a wrong answer that no kernel can see. A few
vectorised comparisons a step rule out both, whatever the backend checks itself.
"""

from __future__ import annotations

import numpy as np

from ramet.core.batch import Batch, PageCopies
from ramet.core.ids import Int32
from ramet.errors import EngineDead

__all__ = ["check_batch"]


def check_batch(batch: Batch, page_size: int, num_pages: int) -> None:
    """Raise ``EngineDead`` where the batch contradicts itself or leaves the pool of ``num_pages`` pages.

    Holds: page size agrees; a sequence's rows are the last of its context, in order; each row's slot is the one that its own
    sequence's page table gives its position; the page table covers the context; page ids, sampled rows and page copies are in
    range.
    """
    if batch.page_size != page_size:
        raise EngineDead(f"step {batch.step}: page size {batch.page_size}, but the KV memory has {page_size}")
    _check_range(batch, "query_indptr", batch.query_indptr, batch.num_tokens + 1)
    _check_range(batch, "page_indptr", batch.page_indptr, len(batch.page_ids) + 1)
    _check_range(batch, "page_ids", batch.page_ids, num_pages)
    _check_range(batch, "sample_rows", batch.sample_rows, batch.num_tokens)
    _check_range(batch, "prompt_logprob_rows", batch.prompt_logprob_rows, batch.num_tokens)
    _check_copies(batch, batch.page_copies, num_pages)
    num_own_pages = batch.page_indptr[1:] - batch.page_indptr[:-1]
    if (num_own_pages * page_size < batch.context_lens).any():
        raise EngineDead(f"step {batch.step}: a page table is shorter than its sequence's context")
    num_rows = batch.query_indptr[1:] - batch.query_indptr[:-1]
    sizes = {int(num_rows.sum()), batch.num_tokens, len(batch.positions), len(batch.slots)}
    if len(sizes) > 1 or ((num_rows < 1) | (num_rows > batch.context_lens)).any():
        raise EngineDead(f"step {batch.step}: rows and sequences do not add up")
    seq_of_row = np.arange(batch.num_seqs).repeat(num_rows)
    positions = np.arange(batch.num_tokens) + (batch.context_lens - batch.query_indptr[1:])[seq_of_row]
    if (batch.positions != positions).any():
        raise EngineDead(f"step {batch.step}: positions of a sequence are not those that end its context")
    pages = batch.page_ids[batch.page_indptr[seq_of_row] + positions // page_size]
    if (batch.slots != pages * page_size + positions % page_size).any():
        raise EngineDead(f"step {batch.step}: a slot is not the one that its sequence's page table gives")


def _check_copies(batch: Batch, copies: PageCopies, num_pages: int) -> None:
    _check_range(batch, "page_copies.src", copies.src, num_pages)
    _check_range(batch, "page_copies.dst", copies.dst, num_pages)
    _check_range(batch, "page_copies.num_tokens", copies.num_tokens, batch.page_size + 1)


def _check_range(batch: Batch, name: str, values: Int32, end: int) -> None:
    if len(values) and not 0 <= values.min() <= values.max() < end:
        raise EngineDead(f"step {batch.step}: {name} holds {values.min()} to {values.max()}, outside 0 to {end - 1}")
