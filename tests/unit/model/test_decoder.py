from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from one_sequence import OneSequence
from tiny_models import TINY_MODELS, write_folder, write_gguf

from ramet.kernels.backend import Weight
from ramet.kernels.registry import make_backend
from ramet.model import packing
from ramet.model.decoder import Decoder
from ramet.model.folder import load_folder
from ramet.model.gguf_model import load_gguf
from ramet.model.spec import Checkpoint


def checkpoint_of(name: str, tmp_path: Path) -> Checkpoint:
    return load_folder(write_folder(TINY_MODELS[name], tmp_path, tokenizer=False))


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    Decoder(checkpoint_of("llama3", tmp_path), make_backend("cpu", threads=1), lambda *news: seen.append(news))
    assert seen == [("packing weights", i, 4) for i in range(5)]


def test_tied_head_shares_the_packed_embedding(tmp_path: Path) -> None:
    backend = make_backend("cpu", threads=1)
    tied, untied = (Decoder(checkpoint_of(name, tmp_path / name), backend) for name in ("qwen2", "llama"))
    table = backend.pack([Weight("f32", TINY_MODELS["llama"].tensors["lm_head.weight"])]).nbytes
    assert untied.nbytes - tied.nbytes == table


@pytest.mark.parametrize("type_name", ["Q4_1", "Q8_0"])
def test_weights_are_unpacked_by_slabs_and_not_kept(type_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = load_gguf(write_gguf(TINY_MODELS["llama"], tmp_path / "m.gguf", type_name=type_name))
    backend = make_backend("cpu", threads=1)
    whole = OneSequence(checkpoint, backend).feed(list(range(40)))
    unpacked: list[weakref.ref[npt.NDArray[np.generic]]] = []
    alive: list[int] = []
    matrix = checkpoint.tensors.matrix

    def watched(name: str, dense: None, rows: slice) -> Weight:
        weight = matrix(name, dense, rows)
        unpacked.append(weakref.ref(weight.data))
        alive.append(sum(ref() is not None for ref in unpacked))
        return weight

    monkeypatch.setattr(checkpoint.tensors, "matrix", watched)
    monkeypatch.setattr(packing, "_SLAB_VALUES", 64 * 64)
    sequence = OneSequence(checkpoint, backend)
    assert sequence.decoder.nbytes > 0
    gc.collect()
    assert len(unpacked) == 2 * (5 + 2 * 2) + 2 * 5  # gate and up have 96 rows, two slabs; embedding and head 304, five
    assert max(alive) <= 3  # one packed, one being packed, one being read
    assert [ref for ref in unpacked if ref() is not None] == []
    assert np.array_equal(sequence.feed(list(range(40))).view(np.uint32), whole.view(np.uint32))


def test_logits_of_a_row_do_not_depend_on_its_neighbours(tmp_path: Path) -> None:
    sequence = OneSequence(checkpoint_of("qwen3", tmp_path), make_backend("cpu", threads=1))
    hidden = np.random.default_rng(1).standard_normal((9, 64)).astype(np.float32)
    together = sequence.decoder.logits(hidden)
    assert together.shape == (9, 304)
    for rows in (slice(0, 1), slice(3, 8), slice(0, 9, 2)):
        assert np.array_equal(sequence.decoder.logits(hidden[rows]).view(np.uint32), together[rows].view(np.uint32))


def test_no_rows_no_logits(tmp_path: Path) -> None:
    sequence = OneSequence(checkpoint_of("llama", tmp_path), make_backend("cpu", threads=1))
    assert sequence.decoder.logits(np.empty((0, 64), np.float32)).shape == (0, 304)


def test_of_experts_a_row_reads_those_it_has(tmp_path: Path) -> None:
    spec = TINY_MODELS["qwen3moe"].config
    decoder = Decoder(checkpoint_of("qwen3moe", tmp_path), make_backend("cpu", threads=1))
    experts = [name for name in decoder.products if "layers.1.experts" in name]
    assert len(experts) == 2 * spec["num_experts_per_tok"]
    one = sum(decoder.products[name].nbytes for name in experts[:2])
    left = spec["num_hidden_layers"] * (spec["num_experts"] - spec["num_experts_per_tok"]) * one
    table = decoder.products["head"].nbytes  # the embedding, which is looked up
    assert decoder.nbytes == sum(weight.nbytes for weight in decoder.products.values()) + left + table
