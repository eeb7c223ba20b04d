"""The local runner over a tiny real model: a sequence's tokens and logprobs have the same bits however it is computed."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hand_made_batches import ints, make_batch
from support.kv_layers import KV_FORMATS, unwritten_kv
from tiny_models import TINY_MODELS, write_folder

from ramet.core.batch import PageCopies
from ramet.core.output import TokenLogprobs
from ramet.engine.worker import WorkerThread
from ramet.errors import ConfigError
from ramet.kernels.registry import make_backend
from ramet.model.decoder import Decoder
from ramet.model.folder import load_folder
from ramet.runner import local
from ramet.runner.local import LocalRunner
from ramet.runner.sampler import choosing_of

PROMPT = [7, 200, 31, 31, 90, 4, 255, 17, 60, 8, 121]
ROW = {"seed": 9, "temperature": 0.9, "top_p": 0.95, "num_logprobs": 4, "counter": len(PROMPT)}


def bits(found: TokenLogprobs) -> tuple:
    return found.token_id, found.rank, np.float64(found.logprob).tobytes(), found.top_ids.tobytes(), found.top_logprobs.tobytes()


@pytest.fixture(scope="module", params=["reference", "cpu"])
def decoder(request, tmp_path_factory):
    try:
        backend = make_backend(request.param, threads=1)
    except ConfigError as error:
        pytest.skip(str(error))
    folder = write_folder(TINY_MODELS["llama"], tmp_path_factory.mktemp("model") / "llama", tokenizer=False)
    return Decoder(load_folder(folder), backend), backend


@pytest.fixture(params=KV_FORMATS)
def new_runner(request, decoder):
    model, backend = decoder
    spec = model.spec

    def make(page_size=4, worker=None):
        layers = unwritten_kv(spec.num_layers, 64, spec.num_kv_heads, spec.head_dim, request.param)
        return LocalRunner(model, backend, layers, page_size, worker)

    return make


def whole(new_runner, page_size=4, pages=(3, 0, 2)):
    wanted = [(i, PROMPT[i + 1], 2) for i in range(len(PROMPT) - 1)]
    runner = new_runner(page_size)
    runner.launch(make_batch(1, [(PROMPT, 0, pages)], wanted=wanted, rows=[ROW], page_size=page_size))
    return runner.collect()


def test_pages_do_not_change_a_bit(new_runner):
    expected = whole(new_runner)
    assert expected.errors == {}
    assert expected.token_ids[0] >= 0
    for page_size, pages in ((1, range(40, 51)), (16, (2,)), (64, (0,))):
        found = whole(new_runner, page_size, pages)
        assert bits(found.logprobs[0]) == bits(expected.logprobs[0])
        assert [bits(one) for one in found.prompt_logprobs] == [bits(one) for one in expected.prompt_logprobs]


def test_a_run_to_the_tokens_is_the_layers_then_the_logits_then_the_choice(decoder):
    model, backend = decoder
    spec = model.spec
    batch = make_batch(1, [(PROMPT, 0, (3, 0, 2)), ([5] * 6, 0, (9, 8))])
    layers = unwritten_kv(spec.num_layers, 64, spec.num_kv_heads, spec.head_dim, "float32")
    expected = model.logits(model.forward(batch, layers, batch.sample_rows))
    choosing = choosing_of(batch.sampling)
    picks = backend.sample(expected, choosing)
    for logits, chosen in (
        model.next_tokens(batch, layers, choosing),
        model.chosen(model.forward(batch, layers, batch.sample_rows), None, choosing),
    ):
        assert logits.tobytes() == expected.tobytes()
        assert [part.tolist() for part in chosen] == [part.tolist() for part in picks]


def test_chunks_and_batch_mates_do_not_change_a_bit(new_runner):
    expected = whole(new_runner)
    runner = new_runner()
    mate = ([5] * 9, 0, (9, 8, 7))
    runner.launch(
        make_batch(1, [mate, (PROMPT[:6], 0, (3, 0, 2))], sampled=[], wanted=[(9 + i, PROMPT[i + 1], 2) for i in range(6)])
    )
    runner.launch(
        make_batch(
            2,
            [(PROMPT[6:], 6, (3, 0, 2)), ([1], 9, (9, 8, 7))],
            wanted=[(i, PROMPT[7 + i], 2) for i in range(4)],
            rows=[ROW, {"temperature": 0, "num_logprobs": 0}],
        )
    )
    first, second = runner.collect(), runner.collect()
    assert bits(second.logprobs[0]) == bits(expected.logprobs[0])
    prompt_logprobs = [*first.prompt_logprobs, *second.prompt_logprobs]
    assert [bits(one) for one in prompt_logprobs] == [bits(one) for one in expected.prompt_logprobs]


def test_a_copied_page_gives_the_same_bits(new_runner):
    expected = whole(new_runner)
    runner = new_runner()
    runner.launch(make_batch(1, [(PROMPT[:6], 0, (3, 0))], sampled=[]))
    copies = PageCopies(ints(3, 0), ints(10, 12), ints(4, 2))
    runner.launch(make_batch(2, [(PROMPT[6:], 6, (10, 12, 2))], copies=copies, rows=[ROW]))
    runner.collect()
    assert bits(runner.collect().logprobs[0]) == bits(expected.logprobs[0])


def test_logits_of_the_few_tokens_that_a_mask_leaves_are_those_of_all(new_runner, monkeypatch):
    """Rows with a mask and rows without, few tokens and many, with and without logprobs, in one batch of several slabs."""
    rng = np.random.default_rng(1)
    settings = [{"temperature": 0.8, "seed": i, "num_logprobs": (-1, 2)[i % 7 == 3]} for i in range(60)]
    has_mask = np.arange(60) % 3 != 1
    masks = np.packbits(rng.random((int(has_mask.sum()), 320)) < 0.03, axis=1, bitorder="little").view(np.uint32)
    masks[::5] = 0xFFFFFFFF
    batch = make_batch(1, [([7] * 60, 0, tuple(range(15)))], sampled=list(range(60)), rows=settings)
    indptr = np.concatenate([[0], np.cumsum(has_mask)]).astype(np.int32)
    batch = msgspec.structs.replace(batch, sampling=msgspec.structs.replace(batch.sampling, mask_indptr=indptr))
    monkeypatch.setattr(local, "_SLAB_ROWS", 16)
    found = []
    for few, worker in ((64, None), (0, None), (64, WorkerThread("test-layers"))):
        monkeypatch.setattr(local, "_FEW_TOKENS", few)
        runner = new_runner(worker=worker)
        runner.launch(batch)
        output = runner.collect(masks)
        found.append((output.token_ids, [one and bits(one) for one in output.logprobs], output.errors))
    assert found[0] == found[1] == found[2]
