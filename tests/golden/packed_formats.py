"""Write ``packed_formats.json``: matrices of random words in each quantised layout, and what its own project reads in them.

Run in an environment with torch, transformers, autoawq, gptqmodel and compressed-tensors, from anywhere:
``python tests/golden/packed_formats.py``. Scales are given to each in float32, so that its values are not rounded.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from awq.utils.packing_utils import dequantize_gemm
from compressed_tensors.compressors.naive_quantized.base import NaiveQuantizationCompressor
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from gptqmodel.utils.model_dequant import _correct_gptq_v1_qzeros, unpack_cols, unpack_rows
from transformers.integrations.finegrained_fp8 import _dequantize_fp8_weight

N, K, GROUP = 16, 64, 32
RNG = np.random.default_rng(12)
_TYPES = {torch.int32: "I32", torch.int64: "I64", torch.int8: "I8", torch.float16: "F16", torch.bfloat16: "BF16"} | {
    torch.float32: "F32",
    torch.float8_e4m3fn: "F8_E4M3",
}


def main() -> None:
    cases = [awq(), *gptq(), *compressed_tensors(), fp8()]
    path = Path(__file__).with_suffix(".json")
    path.write_text(json.dumps(cases, indent=1) + "\n")
    print(f"{len(cases)} matrices, {path.stat().st_size} bytes")


def case(name: str, config: dict[str, Any], tensors: dict[str, torch.Tensor], values: torch.Tensor) -> dict[str, Any]:
    assert values.shape == (N, K)
    assert values.isfinite().all()
    stored = {kind: {"dtype": _TYPES[t.dtype], "shape": list(t.shape), "data": packed(t)} for kind, t in tensors.items()}
    return {"name": name, "config": config, "tensors": stored, "values": packed(values.float())}


def packed(tensor: torch.Tensor) -> str:
    return base64.b64encode(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).decode()


def words(*shape: int, bits: int = 32) -> torch.Tensor:
    """Any words; with ``bits``, of places none of which has all its bits set."""
    if bits == 32:
        return torch.from_numpy(RNG.integers(-(2**31), 2**31, shape).astype(np.int32))
    places = RNG.integers(0, (1 << bits) - 1, (*shape, 32 // bits)).astype(np.uint64)
    whole = (places << (np.arange(32 // bits, dtype=np.uint64) * np.uint64(bits))).sum(axis=-1)
    return torch.from_numpy(whole.astype(np.uint32).view(np.int32))


def scales(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.from_numpy(RNG.uniform(0.001, 0.02, shape).astype(np.float32)).to(dtype)


def awq() -> dict[str, Any]:
    tensors = {"qweight": words(K, N // 8), "qzeros": words(K // GROUP, N // 8), "scales": scales(K // GROUP, N)}
    values = dequantize_gemm(tensors["qweight"], tensors["qzeros"], tensors["scales"].float(), 4, GROUP).T
    return case("awq", {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}, tensors, values)


def gptq() -> list[dict[str, Any]]:
    found = []
    kinds = (4, "gptq", False), (4, "gptq_v2", False), (4, "gptq", True), (8, "gptq", False), (8, "gptq_v2", True)
    for bits, form, act_order in kinds:
        groups = np.arange(K) // GROUP
        groups = torch.from_numpy((RNG.permutation(groups) if act_order else groups).astype(np.int32))
        zeros = words(K // GROUP, N * bits // 32, bits=bits)
        tensors = {"qweight": words(K * bits // 32, N), "qzeros": zeros, "scales": scales(K // GROUP, N), "g_idx": groups}
        moved = _correct_gptq_v1_qzeros(zeros, bits) if form == "gptq" else zeros
        codes, zero_points = unpack_rows(tensors["qweight"], bits).float(), unpack_cols(moved, bits).float()
        values = (codes - zero_points[groups.long()]) * tensors["scales"].float()[groups.long()]
        config = {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "desc_act": act_order, "checkpoint_format": form}
        found.append(case(f"{form}, {bits} bits{', act-order' if act_order else ''}", config, tensors, values.T))
    return found


def compressed_tensors() -> list[dict[str, Any]]:
    shape = torch.tensor([N, K])
    found = []
    for bits, symmetric, by_group in ((4, True, True), (4, False, True), (8, True, False)):
        num_groups = K // GROUP if by_group else 1
        tensors = {"weight_packed": words(N, K * bits // 32), "weight_scale": scales(N, num_groups, dtype=torch.bfloat16)}
        tensors |= {"weight_shape": shape}
        if not symmetric:
            tensors["weight_zero_point"] = words(N * bits // 32, num_groups)
        args = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group" if by_group else "channel"}
        args |= {"group_size": GROUP} if by_group else {}
        found.append(decompressed(f"pack-quantized, {bits} bits, {symmetric=}", PackedQuantizationCompressor, args, tensors))
    whole = {"weight": torch.from_numpy(RNG.integers(-128, 128, (N, K)).astype(np.int8))}
    whole["weight_scale"] = scales(N, 1, dtype=torch.bfloat16)
    args = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    found.append(decompressed("int-quantized", NaiveQuantizationCompressor, args, whole))
    tensors = {"weight": float8s(), "weight_scale": scales(N, 1, dtype=torch.bfloat16)}
    args = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
    found.append(decompressed("float-quantized", NaiveQuantizationCompressor, args, tensors))
    return found


def decompressed(name: str, compressor: Any, args: dict[str, Any], tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))
    exact = {kind: tensor.float() if kind == "weight_scale" else tensor for kind, tensor in tensors.items()}
    values = compressor.decompress(exact, scheme)["weight"]
    config = {"quant_method": "compressed-tensors", "format": name.partition(",")[0]}
    config |= {"config_groups": {"group_0": {"targets": ["Linear"], "weights": args}}}
    return case(name, config, tensors, values)


def float8s() -> torch.Tensor:
    codes = RNG.integers(0, 256, (N, K)).astype(np.uint8)
    codes[codes & 127 == 127] = 0  # no numbers
    return torch.from_numpy(codes).view(torch.float8_e4m3fn)


def fp8() -> dict[str, Any]:
    block = [12, 24]  # divides neither of the sizes
    shape = -(-N // block[0]), -(-K // block[1])
    tensors = {"weight": float8s(), "weight_scale_inv": scales(*shape, dtype=torch.float32)}
    values = _dequantize_fp8_weight(tensors["weight"], tensors["weight_scale_inv"], block, torch.float32)
    return case("fp8", {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": block}, tensors, values)


if __name__ == "__main__":
    main()
