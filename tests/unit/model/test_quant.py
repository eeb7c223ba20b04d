"""Changing the type of weights: error bounds, edges, and what stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from one_sequence import OneSequence
from tiny_models import TINY_MODELS, write_folder, write_gguf, write_safetensors

from ramet.errors import ModelError
from ramet.kernels.backend import Weight
from ramet.kernels.registry import make_backend
from ramet.model import quant
from ramet.model.folder import load_folder
from ramet.model.gguf_model import load_gguf
from ramet.model.quant import convert, dequantize, quantize_int4, quantize_int8, round_to

RNG = np.random.default_rng(11)
VALUES = (RNG.standard_normal((37, 96)) * np.exp(RNG.standard_normal((37, 1)))).astype(np.float32)


def groups(values: np.ndarray) -> np.ndarray:
    return values.reshape(len(values), -1, 32)


def test_int8_error_is_half_a_step() -> None:
    weight = quantize_int8(Weight("f32", VALUES))
    assert weight.format == "q8"
    assert np.abs(weight.data).max() == 127
    step = np.abs(groups(VALUES)).max(axis=2) / 127
    assert (np.abs(groups(dequantize(weight) - VALUES)) <= 0.57 * step[:, :, None]).all()  # 0.5, and the rounded scale


def test_int4_error_is_half_a_step() -> None:
    weight = quantize_int4(Weight("f32", VALUES))
    assert weight.format == "q4"
    assert (weight.data.min(), weight.data.max()) == (0, 15)
    step = np.ptp(groups(VALUES), axis=2) / 15
    assert (np.abs(groups(dequantize(weight) - VALUES)) <= 0.53 * step[:, :, None]).all()


@pytest.mark.parametrize("quantize", [quantize_int8, quantize_int4])
def test_what_quantisation_holds_exactly(quantize: Callable[[Weight], Weight]) -> None:
    zeros = np.zeros((3, 64), np.float32)
    assert np.array_equal(dequantize(quantize(Weight("f32", zeros))), zeros)
    constant = np.full((3, 64), -0.5, np.float32)
    assert np.allclose(dequantize(quantize(Weight("f32", constant))), constant, rtol=5e-4)


@pytest.mark.parametrize("quantize", [quantize_int8, quantize_int4])
def test_quantising_by_chunks_changes_nothing(quantize: Callable[[Weight], Weight], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = quantize(Weight("f32", VALUES))
    monkeypatch.setattr(quant, "_CHUNK_VALUES", 96 * 5)
    parts = quantize(Weight("f32", VALUES))
    assert np.array_equal(whole.data, parts.data)
    assert np.array_equal(whole.scales, parts.scales)


@pytest.mark.parametrize("quantize", [quantize_int8, quantize_int4])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.ones((2, 48), np.float32), "48 inputs are no multiple of 32"),
        (np.full((2, 32), np.inf, np.float32), "not finite"),
        (np.full((2, 32), np.nan, np.float32), "not finite"),
        (np.linspace(-1e9, 1e9, 64, dtype=np.float32).reshape(2, 32), "too large"),
    ],
)
def test_what_cannot_be_quantised(quantize: Callable[[Weight], Weight], values: np.ndarray, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        quantize(Weight("f32", values))


def test_quantised_twice() -> None:
    with pytest.raises(ModelError, match="q8 already"):
        quantize_int8(quantize_int8(Weight("f32", VALUES)))


def test_rounding_is_half_to_even() -> None:
    ulp16, ulp_b = 2.0**-10, 2.0**-7
    values = np.array([[1 + ulp16 / 2, 1 + 3 * ulp16 / 2, 1 + ulp_b / 2, 1 + 3 * ulp_b / 2]], np.float32)
    assert dequantize(round_to(Weight("f32", values), "f16"))[0, :2].tolist() == [1.0, 1 + 2 * ulp16]
    assert dequantize(round_to(Weight("f32", values), "bf16"))[0, 2:].tolist() == [1.0, 1 + 2 * ulp_b]


def test_float16_overflow_is_an_error() -> None:
    with pytest.raises(ModelError, match="does not fit float16"):
        round_to(Weight("f32", np.array([[1.0, 70_000.0]], np.float32)), "f16")


def test_same_format_is_the_same_weight() -> None:
    weight = Weight("f32", VALUES)
    assert round_to(weight, "f32") is weight


@pytest.mark.parametrize("name", ["llama", "qwen3"])
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quantised_model_is_near_the_dense_one(name: str, quantization: str, tmp_path: Path) -> None:
    dense = load_folder(write_folder(TINY_MODELS[name], tmp_path, tokenizer=False))
    small = convert(dense, "auto", quantization)  # type: ignore[arg-type]
    tokens = list(range(60, 100))
    exact, rough = (OneSequence(c, make_backend("reference")).feed(tokens) for c in (dense, small))
    error = np.linalg.norm(rough - exact) / np.linalg.norm(exact)
    assert 0 < error < {"int8": 0.05, "int4": 0.4}[quantization]
    assert small.fingerprint() != dense.fingerprint()


def test_int4_leaves_embedding_and_head_at_int8(tmp_path: Path) -> None:
    checkpoint = convert(load_folder(write_folder(TINY_MODELS["llama"], tmp_path, tokenizer=False)), "auto", "int4")
    assert checkpoint.tensors.matrix("embed").format == "q8"
    assert checkpoint.tensors.matrix("head").format == "q8"
    assert checkpoint.tensors.matrix("layers.0.q").format == "q4"
    assert checkpoint.tensors.vector("final_norm").dtype == np.float32
    assert checkpoint.dtype == "int4+int8"


@pytest.mark.parametrize(("dtype", "format_"), [("float32", "f32"), ("float16", "f16"), ("bfloat16", "bf16")])
def test_dtype_of_a_model(dtype: str, format_: str, tmp_path: Path) -> None:
    checkpoint = convert(load_gguf(write_gguf(TINY_MODELS["qwen2"], tmp_path / "m.gguf", type_name="Q8_0")), dtype, None)  # type: ignore[arg-type]
    assert checkpoint.dtype == dtype
    assert checkpoint.tensors.matrix("layers.1.down").format == format_


def test_auto_keeps_the_stored_types(tmp_path: Path) -> None:
    checkpoint = load_folder(write_folder(TINY_MODELS["llama"], tmp_path, dtype="BF16", tokenizer=False))
    assert convert(checkpoint, "auto", None).dtype == "bfloat16"


def test_quantising_a_quantised_file(tmp_path: Path) -> None:
    checkpoint = load_gguf(write_gguf(TINY_MODELS["llama"], tmp_path / "m.gguf", type_name="Q4_0"))
    with pytest.raises(ModelError, match="is quantised already; leave --quantization out"):
        convert(checkpoint, "auto", "int4")


def test_error_names_the_tensor(tmp_path: Path) -> None:
    model = TINY_MODELS["llama"]
    huge = {n: t * 1e6 if n.endswith("1.mlp.up_proj.weight") else t for n, t in model.tensors.items()}
    folder = write_folder(model, tmp_path, tokenizer=False)
    write_safetensors(folder / "model.safetensors", {n: ("F32", t.astype(np.float32)) for n, t in huge.items()})
    with pytest.raises(ModelError, match=r"layers\.1\.up: a weight of .* does not fit float16"):
        convert(load_folder(folder), "float16", None).tensors.matrix("layers.1.up")
