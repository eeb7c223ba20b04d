"""What the kernels are measured on is what a step would give them, and is counted as what it is."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_models import TINY_MODELS, write_folder

from ramet.cli.measure import kernels
from ramet.cli.measure.figures import Figure, as_json
from ramet.cli.measure.kernels import KVShape, Part, attention_cases, attention_figure, attention_work, product_figures
from ramet.cli.measure.limits import Limits, Work
from ramet.config import ModelConfig
from ramet.kernels.registry import make_backend
from ramet.model.decoder import Decoder
from ramet.model.source import open_model
from ramet.runner.inputs import check_batch


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    monkeypatch.setattr(kernels, "_SWEEPS_S", 0.0)


@pytest.fixture(scope="module")
def backend():
    return make_backend(threads=1)


@pytest.fixture
def limits(backend):
    return Limits(backend.isa, 1, 1 << 20, window_s=0.001)


def test_a_batch_shares_whole_pages_and_has_the_rest_for_itself():
    batch = Part(num_seqs=3, context=100, shared=64, rows=5).batch()
    check_batch(batch, 16, 64)
    tables = [batch.page_ids[batch.page_indptr[i] : batch.page_indptr[i + 1]].tolist() for i in range(3)]
    assert tables == [[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 7, 8, 9], [0, 1, 2, 3, 10, 11, 12]]
    assert batch.positions.reshape(3, 5).tolist() == [[95, 96, 97, 98, 99]] * 3
    assert int(batch.slots.max()) < Part(3, 100, 64, 5).num_slots


def test_a_prompt_is_measured_in_chunks_that_are_all_of_it():
    parts = attention_cases(512)["attention, prefill of 2,000"]
    rows = [position for part in parts for position in part.batch().positions.tolist()]
    assert rows == list(range(2000))


def test_the_work_of_attention_counts_what_is_seen_and_reads_what_is_shared_once(tiny_spec):
    kv = KVShape("bfloat16", 100)
    work = Part(num_seqs=3, context=100, shared=64, rows=2).work(tiny_spec, kv)
    ops = 4 * tiny_spec.num_heads * tiny_spec.head_dim * tiny_spec.num_layers
    assert work == Work((64 + 3 * 36) * 100, half_ops=3 * (99 + 100) * ops)
    assert attention_work(tiny_spec, KVShape("float32", 100), 5, 2) == Work(200, single_ops=5 * ops)


def test_each_product_of_a_step_is_in_one_figure(tiny_decoder, backend, limits):
    products = tiny_decoder.products
    figures = {figure.name: figure for figure in product_figures(backend, products, 4, limits)}
    assert list(figures) == [f"{name}, 4 rows" for name in ("qkv", "out", "gate_up", "down", "head", f"all {len(products)}")]
    total = figures[f"all {len(products)}, 4 rows"]
    assert total.details["GOP/s"] * total.value * 1e3 == pytest.approx(
        sum(2 * 4 * np.prod(weight.shape) for weight in products.values()), rel=1e-6
    )
    assert all(figure.value > 0 and figure.fraction > 0 for figure in figures.values())
    assert not [figure for figure in product_figures(backend, products, 256, limits) if figure.name.startswith("head")]


def test_attention_alone(tiny_spec, backend, limits):
    parts = [Part(1, 40, rows=40), Part(2, 48, shared=32)]
    figure = attention_figure("both", parts, backend, tiny_spec, KVShape("bfloat16", 64), limits)
    assert figure.unit == "ms"
    assert figure.value > 0
    assert len(figure.values) >= 3


def test_a_fraction_is_of_the_limit_whichever_way_is_better():
    assert Figure("x", "ms", (4.0, 2.0, 8.0), 1.0).fraction == 0.25
    assert Figure("x", "tok/s", (4.0, 2.0, 8.0), 16.0).fraction == 0.25
    assert Figure("x", "tok/s", (4.0,)).fraction is None
    told = as_json(Figure("x", "s", (1 / 3,), 0.1, "read", {"GB/s": 2.0}, "why"))
    assert told == {
        "name": "x", "unit": "s", "value": 0.33333, "values": [0.33333], "limit": 0.1, "fraction": 0.3, "bound": "read",
        "GB/s": 2.0, "note": "why",
    }  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = write_folder(next(iter(TINY_MODELS.values())), tmp_path_factory.mktemp("tiny"))
    return open_model(ModelConfig(model=str(folder)))


@pytest.fixture(scope="module")
def tiny_spec(checkpoint):
    return checkpoint.spec


@pytest.fixture(scope="module")
def tiny_decoder(checkpoint, backend):
    return Decoder(checkpoint, backend)
