"""LoRA adapters (Hu et al. 2021) from files: a folder as PEFT writes it, or a GGUF file. Untrusted input, as every model file.

An adapter adds ``scale * up @ down`` to matrices of a model. What would change the model in any other way is refused by the
name of its field: a part left out gives fluent nonsense.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ramet.errors import ModelError, shown
from ramet.kernels.backend import Weight
from ramet.model.families import GGUF_FAMILIES, Expected, Naming, expected_tensors
from ramet.model.files import Fields, few, plain, read_json
from ramet.model.gguf import GGUFTensor, read_gguf
from ramet.model.gguf_model import halves_order
from ramet.model.quant import as_float32
from ramet.model.safetensors import StoredTensor, read_safetensors
from ramet.model.spec import LoraMatrix, ModelSpec

__all__ = ["Lora", "read_lora"]

_CONFIG, _TENSORS = "adapter_config.json", "adapter_model.safetensors"
_PICKLES = ("adapter_model.bin", "adapter_model.pt")
_MAX_SCALE = float(np.finfo(np.float32).max)
_ROLES = ("q", "k", "v", "o", "gate", "up", "down")
_PREFIX = "base_model.model."  # how PEFT's wrapper calls the model
_REFUSED: Mapping[str, str] = {  # fields of adapter_config.json that change more than what low-rank matrices add
    "use_dora": "asks for DoRA, which is not supported; train without it",
    "modules_to_save": "has whole modules beside the low-rank matrices, which is not supported",
    "trainable_token_indices": "has trained tokens, which is not supported",
    "target_parameters": "adapts parameters (of experts), which is not supported",
    "layer_replication": "repeats layers of the model, which is not supported",
    "lora_bias": "has biases, which is not supported",
    "alora_invocation_tokens": "is for an activated LoRA, which is not supported",
    "use_qalora": "asks for QALoRA, which is not supported",
    "fan_in_fan_out": "is for transposed weights, which no model here has",
}
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq")  # ways to begin that change the model's own weights too
_NAME = re.compile(r"\^?[A-Za-z0-9_.]+\$?")


@dataclass(frozen=True, slots=True, eq=False)
class Lora:
    """An adapter's matrices, by the names of those of the model that they change; views of the mapped file."""

    matrices: Mapping[str, LoraMatrix]
    rank: int


def read_lora(path: Path, spec: ModelSpec, max_rank: int, allow: Callable[[Path], Path] = Path) -> Lora:
    """Open an adapter for a model of this shape. Raises ``ModelError`` that names the file and the field or tensor.

    ``allow`` gives the path by which a file is opened, and raises where it may not be.
    """
    if path.suffix == ".gguf":
        pairs, place = _gguf_pairs(allow(path), spec), str(path)
    else:
        pairs, place = _peft_pairs(path, spec, allow), str(path / _TENSORS)
    matrices = {name: one for pair in pairs for name, one in pair.matrices(place, max_rank).items()}
    if not matrices:
        raise ModelError(f"{place} changes nothing: it has no pair of low-rank matrices")
    return Lora(matrices, max(one.down.shape[0] for one in matrices.values()))


@dataclass(frozen=True, slots=True, eq=False)
class _Pair:
    """The two matrices of one module. ``parts`` are the model's matrices in it, ``scale_of`` gives the scale of a rank."""

    module: str
    down: Weight
    up: Weight
    parts: Mapping[str, Expected]
    scale_of: Callable[[int], float]

    def matrices(self, place: str, max_rank: int) -> dict[str, LoraMatrix]:
        rank = self.down.shape[0]
        where = f"{place}: {plain(self.module)}"
        if not 1 <= rank <= max_rank:
            raise ModelError(f"{where} has rank {rank}; 1 to {max_rank} are allowed (--max-lora-rank)")
        num_outputs = sum(part.shape[0] for part in self.parts.values())
        num_inputs = next(iter(self.parts.values())).shape[1]
        if self.down.shape != (rank, num_inputs) or self.up.shape != (num_outputs, rank):
            raise ModelError(
                f"{where} has matrices {list(self.down.shape)} and {list(self.up.shape)}, but the model's "
                f"{[num_outputs, num_inputs]} needs {[rank, num_inputs]} and {[num_outputs, rank]}"
            )
        for weight in (self.down, self.up):
            if not np.isfinite(as_float32(weight.format, weight.data)).all():
                raise ModelError(f"{where} has numbers that are not finite")
        scale = self.scale_of(rank)
        if not scale <= _MAX_SCALE:
            raise ModelError(f"{where} is scaled by {scale:g}, more than a float32 holds: alpha is wrong")
        return {
            name: LoraMatrix(self.down, Weight(self.up.format, self.up.data[part.rows]), scale)
            for name, part in self.parts.items()
        }


def _modules(spec: ModelSpec, naming: Naming) -> dict[str, dict[str, Expected]]:
    """The model's matrices that may be adapted, by the modules of the file that hold them."""
    found: dict[str, dict[str, Expected]] = {}
    for name, one in expected_tensors(spec, naming).items():
        if name.rpartition(".")[2] in _ROLES and ".experts." not in name:
            found.setdefault(one.file_name.removesuffix(".weight"), {})[name] = one
    return found


def _place_of(module: str, modules: Mapping[str, dict[str, Expected]], where: str) -> dict[str, Expected]:
    if module in modules:
        return modules[module]
    if "expert" in module or "_exps" in module:
        raise ModelError(f"{where}: {plain(module)} belongs to experts, whose adapters are not supported")
    raise ModelError(
        f"{where}: {plain(module)} cannot be adapted; what can be are q, k, v, o of attention and gate, up, down of the MLP, in "
        f"layers that this model has, such as {few(modules, 1)}"
    )


# ---- PEFT


def _peft_pairs(folder: Path, spec: ModelSpec, allow: Callable[[Path], Path]) -> list[_Pair]:
    if not (folder / _CONFIG).exists():
        raise ModelError(f"{folder} has no {_CONFIG}, so it is no adapter; a folder as PEFT writes it or a .gguf file is one")
    if not (folder / _TENSORS).exists():
        pickles = [name for name in _PICKLES if (folder / name).exists()]
        why = f"; {few(pickles)} is a pickle, which can run code: save it as safetensors" if pickles else ""
        raise ModelError(f"{folder} has no {_TENSORS}{why}")
    config = Fields(read_json(allow(folder / _CONFIG)), str(folder / _CONFIG))
    _check_config(config)
    scales = _Scales(config)
    tensors, modules = read_safetensors(allow(folder / _TENSORS)), _modules(spec, "hf")
    where = str(folder / _TENSORS)
    halves: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in tensors.items():
        module, half = _peft_place(name, where)
        halves.setdefault(module, {})[half] = tensor
    pairs = []
    for module, found in halves.items():
        parts = _place_of(module, modules, where)
        down, up = (_matrix(found, half, f"{where}: {plain(module)}") for half in ("lora_A", "lora_B"))
        scales.check_rank(module, down.shape[0])
        pairs.append(_Pair(module, down, up, parts, lambda rank, module=module: scales.scale(module, rank)))  # type: ignore[misc]
    return pairs


def _check_config(config: Fields) -> None:
    kind = config.text("peft_type")
    if kind != "LORA":
        raise config.fail("peft_type", f"is {shown(kind)}; only LORA is supported")
    for key, why in _REFUSED.items():
        if config.raw(key):
            raise config.fail(key, why)
    if config.text("bias", "none") != "none":
        raise config.fail("bias", f"is {shown(config.raw('bias'))}: trained biases are not supported; none is")
    begin = config.raw("init_lora_weights")
    if isinstance(begin, str) and begin.lower().startswith(_CHANGES_BASE):
        raise config.fail(
            "init_lora_weights", f"is {shown(begin)}, which changes the model's own weights; convert it to plain LoRA"
        )


def _peft_place(name: str, where: str) -> tuple[str, str]:
    """Module and half of a tensor's name: ``base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight``."""
    module, _, rest = name.removeprefix(_PREFIX).rpartition(".lora_")
    if rest in ("A.weight", "B.weight"):
        return module, f"lora_{rest[0]}"
    if "lora_magnitude_vector" in name:
        raise ModelError(f"{where}: {plain(name)} is of DoRA, which is not supported")
    if "lora_embedding" in name:
        raise ModelError(f"{where}: {plain(name)} adapts embeddings, which is not supported")
    raise ModelError(f"{where}: {plain(name)} is no matrix of a LoRA adapter, and nothing else may be in it")


def _matrix(found: Mapping[str, StoredTensor], half: str, where: str) -> Weight:
    if half not in found:
        raise ModelError(f"{where} has no {half}")
    tensor = found[half]
    if len(tensor.shape) != 2:
        raise ModelError(f"{where}: {half} is {list(tensor.shape)}, no matrix")
    if tensor.dtype not in ("F32", "F16", "BF16"):
        raise ModelError(f"{where}: {half} is {tensor.dtype}; F32, F16 and BF16 are supported")
    return tensor.weight()


class _Scales:
    """Ranks and scales of modules, as adapter_config.json says them."""

    def __init__(self, config: Fields) -> None:
        self._config = config
        self._rank = config.integer("r")
        self._alpha = config.number("lora_alpha")
        self._is_stable = config.boolean("use_rslora", False)
        self._ranks = config.mapping("rank_pattern")
        self._alphas = config.mapping("alpha_pattern")
        for key, patterns in (("rank_pattern", self._ranks), ("alpha_pattern", self._alphas)):
            for pattern in patterns.names():
                if not _NAME.fullmatch(pattern):
                    raise config.fail(key, f"has {shown(pattern, 60)}, a regular expression; names of modules are supported")

    def check_rank(self, module: str, found: int) -> None:
        key = _matching(module, self._ranks.names())
        said = self._rank if key is None else self._ranks.integer(key)
        if said != found:
            raise self._config.fail("r" if key is None else "rank_pattern", f"says {said} for {module}, whose matrix has {found}")

    def scale(self, module: str, rank: int) -> float:
        """Of a module whose matrices have this rank: alpha over it, or over its root where ``use_rslora`` says so."""
        key = _matching(module, self._alphas.names())
        alpha = self._alpha if key is None else self._alphas.number(key)
        return alpha / (math.sqrt(rank) if self._is_stable else rank)


def _matching(module: str, patterns: Iterable[str]) -> str | None:
    """The first pattern that is the module's name, or the last parts of it; the first ones too where it begins with ^."""
    for pattern in patterns:
        name = pattern.removeprefix("^").removesuffix("$")
        if module == name or (not pattern.startswith("^") and module.endswith(f".{name}")):
            return pattern
    return None


# ---- GGUF


def _gguf_pairs(path: Path, spec: ModelSpec) -> list[_Pair]:
    """As llama.cpp's converter writes them. Rows of q and k may stand there with the two of a rotary pair side by side."""
    file = read_gguf(path)
    fields = Fields(file.metadata, str(path))
    for key, wanted in (("general.type", "adapter"), ("adapter.type", "lora")):
        if fields.text(key, "") != wanted:
            raise fields.fail(key, f"is {shown(fields.raw(key))}, not {wanted!r}: this is no LoRA adapter")
    architecture = fields.text("general.architecture")
    if architecture not in GGUF_FAMILIES or (spec.architecture in GGUF_FAMILIES and architecture != spec.architecture):
        raise fields.fail("general.architecture", f"is {shown(architecture)}; the model is {spec.architecture}")
    alpha = fields.fraction("adapter.lora.alpha")
    halves: dict[str, dict[str, GGUFTensor]] = {}
    for name, tensor in file.tensors.items():
        module, _, half = name.rpartition(".weight.")
        if half not in ("lora_a", "lora_b") or len(tensor.shape) != 2:
            raise ModelError(f"{path}: tensor {plain(name)} is no matrix of a LoRA adapter, and nothing else may be in it")
        halves.setdefault(module, {})[half] = tensor
    modules = _modules(spec, "gguf")
    is_interleaved = GGUF_FAMILIES[architecture].gguf_interleaved
    pairs = []
    for module, found in halves.items():
        parts = _place_of(module, modules, str(path))
        if len(found) < 2:
            raise ModelError(f"{path}: {plain(module)} has {few(found)} alone")
        order = _row_order(parts, spec) if is_interleaved else None
        down, up = _gguf_weight(found["lora_a"], None), _gguf_weight(found["lora_b"], order)
        pairs.append(_Pair(module, down, up, parts, lambda rank: alpha / rank if alpha else 1.0))
    return pairs


def _gguf_weight(tensor: GGUFTensor, order: np.ndarray | None) -> Weight:
    """Dense; its rows in ``order``, where they have as many."""
    rows = order if order is not None and len(order) == tensor.shape[0] else slice(None)
    return tensor.weight(rows, None if tensor.type.format in ("f32", "f16", "bf16") else "f32")


def _row_order(parts: Mapping[str, Expected], spec: ModelSpec) -> np.ndarray | None:
    role = next(iter(parts)).rpartition(".")[2]
    heads = {"q": spec.num_heads, "k": spec.num_kv_heads}.get(role)
    return None if heads is None else halves_order(heads, spec.head_dim)
