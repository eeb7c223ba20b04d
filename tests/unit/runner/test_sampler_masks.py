"""Grammar masks in the sampler: they decide who may be chosen, and change nothing else."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest
from support.sampling_rows import rows_of

from ramet.core.batch import RowSampling
from ramet.core.ids import Float32
from ramet.kernels.registry import make_backend
from ramet.runner import sampler
from ramet.runner.sampler import Choice

V = 70
LOGITS = np.random.default_rng(5).standard_normal((40, V)).astype(np.float32)
IDS = [3, 4, 31, 32, 33, 63, 64, 69]

Sample = Callable[[Float32, RowSampling, range], list[Choice]]


@pytest.fixture(scope="module", params=["reference", "cpu"])
def sample(request: pytest.FixtureRequest) -> Sample:
    return functools.partial(sampler.sample, make_backend(request.param, threads=1))


@pytest.mark.parametrize("temperature", [0.0, 0.7, 3.0])
def test_a_mask_is_a_list_of_allowed_ids(sample: Sample, temperature: float) -> None:
    rows = [{"temperature": temperature, "seed": i, "top_k": 5 * (i % 2), "top_p": 0.9, "bias": {4: 2.0}} for i in range(40)]
    masked = sample(LOGITS, rows_of(*({**row, "mask": IDS} for row in rows)), range(40))
    listed = sample(LOGITS, rows_of(*({**row, "allowed": IDS} for row in rows)), range(40))
    assert [c.token_id for c in masked] == [c.token_id for c in listed]
    assert {c.token_id for c in masked} <= set(IDS)


def test_a_mask_meets_the_other_lists(sample: Sample) -> None:
    [choice] = sample(LOGITS[:1], rows_of({"temperature": 0, "mask": IDS, "allowed": [4, 5, 63], "banned": [63]}), range(1))
    assert choice.token_id == 4


def test_an_empty_mask_is_an_error_of_its_row(sample: Sample) -> None:
    masked, free = sample(LOGITS[:2], rows_of({"temperature": 0, "mask": []}, {"temperature": 0}), range(2))
    assert (masked.token_id, free.token_id) == (-1, int(LOGITS[1].argmax()))
    assert "every token is masked" in str(masked.error)


def test_bits_beyond_the_vocabulary_are_nobody(sample: Sample) -> None:
    [choice] = sample(LOGITS[:1], rows_of({"temperature": 0, "mask": [7, V, 200]}), range(1))
    assert choice.token_id == 7


def test_logprobs_are_of_the_raw_distribution(sample: Sample) -> None:
    [masked] = sample(LOGITS[:1], rows_of({"temperature": 0, "mask": [7], "num_logprobs": 4}), range(1))
    [free] = sample(LOGITS[:1], rows_of({"temperature": 0, "num_logprobs": 4}), range(1))
    assert masked.logprobs is not None
    assert free.logprobs is not None
    assert masked.logprobs.top_ids.tolist() == free.logprobs.top_ids.tolist()
    assert masked.logprobs.top_logprobs.tobytes() == free.logprobs.top_logprobs.tobytes()
    assert masked.logprobs.rank == 1 + int((LOGITS[0] > LOGITS[0, 7]).sum())


def test_masks_belong_to_their_rows_in_any_order(sample: Sample) -> None:
    """A row between others, and a slab that begins in the middle."""
    rows = [{"temperature": 0, "mask": [i, i + 1]} if i % 3 else {"temperature": 0} for i in range(40)]
    choices = sample(LOGITS[20:], rows_of(*rows), range(20, 40))
    for i, choice in zip(range(20, 40), choices, strict=True):
        assert choice.token_id == (max((i, i + 1), key=lambda t: LOGITS[i, t]) if i % 3 else int(LOGITS[i].argmax()))
