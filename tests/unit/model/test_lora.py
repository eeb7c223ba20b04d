"""Adapters from files: the logits of transformers with the same adapters merged, and what is refused (T05)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from one_sequence import OneSequence
from tiny_adapters import TINY_ADAPTERS, TinyAdapter, make_adapter, write_adapter, write_gguf_adapter
from tiny_models import TINY_MODELS, write_folder, write_gguf, write_safetensors

from ramet.errors import ModelError
from ramet.kernels.program import Adapters
from ramet.kernels.registry import make_backend
from ramet.model.folder import load_folder
from ramet.model.gguf_model import load_gguf
from ramet.model.lora import read_lora
from ramet.model.spec import Checkpoint, ModelSpec

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "lora_logits.json").read_text())
TOLERANCE = 2e-5  # largest difference over the largest logit of the row; measured: under 7e-6
MAX_RANK = 64


def model_folder(adapter: TinyAdapter, path: Path) -> Checkpoint:
    return load_folder(write_folder(TINY_MODELS[adapter.model], path, tokenizer=False))


def model_gguf(adapter: TinyAdapter, path: Path) -> Checkpoint:
    return load_gguf(write_gguf(TINY_MODELS[adapter.model], path / "m.gguf"))


def gguf_of(adapter: TinyAdapter, path: Path) -> Path:
    path.mkdir()
    return write_gguf_adapter(adapter, path / "a.gguf")


def logits_with(adapter: Path, checkpoint: Checkpoint, backend: str) -> npt.NDArray[np.float32]:
    sequence = OneSequence(checkpoint, make_backend(backend, threads=1))
    lora = read_lora(adapter, checkpoint.spec, MAX_RANK)
    num = len(GOLDEN["prompt"])
    return sequence.feed(GOLDEN["prompt"], Adapters((sequence.decoder.adapter(lora.matrices),), np.ones(num, np.int32)))


@pytest.mark.parametrize("write", [write_adapter, gguf_of], ids=["peft", "gguf-adapter"])
@pytest.mark.parametrize("load", [model_folder, model_gguf], ids=["folder", "gguf"])
@pytest.mark.parametrize("name", list(TINY_ADAPTERS))
def test_logits_are_those_of_transformers(
    name: str, load: Callable[..., Checkpoint], write: Callable[..., Path], tmp_path: Path
) -> None:
    """Either kind of adapter on either kind of model: their names and the order of their rows are not the same."""
    adapter = TINY_ADAPTERS[name]
    if write is gguf_of and ({"alpha_pattern", "use_rslora"} & set(adapter.config) or "ranks" in adapter.config):
        pytest.skip("no GGUF file can say this adapter's scales")
    (tmp_path / "model").mkdir()
    checkpoint = load(adapter, tmp_path / "model")
    path = write(adapter, tmp_path / "adapter")
    for backend in ("cpu",) if write is gguf_of or load is model_gguf else ("cpu", "reference"):
        logits = logits_with(path, checkpoint, backend)
        for position, expected in zip(GOLDEN["positions"], GOLDEN["adapters"][name], strict=True):
            wanted = np.array(expected, np.float32)
            error = np.abs(logits[position, :: GOLDEN["every"]] - wanted).max() / np.abs(wanted).max()
            assert error < TOLERANCE, f"position {position}: {error:.2g}"


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_sixteen_bit_adapters(dtype: str, tmp_path: Path) -> None:
    """Near those in float32; how near is for their rounding to say."""
    adapter = TINY_ADAPTERS["llama"]
    checkpoint = model_folder(adapter, tmp_path / "model")
    logits = logits_with(write_adapter(adapter, tmp_path / "a", dtype=dtype), checkpoint, "cpu")
    wanted = np.array(GOLDEN["adapters"]["llama"][-1], np.float32)
    found = logits[GOLDEN["positions"][-1], :: GOLDEN["every"]]
    assert np.abs(found - wanted).max() < 0.02 * np.abs(wanted).max()


# --- what is refused -----------------------------------------------------------------------------------------------------

SMALL = make_adapter("llama", 9, targets=("q_proj", "down_proj"))
Q = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return model_folder(SMALL, tmp_path_factory.mktemp("llama")).spec


def refused(path: Path, spec: ModelSpec) -> str:
    with pytest.raises(ModelError) as caught:
        read_lora(path, spec, MAX_RANK)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "LOHA"}, "peft_type is 'LOHA'; only LORA"),
        ({"peft_type": None}, "peft_type is missing"),
        ({"use_dora": True}, "use_dora asks for DoRA"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save has whole modules"),
        ({"trainable_token_indices": [1, 2]}, "trainable_token_indices has trained tokens"),
        ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "target_parameters"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"lora_bias": True}, "lora_bias"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4', which changes the model's own weights"),
        ({"r": 0}, "r is from 1"),
        ({"r": 8}, "r says 8 for model.layers.0.self_attn.q_proj, whose matrix has 4"),
        ({"r": "4"}, "r is a whole number"),
        ({"rank_pattern": {"q_proj": 5}}, "rank_pattern says 5"),
        ({"rank_pattern": {"(a+)+": 5}}, "rank_pattern has '(a+)+', a regular expression"),
        ({"alpha_pattern": {"q_proj": "x"}}, "q_proj is a number"),
        ({"alpha_pattern": [1]}, "alpha_pattern is an object"),
        ({"lora_alpha": -1}, "lora_alpha"),
        ({"lora_alpha": 1e999}, "not valid JSON"),
        ({"lora_alpha": 10**400}, "lora_alpha is a finite number over 0"),
        ({"lora_alpha": 1e308}, "q_proj is scaled by 2.5e+307, more than a float32 holds"),
        ({"use_rslora": 1}, "use_rslora is true or false"),
    ],
    ids=str,
)
def test_fields_that_mean_another_model_are_refused(
    changes: dict[str, Any], message: str, spec: ModelSpec, tmp_path: Path
) -> None:
    assert message in refused(write_adapter(SMALL, tmp_path / "a", **changes), spec)


def _tensors() -> dict[str, tuple[str, npt.NDArray[Any]]]:
    return {
        f"base_model.model.{module}.lora_{half}.weight": ("F32", values)
        for module, pair in SMALL.pairs.items()
        for half, values in zip("AB", pair, strict=True)
    }


def _zeros(*shape: int) -> tuple[str, npt.NDArray[Any]]:
    return "F32", np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"{Q}.lora_B.weight": None}, "q_proj has no lora_B"),
        ({f"{Q}.lora_A.weight": None}, "q_proj has no lora_A"),
        ({f"{Q}.lora_A.weight": _zeros(4, 63)}, "needs [4, 64] and [64, 4]"),
        ({f"{Q}.lora_B.weight": _zeros(65, 4)}, "has matrices [4, 64] and [65, 4]"),
        ({f"{Q}.lora_A.weight": _zeros(4)}, "lora_A is [4], no matrix"),
        ({f"{Q}.lora_A.weight": _zeros(0, 64), f"{Q}.lora_B.weight": _zeros(64, 0)}, "r says 4 for"),
        ({f"{Q}.lora_A.weight": ("I32", np.zeros((4, 64), np.int32))}, "lora_A is I32"),
        ({f"{Q}.lora_A.weight": ("F32", np.full((4, 64), np.nan, np.float32))}, "q_proj has numbers that are not finite"),
        ({f"{Q}.lora_B.weight": ("BF16", np.full((64, 4), np.inf, np.float32))}, "not finite"),
        ({f"{Q}.lora_magnitude_vector": _zeros(64)}, "is of DoRA"),
        ({"base_model.model.model.embed_tokens.lora_embedding_A": _zeros(4, 304)}, "adapts embeddings"),
        ({"base_model.model.lm_head.lora_A.weight": _zeros(4, 64)}, "lm_head cannot be adapted"),
        ({"base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight": _zeros(4, 64)}, "layers.2.self_attn.q_proj cannot"),
        ({"base_model.model.model.layers.0.mlp.experts.0.up_proj.lora_A.weight": _zeros(4, 64)}, "belongs to experts"),
        ({"base_model.model.model.layers.0.self_attn.q_proj.bias": _zeros(64)}, "is no matrix of a LoRA adapter"),
        ({f"{Q}.lora_A.weight\n\x1b[31m": _zeros(4, 64)}, "is no matrix"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_tensors_that_do_not_fit_are_refused(
    changes: dict[str, tuple[str, npt.NDArray[Any]] | None], message: str, spec: ModelSpec, tmp_path: Path
) -> None:
    folder = write_adapter(SMALL, tmp_path / "a")
    tensors = {name: one for name, one in {**_tensors(), **changes}.items() if one is not None}
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    assert message in refused(folder, spec)


def test_ranks_have_a_bound(spec: ModelSpec, tmp_path: Path) -> None:
    over = make_adapter("llama", 9, MAX_RANK + 1, targets=("q_proj",))
    assert f"rank {MAX_RANK + 1}; 1 to {MAX_RANK} are allowed (--max-lora-rank)" in refused(
        write_adapter(over, tmp_path / "a"), spec
    )


def test_folders_that_are_no_adapter_are_refused(spec: ModelSpec, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    assert "has no adapter_config.json" in refused(folder, spec)
    write_adapter(SMALL, folder)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    assert "adapter_model.bin is a pickle" in refused(folder, spec)
    write_safetensors(folder / "adapter_model.safetensors", {})
    assert "changes nothing" in refused(folder, spec)


def test_t05_no_field_of_an_adapter_reaches_another_loader(spec: ModelSpec, tmp_path: Path) -> None:
    """Neither code nor another model: names of both are mere text."""
    adapter = write_adapter(
        SMALL, tmp_path / "a", auto_mapping={"base_model_class": "os.system"}, base_model_name_or_path="evil/model", revision="x"
    )
    assert read_lora(adapter, spec, MAX_RANK).rank == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.type": "model"}, "general.type is 'model', not 'adapter'"),
        ({"adapter.type": "control_vector"}, "adapter.type"),
        ({"general.architecture": "falcon"}, "general.architecture is 'falcon'"),
    ],
    ids=str,
)
def test_gguf_files_that_are_no_adapter_are_refused(
    changes: dict[str, str], message: str, spec: ModelSpec, tmp_path: Path
) -> None:
    assert message in refused(write_gguf_adapter(SMALL, tmp_path / "a.gguf", **changes), spec)


def test_whole_models_are_no_adapters(spec: ModelSpec, tmp_path: Path) -> None:
    assert "this is no LoRA adapter" in refused(write_gguf(TINY_MODELS["llama"], tmp_path / "m.gguf"), spec)


def test_adapters_of_wider_models_are_refused(spec: ModelSpec, tmp_path: Path) -> None:
    other = TinyAdapter(
        "llama", SMALL.config, {"model.layers.0.mlp.up_proj": (np.ones((4, 96), np.float32), np.ones((96, 4), np.float32))}
    )
    assert "needs" in refused(write_gguf_adapter(other, tmp_path / "a.gguf"), spec)
