"""How packed weights come about: by slabs, on all threads, and with nothing left of the file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from tiny_models import TINY_MODELS, write_folder, write_gguf

from ramet import _native
from ramet.config import ModelConfig
from ramet.errors import ModelError
from ramet.kernels.backend import Weight
from ramet.kernels.registry import make_backend
from ramet.model import packing
from ramet.model.decoder import Decoder
from ramet.model.gguf_model import load_gguf
from ramet.model.packing import NO_STORE, Packer
from ramet.model.source import open_model


def packed_bytes(weight: object) -> bytes:
    return b"".join(data.tobytes() for _, _, data in _native.pieces(weight))  # type: ignore[arg-type]


@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
@pytest.mark.parametrize("threads", [1, 3])
def test_slabs_and_threads_change_no_byte(
    quantization: str | None, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(TINY_MODELS["llama3"], tmp_path, dtype="BF16", tokenizer=False)
    checkpoint = open_model(ModelConfig(model=str(folder), quantization=quantization))  # type: ignore[arg-type]
    whole = Decoder(checkpoint, make_backend("cpu", threads=1)).products
    monkeypatch.setattr(packing, "_SLAB_VALUES", 64 * 64)
    monkeypatch.setattr(packing, "_KEPT_BYTES", 1)
    by_slabs = Decoder(checkpoint, make_backend("cpu", threads=threads)).products
    assert {name: packed_bytes(w) for name, w in by_slabs.items()} == {name: packed_bytes(w) for name, w in whole.items()}


def test_neighbours_of_one_format_are_one_piece() -> None:
    backend = make_backend("cpu", threads=1)
    rows = [Weight("f32", np.full((n, 32), n, np.float32)) for n in (16, 32, 5)]
    other = Weight("bf16", np.zeros((7, 32), np.uint16))
    assert [(f, n) for f, n, _ in _native.pieces(backend.pack(rows, 53))] == [("f32", 53)]  # type: ignore[arg-type]
    assert [n for _, n, _ in _native.pieces(backend.pack(rows))] == [16, 32, 5]  # type: ignore[arg-type]
    mixed = backend.pack([*rows, other, rows[0]], 76)
    assert [(f, n) for f, n, _ in _native.pieces(mixed)] == [("f32", 53), ("bf16", 7), ("f32", 16)]  # type: ignore[arg-type]
    ids = np.arange(76, dtype=np.int32)
    values = np.concatenate([np.full((n, 32), n, np.float32) for n in (16, 32, 5)])
    expected = np.concatenate([values, np.zeros((7, 32), np.float32), values[:16]])
    np.testing.assert_array_equal(backend.embed(mixed, ids), expected)


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_nothing_of_the_file_stays_mapped(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "stays-not-mapped"
    if kind == "folder":
        write_folder(TINY_MODELS["llama"], path)
    else:
        path = write_gguf(TINY_MODELS["llama"], path.with_suffix(".gguf"))
    checkpoint = open_model(ModelConfig(model=str(path)))
    assert "stays-not-mapped" in Path("/proc/self/maps").read_text()
    text = checkpoint.text
    decoder = Decoder(checkpoint, make_backend("cpu", threads=1))
    del checkpoint
    assert "stays-not-mapped" not in Path("/proc/self/maps").read_text()
    assert decoder.nbytes > 0
    assert text is not None


def test_pages_that_were_read_are_let_go_of(tmp_path: Path) -> None:
    checkpoint = load_gguf(write_gguf(TINY_MODELS["llama"], tmp_path / "paged-model.gguf"))
    before = checkpoint.tensors.matrix("layers.0.q", "f32").data
    assert _resident_kib("paged-model") > 0
    checkpoint.tensors.release()
    assert _resident_kib("paged-model") == 0
    np.testing.assert_array_equal(checkpoint.tensors.matrix("layers.0.q", "f32").data, before)
    checkpoint.tensors.fingerprint()
    assert _resident_kib("paged-model") == 0


def _resident_kib(name: str) -> int:
    lines = Path("/proc/self/smaps").read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if name in line)
    return next(int(line.split()[1]) for line in lines[at:] if line.startswith("Rss:"))


class OneBadSlab:
    """Tensors of one matrix, whose last rows cannot be read."""

    def __init__(self) -> None:
        self.asked = 0

    def shape(self, name: str) -> tuple[int, ...]:
        return (64 * 100, 32)

    def matrix(self, name: str, dense: None, rows: slice) -> Weight:
        self.asked += 1
        if rows.start >= 64 * 10:
            raise ModelError(f"{name}: damaged from row {rows.start} on")
        return Weight("f32", np.zeros((rows.stop - rows.start, 32), np.float32))

    def release(self) -> None:
        pass


def test_an_error_in_a_slab_is_told_and_ends_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_SLAB_VALUES", 64 * 32)
    tensors = OneBadSlab()
    with (
        pytest.raises(ModelError, match="w: damaged from row 640 on"),
        Packer(tensors, make_backend("cpu", threads=2), NO_STORE) as packer,  # type: ignore[arg-type]
    ):
        packer.pack("w")
    assert tensors.asked <= 10 + 3


@pytest.mark.parametrize("isa", _native.isas())
def test_layout_is_that_of_its_version(isa: str) -> None:
    """Files of packed weights are known by this number, so bytes that change without it would be taken for what they are not."""
    rng = np.random.default_rng(7)
    n, k = 35, 64
    scales, mins = (rng.integers(0, 1 << 14, (n, k // 32)).astype(np.uint16).view(np.float16) for _ in range(2))
    bits = rng.integers(0, 1 << 14, (n, k)).astype(np.uint16)
    weights = [
        Weight("f32", rng.integers(0, 1 << 30, (n, k)).astype(np.uint32).view(np.float32)),
        Weight("f16", bits.view(np.float16)),
        Weight("bf16", bits),
        Weight("q8", rng.integers(-128, 128, (n, k)).astype(np.int8), scales),
        Weight("q4", rng.integers(0, 16, (n, k)).astype(np.uint8), scales, mins),
    ]
    backend = make_backend("cpu", threads=1, isa=isa)
    digest = hashlib.sha256(b"".join(packed_bytes(backend.pack([weight])) for weight in weights)).hexdigest()
    assert (_native.packing_version, digest[:16]) == (1, "85d9eefd0525a8f7")
