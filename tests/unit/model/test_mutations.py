"""T08, T09: model files with changed bytes and keys give a ModelError or a model, nothing else, and allocate little."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import packers
import pytest
from packers import pack_model
from support.memory import allocating_at_most
from test_gguf import build, pair
from test_gguf_types import TYPES, WIDE, random_blocks
from test_packed import CASES, LLAMA, write
from tiny_models import write_gguf

from ramet.errors import ModelError
from ramet.model.folder import load_folder
from ramet.model.gguf_model import load_gguf
from ramet.model.spec import Checkpoint

SLACK = 64 << 20  # that a file may make us allocate, over its own size
SEED = 20


def read_all(checkpoint: Checkpoint) -> None:
    """A matrix of each kind, as it is held and as float32."""
    for name in ("embed", "layers.0.q", "layers.0.down", "head"):
        checkpoint.tensors.matrix(name)
        checkpoint.tensors.matrix(name, "f32")


def changed_bytes(content: bytes, upto: int, count: int) -> Iterator[bytes]:
    """Copies with one to four of the first ``upto`` bytes changed: a bit, an end of the range, any value."""
    rng = np.random.default_rng(SEED)
    for _ in range(count):
        mutant = bytearray(content)
        for at in rng.integers(0, upto, rng.integers(1, 5)):
            mutant[at] = (mutant[at] ^ 1 << int(rng.integers(8)), 0, 0xFF, int(rng.integers(256)))[rng.integers(4)]
        yield bytes(mutant)


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "IQ4_XS"])
def test_t08_gguf_with_changed_bytes(name: str, tmp_path: Path) -> None:
    stored = {n: random_blocks(TYPES[name], *t.shape, seed=i) for i, (n, t) in enumerate(WIDE.tensors.items()) if t.ndim == 2}
    path = write_gguf(WIDE, tmp_path / "m.gguf", type_name=name, stored=stored)
    content = path.read_bytes()
    refused = 0
    for mutant in changed_bytes(content, content.index(b"blk.0.ffn_down") + 200, 60):
        path.write_bytes(mutant)
        with allocating_at_most(len(content) + SLACK):
            try:
                read_all(load_gguf(path))
            except ModelError as error:
                refused += "\n" not in str(error)
    assert refused > 10


@pytest.mark.parametrize("scheme", ["awq", "gptq, act-order", "int4, not symmetric", "fp8"])
def test_t09_safetensors_with_changed_bytes(scheme: str, tmp_path: Path) -> None:
    folder = write(tmp_path, pack_model(LLAMA.tensors, CASES[scheme][1])[0], CASES[scheme][0])
    path = folder / "model.safetensors"
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    refused = 0
    for mutant in changed_bytes(content, header, 60):
        path.write_bytes(mutant)
        with allocating_at_most(len(content) + SLACK):
            try:
                read_all(load_folder(folder))
            except ModelError as error:
                refused += "\n" not in str(error)
    assert refused > 40


VALUES: tuple[Any, ...] = (
    None,
    -1,
    0,
    2**31,
    2**63,
    2**64,
    1.5,
    1e400,
    True,
    "",
    "x",
    "x" * 10_000,
    [],
    [-1, 2**63],
    {},
    {"x": {}},
)


def keys_of(config: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(config, dict):
        for key, value in config.items():
            yield (*path, key)
            yield from keys_of(value, (*path, key))


@pytest.mark.parametrize("scheme", ["awq", "gptq", "int4", "fp8"])
def test_t09_every_key_of_a_quantization_config(scheme: str, tmp_path: Path) -> None:
    config = CASES[scheme][0]
    folder = write(tmp_path, pack_model(LLAMA.tensors, CASES[scheme][1])[0], config)
    for path in keys_of(config):
        for value in VALUES:
            mutant = copy.deepcopy(config)
            inner = mutant
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = value
            text = json.dumps({**LLAMA.config, "quantization_config": mutant}).replace("Infinity", "1e400")
            (folder / "config.json").write_text(text)
            try:
                load_folder(folder)
            except ModelError as error:
                assert len(str(error)) < 1000, "a value is shown whole"  # noqa: PT017
                assert "\n" not in str(error)  # noqa: PT017


@pytest.mark.parametrize("name", ["x" * 100_000, "two\nlines.weight", "\x1b[31mred.qweight", "\u202eevil.scales", "nul\0.weight"])
def test_t09_names_out_of_files_are_shown_short_and_plain(name: str, tmp_path: Path) -> None:
    tensors = pack_model(LLAMA.tensors, packers.awq)[0]
    folders = [
        write(tmp_path / "tensor", tensors | {name: ("I32", np.zeros((8, 8), np.int32))}, CASES["awq"][0]),
        write(tmp_path / "method", tensors, {"quant_method": name}),
        write(tmp_path / "group", tensors, CASES["int4"][0] | {"config_groups": {name: {"weights": 3}}}),
        write(tmp_path / "shard", tensors, CASES["awq"][0]),
    ]
    (folders[-1] / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {name: name}}))
    for folder in folders:
        with pytest.raises(ModelError) as caught:
            load_folder(folder)
        assert len(str(caught.value)) < 500
        assert str(caught.value).isprintable()


def test_t08_keys_out_of_files_are_shown_short_and_plain(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for key in ("k" * 60_000, "two\nlines"):
        path.write_bytes(build([pair(key, 99, b"")]))
        with pytest.raises(ModelError, match="has value type 99") as caught:
            load_gguf(path)
        assert len(str(caught.value)) < 500
        assert str(caught.value).isprintable()
