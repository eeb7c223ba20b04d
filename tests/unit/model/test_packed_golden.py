"""Values of quantised matrices against the projects that made the formats (tests/golden/packed_formats.py), to the bit."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramet.model.files import Fields
from ramet.model.quant import dequantize
from ramet.model.quant_config import unpacked
from ramet.model.safetensors import StoredTensor

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "packed_formats.json").read_text())
_TYPES = {"I32": "<i4", "I64": "<i8", "I8": "i1", "F16": "<f2", "BF16": "<u2", "F32": "<f4", "F8_E4M3": "u1"}


def array(data: str, dtype: str, shape: list[int]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(data), dtype).reshape(shape)


@pytest.mark.parametrize("case", GOLDEN, ids=[case["name"] for case in GOLDEN])
def test_values_are_those_of_the_formats_own_project(case: dict[str, Any]) -> None:
    stored = {
        f"x.{kind}": StoredTensor(f"x.{kind}", t["dtype"], array(t["data"], _TYPES[t["dtype"]], t["shape"]))
        for kind, t in case["tensors"].items()
    }
    (matrix,) = unpacked(Fields({"quantization_config": case["config"]}, "config.json"), stored).values()
    expected = array(case["values"], "<f4", [16, 64])
    assert np.array_equal(matrix.dense("f32").data, expected)
    parts = [matrix.part(slice(a, b)) for a, b in ((0, 3), (3, 13), (13, 16))]  # in no whole words, nor blocks
    assert np.array_equal(np.concatenate([part.dense("f32").data for part in parts]), expected)
    held = np.concatenate([dequantize(part.weight()) for part in parts])
    assert np.array_equal(held, dequantize(matrix.weight()))
    assert np.abs(held - expected).max() < 0.01 * np.abs(expected).max()
