"""Batches laid out by hand, without a scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from support.sampling_rows import rows_of

from ramet.core.batch import Batch, PageCopies

__all__ = ["NO_COPIES", "PAGE_SIZE", "ints", "make_batch"]

PAGE_SIZE = 4


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


NO_COPIES = PageCopies(ints(), ints(), ints())


def make_batch(
    step: int,
    chunks: Sequence[tuple[Sequence[int], int, Sequence[int]]],
    *,
    copies: PageCopies = NO_COPIES,
    sampled: Sequence[int] | None = None,
    wanted: Sequence[tuple[int, int, int]] = (),
    rows: Sequence[Mapping[str, Any]] | None = None,
    page_size: int = PAGE_SIZE,
) -> Batch:
    """``chunks``: (token ids, first position, pages) a sequence. ``sampled`` rows: each sequence's last unless said otherwise,
    greedy unless ``rows`` has parameters. ``wanted``: (row, target, k) of prompt logprobs.
    """
    lens = [len(tokens) for tokens, _, _ in chunks]
    indptr = np.cumsum([0, *lens], dtype=np.int32)
    positions = [np.arange(start, start + len(tokens)) for tokens, start, _ in chunks]
    slots = [
        ints(*pages)[at // page_size] * page_size + at % page_size for at, (_, _, pages) in zip(positions, chunks, strict=True)
    ]
    sample_rows = indptr[1:] - 1 if sampled is None else ints(*sampled)
    return Batch(
        step=step,
        page_size=page_size,
        seq_ids=np.arange(len(chunks), dtype=np.int64),
        query_indptr=indptr,
        context_lens=ints(*[start + len(tokens) for tokens, start, _ in chunks]),
        token_ids=np.concatenate([ints(*tokens) for tokens, _, _ in chunks]),
        positions=np.concatenate(positions).astype(np.int32),
        slots=np.concatenate(slots).astype(np.int32),
        page_indptr=np.cumsum([0, *[len(pages) for _, _, pages in chunks]], dtype=np.int32),
        page_ids=np.concatenate([ints(*pages) for _, _, pages in chunks]),
        sample_rows=sample_rows.astype(np.int32),
        sampling=rows_of(*(rows or [{"temperature": 0}] * len(sample_rows))),
        prompt_logprob_rows=ints(*[row for row, _, _ in wanted]),
        prompt_logprob_targets=ints(*[target for _, target, _ in wanted]),
        prompt_logprob_k=ints(*[k for _, _, k in wanted]),
        page_copies=copies,
    )
