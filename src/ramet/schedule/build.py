"""From decisions (``Chunk``) to arrays (``Batch``), vectorised over sequences.

Everything is copied out of the sequences, so a batch stays what it was while its step runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ramet.core.batch import Batch, PageCopies, RowSampling
from ramet.core.ids import Int32
from ramet.core.request import Request, Sequence
from ramet.schedule.masks import TokenMasks

__all__ = ["Chunk", "build_batch"]


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """One sequence's share of a step: ``num_tokens`` tokens from position ``start``.

    ``samples``: the chunk reaches the last known token and the next one is wanted. ``first_prompt_logprob`` and
    ``num_prompt_logprobs`` say for which prompt positions logprobs are wanted; the row before a position gives them.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    samples: bool
    first_prompt_logprob: int = 0
    num_prompt_logprobs: int = 0

    @property
    def end(self) -> int:
        return self.start + self.num_tokens


def build_batch(
    step: int, page_size: int, chunks: list[Chunk], page_copies: PageCopies, masks: TokenMasks | None = None
) -> Batch:
    """Lay ``chunks`` out one after another. Each sequence's pages must cover its chunk's end.

    ``masks`` are those of the sampled sequences; None where none has a grammar.
    """
    starts = np.array([c.start for c in chunks], np.int32)
    query_indptr = _indptr(c.num_tokens for c in chunks)
    lens = np.array([c.num_tokens for c in chunks], np.int32)
    tables = [c.sequence.pages.view(0, -(-c.end // page_size)) for c in chunks]
    page_indptr = _indptr(map(len, tables))
    page_ids = np.concatenate(tables)
    positions = np.arange(query_indptr[-1], dtype=np.int32) + np.repeat(starts - query_indptr[:-1], lens)
    page_index, offsets = np.divmod(positions, np.int32(page_size))
    slots = page_ids[page_index + np.repeat(page_indptr[:-1], lens)] * np.int32(page_size) + offsets
    sampled = [i for i, c in enumerate(chunks) if c.samples]
    rows, targets, best = _prompt_logprobs(chunks, query_indptr)
    return Batch(
        step=step,
        page_size=page_size,
        seq_ids=np.array([c.sequence.seq_id for c in chunks], np.int64),
        query_indptr=query_indptr,
        context_lens=starts + lens,
        token_ids=np.concatenate([c.sequence.tokens.view(c.start, c.end) for c in chunks]),
        positions=positions,
        slots=slots,
        page_indptr=page_indptr,
        page_ids=page_ids,
        sample_rows=query_indptr[1:][sampled] - np.int32(1),
        sampling=_row_sampling([chunks[i].sequence for i in sampled], masks),
        prompt_logprob_rows=rows,
        prompt_logprob_targets=targets,
        prompt_logprob_k=best,
        page_copies=page_copies,
    )


def _indptr(lens: Iterable[int]) -> Int32:
    """int32[n + 1]: where each of n runs begins, and where the last one ends."""
    offsets = [0]
    for size in lens:
        offsets.append(offsets[-1] + size)
    return np.array(offsets, np.int32)


_NO_INTS: Int32 = np.empty(0, np.int32)
_NO_FLOATS = np.empty(0, np.float32)
_NO_MASKS = np.empty((0, 0), np.uint32)


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


def _row_sampling(seqs: list[Sequence], masks: TokenMasks | None) -> RowSampling:
    """The sampling parameters of each sequence whose next token is chosen."""
    params = [seq.request.sampling for seq in seqs]
    histories = [seq.tokens.view() if _has_penalty(seq.request) else _NO_INTS for seq in seqs]
    bias_indptr, bias_ids = _ragged([seq.request.bias_ids for seq in seqs])
    banned_indptr, banned_ids = _ragged([_banned(seq) for seq in seqs])
    allowed_indptr, allowed_ids = _ragged([seq.request.allowed_ids for seq in seqs])
    history_indptr, history_ids = _ragged(histories)
    return RowSampling(
        temperature=np.array([p.temperature for p in params], np.float32),
        top_p=np.array([p.top_p for p in params], np.float32),
        top_k=np.array([max(p.top_k, 0) for p in params], np.int32),
        min_p=np.array([p.min_p for p in params], np.float32),
        presence_penalty=np.array([p.presence_penalty for p in params], np.float32),
        frequency_penalty=np.array([p.frequency_penalty for p in params], np.float32),
        repetition_penalty=np.array([p.repetition_penalty for p in params], np.float32),
        seed=np.array([seq.request.seed for seq in seqs], np.uint64),
        sample_index=np.array([seq.index for seq in seqs], np.int32),
        counter=np.array([len(seq.tokens) for seq in seqs], np.int64),
        num_logprobs=np.array([-1 if p.logprobs is None else p.logprobs for p in params], np.int32),
        bias_indptr=bias_indptr,
        bias_ids=bias_ids,
        bias_values=np.concatenate([seq.request.bias_values for seq in seqs]) if len(bias_ids) else _NO_FLOATS,
        banned_indptr=banned_indptr,
        banned_ids=banned_ids,
        allowed_indptr=allowed_indptr,
        allowed_ids=allowed_ids,
        history_indptr=history_indptr,
        history_ids=history_ids,
        history_prompt_lens=np.array(
            [min(seq.num_prompt_tokens, len(h)) for seq, h in zip(seqs, histories, strict=True)], np.int32
        ),
        mask_indptr=np.zeros(len(seqs) + 1, np.int32) if masks is None else masks.indptr,
        masks=_NO_MASKS if masks is None else masks.words,
    )


def _banned(seq: Sequence) -> Int32:
    """Whatever would end the output may not be chosen before ``min_tokens``."""
    early = seq.num_output_tokens < seq.request.sampling.min_tokens
    return np.array(sorted(seq.request.stop_ids), np.int32) if early else _NO_INTS


def _has_penalty(request: Request) -> bool:
    p = request.sampling
    return p.presence_penalty != 0 or p.frequency_penalty != 0 or p.repetition_penalty != 1


def _ragged(rows: list[Int32]) -> tuple[Int32, Int32]:
    """CSR of ragged rows: int32[n + 1] offsets, int32 values."""
    indptr = _indptr(map(len, rows))
    return indptr, np.concatenate(rows) if indptr[-1] else _NO_INTS
