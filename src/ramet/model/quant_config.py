"""``quantization_config`` of a config.json: which layouts quantised tensors may have; everything else is refused by name.

The configuration says how matrices were packed; which ones were, their tensors say. So lists of exceptions (``ignore``,
``modules_to_not_convert``) need no reading: what is not packed is there as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ramet.errors import shown
from ramet.model.files import Fields, few
from ramet.model.grouped import CodedMatrix
from ramet.model.packed import Parts, awq, float8, gptq, int8, pack_quantized
from ramet.model.safetensors import StoredTensor

__all__ = ["Stored", "unpacked"]

Stored: TypeAlias = StoredTensor | CodedMatrix

_METHODS = "awq, gptq, compressed-tensors (int4, int8, FP8), fp8"
_CT_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision")
_ACTIVATION_SCALES = frozenset({"input_scale", "output_scale"})  # Ramet's activations have 16 bits, and scales of their own


@dataclass(frozen=True, slots=True)
class _Layout:
    """A matrix whose codes are in ``<name>.<main>``, of type ``dtype``, and whose other tensors are among ``parts``."""

    main: str
    dtype: str
    parts: frozenset[str]
    matrix: Callable[[Parts], CodedMatrix]


def unpacked(config: Fields, stored: Mapping[str, StoredTensor]) -> dict[str, Stored]:
    """Tensors by the names that they have in a folder without quantisation: ``x.qweight`` and its like become ``x.weight``.

    Raises ``ModelError`` where the method is not supported, or where tensors do not fit one another.
    """
    if not config.has("quantization_config"):
        if packed := [name for name in stored if name.endswith((".qweight", ".weight_packed"))]:
            raise config.fail("quantization_config", f"is missing, though there is {few(packed, 1)}")
        return dict(stored)
    found: dict[str, Stored] = dict(stored)
    for layout in _layouts(config.mapping("quantization_config")):
        for name, tensor in stored.items():
            stem, _, kind = name.rpartition(".")
            if kind != layout.main or tensor.dtype != layout.dtype:
                continue
            names = [n for part in (kind, *layout.parts) if (n := f"{stem}.{part}") in stored]
            parts = Parts(stem, {n.rpartition(".")[2]: stored[n] for n in names})
            for one in names:
                found.pop(one, None)
            if f"{stem}.weight" in found:
                raise parts.fail(kind, "is there, and so is a weight that is not quantised")
            found[f"{stem}.weight"] = layout.matrix(parts)
    return found


def _layouts(config: Fields) -> Sequence[_Layout]:
    method = config.text("quant_method")
    if method == "awq":
        return _awq(config)
    if method == "gptq":
        return _gptq(config)
    if method == "fp8":
        return _fp8(config)
    if method == "compressed-tensors":
        return _compressed_tensors(config)
    raise config.fail(
        "quant_method", f"{shown(method)} is not supported; supported: {_METHODS}. Or use the original, or a GGUF of it"
    )


def _awq(config: Fields) -> Sequence[_Layout]:
    _one_of(config, "bits", (4,), config.integer("bits"))
    version = config.text("version", "gemm").lower()
    _one_of(config, "version", ("gemm",), version)
    if not config.boolean("zero_point", True):
        raise config.fail("zero_point", "is false; only AWQ with zero points is supported")
    group_size = _group_size(config)
    return [_Layout("qweight", "I32", frozenset({"qzeros", "scales"}), lambda parts: awq(parts, group_size))]


def _gptq(config: Fields) -> Sequence[_Layout]:
    bits = config.integer("bits")
    _one_of(config, "bits", (4, 8), bits)
    form = config.text("checkpoint_format", config.text("format", "gptq"))
    _one_of(config, "checkpoint_format", ("gptq", "gptq_v2"), form)
    for key in ("dynamic", "is_marlin_format"):
        if config.raw(key):
            raise config.fail(key, "is set, which is not supported")
    group_size, offset = _group_size(config), 1 if form == "gptq" else 0
    parts = frozenset({"qzeros", "scales", "g_idx"})
    return [_Layout("qweight", "I32", parts, lambda of: gptq(of, bits, group_size, offset))]


def _fp8(config: Fields) -> Sequence[_Layout]:
    _one_of(config, "fmt", ("e4m3", "float8_e4m3fn"), config.text("fmt", "e4m3"))
    return [_float8_layout(_block(config, "weight_block_size"))]


def _compressed_tensors(config: Fields) -> Sequence[_Layout]:
    """All groups' layouts, as their ``weights`` say; they need no matching by name, because tensors' types tell them apart."""
    _one_of(config, "format", _CT_FORMATS, config.text("format"))
    for key in ("sparsity_config", "transform_config", "kv_cache_scheme"):
        if config.raw(key):
            raise config.fail(key, "is set, which is not supported")
    groups = config.mapping("config_groups")
    layouts = {layout.main + layout.dtype: layout for name in groups.names() for layout in _of_group(groups.mapping(name))}
    if not layouts:
        raise config.fail("config_groups", "is empty; it says how weights were quantised")
    return list(layouts.values())


def _of_group(group: Fields) -> Sequence[_Layout]:
    weights = group.mapping("weights")
    kind, bits = weights.text("type", "int"), weights.integer("num_bits")
    _one_of(weights, "strategy", ("tensor", "channel", "group", "block"), weights.text("strategy", "group"))
    if kind == "float":
        _one_of(weights, "num_bits", (8,), bits)
        return [_float8_layout(_block(weights, "block_structure"))]
    _one_of(weights, "type", ("int",), kind)
    _one_of(weights, "num_bits", (4, 8), bits)
    packed_parts = frozenset({"weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx"}) | _ACTIVATION_SCALES
    packed = _Layout("weight_packed", "I32", packed_parts, pack_quantized)
    whole = _Layout("weight", "I8", frozenset({"weight_scale", "weight_zero_point"}) | _ACTIVATION_SCALES, int8)
    return [packed] if bits == 4 else [packed, whole]


def _float8_layout(block: tuple[int, int] | None) -> _Layout:
    parts = frozenset({"weight_scale", "weight_scale_inv"}) | _ACTIVATION_SCALES
    return _Layout("weight", "F8_E4M3", parts, lambda of: float8(of, block))


def _block(config: Fields, key: str) -> tuple[int, int] | None:
    block = config.raw(key)
    if block is None:
        return None
    sizes = [n for n in block if isinstance(n, int) and not isinstance(n, bool) and n > 0] if isinstance(block, list) else []
    if not isinstance(block, list) or len(block) != 2 or len(sizes) != 2:
        raise config.fail(key, "is two sizes over 0: outputs and inputs of a block")
    return sizes[0], sizes[1]


def _group_size(config: Fields) -> int:
    return -1 if config.raw("group_size") == -1 else config.integer("group_size")


def _one_of(config: Fields, key: str, known: Sequence[object], value: object) -> None:
    if value not in known:
        raise config.fail(key, f"{shown(value)} is not supported; supported: {', '.join(str(k) for k in known)}")
