"""The sampling parameters of a step's rows, as arrays."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from ramet.core.batch import NO_MASKS, RowSampling
from ramet.core.ids import Int32
from ramet.core.request import Sequence
from ramet.schedule.build import Chunk, indptr_of

__all__ = ["SamplingRows"]

_NO_INTS: Int32 = np.empty(0, np.int32)
_NO_FLOATS = np.empty(0, np.float32)


class SamplingRows:
    """Makes a step's ``RowSampling``, from the last one where the same sequences are sampled again: then only the tokens'
    positions are new. That is most steps by far, and takes 2 us for one row (a new one 23) and 10 for 64 (130).
    The rows of a sequence's drafts are its own once more, where nothing depends on the tokens before them.
    """

    def __init__(self) -> None:
        self._seqs: list[Sequence] = []
        self._rows = _rows_of([])
        self._is_steady = True

    def of(self, chunks: list[Chunk]) -> RowSampling:
        """Of the chunks that sample, with a row for each of their drafts."""
        seqs = [chunk.sequence for chunk in chunks]
        if not self._is_steady or seqs != self._seqs:
            self._seqs, self._rows = seqs, _rows_of([_Row(seq) for seq in seqs])
            self._is_steady = not any(_has_penalty(seq) or _Row(seq).is_early for seq in seqs)
        rows, lens = self._rows, [len(seq.tokens) for seq in seqs]
        if any(chunk.drafts for chunk in chunks):
            counts = [len(chunk.drafts) + 1 for chunk in chunks]
            lens = [first + place for first, count in zip(lens, counts, strict=True) for place in range(count)]
            if self._is_steady and not (len(rows.bias_ids) or len(rows.allowed_ids)):
                rows = _repeated(rows, counts)
            else:
                rows = _rows_of([_Row(one.sequence, one.drafts[:i]) for one in chunks for i in range(len(one.drafts) + 1)])
        return msgspec.structs.replace(rows, counter=np.array(lens, np.int64))


class _Row(NamedTuple):
    """Where a token of ``sequence`` is chosen, ``drafts`` standing behind those that it has."""

    sequence: Sequence
    drafts: tuple[int, ...] = ()

    @property
    def is_early(self) -> bool:
        """Whatever would end the output may not be chosen before ``min_tokens``."""
        return self.sequence.num_output_tokens + len(self.drafts) < self.sequence.request.sampling.min_tokens

    @property
    def banned(self) -> Int32:
        return np.array(sorted(self.sequence.request.stop_ids), np.int32) if self.is_early else _NO_INTS

    @property
    def history(self) -> Int32:
        """All tokens before it, where penalties need them."""
        if not _has_penalty(self.sequence):
            return _NO_INTS
        tokens = self.sequence.tokens.view()
        return np.concatenate([tokens, np.array(self.drafts, np.int32)]) if self.drafts else tokens


def _rows_of(rows: list[_Row]) -> RowSampling:
    """All but counters and masks."""
    seqs = [row.sequence for row in rows]
    params = [seq.request.sampling for seq in seqs]
    histories = [row.history for row in rows]
    bias_indptr, bias_ids = _ragged([seq.request.bias_ids for seq in seqs])
    banned_indptr, banned_ids = _ragged([row.banned for row in rows])
    allowed_indptr, allowed_ids = _ragged([seq.request.allowed_ids for seq in seqs])
    history_indptr, history_ids = _ragged(histories)
    prompt_lens = [min(seq.num_prompt_tokens, len(h)) for seq, h in zip(seqs, histories, strict=True)]
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
        counter=np.empty(0, np.int64),
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
        history_prompt_lens=np.array(prompt_lens, np.int32),
        mask_indptr=indptr_of(int(seq.matcher is not None) for seq in seqs),
        masks=NO_MASKS,
    )


_OF_EACH = (
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("seed", "sample_index", "num_logprobs", "history_prompt_lens"),
)


def _repeated(rows: RowSampling, counts: list[int]) -> RowSampling:
    """So many of each row; they have no lists of ids."""
    places = np.repeat(np.arange(len(counts)), counts)
    none = np.zeros(len(places) + 1, np.int32)
    num_masks = np.diff(rows.mask_indptr)[places].cumsum(dtype=np.int32)
    return msgspec.structs.replace(
        rows,
        **{name: getattr(rows, name)[places] for name in _OF_EACH},
        bias_indptr=none,
        banned_indptr=none,
        allowed_indptr=none,
        history_indptr=none,
        mask_indptr=np.concatenate([none[:1], num_masks]),
    )


def _has_penalty(seq: Sequence) -> bool:
    p = seq.request.sampling
    return p.presence_penalty != 0 or p.frequency_penalty != 0 or p.repetition_penalty != 1


def _ragged(rows: list[Int32]) -> tuple[Int32, Int32]:
    """CSR of ragged rows: int32[n + 1] offsets, int32 values."""
    indptr = indptr_of(map(len, rows))
    return indptr, np.concatenate(rows) if indptr[-1] else _NO_INTS
