"""From sequences to arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.engines import built

from ramet.core.batch import PageCopies, RowSampling
from ramet.core.ids import IntBuffer
from ramet.core.request import Request, Sequence
from ramet.core.sampling import SamplingParams
from ramet.schedule.build import Chunk
from ramet.schedule.sampling_rows import SamplingRows

NO_COPIES = PageCopies(*(np.empty(0, np.int32),) * 3)


def sequence(seq_id: int, prompt: list[int], output: list[int], pages: list[int], **sampling: Any) -> Sequence:
    params = SamplingParams(**sampling)
    request = Request(f"r{seq_id}", np.array(prompt, np.int32), params, seed=2**64 - 1, max_tokens=9, stop_ids=frozenset({4, 3}))
    return Sequence(
        seq_id,
        request,
        index=seq_id % 3,
        tokens=IntBuffer(prompt + output),
        num_prompt_tokens=len(prompt),
        pages=IntBuffer(pages),
    )


def test_a_mixed_batch_is_laid_out_row_by_row() -> None:
    decode = sequence(7, [5, 6, 7], [8, 9], [3, 1])
    chunk = sequence(8, [20, 21, 22, 23, 24, 25], [], [5, 0])
    whole = sequence(9, [30, 31], [], [2, 9])  # a page more than its chunk needs
    chunks = [Chunk(decode, 4, 1, True), Chunk(chunk, 2, 3, False), Chunk(whole, 0, 2, True)]
    batch = built(11, 4, chunks, NO_COPIES)
    assert (batch.step, batch.page_size, batch.num_seqs, batch.num_tokens) == (11, 4, 3, 6)
    assert batch.seq_ids.tolist() == [7, 8, 9]
    assert batch.query_indptr.tolist() == [0, 1, 4, 6]
    assert batch.context_lens.tolist() == [5, 5, 2]
    assert batch.token_ids.tolist() == [9, 22, 23, 24, 30, 31]
    assert batch.positions.tolist() == [4, 2, 3, 4, 0, 1]
    assert batch.slots.tolist() == [4, 22, 23, 0, 8, 9]
    assert batch.page_indptr.tolist() == [0, 2, 4, 5]
    assert batch.page_ids.tolist() == [3, 1, 5, 0, 2]
    assert batch.sample_rows.tolist() == [0, 5]
    assert batch.sampling.counter.tolist() == [5, 2], "the absolute position of the token drawn"
    assert batch.sampling.seed.tolist() == [2**64 - 1] * 2
    assert batch.sampling.sample_index.tolist() == [1, 0]
    for name in ("query_indptr", "context_lens", "token_ids", "positions", "slots", "page_indptr", "page_ids", "sample_rows"):
        assert getattr(batch, name).dtype == np.int32, name
    assert batch.seq_ids.dtype == np.int64


def test_a_batch_stays_what_it_was_when_its_sequences_change() -> None:
    seq = sequence(1, [5, 6, 7], [], [3])
    batch = built(1, 4, [Chunk(seq, 0, 3, True)], NO_COPIES)
    seq.pages.replace(0, np.array([9], np.int32))
    seq.tokens.replace(0, np.array([40], np.int32))
    assert (batch.page_ids.tolist(), batch.token_ids.tolist()) == ([3], [5, 6, 7])


def test_pages_that_do_not_cover_a_chunk_are_refused() -> None:
    seq = sequence(1, [5, 6, 7, 8, 9], [], [3])
    with pytest.raises(ValueError, match="a page table is shorter than its sequence's context"):
        built(1, 4, [Chunk(seq, 0, 5, True)], NO_COPIES)


def test_prompt_logprob_rows_stand_before_their_targets() -> None:
    first = sequence(1, [5, 6], [], [3])
    seq = sequence(2, [10, 11, 12, 13, 14, 15], [], [4, 5], prompt_logprobs=2)
    batch = built(1, 4, [Chunk(first, 0, 2, True), Chunk(seq, 1, 4, False, 3, 3)], NO_COPIES)
    # Rows of seq: position 1 is row 2. Wanted are the tokens at positions 3, 4 and 5, given by positions 2, 3 and 4.
    assert batch.prompt_logprob_rows.tolist() == [3, 4, 5]
    assert batch.prompt_logprob_targets.tolist() == [13, 14, 15]
    assert batch.prompt_logprob_k.tolist() == [2, 2, 2]


def test_sampling_parameters_row_by_row() -> None:
    plain = sequence(0, [5, 6], [7], [0], temperature=0.0, top_k=-1)
    rich = sequence(
        1, [5, 6], [7], [1], temperature=0.5, top_p=0.9, top_k=3, min_p=0.1, frequency_penalty=1.5, min_tokens=2, logprobs=4,
        logit_bias={9: 1.5, 8: -2.0}, allowed_token_ids=[9, 5],
    )  # fmt: skip
    done_with_min = sequence(2, [5, 6], [7, 8], [2], repetition_penalty=1.2, min_tokens=2)
    chunks = [Chunk(plain, 2, 1, True), Chunk(rich, 2, 1, True), Chunk(done_with_min, 3, 1, True)]
    rows = built(1, 4, chunks, NO_COPIES).sampling
    assert rows.temperature.tolist() == [0.0, 0.5, 1.0]
    assert rows.top_k.tolist() == [0, 3, 0]
    assert rows.num_logprobs.tolist() == [-1, 4, -1]
    assert (rows.bias_indptr.tolist(), rows.bias_ids.tolist(), rows.bias_values.tolist()) == ([0, 0, 2, 2], [8, 9], [-2.0, 1.5])
    assert (rows.banned_indptr.tolist(), rows.banned_ids.tolist()) == ([0, 0, 2, 2], [3, 4])
    assert (rows.allowed_indptr.tolist(), rows.allowed_ids.tolist()) == ([0, 0, 2, 2], [5, 9])
    assert (rows.history_indptr.tolist(), rows.history_ids.tolist()) == ([0, 0, 3, 7], [5, 6, 7, 5, 6, 7, 8])
    assert rows.history_prompt_lens.tolist() == [0, 2, 2]
    assert rows.seed.dtype == np.uint64


def test_a_batch_may_sample_nothing() -> None:
    batch = built(1, 4, [Chunk(sequence(1, [5, 6, 7], [], [3]), 0, 2, False)], NO_COPIES)
    assert len(batch.sampling) == 0
    assert batch.sample_rows.dtype == np.int32


@pytest.mark.parametrize(
    "more", [{}, {"repetition_penalty": 1.5}, {"logit_bias": {7: 1.0}}, {"allowed_token_ids": [8, 9]}, {"min_tokens": 4}]
)
def test_the_rows_of_drafts_are_those_of_the_tokens_when_they_have_come(more: dict[str, Any]) -> None:
    """All of a row but its mask: what is asked of tokens, the numbers of its draw, the lists of ids."""
    asked = [{"temperature": 0.5, "top_p": 0.5, "logprobs": 2, **more}, {"temperature": 0.0, "top_k": 4}]
    drafts: list[tuple[int, ...]] = [(8, 9), ()]

    def sampling_of(count: int) -> RowSampling:
        """As many drafts of the first sequence, the tokens before them having come."""
        seqs = [sequence(i, [5, 6, 7], [8], [3, 1], **asked[i]) for i in range(2)]
        for token_id in drafts[0][: 2 - count]:
            seqs[0].tokens.append(token_id)
        chunks = [Chunk(seq, len(seq.tokens) - 1, 1, True) for seq in seqs]
        return SamplingRows().of([chunks[0]._replace(drafts=drafts[0][2 - count :]), chunks[1]])

    together = sampling_of(2)
    for row, alone, place in ((1, sampling_of(1), 0), (2, sampling_of(0), 0), (3, sampling_of(0), 1)):
        assert one_row(together, row) == one_row(alone, place), row


def one_row(sampling: RowSampling, row: int) -> dict[str, object]:
    found: dict[str, object] = {}
    for name in sampling.__struct_fields__:
        if name.endswith("_ids"):
            indptr = getattr(sampling, name.replace("_ids", "_indptr"))
            found[name] = getattr(sampling, name)[indptr[row] : indptr[row + 1]].tolist()
        elif not name.endswith("_indptr") and name not in ("masks", "bias_values"):
            found[name] = getattr(sampling, name)[row].item()
    found["num_masks"] = int(np.diff(sampling.mask_indptr)[row])
    return found
