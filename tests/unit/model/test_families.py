"""What each family's config.json says, and how it is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_folder import logits, write
from tiny_models import TINY_MODELS, write_folder

from ramet.errors import ModelError
from ramet.model.folder import load_folder
from ramet.model.spec import NO_ROPE


def test_switches_of_each_family(tmp_path: Path) -> None:
    found = {name: load_folder(write_folder(m, tmp_path / name)).spec for name, m in TINY_MODELS.items()}
    switches = {n: (s.qkv_bias, s.output_bias, s.qk_norm, s.tie_embeddings, s.head_dim) for n, s in found.items()}
    assert switches == {
        "llama": (False, False, "none", False, 16),
        "llama3": (False, False, "none", False, 16),
        "llama-linear": (True, True, "none", False, 16),
        "llama-dynamic": (False, False, "none", False, 16),
        "qwen2": (True, False, "none", True, 16),
        "qwen3": (False, False, "head", True, 32),
        "qwen3-yarn": (False, False, "head", False, 32),
        "phi3": (False, False, "none", False, 16),
        "smollm3": (False, False, "none", True, 16),
        "granite": (False, False, "none", True, 16),
        "olmo2": (False, False, "whole", False, 16),
        "qwen3moe": (False, False, "head", False, 32),
        "mixtral": (False, False, "none", False, 16),
        "mistral": (False, False, "none", False, 16),
        "gemma2": (False, False, "none", True, 32),
        "gemma3": (False, False, "head", True, 32),
        "qwen2-windows": (True, False, "none", False, 16),
    }


def test_longrope_goes_by_the_context_that_is_served(tmp_path: Path) -> None:
    """Never by a request: a key has the same bits in a short request and in a long one."""
    folder, scaling = write(tmp_path, model=TINY_MODELS["phi3"]), TINY_MODELS["phi3"].config["rope_scaling"]
    for served, key in ((None, "long_factor"), (65, "long_factor"), (64, "short_factor"), (10, "short_factor")):
        rope = load_folder(folder, served).spec.layers[0].rope
        assert (rope.dim, list(rope.divisors)) == (12, scaling[key])
        assert rope.scale == pytest.approx(1.1547005)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("phi3", {"partial_rotary_factor": 0.05}, "partial_rotary_factor 0.05 is no even number of the 16 dims"),
        ("phi3", {"partial_rotary_factor": 1.5}, "partial_rotary_factor 1.5 is no even number"),
        ("phi3", {"partial_rotary_factor": 1e300}, "partial_rotary_factor 1e.300 is no even number"),
        ("phi3", {"partial_rotary_factor": -0.5}, "partial_rotary_factor is a finite number over 0"),
        ("phi3", {"original_max_position_embeddings": 0}, "original_max_position_embeddings is from 2"),
        ("phi3", {"intermediate_size": 97}, r"gate_up_proj\.weight is \[192, 64\], but the configuration makes it \[194, 64\]"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers has 2 entries for 4 layers"),
        ("smollm3", {"no_rope_layers": [1, 0, 2, 1]}, "no_rope_layers is a list of 0 and 1"),
        ("smollm3", {"no_rope_layers": "1111"}, "no_rope_layers is a list"),
        ("smollm3", {"no_rope_layer_interval": 0}, "no_rope_layer_interval is from 1"),
        ("granite", {"embedding_multiplier": 0}, "embedding_multiplier is a finite number over 0"),
        ("granite", {"logits_scaling": -1.0}, "logits_scaling is a finite number over 0"),
        ("granite", {"attention_multiplier": "x"}, "attention_multiplier is a number"),
        ("qwen3moe", {"num_experts": 0}, "num_experts is from 1 to 1024, not 0"),
        ("qwen3moe", {"num_experts": 10**6}, "num_experts is from 1 to 1024"),
        ("qwen3moe", {"num_experts": 7}, r"missing tensors: model\.layers\.0\.mlp\.experts\.6\.gate_proj\.weight"),
        ("qwen3moe", {"num_experts": 5}, r"unexpected tensors, .*: model\.layers\.0\.mlp\.experts\.5\."),
        ("qwen3moe", {"num_experts_per_tok": 7}, "num_experts_per_tok is from 1 to 6, not 7"),
        ("qwen3moe", {"num_experts_per_tok": 0}, "num_experts_per_tok is from 1"),
        ("qwen3moe", {"norm_topk_prob": 1}, "norm_topk_prob is true or false"),
        ("qwen3moe", {"mlp_only_layers": [0]}, r"mlp_only_layers is \[0\]; layers without experts"),
        ("qwen3moe", {"decoder_sparse_step": 2}, "decoder_sparse_step is 2; layers without experts"),
        ("mixtral", {"num_local_experts": -2}, "num_local_experts is from 1"),
        ("mixtral", {"num_experts_per_tok": 5}, "num_experts_per_tok is from 1 to 4, not 5"),
        ("mistral", {"sliding_window": 0}, "sliding_window is from 1 to 2147483647, not 0"),
        ("mistral", {"sliding_window": -4}, "sliding_window is from 1"),
        ("mistral", {"sliding_window": 2**40}, "sliding_window is from 1"),
        ("mistral", {"sliding_window": 4.5}, "sliding_window is a whole number"),
        ("mistral", {"attention_bias": True}, "attention_bias is true"),
        ("mistral", {"rope_theta": ...}, "rope_theta is missing"),
        ("mistral", {"layer_types": ["full_attention", "chunked_attention"]}, "layer_types chunked_attention is not supported"),
        (
            "mistral",
            {"sliding_window": None, "layer_types": ["sliding_attention"] * 2},
            "layer_types has layers with a window, but",
        ),
        (
            "qwen2-windows",
            {"use_sliding_window": False, "layer_types": ["sliding_attention"] * 3},
            "has layers with a window, but",
        ),
        ("qwen2-windows", {"max_window_layers": None}, "max_window_layers is missing"),
        ("qwen2-windows", {"max_window_layers": -1}, "max_window_layers is from 0"),
        ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is a finite number over 0"),
        ("gemma2", {"query_pre_attn_scalar": None}, "query_pre_attn_scalar is missing"),
        ("gemma2", {"attn_logit_softcapping": -50.0}, "attn_logit_softcapping is a finite number over 0"),
        ("gemma2", {"final_logit_softcapping": 0}, "final_logit_softcapping is a finite number over 0"),
        ("gemma3", {"sliding_window_pattern": 0}, "sliding_window_pattern is from 1"),
        ("gemma3", {"rope_local_base_freq": -1}, "rope_local_base_freq is a finite number over 0"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention True is not supported"),
        (
            "gemma3",
            {"hidden_activation": "gelu"},
            "hidden_activation 'gelu' is not supported; supported: silu, gelu_pytorch_tanh",
        ),
    ],
)
def test_what_is_refused_in_a_family(name: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        load_folder(write(tmp_path, changes, TINY_MODELS[name]))


def test_layers_without_rotary_angles(tmp_path: Path) -> None:
    def rotating(**changes: Any) -> list[bool]:
        found = load_folder(write(tmp_path, changes, TINY_MODELS["smollm3"])).spec
        return [layer.rope is not NO_ROPE for layer in found.layers]

    assert rotating() == [True, True, True, False]
    assert rotating(no_rope_layer_interval=2) == [True, False, True, False]
    assert rotating(no_rope_layers=[0, 1, 1, 0], no_rope_layer_interval=2) == [False, True, True, False]


def windows(folder: Path) -> list[int | None]:
    return [layer.window for layer in load_folder(folder).spec.layers]


def test_mistral_with_and_without_a_window(tmp_path: Path) -> None:
    mistral, llama = TINY_MODELS["mistral"], TINY_MODELS["llama"]
    unlimited = write(tmp_path / "a", {"architectures": ["MistralForCausalLM"], "sliding_window": None}, llama)
    assert np.array_equal(logits(unlimited), logits(write(tmp_path / "b", model=llama)))
    assert windows(write(tmp_path / "c", {"sliding_window": 256}, mistral)) == [None, None]  # as long as the context
    assert windows(write(tmp_path / "d", {"sliding_window": 2**31 - 1}, mistral)) == [None, None]
    assert windows(write(tmp_path / "e", {"sliding_window": 255}, mistral)) == [255, 255]


def test_which_layers_have_a_window(tmp_path: Path) -> None:
    def of(name: str, **changes: Any) -> list[int | None]:
        return windows(write(tmp_path, changes, TINY_MODELS[name]))

    assert of("qwen2-windows") == [None, 40, 40]
    assert of("qwen2-windows", max_window_layers=9) == [None] * 3
    assert of("qwen2-windows", use_sliding_window=False) == [None] * 3
    assert of("qwen2-windows", use_sliding_window=None) == [None] * 3  # off, unless it is switched on
    assert of("gemma2") == [50, None, 50]
    assert of("gemma3") == [50] * 5 + [None, 50]
    assert of("gemma3", sliding_window_pattern=2) == [50, None, 50, None, 50, None, 50]
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    assert of("gemma2", layer_types=kinds[::-1]) == [50, None, 50]
    assert of("gemma2", layer_types=["full_attention", *kinds[:2]]) == [None, 50, None]


def test_two_kinds_of_angles(tmp_path: Path) -> None:
    """In the keys of early files, and by kind of layer in those of transformers 5."""
    by_kind = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    gone = {"rope_theta": ..., "rope_local_base_freq": ..., "rope_scaling": ...}
    early, late = (
        write(tmp_path / str(i), c, TINY_MODELS["gemma3"]) for i, c in enumerate(({}, gone | {"rope_parameters": by_kind}))
    )
    assert load_folder(early).spec == load_folder(late).spec
    ropes = [layer.rope for layer in load_folder(late).spec.layers]
    assert [(rope.theta, rope.divisors[0]) for rope in ropes] == [(1e4, 1.0)] * 5 + [(1e6, 8.0), (1e4, 1.0)]


def test_scale_of_scores(tmp_path: Path) -> None:
    for name, key, value, scale in (
        ("gemma2", "query_pre_attn_scalar", 144, 1 / 12),
        ("granite", "attention_multiplier", 0.015625, 0.015625),
        ("llama", "hidden_size", 64, 0.25),
    ):
        assert load_folder(write(tmp_path, {key: value}, TINY_MODELS[name])).spec.attention_scale == pytest.approx(scale)
