"""Every block type of GGUF: values as the gguf package has them, to the bit, and what the kernels' form is off by."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from one_sequence import OneSequence
from tiny_models import TinyModel, tiny_config, write_gguf

from ramet.errors import ModelError
from ramet.kernels.registry import make_backend
from ramet.model import quant
from ramet.model.gguf_model import load_gguf
from ramet.model.gguf_types import BLOCK_TYPES, BlockType
from ramet.model.grouped import CodedMatrix
from ramet.model.quant import dequantize

TYPES = {t.name: t for t in BLOCK_TYPES.values()}
_HALVES = {  # where the float16 of a block stand
    "Q4_1": (0, 2), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
    "TQ1_0": (52,), "TQ2_0": (64,), "MXFP4": (), "NVFP4": (), "IQ1_M": (),
}  # fmt: skip
_ROUND_SCALES = {"Q4_K", "IQ4_XS", "IQ1_S", "IQ2_XXS", "IQ3_XXS", "IQ3_S"}  # codes stay, and scales of more bits do not
_KEEP_CODES = {"Q4_0", "Q4_1", "Q5_0", "Q8_0", "IQ4_NL", "TQ1_0", "TQ2_0", "MXFP4"}  # and their scales are float16 already


def random_blocks(type_: BlockType, rows: int, columns: int, seed: int = 1, size: float = 0.06) -> npt.NDArray[np.uint8]:
    """uint8[rows, bytes of a row]: any codes and inner scales; values of about ``size``, as weights are."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (rows * columns // type_.block, type_.block_bytes), dtype=np.uint8)
    places = _HALVES.get(type_.name, (0,))

    def put(halves: npt.NDArray[np.float64]) -> None:
        for i, at in enumerate(places):
            blocks[:, at : at + 2] = halves[:, i : i + 1].astype(np.float16).view(np.uint8)

    if places:
        put(np.ones((len(blocks), 2)))
        put((1 + rng.random((len(blocks), 2))) * size / reference(type_, blocks).std())
    if type_.name == "IQ1_M":  # a float16 in four pieces
        whole = (1 + rng.random(len(blocks))) * size / 7
        digits = whole.astype(np.float16).view(np.uint16)[:, None] >> np.array([0, 4, 8, 12], np.uint16) & 15
        blocks[:, 49::2] = blocks[:, 49::2] & 15 | digits.astype(np.uint8) << 4
    if type_.name == "MXFP4":
        blocks[:, 0] = rng.integers(116, 122, len(blocks))
    if type_.name == "NVFP4":
        blocks[:, :4] &= 0x0F
    return blocks.reshape(rows, -1)


def reference(type_: BlockType, blocks: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    return gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[type_.name])


def matrix(type_: BlockType, blocks: npt.NDArray[np.uint8]) -> CodedMatrix:
    cut = blocks.reshape(len(blocks), -1, type_.block_bytes)
    return CodedMatrix("t", (len(blocks), cut.shape[1] * type_.block), type_.format, lambda rows: type_.decode(cut[rows]))


def test_numbers_and_sizes_of_types() -> None:
    for code, type_ in BLOCK_TYPES.items():
        assert gguf.GGMLQuantizationType(code).name == type_.name
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(code)] == (type_.block, type_.block_bytes)


@pytest.mark.parametrize("name", list(TYPES))
def test_values_of_any_bits_are_those_of_the_gguf_package(name: str) -> None:
    """Blocks of random bytes, subnormal and negative scales among them; only those whose values are finite."""
    type_ = TYPES[name]
    blocks = np.random.default_rng(2).integers(0, 256, (1500, type_.block_bytes), dtype=np.uint8)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = reference(type_, blocks)
    finite = np.isfinite(expected).all(axis=1)
    blocks, expected = blocks[finite][:1200].reshape(30, 40, -1), expected[finite][:1200].reshape(30, -1)
    found = type_.decode(blocks).values()
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("name", list(TYPES))
def test_what_the_kernels_hold(name: str) -> None:
    """Codes of one scale stay as they are; where 32 inputs meet two scales, or a minimum has no room, steps are small."""
    type_ = TYPES[name]
    blocks = random_blocks(type_, 24, 512)
    weight, values = matrix(type_, blocks).weight(), reference(type_, blocks)
    assert weight.format == type_.format
    off = np.abs(dequantize(weight) - values).reshape(24, -1, 32).max(axis=2)
    largest = np.abs(values).reshape(24, -1, 32).max(axis=2)
    span = np.ptp(values.reshape(24, -1, 32), axis=2)
    if name in _KEEP_CODES:
        assert off.max() == 0
    elif name in _ROUND_SCALES:
        assert (off <= 2.0**-11 * (largest + span)).all()
    elif name in ("Q5_1", "Q5_K"):
        assert (off <= 0.51 / 127 * largest).all()
    elif name == "Q2_K":
        assert (off <= 0.53 / 15 * span).all()
    else:  # scales may differ in sign, so that a code falls off the end: one step of the larger scale
        step = np.abs(weight.scales.astype(np.float32))
        assert (off <= 1.07 * step).all()
        assert np.median(off[step > 0] / step[step > 0]) < 0.51


def test_runs_with_the_larger_scale_keep_their_codes() -> None:
    """Q6_K and Q3_K: of the two runs of 16 that share a scale in the kernels, one is exact but for the scale's rounding."""
    for name in ("Q6_K", "Q3_K", "NVFP4"):
        type_ = TYPES[name]
        blocks = random_blocks(type_, 8, 512)
        values = reference(type_, blocks).reshape(8, -1, 2, 16)
        off = np.abs(dequantize(matrix(type_, blocks).weight()).reshape(values.shape) - values).max(axis=3)
        scales = np.abs(type_.decode(blocks.reshape(8, -1, type_.block_bytes)).scales.reshape(8, -1, 2))
        larger = np.take_along_axis(off, scales.argmax(axis=2, keepdims=True), axis=2)[:, :, 0]
        assert (larger <= 2.0**-11 * np.abs(values).max(axis=(2, 3))).mean() > 0.9, name  # all but the ends of the grid


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "Q5_K"])
def test_reading_by_chunks_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = random_blocks(TYPES[name], 13, 256)
    whole = matrix(TYPES[name], blocks).weight()
    monkeypatch.setattr(quant, "_CHUNK_VALUES", 256 * 3)
    parts = matrix(TYPES[name], blocks).weight()
    assert np.array_equal(whole.data, parts.data)
    assert np.array_equal(whole.scales, parts.scales)


@pytest.mark.parametrize("name", sorted(set(TYPES) - {"MXFP4", "NVFP4", "IQ1_M"}))
@pytest.mark.parametrize("bits", [0x7E00, 0xFC00])
def test_scales_that_are_not_finite(name: str, bits: int) -> None:
    blocks = random_blocks(TYPES[name], 2, 256)
    at = _HALVES.get(name, (0,))[-1]
    blocks[1, at : at + 2] = np.array([bits], np.uint16).view(np.uint8)
    for convert in (CodedMatrix.weight, lambda m: m.dense("f32")):
        with pytest.raises(ModelError, match=r"tensor t: a (scale|minimum) is not finite; the file is damaged"):
            convert(matrix(TYPES[name], blocks))


def test_scale_that_float16_cannot_hold() -> None:
    blocks = random_blocks(TYPES["MXFP4"], 2, 32)
    blocks[0, 0] = 200
    with pytest.raises(ModelError, match="tensor t: a weight is too large for a float16 scale"):
        matrix(TYPES["MXFP4"], blocks).weight()


WIDE = TinyModel(
    "wide",
    tiny_config("LlamaForCausalLM", hidden_size=256, intermediate_size=256, num_hidden_layers=1),
    seed=9,
    gguf_arch="llama",
)


@pytest.mark.parametrize("name", sorted(set(TYPES) - {"Q4_0", "Q4_1", "Q8_0"}))
def test_models_in_each_type_compute_what_their_values_say(name: str, tmp_path: Path) -> None:
    """In float32 the logits of a file that holds the gguf package's values; as the kernels hold them, near to that."""
    type_, prompt = TYPES[name], list(range(40, 52))
    stored = {n: random_blocks(type_, *t.shape, seed=i) for i, (n, t) in enumerate(WIDE.tensors.items()) if t.ndim == 2}
    plain = {n: reference(type_, stored[n]) if n in stored else t for n, t in WIDE.tensors.items()}
    path = write_gguf(WIDE, tmp_path / "m.gguf", type_name=name, stored=stored)
    dense = write_gguf(WIDE, tmp_path / "dense.gguf", values=plain)
    exact, same = (
        OneSequence(quant.convert(load_gguf(p), "float32", None), make_backend("cpu", threads=1)).feed(prompt)
        for p in (dense, path)
    )
    assert np.array_equal(exact, same)
    held = load_gguf(path)
    assert held.tensors.formats() == {type_.format}
    error = np.linalg.norm(OneSequence(held, make_backend("cpu", threads=1)).feed(prompt) - exact) / np.linalg.norm(exact)
    assert error < (2e-3 if name in _KEEP_CODES | _ROUND_SCALES else 0.03), error
