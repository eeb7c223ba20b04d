"""Ramet's float32 logits against transformers' (tests/golden/make_goldens.py), from folders and from GGUF files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from one_sequence import OneSequence
from tiny_models import GGUF_MODELS, TINY_MODELS, write_folder, write_gguf

from ramet.kernels.backend import Backend
from ramet.kernels.registry import make_backend
from ramet.model.folder import load_folder
from ramet.model.gguf_model import load_gguf
from ramet.model.spec import Checkpoint

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "tiny_logits.json").read_text())
TOLERANCE = 1e-5  # largest difference over the largest logit of the row; measured: under 4e-6


def _from_folder(name: str, tmp_path: Path) -> Checkpoint:
    return load_folder(write_folder(TINY_MODELS[name], tmp_path / name, tokenizer=False))


def _from_gguf(name: str, tmp_path: Path) -> Checkpoint:
    return load_gguf(write_gguf(TINY_MODELS[name], tmp_path / f"{name}.gguf"))


@pytest.fixture(params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return make_backend(request.param, threads=1)


@pytest.mark.parametrize("load", [_from_folder, _from_gguf], ids=["folder", "gguf"])
@pytest.mark.parametrize("name", list(TINY_MODELS))
def test_logits_are_those_of_transformers(
    name: str, load: Callable[[str, Path], Checkpoint], backend: Backend, tmp_path: Path
) -> None:
    """B172 among them: the last positions are past the original context of the models with scaled rotary angles."""
    if load is _from_gguf and name not in GGUF_MODELS:
        pytest.skip("no GGUF file can say all that this config does")
    logits = OneSequence(load(name, tmp_path), backend).feed(GOLDEN["prompt"])
    for position, expected in zip(GOLDEN["positions"], GOLDEN["models"][name]["logits"], strict=True):
        wanted = np.array(expected, np.float32)
        error = np.abs(logits[position, :: GOLDEN["every"]] - wanted).max() / np.abs(wanted).max()
        assert error < TOLERANCE, f"position {position}: {error:.2g}"


@pytest.mark.parametrize("name", list(TINY_MODELS))
def test_b172_greedy_continuation_at_twice_the_original_length(name: str, backend: Backend, tmp_path: Path) -> None:
    sequence = OneSequence(_from_folder(name, tmp_path), backend)
    expected = GOLDEN["models"][name]["greedy"]
    assert sequence.greedy(GOLDEN["prompt"][: GOLDEN["greedy_from"]], len(expected)) == expected


@pytest.mark.parametrize("name", list(TINY_MODELS))
def test_chunks_do_not_change_a_bit(name: str, backend: Backend, tmp_path: Path) -> None:
    checkpoint = _from_folder(name, tmp_path)
    prompt = GOLDEN["prompt"][:60]
    whole = OneSequence(checkpoint, backend).feed(prompt)
    parts = OneSequence(checkpoint, backend)
    pieces = np.concatenate([parts.feed(prompt[a:b]) for a, b in ((0, 1), (1, 8), (8, 41), (41, 60))])
    assert np.array_equal(whole.view(np.uint32), pieces.view(np.uint32))
