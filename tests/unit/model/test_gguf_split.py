"""GGUF models in several files, as the gguf package writes them, and files that contradict one another."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from tiny_models import TINY_MODELS, write_gguf

from ramet.config import ModelConfig
from ramet.errors import ModelError
from ramet.model.gguf import read_gguf
from ramet.model.gguf_model import load_gguf
from ramet.model.gguf_split import join_parts
from ramet.model.source import open_model

LLAMA = TINY_MODELS["llama"]


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """A tiny model in three files."""
    write_gguf(LLAMA, tmp_path / "m.gguf", split={"split_max_tensors": 8})
    found = sorted(tmp_path.glob("m-*.gguf"))
    assert [p.name for p in found] == [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    return found


def test_any_part_is_the_model(parts: list[Path], tmp_path: Path) -> None:
    whole = load_gguf(write_gguf(LLAMA, tmp_path / "whole.gguf"))
    for path in parts:
        split = open_model(ModelConfig(model=str(path)))
        assert split.fingerprint() == whole.fingerprint()
        assert split.spec == whole.spec
        assert split.text.gguf.keys() >= whole.text.gguf.keys()
    assert np.array_equal(split.tensors.matrix("layers.1.down").data, whole.tensors.matrix("layers.1.down").data)


def test_the_first_file_may_hold_metadata_alone(tmp_path: Path) -> None:
    first = write_gguf(LLAMA, tmp_path / "m.gguf", split={"split_max_tensors": 12, "small_first_shard": True})
    assert read_gguf(first).tensors == {}
    assert load_gguf(first).spec.num_layers == 2


def test_one_of_one_needs_no_name(tmp_path: Path) -> None:
    load_gguf(write_gguf(LLAMA, tmp_path / "m.gguf", extra={"split.count": 1, "split.no": 0}))


def lose_one(parts: list[Path]) -> None:
    parts[1].unlink()


def lose_all_but_the_last(parts: list[Path]) -> None:
    for path in parts[:2]:
        path.unlink()


def rename(parts: list[Path]) -> None:
    parts[2].rename(parts[2].with_name("other.gguf"))


def rename_as_of_two(parts: list[Path]) -> None:
    parts[2].rename(parts[2].with_name("n-00002-of-00002.gguf"))


def copy_one_over_another(parts: list[Path]) -> None:
    shutil.copy(parts[1], parts[0])


def put_a_whole_model_in_place(parts: list[Path]) -> None:
    parts[1].unlink()
    write_gguf(LLAMA, parts[1])


def put_tensors_there_twice(parts: list[Path]) -> None:
    part(parts[1], 1, {"token_embd.weight": np.ones((304, 64), np.float32)})


def leave_tensors_out(parts: list[Path]) -> None:
    part(parts[1], 1, {"x.weight": np.ones(64, np.float32)})


def make_a_pipe_of_one(parts: list[Path]) -> None:
    parts[1].unlink()
    parts[1].mkdir()


def part(path: Path, number: int, tensors: dict[str, np.ndarray]) -> None:
    """A part of a model of three files, with these tensors."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint16("split.no", number)
    writer.add_uint16("split.count", 3)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lose_one, r"is one of 3 files, of which m-00002-of-00003\.gguf is not beside it"),
        (lose_all_but_the_last, r"m-00001-of-00003\.gguf, m-00002-of-00003\.gguf is not beside it"),
        (rename, r"named like x-00001-of-00003\.gguf; give it its name back"),
        (rename_as_of_two, r"split\.count says this is one of 3 files"),
        (copy_one_over_another, r"m-00001-of-00003\.gguf: split\.no is 1, but by the file's name it is 0"),
        (put_a_whole_model_in_place, r"m-00002-of-00003\.gguf: split\.count is missing"),
        (put_tensors_there_twice, r"m-00002-of-00003\.gguf: tensors that another part has too: token_embd\.weight"),
        (leave_tensors_out, r"split\.tensors\.count is 21, but the 3 files hold"),
        (make_a_pipe_of_one, r"m-00002-of-00003\.gguf is not a regular file"),
    ],
)
def test_t08_parts_that_do_not_fit(damage: Callable[[list[Path]], None], message: str, parts: list[Path]) -> None:
    damage(parts)
    left = max(p for p in parts[0].parent.iterdir() if p.suffix == ".gguf")
    with pytest.raises(ModelError, match=message) as caught:
        join_parts(read_gguf(left))
    assert "\n" not in str(caught.value)


def test_t08_65_535_parts(tmp_path: Path) -> None:
    path = write_gguf(LLAMA, tmp_path / "m-00001-of-65535.gguf", extra={"split.count": 65535, "split.no": 0})
    with pytest.raises(ModelError, match=r"m-00002-of-65535\.gguf, .* \(65534 in all\)"):
        load_gguf(path)
