"""Quantised folders: AWQ, GPTQ, compressed-tensors and FP8, against packers written from the formats' descriptions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import packers
import pytest
from one_sequence import OneSequence
from packers import Packed, pack_model
from support.memory import allocating_at_most
from tiny_models import TINY_MODELS, write_safetensors

from ramet.errors import ModelError
from ramet.kernels.registry import make_backend
from ramet.model.folder import load_folder
from ramet.model.quant import convert, dequantize
from ramet.model.spec import Checkpoint

LLAMA = TINY_MODELS["llama"]
TOKENS = list(range(60, 90))

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "GEMM", "modules_to_not_convert": None}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False, "damp_percent": 0.01}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [16, 32]}


def compressed(format_: str, **weights: Any) -> dict[str, Any]:
    given = {
        "num_bits": 8,
        "type": "int",
        "symmetric": True,
        "strategy": "channel",
        "group_size": None,
        "dynamic": False,
    } | weights
    group = {"targets": ["Linear"], "weights": given, "input_activations": None, "output_activations": None}
    groups = {"group_0": group}
    return {"quant_method": "compressed-tensors", "format": format_, "config_groups": groups, "ignore": ["lm_head"]}


INT4 = compressed("pack-quantized", num_bits=4, strategy="group", group_size=32)
CASES: dict[str, tuple[dict[str, Any], Callable[..., Packed], str]] = {
    "awq": (AWQ, packers.awq, "q4"),
    "awq, one group": (AWQ | {"group_size": -1}, lambda w: packers.awq(w, group_size=w.shape[1]), "q4"),
    "gptq": (GPTQ, packers.gptq, "q4"),
    "gptq, symmetric": (GPTQ | {"sym": True}, partial(packers.gptq, symmetric=True), "q4"),
    "gptq, version 2": (GPTQ | {"checkpoint_format": "gptq_v2"}, partial(packers.gptq, version=2), "q4"),
    "gptq, act-order": (GPTQ | {"desc_act": True}, partial(packers.gptq, act_order=True), "q8"),
    "gptq, 8 bits": (GPTQ | {"bits": 8, "sym": True}, partial(packers.gptq, bits=8, symmetric=True), "q8"),
    "gptq, 8 bits, not symmetric": (GPTQ | {"bits": 8}, partial(packers.gptq, bits=8), "q8"),
    "int4": (INT4, packers.pack_quantized, "q4"),
    "int4, not symmetric": (INT4, partial(packers.pack_quantized, symmetric=False), "q4"),
    "int4, act-order": (INT4, partial(packers.pack_quantized, act_order=True, dtype="F16"), "q8"),
    "int4, by output": (INT4, lambda w: packers.pack_quantized(w, group_size=w.shape[1]), "q4"),
    "int8 in words": (compressed("pack-quantized"), partial(packers.pack_quantized, bits=8), "q8"),
    "int8": (compressed("int-quantized"), packers.int_quantized, "q8"),
    "int8, by group": (compressed("int-quantized", strategy="group"), partial(packers.int_quantized, group_size=32), "q8"),
    "int8, not symmetric": (compressed("int-quantized"), partial(packers.int_quantized, symmetric=False), "q8"),
    "int8, one scale": (compressed("int-quantized", strategy="tensor"), partial(packers.int_quantized, one_scale=True), "q8"),
    "fp8": (FP8, packers.float8, "q8"),
    "fp8, one scale": (FP8, partial(packers.float8, scale="tensor", name="weight_scale"), "q8"),
    "float-quantized": (
        compressed("float-quantized", type="float"),
        partial(packers.float8, scale="channel", name="weight_scale"),
        "q8",
    ),
}
FITTED = {"gptq, act-order", "gptq, 8 bits, not symmetric", "int4, act-order", "int8, not symmetric"} | {
    name for name in CASES if "f" in name.partition(",")[0]
}


def write(
    folder: Path, tensors: Mapping[str, Any], quantization: dict[str, Any] | None, model: Mapping[str, Any] = LLAMA.config
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = {**model, "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def logits(checkpoint: Checkpoint) -> np.ndarray:
    return OneSequence(checkpoint, make_backend("cpu", threads=1)).feed(TOKENS)


@pytest.mark.parametrize("name", list(CASES))
def test_packed_models_compute_what_their_values_say(name: str, tmp_path: Path) -> None:
    """In float32 the very logits of the dequantised folder; as the kernels hold them, near to that."""
    config, pack, format_ = CASES[name]
    packed, plain = pack_model(LLAMA.tensors, pack)
    checkpoint = load_folder(write(tmp_path / "packed", packed, config))
    exact = logits(load_folder(write(tmp_path / "plain", plain, None)))
    assert checkpoint.tensors.formats() == {"f32", format_}
    assert np.array_equal(logits(convert(checkpoint, "float32", None)), exact)
    error = np.linalg.norm(logits(checkpoint) - exact) / np.linalg.norm(exact)
    assert error < (0.03 if name in FITTED else 2e-3), error


@pytest.mark.parametrize("name", sorted(set(CASES) - FITTED))
def test_codes_are_kept(name: str, tmp_path: Path) -> None:
    """What is lost is what float16 cannot hold of a scale or of a minimum: 2**-11 of each."""
    config, pack, _ = CASES[name]
    packed, plain = pack_model(LLAMA.tensors, pack)
    found = load_folder(write(tmp_path, packed, config)).tensors.matrix("layers.1.down")
    values = plain["model.layers.1.mlp.down_proj.weight"][1]
    sizes = np.abs(found.scales.astype(np.float32)).repeat(32, axis=1) * (15 if found.format == "q4" else 128)
    assert (np.abs(dequantize(found) - values) <= 2.0**-11 * (np.abs(values) + 2 * sizes)).all()


def test_rows_of_one_packed_tensor_may_be_several_matrices(tmp_path: Path) -> None:
    """Phi-3: q, k and v are one tensor, gate and up another."""
    phi = TINY_MODELS["phi3"]
    for name in ("gptq", "awq", "int8", "fp8"):
        packed, plain = pack_model(phi.tensors, CASES[name][1])
        checkpoint = load_folder(write(tmp_path / name, packed, CASES[name][0], phi.config))
        exact = logits(load_folder(write(tmp_path / name / "plain", plain, None, phi.config)))
        assert np.array_equal(logits(convert(checkpoint, "float32", None)), exact), name
        assert checkpoint.tensors.formats() == {"f32", CASES[name][2]}


def test_zero_points_of_the_first_version_borrow_from_their_neighbours(tmp_path: Path) -> None:
    """A zero point of 0 is stored as 15, and one is missing in the next place of the word."""
    positive = {n: np.abs(t) + 0.1 if n.endswith("_proj.weight") else t for n, t in LLAMA.tensors.items()}
    packed, plain = pack_model(positive, packers.gptq)
    assert (packed["model.layers.0.mlp.up_proj.qzeros"][1] == -0x11111111).all()
    found = load_folder(write(tmp_path, packed, GPTQ)).tensors.matrix("layers.0.up", "f32")
    assert np.array_equal(found.data, plain["model.layers.0.mlp.up_proj.weight"][1])


def test_bits_that_mean_something_else_are_another_model(tmp_path: Path) -> None:
    packed, _ = pack_model(LLAMA.tensors, packers.gptq)
    first, second = (
        load_folder(write(tmp_path / str(v), packed, GPTQ | {"checkpoint_format": v})).fingerprint() for v in ("gptq", "gptq_v2")
    )
    assert first != second


def test_packed_tensors_without_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"quantization_config is missing, though there is model\.layers\.0\..*qweight"):
        load_folder(write(tmp_path, pack_model(LLAMA.tensors, packers.awq)[0], None))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method 'bitsandbytes' is not supported; supported: awq, gptq, compressed"),
        ({"bits": 4}, "quantization_config: quant_method is missing"),
        ([], "quantization_config is an object"),
        (AWQ | {"version": "gemv"}, "version 'gemv' is not supported; supported: gemm"),
        (AWQ | {"bits": 3}, "bits 3 is not supported; supported: 4"),
        (AWQ | {"group_size": 0}, "group_size is from 1 to"),
        (AWQ | {"group_size": 2**63}, "group_size is from 1 to"),
        (AWQ | {"zero_point": False}, "zero_point is false"),
        (GPTQ | {"bits": 2}, "bits 2 is not supported; supported: 4, 8"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin' is not supported"),
        (GPTQ | {"dynamic": {"+:.*": {"bits": 8}}}, "dynamic is set"),
        (FP8 | {"fmt": "e5m2"}, "fmt 'e5m2' is not supported"),
        (FP8 | {"weight_block_size": [0, 128]}, "weight_block_size is two sizes over 0"),
        (FP8 | {"weight_block_size": [128]}, "weight_block_size is two sizes over 0"),
        (INT4 | {"format": "marlin-24"}, "format 'marlin-24' is not supported"),
        (INT4 | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config is set"),
        (INT4 | {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme is set"),
        (INT4 | {"config_groups": {}}, "config_groups is empty"),
        (compressed("pack-quantized", num_bits=2), "weights: num_bits 2 is not supported; supported: 4, 8"),
        (compressed("float-quantized", type="float", num_bits=4), "num_bits 4 is not supported; supported: 8"),
        (compressed("pack-quantized", strategy="tensor_group"), "strategy 'tensor_group' is not supported"),
    ],
)
def test_configurations_that_are_refused(config: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        load_folder(write(tmp_path, {n: ("F32", t) for n, t in LLAMA.tensors.items()}, config))
    assert "config.json" in str(caught.value)
    assert "\n" not in str(caught.value)


Q = "model.layers.0.self_attn.q_proj."


def i32(*shape: int, value: int = 0) -> tuple[str, np.ndarray]:
    return "I32", np.full(shape, value, np.int32)


def i64(*values: int) -> tuple[str, np.ndarray]:
    return "I64", np.array(values, np.int64)


def i8(*shape: int) -> tuple[str, np.ndarray]:
    return "I8", np.zeros(shape, np.int8)


def f8(*shape: int, value: int = 0) -> tuple[str, np.ndarray]:
    return "F8_E4M3", np.full(shape, value, np.uint8)


def f16(*shape: int, value: float = 1.0) -> tuple[str, np.ndarray]:
    return "F16", np.full(shape, value, np.float32)


# fmt: off
HOSTILE: dict[str, tuple[str, dict[str, Any], str]] = {  # scheme, tensors of layer 0's q_proj, message
    "no zero points": ("awq", {"qzeros": None}, r"q_proj\.qzeros is missing"),
    "no scales": ("awq", {"scales": None}, r"q_proj\.scales is missing"),
    "scales of other groups": ("awq", {"scales": f16(4, 64)}, r"\.scales is \[4, 64\], but the other tensors make it \[2, 64\]"),
    "scales of other outputs": ("awq", {"scales": f16(2, 32)}, r"q_proj\.scales is \[2, 32\]"),
    "scales of rank 1": ("awq", {"scales": f16(128)}, r"q_proj\.scales is \[128\]"),
    "scales that are codes": ("awq", {"scales": i32(2, 64)}, r"q_proj\.scales holds I32, no floats"),
    "zero points of another shape": ("awq", {"qzeros": i32(2, 9)}, r"q_proj\.qzeros is \[2, 9\]"),
    "zero points of another type": ("awq", {"qzeros": f16(2, 8)}, r"q_proj\.qzeros holds F16, not I32"),
    "codes of another type": ("awq", {"qweight": ("I64", np.zeros((64, 8), np.int64))}, r"unexpected tensors|missing tensors"),
    "codes of rank 1": ("awq", {"qweight": i32(512)}, r"q_proj\.qweight is \[512\], no matrix"),
    "codes of another matrix": (
        "awq", {"qweight": i32(64, 16), "qzeros": i32(2, 16), "scales": f16(2, 128)},
        r"q_proj\.weight is \[128, 64\], but the configuration makes it \[64, 64\]"),
    "no inputs": ("awq", {"qweight": i32(0, 8)}, r"q_proj\.qweight has 0 inputs"),
    "inputs in no whole group": ("awq", {"qweight": i32(48, 8)}, r"\.qweight has 48 inputs, no whole number of groups of 32"),
    "no outputs, 2^40 inputs": (
        "awq", {"qweight": i32(2**40, 0), "qzeros": i32(2**35, 0), "scales": f16(2**35, 0)}, r"weight is \[0, 1099511627776\]"),
    "no inputs, 2^40 outputs": (
        "fp8", {"weight": f8(2**40, 0), "weight_scale_inv": f16(1)}, r"q_proj\.weight is \[1099511627776, 0\]"),
    "plain weight beside codes": ("awq", {"weight": f16(64, 64)}, r"q_proj\.qweight is there, and so is a weight"),
    "group -1": ("gptq", {"g_idx": i32(64, value=-1)}, r"q_proj\.g_idx has groups from -1 to -1, but there are 2"),
    "group 2 of 2": ("gptq", {"g_idx": i32(64, value=2)}, r"q_proj\.g_idx has groups from 2 to 2"),
    "group 2^31-1": ("gptq", {"g_idx": i32(64, value=2**31 - 1)}, r"q_proj\.g_idx has groups from 2147483647"),
    "groups of other inputs": ("gptq", {"g_idx": i32(65)}, r"q_proj\.g_idx is \[65\], but the other tensors make it \[64\]"),
    "outputs in no whole word": (
        "gptq", {"qweight": i32(8, 63), "scales": f16(2, 63)}, r"qweight has 63 outputs, no multiple of the 8 in a word"),
    "said shape of 2^40 inputs": ("int4", {"weight_shape": i64(64, 2**40)}, r"weight_packed is \[64, 8\], which is not \[64, 10"),
    "said shape of 2^63-1 inputs": ("int4", {"weight_shape": i64(64, 2**63 - 1)}, r"\.weight_packed is \[64, 8\], which is not"),
    "said shape negative": ("int4", {"weight_shape": i64(64, -64)}, r"q_proj\.weight_shape is \[64, -64\]"),
    "said shape missing": ("int4", {"weight_shape": None}, r"q_proj\.weight_shape is missing"),
    "said shape of three": ("int4", {"weight_shape": i64(64, 64, 1)}, r"q_proj\.weight_shape is \[3\]"),
    "scales of no group": ("int4", {"weight_scale": f16(64, 0)}, r"q_proj\.weight_scale is \[64, 0\], which does not fit"),
    "scales of 5 groups": ("int4", {"weight_scale": f16(64, 5)}, r"q_proj\.weight_scale is \[64, 5\], which does not fit"),
    "scales of rank 3": ("int8", {"weight_scale": f16(64, 1, 1)}, r"q_proj\.weight_scale is \[64, 1, 1\]"),
    "scale missing": ("int8", {"weight_scale": None}, r"q_proj\.weight_scale is missing"),
    "zero point of another shape": ("int8", {"weight_zero_point": i8(64, 2)}, r"weight_zero_point is \[64, 2\]"),
    "blocks of another size": ("fp8", {"weight_scale_inv": f16(3, 2)}, r"weight_scale_inv is \[3, 2\], which does not fit"),
    "no block": ("fp8", {"weight_scale_inv": None}, r"q_proj\.weight_scale is missing"),
    "part of nothing": ("awq", {"../x.qzeros": i32(2, 8)}, r"unexpected tensors, .*x\.qzeros"),
    "bytes without a meaning": ("fp8", {"weight": i8(64, 64), "weight_scale_inv": None}, r"q_proj\.weight holds I8, but no"),
}
# fmt: on


@pytest.fixture(scope="module")
def packed_models() -> dict[str, dict[str, Any]]:
    return {name: pack_model(LLAMA.tensors, CASES[name][1])[0] for name in ("awq", "gptq", "int4", "int8", "fp8")}


@pytest.mark.parametrize("case", list(HOSTILE))
def test_t09_tensors_that_do_not_fit(case: str, packed_models: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    scheme, changes, message = HOSTILE[case]
    changes = {Q + kind: tensor for kind, tensor in changes.items()}
    tensors = {n: t for n, t in (packed_models[scheme] | changes).items() if t is not None}
    folder = write(tmp_path, tensors, CASES[scheme][0])
    with allocating_at_most(64 << 20), pytest.raises(ModelError, match=message) as caught:
        load_folder(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("scheme", "changes"),
    [
        ("awq", {"scales": f16(2, 64, value=np.nan)}),
        ("gptq", {"scales": f16(2, 64, value=np.inf)}),
        ("int4", {"weight_scale": f16(64, 2, value=-np.inf)}),
        ("int8", {"weight_scale": f16(64, 1, value=np.nan)}),
        ("fp8", {"weight_scale_inv": f16(4, 2, value=np.inf)}),
        ("fp8", {"weight": f8(64, 64, value=0x7F)}),
    ],
)
@pytest.mark.parametrize("dense", [None, "bf16"])
def test_t09_numbers_that_are_not_finite(
    scheme: str, changes: dict[str, Any], dense: Any, packed_models: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    tensors = packed_models[scheme] | {Q + kind: tensor for kind, tensor in changes.items()}
    folder = write(tmp_path, tensors, CASES[scheme][0])
    with pytest.raises(ModelError, match=r"tensor model\.layers\.0\.self_attn\.q_proj.*: .* not finite; the file is damaged"):
        load_folder(folder).tensors.matrix("layers.0.q", dense)


def test_scales_that_float16_cannot_hold(packed_models: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    huge = packed_models["int8"] | {Q + "weight_scale": ("F32", np.full((64, 1), 1e6, np.float32))}
    tensors = load_folder(write(tmp_path, huge, CASES["int8"][0])).tensors
    with pytest.raises(ModelError, match=r"q_proj: a weight is too large for a float16 scale: 1e\+06"):
        tensors.matrix("layers.0.q")
    assert np.isfinite(tensors.matrix("layers.0.q", "f32").data).all()


@pytest.mark.parametrize("name", sorted(CASES))
def test_rows_read_alone_have_the_same_bits(name: str, tmp_path: Path) -> None:
    config, pack, _ = CASES[name]
    tensors = load_folder(write(tmp_path, pack_model(LLAMA.tensors, pack)[0], config)).tensors
    whole = tensors.matrix("layers.1.up")
    assert tensors.shape("layers.1.up") == whole.shape
    parts = [tensors.matrix("layers.1.up", rows=slice(first, first + 17)) for first in range(0, len(whole.data), 17)]
    assert np.array_equal(np.concatenate([part.data for part in parts]), whole.data)
    assert np.array_equal(np.concatenate([part.scales for part in parts]), whole.scales)
