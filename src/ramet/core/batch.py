"""What one step computes: arrays only, so that a step can be logged, replayed and sent.

Shape letters: T tokens, B sequences, R sampled rows, S page size. These are msgspec structs because each step makes them anew:
one of 23 fields takes 0.3 us where a frozen dataclass takes 8.
"""

from __future__ import annotations

import msgspec
import numpy as np

from ramet.core.ids import Float32, Int32, Int64, UInt32

__all__ = ["NO_MASKS", "Batch", "PageCopies", "RowSampling"]

NO_MASKS: UInt32 = np.empty((0, 0), np.uint32)
_NONE: Int32 = np.empty(0, np.int32)


class PageCopies(msgspec.Struct, frozen=True, eq=False):
    """Copy-on-write operations, done one after another, in order, before the step computes.

    Entry i copies the first ``num_tokens[i]`` slots of page ``src[i]`` to page ``dst[i]``, in every layer.
    """

    src: Int32
    dst: Int32
    num_tokens: Int32

    def __len__(self) -> int:
        return len(self.src)


class RowSampling(msgspec.Struct, frozen=True, eq=False):
    """Sampling parameters of the R sampled rows; ragged ones in CSR form (``*_indptr`` int32[R + 1]).

    A row's random number is a function of ``seed``, ``sample_index`` (which of the request's n) and ``counter`` (the
    absolute position of the token drawn) alone. ``banned`` ids may not be chosen (EOS before min_tokens). ``allowed``
    empty means all. ``history`` holds prompt and output tokens of rows with penalties, the first
    ``history_prompt_lens[r]`` of them prompt. ``num_logprobs`` -1 is none wanted, k >= 0 the chosen one and the k best.
    ``masks`` uint32[M, W], W words of 32 tokens, has a row for each sampled row with a grammar, in their order: only tokens whose
    bit is set may be chosen. ``mask_indptr`` tells which rows have one. A batch has none yet when it is launched: they are made
    while it computes.
    """

    temperature: Float32
    top_p: Float32
    top_k: Int32
    min_p: Float32
    presence_penalty: Float32
    frequency_penalty: Float32
    repetition_penalty: Float32
    seed: np.ndarray[tuple[int], np.dtype[np.uint64]]
    sample_index: Int32
    counter: Int64
    num_logprobs: Int32
    bias_indptr: Int32
    bias_ids: Int32
    bias_values: Float32
    banned_indptr: Int32
    banned_ids: Int32
    allowed_indptr: Int32
    allowed_ids: Int32
    history_indptr: Int32
    history_ids: Int32
    history_prompt_lens: Int32
    mask_indptr: Int32
    masks: UInt32

    def __len__(self) -> int:
        return len(self.temperature)


class Batch(msgspec.Struct, frozen=True, eq=False):
    """One step's work. Row t is one token of one sequence; a sequence's rows are neighbours, in order of position.

    ``query_indptr[b]:query_indptr[b+1]`` are the rows of ``seq_ids[b]``; ``context_lens[b]`` its KV tokens once the step is
    done; ``slots[t] = page_id * S + offset`` where row t's K and V go; ``page_ids[page_indptr[b]:page_indptr[b+1]]`` its page
    table. ``sample_rows`` int32[R] are rows whose next token is chosen. ``prompt_logprob_rows`` are rows whose logprob of
    the following prompt token (``prompt_logprob_targets``) and of the ``prompt_logprob_k`` best are wanted. ``adapters``
    int32[B] are the generations of the sequences' adapters, 0 for none; empty where no sequence has one.
    """

    step: int
    page_size: int
    seq_ids: Int64
    query_indptr: Int32
    context_lens: Int32
    token_ids: Int32
    positions: Int32
    slots: Int32
    page_indptr: Int32
    page_ids: Int32
    sample_rows: Int32
    sampling: RowSampling
    prompt_logprob_rows: Int32
    prompt_logprob_targets: Int32
    prompt_logprob_k: Int32
    page_copies: PageCopies
    adapters: Int32 = _NONE

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_seqs(self) -> int:
        return len(self.seq_ids)
