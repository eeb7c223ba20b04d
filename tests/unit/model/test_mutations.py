"""T08, T09: model files with changed keys give a ModelError or a model, nothing else; changed bytes: F1 and F2 of tests/fuzz."""

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
from test_gguf import build, pair
from test_packed import CASES, LLAMA, write

from ramet.errors import ModelError
from ramet.model.folder import load_folder
from ramet.model.gguf_model import load_gguf

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
