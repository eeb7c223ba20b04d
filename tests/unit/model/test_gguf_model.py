"""Models in GGUF files: keys that may be absent, keys that must be right, and the same numbers as the folder they came from."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from one_sequence import OneSequence
from tiny_models import GGUF_MODELS, TINY_MODELS, write_folder, write_gguf

from ramet.errors import ModelError
from ramet.kernels.registry import make_backend
from ramet.model import gguf_model
from ramet.model.folder import load_folder
from ramet.model.gguf import GGUFFile, read_gguf
from ramet.model.gguf_model import load_gguf
from ramet.model.quant import convert, dequantize
from ramet.model.spec import ModelSpec

LLAMA = TINY_MODELS["llama"]


@pytest.fixture
def edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``edited(changes, name)``: load a tiny model's file as if its metadata had other values (None: no such key)."""

    def load(changes: dict[str, object], name: str = "llama") -> Any:
        path = write_gguf(TINY_MODELS[name], tmp_path / "model.gguf")
        file = read_gguf(path)
        metadata = {k: v for k, v in {**file.metadata, **changes}.items() if v is not None}
        monkeypatch.setattr(gguf_model, "read_gguf", lambda _: GGUFFile(path, metadata, file.tensors))
        return load_gguf(path)

    return load


@pytest.mark.parametrize("name", GGUF_MODELS)
def test_same_tensors_and_shape_as_the_folder(name: str, tmp_path: Path) -> None:
    folder = load_folder(write_folder(TINY_MODELS[name], tmp_path / "folder"))
    file = load_gguf(write_gguf(TINY_MODELS[name], tmp_path / "model.gguf"))
    same = dict.fromkeys(("architecture", "layers"))
    for field in dataclasses.fields(ModelSpec):
        one, other = (same.get(field.name, getattr(c.spec, field.name)) for c in (file, folder))
        assert one == pytest.approx(other) if isinstance(other, float) else one == other, field.name
    for one, other in zip(file.spec.layers, folder.spec.layers, strict=True):
        assert (one.window, one.rope.theta, one.rope.dim) == (other.window, other.rope.theta, other.rope.dim)
        assert np.allclose(one.rope.divisors, other.rope.divisors, rtol=1e-7)
        assert np.isclose(one.rope.scale, other.rope.scale)
    for i in range(folder.spec.num_layers):
        for letter in "qkvo":
            tensor = f"layers.{i}.{letter}"
            assert np.array_equal(file.tensors.matrix(tensor).data, folder.tensors.matrix(tensor).data), tensor
        if folder.spec.qkv_bias:
            assert np.array_equal(file.tensors.vector(f"layers.{i}.k_bias"), folder.tensors.vector(f"layers.{i}.k_bias"))


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("type_name", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_quantised_files_compute_what_their_values_say(type_name: str, backend: str, tmp_path: Path) -> None:
    """Against a float32 file with the values that the gguf package gives; the difference is the rounding of activations."""
    type_ = gguf.GGMLQuantizationType[type_name]
    path = write_gguf(LLAMA, tmp_path / "small.gguf", type_name=type_name)
    small = load_gguf(path)
    values = {t.name: gguf.quants.dequantize(t.data, type_) for t in gguf.GGUFReader(path).tensors if t.tensor_type == type_}
    assert np.array_equal(dequantize(small.tensors.matrix("layers.1.down")), values["blk.1.ffn_down.weight"])
    assert np.array_equal(dequantize(small.tensors.matrix("embed")), values["token_embd.weight"])
    tokens = list(range(30, 60))
    arithmetic = make_backend(backend, threads=1)
    rough = OneSequence(small, arithmetic).feed(tokens)
    exact = OneSequence(convert(small, "float32", None), make_backend(backend, threads=1)).feed(tokens)
    bfloat16 = 1e-5 if arithmetic.isa == "amx" else 1e-6  # inputs of 16 bits
    assert np.linalg.norm(rough - exact) / np.linalg.norm(exact) < {"F16": 1e-6, "BF16": bfloat16}.get(type_name, 0.03)


def test_b167_descriptive_keys_may_be_absent(edited: Any) -> None:
    spec = edited({"general.name": None, "general.description": None, "tokenizer.chat_template": None}).spec
    assert spec.architecture == "llama"


def test_b166_optional_keys_may_be_absent(edited: Any) -> None:
    absent = ("attention.key_length", "attention.value_length", "rope.dimension_count", "rope.freq_base", "vocab_size")
    changes = {f"llama.{key}": None for key in absent} | {"tokenizer.ggml.eos_token_id": None, "tokenizer.ggml.tokens": None}
    spec = edited(changes).spec
    assert (spec.head_dim, spec.layers[0].rope.theta, spec.vocab_size, spec.eos_ids) == (16, 10_000.0, 304, ())


def test_b166_token_types_of_another_integer_type_are_kept(edited: Any) -> None:
    types = np.full(262, 1, np.uint32)
    assert edited({"tokenizer.ggml.token_type": types}).text.gguf["tokenizer.ggml.token_type"] is types


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.architecture": None}, r"general\.architecture is missing"),
        ({"general.architecture": "gemma"}, "architecture 'gemma' is not supported; supported: llama, qwen2, qwen3"),
        ({"general.architecture": 3}, r"general\.architecture is a string, not 3"),
        ({"llama.context_length": None}, r"llama\.context_length is missing"),
        ({"llama.context_length": "8192"}, r"llama\.context_length is a whole number, not '8192'"),
        ({"llama.context_length": 2**63}, r"llama\.context_length is from 1 to"),
        ({"llama.block_count": 0}, r"llama\.block_count is from 1 to 1024, not 0"),
        ({"llama.block_count": 2**32 - 1}, r"llama\.block_count is from 1 to 1024"),
        ({"llama.block_count": 3}, r"missing tensors: blk\.2\."),
        ({"llama.attention.head_count": np.array([4, 4])}, r"llama\.attention\.head_count is a whole number"),
        ({"llama.attention.head_count_kv": 3}, "3 does not divide the 4 heads"),
        ({"llama.attention.key_length": 15}, "even"),
        ({"llama.attention.value_length": 8}, r"value_length is 8; only the \(even\) head length"),
        ({"llama.rope.dimension_count": 8}, r"rope\.dimension_count is 8"),
        ({"llama.embedding_length": 128}, r"is \[304, 64\], but the configuration makes it \[304, 128\]"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "finite number over 0"),
        ({"llama.rope.freq_base": float("inf")}, r"llama\.rope\.freq_base is a finite number"),
        ({"llama.rope.scaling.type": "yarn"}, r"rope\.scale_linear is missing"),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 0.0}, "factor is a finite number over 0"),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0, "llama.rope.freq_base": 1.0}, "not over 1"),
        ({"llama.rope.scaling.type": "mrope"}, "'mrope' is not supported"),
        ({"llama.rope.scaling.attn_factor": float("nan")}, "attn_factor is a finite number"),
        ({"llama.attention.scale": -1.0}, r"llama\.attention\.scale"),
        ({"llama.rope.scaling.type": "linear"}, r"rope\.scale_linear is missing"),
        ({"llama.expert_count": 8}, r"llama\.expert_used_count is missing"),
        ({"llama.expert_count": 8, "llama.expert_used_count": 9}, r"llama\.expert_used_count is from 1 to 8, not 9"),
        (
            {"llama.expert_count": 8, "llama.expert_used_count": 2},
            r"missing tensors: blk\.0\.ffn_gate_inp\.weight, blk\.0\.ffn_gate",
        ),
        ({"llama.expert_count": 2**20}, r"llama\.expert_count is from 0 to 1024"),
        ({"llama.expert_gating_func": 2}, r"llama\.expert_gating_func 2 is not supported"),
        ({"llama.attention.sliding_window": -1}, r"llama\.attention\.sliding_window is from 0"),
        ({"llama.attn_logit_softcapping": 50.0}, r"llama\.attn_logit_softcapping 50\.0 is not supported"),
        ({"split.count": 3}, r"split\.count says this is one of 3 files, named like x-00001-of-00003\.gguf"),
        ({"llama.logit_scale": 2.0}, r"llama\.logit_scale 2\.0 is not supported"),
        ({"tokenizer.ggml.eos_token_id": 304}, r"tokenizer\.ggml\.eos_token_id is 304, but the vocabulary has 304"),
        ({"tokenizer.ggml.bos_token_id": 2**32 - 1}, r"bos_token_id is 4294967295"),
        ({"tokenizer.ggml.eot_token_id": "x"}, "eot_token_id is a token id, not 'x'"),
        ({"tokenizer.ggml.tokens": ["x"] * 305}, r"tokenizer\.ggml\.tokens lists 305 tokens, but the embedding has 304"),
        ({"tokenizer.chat_template": 3}, r"tokenizer\.chat_template is a string"),
        ({"tokenizer.chat_templates": ["rag"]}, r"tokenizer\.chat_template\.rag is missing"),
    ],
)
def test_b166_keys_that_are_wrong(changes: dict[str, object], message: str, edited: Any) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        edited(changes)
    assert "\n" not in str(caught.value)


def test_linear_scaling_under_each_name(edited: Any) -> None:
    for changes in (
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
        {"llama.rope.scaling.factor": 4.0},
        {"llama.rope.scale_linear": 4.0},
    ):
        assert edited(changes).spec.layers[0].rope.divisors == (4.0,) * 8
    unscaled = edited({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0})
    assert unscaled.spec.layers[0].rope.divisors == (1.0,) * 8


def test_stored_rope_factors(tmp_path: Path) -> None:
    """B163 in GGUF files: llama3 scaling is a tensor there."""
    divisors = load_gguf(write_gguf(TINY_MODELS["llama3"], tmp_path / "m.gguf")).spec.layers[0].rope.divisors
    assert divisors[0] == 1
    assert divisors[-1] == 4
    assert 1 < divisors[2] < 4


def test_every_end_token_counts_once(edited: Any) -> None:
    changes: dict[str, object] = {"tokenizer.ggml.eot_token_id": 258, "tokenizer.ggml.eom_token_id": 256}
    assert edited(changes).spec.eos_ids == (256, 258)


def test_chat_templates(edited: Any) -> None:
    text = edited({"tokenizer.chat_templates": ["rag"], "tokenizer.chat_template.rag": "r"}).text
    assert set(text.chat_templates) == {"default", "rag"}
    assert text.tokenizer_file is None
    assert len(text.gguf["tokenizer.ggml.tokens"]) == 262


def test_fingerprint_is_of_every_byte(tmp_path: Path) -> None:
    path = write_gguf(LLAMA, tmp_path / "model.gguf")
    first = load_gguf(path).fingerprint()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert load_gguf(path).fingerprint() != first


def test_windows_by_key(edited: Any) -> None:
    def of(name: str, key: str, value: object) -> list[int | None]:
        return [layer.window for layer in edited({f"{name}.attention.{key}": value}, name).spec.layers]

    assert of("llama", "sliding_window", 0) == [None, None]
    assert of("llama", "sliding_window", 256) == [None, None]
    assert of("llama", "sliding_window", 100) == [100, 100]
    assert of("gemma2", "sliding_window_pattern", 3) == [50, 50, None]
    assert of("gemma2", "sliding_window_pattern", np.array([False, True, True])) == [None, 50, 50]
    with pytest.raises(ModelError, match=r"sliding_window_pattern has 2 entries for 3 layers"):
        of("gemma2", "sliding_window_pattern", np.array([False, True]))
    with pytest.raises(ModelError, match=r"gemma2\.attention\.sliding_window is missing"):
        of("gemma2", "sliding_window", None)
    with pytest.raises(ModelError, match=r"qwen2\.attention\.sliding_window of 40 tokens is in use"):
        of("qwen2", "sliding_window", 40)
