"""The local runner over a small stand-in model whose hidden rows come from the KV memory."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hand_made_batches import PAGE_SIZE, ints, make_batch
from support.sampling_rows import rows_of

from ramet.core.batch import PageCopies
from ramet.errors import EngineDead
from ramet.kernels.reference import ReferenceBackend
from ramet.runner.inputs import check_batch
from ramet.runner.kv_tensors import allocate_kv
from ramet.runner.local import LocalRunner
from ramet.runner.sampler import sample, token_logprobs

NUM_PAGES, VOCAB = 8, 16
WEIGHT = np.random.default_rng(0).normal(0, 1, (4, VOCAB)).astype(np.float32)


class SumModel:
    """Keeps token ids in the KV memory; a hidden row is a function of the ids at positions 0 to its own."""

    def __init__(self) -> None:
        self.projected: list[np.ndarray] = []
        self.spoil: set[int] = set()  # token ids whose hidden rows are not finite

    def forward(self, batch, kv_layers, rows, adapters):
        keys = kv_layers[0].keys[:, 0, 0]
        keys[batch.slots] = batch.token_ids
        hidden = np.empty((batch.num_tokens, 4), np.float32)
        for b in range(batch.num_seqs):
            pages = batch.page_ids[batch.page_indptr[b] : batch.page_indptr[b + 1]]
            slots = (pages[:, None] * PAGE_SIZE + np.arange(PAGE_SIZE)).reshape(-1)
            for row in range(batch.query_indptr[b], batch.query_indptr[b + 1]):
                seen = keys[slots[: batch.positions[row] + 1]]
                hidden[row] = np.sin(np.arange(1, 5) * (seen * np.arange(1, len(seen) + 1)).sum())
                if int(batch.token_ids[row]) in self.spoil:
                    hidden[row] = np.nan
        return hidden[rows]

    def next_tokens(self, batch, kv_layers, choosing, adapters):
        return self.chosen(self.forward(batch, kv_layers, batch.sample_rows, adapters), None, choosing)

    def chosen(self, hidden, wanted, choosing):
        logits = self.logits(hidden)
        return logits, ReferenceBackend().sample(logits, choosing)

    def logits(self, hidden):
        self.projected.append(hidden)
        return np.stack([row @ WEIGHT for row in hidden])


@pytest.fixture
def model():
    return SumModel()


@pytest.fixture
def runner(model):
    return LocalRunner(model, ReferenceBackend(), allocate_kv(2, NUM_PAGES * PAGE_SIZE, 1, 1, "float32"), PAGE_SIZE)


def run(runner, batch):
    runner.launch(batch)
    return runner.collect()


def expected_logits(tokens) -> np.ndarray:
    seen = np.array(tokens, np.float32)
    hidden = np.sin(np.arange(1, 5) * (seen * np.arange(1, len(seen) + 1)).sum()).astype(np.float32)
    return hidden @ WEIGHT


def logprobs_of(logits, token_id, num_best):
    return token_logprobs(ReferenceBackend(), logits[None], np.array([token_id], np.int32), np.array([num_best], np.int32))[0]


def test_a_step_samples_the_sampled_rows(runner):
    out = run(
        runner, make_batch(7, [([3, 5, 2], 0, [6]), ([9], 0, [1])], rows=[{"temperature": 0, "num_logprobs": 2}, {"seed": 4}])
    )
    assert out.step == 7
    assert isinstance(out.token_ids, tuple)
    first = expected_logits([3, 5, 2])
    assert out.token_ids[0] == first.argmax()
    assert out.token_ids[1] == sample(ReferenceBackend(), expected_logits([9])[None], rows_of({"seed": 4}), range(1))[0].token_id
    assert out.logprobs[0].top_logprobs.tobytes() == logprobs_of(first, int(first.argmax()), 2).top_logprobs.tobytes()
    assert out.logprobs[1] is None
    assert out.prompt_logprobs == ()
    assert out.errors == {}


def test_chunks_of_a_sequence_give_what_one_step_gives(runner):
    tokens = [3, 5, 2, 8, 1, 1, 4]
    whole = run(runner, make_batch(1, [(tokens, 0, [0, 1])]))
    run(runner, make_batch(2, [(tokens[:5], 0, [5, 2])], sampled=[]))
    rest = run(runner, make_batch(3, [(tokens[5:], 5, [5, 2])]))
    assert rest.token_ids == whole.token_ids == (expected_logits(tokens).argmax(),)


def test_page_copies_come_before_the_step(runner):
    run(runner, make_batch(1, [([3, 5, 2], 0, [6])]))
    copied = run(runner, make_batch(2, [([8], 2, [4])], copies=PageCopies(ints(6), ints(4), ints(2))))
    assert copied.token_ids[0] == expected_logits([3, 5, 8]).argmax()
    alone = make_batch(3, [([1], 0, [0])], copies=PageCopies(ints(4), ints(7), ints(3)))
    empty = msgspec.structs.replace(
        alone,
        **{name: ints() for name in ("seq_ids", "context_lens", "token_ids", "positions", "slots", "page_ids", "sample_rows")},
        query_indptr=ints(0),
        page_indptr=ints(0),
        sampling=rows_of(),
    )
    assert len(run(runner, empty).token_ids) == 0
    assert run(runner, make_batch(4, [([4], 3, [7])])).token_ids[0] == expected_logits([3, 5, 8, 4]).argmax()


def test_results_come_in_the_order_of_launches(runner):
    for step in (4, 5, 9):
        runner.launch(make_batch(step, [([step], 0, [step % NUM_PAGES])]))
    outputs = [runner.collect() for _ in range(3)]
    assert [out.step for out in outputs] == [4, 5, 9]
    assert [int(out.token_ids[0]) for out in outputs] == [expected_logits([step]).argmax() for step in (4, 5, 9)]
    with pytest.raises(EngineDead, match="no step launched"):
        runner.collect()


def test_only_wanted_rows_reach_the_projection(runner, model):
    run(runner, make_batch(1, [([1, 2, 3, 4, 5], 0, [0, 1]), ([6, 7], 0, [2])], sampled=[6], wanted=[(1, 3, 0), (3, 5, 2)]))
    assert sum(map(len, model.projected)) == 3
    model.projected.clear()
    run(runner, make_batch(2, [([1, 2, 3], 0, [0])], sampled=[]))
    assert model.projected == []


def test_prompt_logprobs_of_a_long_prompt_come_in_slabs(model):
    tokens = (np.arange(150) % VOCAB).tolist()
    pages = list(range(38))
    runner = LocalRunner(model, ReferenceBackend(), allocate_kv(1, 40 * PAGE_SIZE, 1, 1, "float32"), PAGE_SIZE)
    out = run(runner, make_batch(1, [(tokens, 0, pages)], wanted=[(i, tokens[i + 1], 3) for i in range(149)]))
    assert [len(rows) for rows in model.projected] == [64, 64, 21, 1]
    assert len(out.prompt_logprobs) == 149
    for i in (0, 63, 64, 148):
        want = logprobs_of(expected_logits(tokens[: i + 1]), tokens[i + 1], 3)
        got = out.prompt_logprobs[i]
        assert (got.token_id, got.logprob, got.rank) == (want.token_id, want.logprob, want.rank)
        assert got.top_ids.tolist() == want.top_ids.tolist()


def test_many_sampled_rows_come_in_slabs_with_their_own_parameters(model):
    runner = LocalRunner(model, ReferenceBackend(), allocate_kv(1, 80 * PAGE_SIZE, 1, 1, "float32"), PAGE_SIZE)
    chunks = [([i % VOCAB], 0, [i]) for i in range(80)]
    rows = [{"seed": i, "temperature": 2.0, "num_logprobs": i % 3 - 1} for i in range(80)]
    out = run(runner, make_batch(1, chunks, rows=rows))
    assert [len(hidden) for hidden in model.projected] == [64, 16]
    for i in (0, 63, 64, 79):
        alone = run(runner, make_batch(2, [chunks[i]], rows=[rows[i]]))
        assert alone.token_ids[0] == out.token_ids[i]
        assert (out.logprobs[i] is None) == (rows[i]["num_logprobs"] == -1)


def test_rows_that_fail_leave_the_others_bits_alone(runner, model):  # T11, B190
    chunks = [([3], 0, [0]), ([9], 0, [1]), ([5], 0, [2]), ([7], 0, [3])]
    rows = [{"seed": i, "num_logprobs": 3} for i in range(4)]
    clean = run(runner, make_batch(1, chunks, rows=rows))
    model.spoil = {9}
    rows[2] = {"bias": {VOCAB: 1.0}}
    found = run(runner, make_batch(1, chunks, rows=rows))
    assert found.token_ids == (clean.token_ids[0], -1, -1, clean.token_ids[3])
    assert sorted(found.errors) == [1, 2]
    assert "not finite" in found.errors[1]
    assert found.logprobs[1] is found.logprobs[2] is None
    for i in (0, 3):
        assert found.logprobs[i].logprob == clean.logprobs[i].logprob
        assert found.logprobs[i].top_logprobs.tobytes() == clean.logprobs[i].top_logprobs.tobytes()


def test_a_prompt_row_that_is_not_finite_is_nan(runner, model):
    model.spoil = {2}
    out = run(runner, make_batch(1, [([1, 2, 3], 0, [0]), ([4, 5], 0, [1])], wanted=[(0, 2, 1), (1, 3, 1), (3, 5, 1)]))
    logprobs = [one.logprob for one in out.prompt_logprobs]
    assert np.isnan(logprobs).tolist() == [False, True, False]
    assert len(out.prompt_logprobs[1].top_ids) == 0


def test_a_model_that_raises_ends_the_engine_with_a_reason(runner, model, monkeypatch):
    def broken(batch, kv_layers, rows, adapters):
        raise ValueError("K differs")

    monkeypatch.setattr(model, "forward", broken)
    with pytest.raises(EngineDead, match="step 3 could not be computed: ValueError: K differs"):
        runner.launch(make_batch(3, [([1], 0, [0])]))


# --- the batch is held against the memory --------------------------------------------------------------------------------

SOUND = make_batch(
    1, [([3, 5, 2, 8, 1], 0, [6, 0]), ([9], 6, [1, 3])], wanted=[(0, 5, 1)], copies=PageCopies(ints(7), ints(3), ints(2))
)


def test_a_sound_batch_passes():
    check_batch(SOUND, PAGE_SIZE, NUM_PAGES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"page_size": 16}, "page size 16"),
        ({"page_ids": ints(6, 0, 8, 3)}, "page_ids"),
        ({"page_ids": ints(6, -1, 1, 3)}, "page_ids"),
        ({"page_ids": ints(6, 2, 1, 3)}, "slot"),
        ({"page_indptr": ints(0, 1, 4)}, "shorter"),
        ({"page_indptr": ints(0, 2, 5)}, "page_indptr"),
        ({"slots": ints(24, 25, 26, 27, 0, 15)}, "slot"),
        ({"slots": ints(24, 25, 26, 27, 2**30, 14)}, "slot"),
        ({"positions": ints(0, 1, 2, 3, 4, 7)}, "positions"),
        ({"positions": ints(-1, 1, 2, 3, 4, 6)}, "positions"),
        ({"positions": ints(0, 1, 2, 4, 3, 6)}, "positions"),
        ({"context_lens": ints(9, 7)}, "shorter"),
        ({"context_lens": ints(5, 8)}, "positions"),
        ({"context_lens": ints(4, 7)}, "add up"),
        ({"query_indptr": ints(0, 5, 5)}, "add up"),
        ({"query_indptr": ints(0, 5, 7)}, "query_indptr"),
        ({"query_indptr": ints(0, 6, 5)}, "add up"),
        ({"positions": ints(0)}, "add up"),
        ({"slots": ints(24)}, "add up"),
        ({"sample_rows": ints(6, 5)}, "sample_rows"),
        ({"sample_rows": ints(-1, 5)}, "sample_rows"),
        ({"prompt_logprob_rows": ints(6)}, "prompt_logprob_rows"),
        ({"page_copies": PageCopies(ints(8), ints(3), ints(2))}, "page_copies.src"),
        ({"page_copies": PageCopies(ints(7), ints(-2), ints(2))}, "page_copies.dst"),
        ({"page_copies": PageCopies(ints(7), ints(3), ints(5))}, "page_copies.num_tokens"),
    ],
)
def test_a_batch_that_leaves_its_memory_is_refused_before_anything_is_computed(runner, model, change, message):
    with pytest.raises(EngineDead, match=f"step 1.*{message}"):
        runner.launch(msgspec.structs.replace(SOUND, **change))
    assert model.projected == []
    with pytest.raises(EngineDead):
        runner.collect()
