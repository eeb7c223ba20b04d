"""The safetensors reader: exact views, folders with an index, and files that lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from support.memory import allocating_at_most
from tiny_models import write_safetensors

from ramet.errors import ModelError
from ramet.model.safetensors import read_folder, read_safetensors

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


def build(header: Any, body: bytes = bytes(24), length: int | None = None) -> bytes:
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(data) if length is None else length).to_bytes(8, "little") + data + body


def one(**changes: Any) -> dict[str, Any]:
    return {"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]} | changes}


def index(folder: Path, weight_map: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_reads_what_the_safetensors_package_writes(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    written = {"a": VALUES, "b": VALUES.astype(np.float16), "empty": np.empty((0, 4), np.float32)}
    safetensors.numpy.save_file(written, path, metadata={"format": "pt"})
    found = read_safetensors(path)
    assert {n: t.format for n, t in found.items()} == {"a": "f32", "b": "f16", "empty": "f32"}
    for name, values in written.items():
        assert np.array_equal(found[name].data, values)
        assert found[name].data.shape == values.shape


def test_bf16_is_a_view_of_upper_halves(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"w": ("BF16", VALUES)})
    tensor = read_safetensors(path)["w"]
    assert tensor.format == "bf16"
    assert np.array_equal((tensor.data.astype(np.uint32) << 16).view(np.float32), VALUES)
    assert not tensor.data.flags.writeable
    assert not tensor.data.flags.owndata


@pytest.mark.parametrize("shards", [("a.safetensors", "b.safetensors"), ("b.safetensors", "a.safetensors")])
def test_b169_the_index_says_which_copy_counts(shards: tuple[str, str], tmp_path: Path) -> None:
    right, stale = shards
    write_safetensors(tmp_path / right, {"w": ("F32", VALUES)})
    write_safetensors(tmp_path / stale, {"w": ("F32", -VALUES), "x": ("F32", VALUES)})
    index(tmp_path, {"w": right, "x": stale})
    assert np.array_equal(read_folder(tmp_path)["w"].data, VALUES)


def test_b170_only_files_of_the_index_are_read(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "a.safetensors", {"w": ("F32", VALUES)})
    (tmp_path / "adapter.safetensors").write_bytes(b"not even a safetensors file")
    index(tmp_path, {"w": "a.safetensors"})
    assert list(read_folder(tmp_path)) == ["w"]


def test_b170_missing_shard(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "a.safetensors", {"w": ("F32", VALUES)})
    index(tmp_path, {"w": "a.safetensors", "x": "b.safetensors"})
    with pytest.raises(ModelError, match=r"shard b\.safetensors is not in the folder"):
        read_folder(tmp_path)


def test_tensor_that_its_shard_does_not_hold(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "a.safetensors", {"w": ("F32", VALUES)})
    index(tmp_path, {"w": "a.safetensors", "x": "a.safetensors"})
    with pytest.raises(ModelError, match="tensor x is missing"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    "shard", ["../a.safetensors", "/etc/passwd", "a.bin", "sub/a.safetensors", "x" * 300 + ".safetensors", "", 3, None]
)
def test_index_that_names_no_file_of_the_folder(shard: object, tmp_path: Path) -> None:
    index(tmp_path, {"w": shard})
    with pytest.raises(ModelError, match="is mapped to"):
        read_folder(tmp_path)


@pytest.mark.parametrize("weight_map", [None, {}, [], "x"])
def test_index_without_a_map(weight_map: object, tmp_path: Path) -> None:
    index(tmp_path, weight_map)
    with pytest.raises(ModelError, match="weight_map is missing or empty"):
        read_folder(tmp_path)


TWO = {"dtype": "F32", "shape": [3], "data_offsets": [12, 24]}
HOSTILE = {
    "empty": (b"", "is empty"),
    "seven bytes": (bytes(7), "7 bytes long"),
    "header past the end": (build(one(), length=2**20), "header of 1048576 bytes"),
    "header of 2^63 bytes": (build(one(), length=2**63), "header of 9223372036854775808 bytes"),
    "header of 2^64-1 bytes": (build(one(), length=2**64 - 1), "header of 18446744073709551615 bytes"),
    "header of 0 bytes": (build(b"", length=0), "header of 0 bytes"),
    "not JSON": (build(b"{{"), "not valid JSON"),
    "not UTF-8": (build(b'{"\xff": 1}'), "not UTF-8"),
    "a list": (build([]), "a JSON list, not an object"),
    "deep": (build(b'{"a":' * 100_000), "not valid JSON"),
    "NaN": (build(b'{"w": NaN}'), "NaN"),
    "duplicate tensor": (build(b'{"w": {}, "w": {}}'), "duplicate key 'w'"),
    "entry no object": (build({"w": 3}), "no object"),
    "unknown type": (build(one(dtype="F4")), "type 'F4' is not supported"),
    "type no string": (build(one(dtype=["F32"])), "is not supported"),
    "negative dimension": (build(one(shape=[-2, -3])), "no list of sizes"),
    "fractional dimension": (build(one(shape=[2.0, 3])), "no list of sizes"),
    "boolean dimension": (build(one(shape=[True, 6])), "no list of sizes"),
    "product overflows": (build(one(shape=[2**32, 2**32])), "bytes, the offsets hold 24"),
    "product wraps to the right size": (build(one(shape=[2**62, 4, 6])), "the offsets hold 24"),
    "offsets past the end": (build(one(data_offsets=[0, 2**63])), "not within the 24 bytes"),
    "offsets turned round": (build(one(data_offsets=[24, 0])), "not within the 24 bytes"),
    "negative offset": (build(one(data_offsets=[-24, 0])), "not within the 24 bytes"),
    "three offsets": (build(one(data_offsets=[0, 12, 24])), "not within"),
    "offsets missing": (build({"w": {"dtype": "F32", "shape": [1]}}), "not within"),
    "shape too small": (build(one(shape=[2, 2])), "is 16 bytes, the offsets hold 24"),
    "overlap": (build(one() | {"x": TWO}), "overlaps"),
    "hole": (build({"x": TWO}), "hole"),
    "tail": (build(one(), body=bytes(32)), "end at byte 24, the data at 32"),
    "truncated": (build(one(), body=bytes(23)), "not within the 23 bytes"),
}


@pytest.mark.parametrize("case", list(HOSTILE))
def test_hostile_file(case: str, tmp_path: Path) -> None:
    """T09: a clean error that names the file and the tensor, and next to nothing allocated."""
    content, message = HOSTILE[case]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with allocating_at_most(len(content) + (64 << 20)), pytest.raises(ModelError, match=message) as caught:
        read_safetensors(path)
    assert "model.safetensors" in str(caught.value)
