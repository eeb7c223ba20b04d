"""Model folders: switches read right, everything unknown refused by name, no code ever."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from one_sequence import OneSequence
from tiny_models import ORIGINAL_CONTEXT, TINY_MODELS, TinyModel, write_folder, write_safetensors

from ramet.errors import ModelError
from ramet.kernels.registry import make_backend
from ramet.model.folder import load_folder
from ramet.model.rope import linear_divisors
from ramet.text.tokenizer import Tokenizer

LLAMA = TINY_MODELS["llama"]
TOKENS = [5, 80, 81, 200, 3]


def write(tmp_path: Path, changes: dict[str, Any] | None = None, model: TinyModel = LLAMA, **tensors: Any) -> Path:
    """The model's folder with keys of config.json replaced (None: removed) and tensors added, replaced or removed."""
    folder = write_folder(model, tmp_path / "model", tokenizer=False)
    config = {**model.config, **(changes or {})}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))
    if tensors:
        stored = {**model.tensors, **tensors}
        write_safetensors(folder / "model.safetensors", {n: ("F32", t) for n, t in stored.items() if t is not None})
    return folder


def logits(folder: Path) -> np.ndarray:
    return OneSequence(load_folder(folder), make_backend("reference")).feed(TOKENS)


def test_b160_tied_embeddings_without_a_head(tmp_path: Path) -> None:
    """logits = norm(h) times the embedding: the same as an untied model whose head is that embedding."""
    model = TINY_MODELS["qwen2"]
    assert "lm_head.weight" not in model.tensors
    tied = logits(write(tmp_path / "tied", model=model))
    head = {"lm_head.weight": model.tensors["model.embed_tokens.weight"]}
    untied = logits(write(tmp_path / "untied", {"tie_word_embeddings": False}, model, **head))
    assert np.array_equal(tied, untied)


def test_b161_tied_embeddings_win_over_a_head_in_the_file(tmp_path: Path) -> None:
    model = TINY_MODELS["qwen2"]
    stray = {"lm_head.weight": np.ones((304, 64), np.float32)}
    assert np.array_equal(logits(write(tmp_path / "a", model=model, **stray)), logits(write(tmp_path / "b", model=model)))


def test_untied_without_a_head(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"missing tensors: lm_head\.weight"):
        load_folder(write(tmp_path, **{"lm_head.weight": None}))


@pytest.mark.parametrize("key", ["type", "rope_type"])
@pytest.mark.parametrize("where", ["rope_scaling", "rope_parameters"])
def test_b164_linear_scaling_under_both_keys(key: str, where: str, tmp_path: Path) -> None:
    folder = write(tmp_path, {where: {key: "linear", "factor": 2, "rope_theta": 5000.0, "finetuned": True}})
    rope = load_folder(folder).spec.layers[0].rope
    assert rope.divisors == linear_divisors(16, 2.0)
    assert rope.theta == 5000.0


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"type": "ntk", "factor": 4}, "rope_type 'ntk' is not supported; supported: default, linear, dynamic, yarn"),
        ({"rope_type": "dynamic"}, "factor is missing"),
        ({"rope_type": "dynamic", "factor": -4}, "factor is a finite number over 0, not -4"),
        ({"type": "yarn", "factor": 0}, "factor is a finite number over 0"),
        ({"type": "yarn", "factor": 4, "beta_fast": 1}, "beta_slow 1.0 is not under beta_fast 1.0"),
        ({"type": "yarn", "factor": 4, "rope_theta": 1.0}, "rope_theta 1.0 is not over 1"),
        ({"type": "yarn", "factor": 4, "attention_factor": -1}, "attention_factor is a finite number over 0"),
        ({"type": "yarn", "factor": 4, "original_max_position_embeddings": 1}, "original_max_position_embeddings is from 2"),
        ({"type": "yarn", "factor": 4, "truncate": 1}, "truncate is true or false"),
        ({"type": "longrope", "short_factor": [1.0] * 8}, "long_factor is missing"),
        ({"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0] * 7}, "long_factor has 8 numbers, not 7"),
        ({"type": "su", "short_factor": 1.0, "long_factor": [1.0] * 8}, "short_factor is a list of numbers, not 1.0"),
        ({"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0] * 7 + [0]}, r"long_factor\[7\] is a finite number"),
        ({"factor": 4}, "factor is given, but no rope_type"),
        ({"type": "linear"}, "rope_scaling: factor is missing"),
        ({"type": "linear", "factor": 0}, "factor is a finite number over 0, not 0"),
        ({"type": "linear", "factor": "2"}, "factor is a number, not '2'"),
        ({"type": "linear", "rope_type": "llama3", "factor": 2}, "rope_type is 'llama3', but type is 'linear'"),
        ({"rope_type": "llama3", "factor": 8}, "low_freq_factor is missing"),
        (
            {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}
            | {"original_max_position_embeddings": 64},
            "low_freq_factor 4.0 is not under",
        ),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"full_attention": {"rope_type": "default"}, "rope_type": "mrope"}, "'mrope' is not supported"),
        (["linear"], "is an object, not"),
    ],
)
def test_b164_scaling_that_is_unknown_or_incomplete(scaling: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        load_folder(write(tmp_path, {"rope_scaling": scaling}))


def test_two_descriptions_of_the_angles(tmp_path: Path) -> None:
    linear, default = {"type": "linear", "factor": 2.0}, {"rope_type": "default", "rope_theta": 1e4}
    with pytest.raises(ModelError, match="rope_scaling stands beside rope_parameters"):
        load_folder(write(tmp_path, {"rope_scaling": linear, "rope_parameters": default}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GemmaForCausalLM"]}, "architecture 'GemmaForCausalLM' is not supported; supported: Llama"),
        ({"architectures": []}, "architectures names one architecture, not 0"),
        ({"architectures": "LlamaForCausalLM"}, "architectures is a list of strings"),
        ({"auto_map": {"AutoModel": "evil.Model"}}, "auto_map asks for code"),
        (
            {"quantization_config": {"quant_method": "bitsandbytes"}},
            "'bitsandbytes' is not supported; supported: awq",
        ),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"mlp_bias": True}, "mlp_bias True is not supported"),
        ({"rope_interleaved": True}, "rope_interleaved True"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported in this architecture"),
        ({"logits_scaling": 8.0}, "logits_scaling 8.0 is not supported"),
        ({"residual_multiplier": 0.2}, "residual_multiplier 0.2 is not supported"),
        ({"attention_multiplier": 0.2}, "attention_multiplier 0.2 is not supported"),
        ({"sliding_window": 128}, "sliding_window of 128 tokens is in use"),
        ({"use_sliding_window": True, "sliding_window": 128}, "sliding_window of 128 tokens is in use"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types sliding_attention is not supported"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries for 2 layers"),
        ({"query_pre_attn_scalar": 16}, "query_pre_attn_scalar 16 is not supported in this architecture"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping 30.0 is not supported"),
        ({"hidden_size": ...}, "hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size is a whole number, not '64'"),
        ({"hidden_size": True}, "hidden_size is a whole number, not True"),
        ({"hidden_size": -64}, "hidden_size is from 1 to 1048576, not -64"),
        ({"hidden_size": 2**63}, "hidden_size is from 1 to"),
        ({"hidden_size": 66}, "66 is no multiple of 4 heads"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is from 1 to 1024"),
        ({"num_hidden_layers": 3}, r"missing tensors: model\.layers\.2\.input_layernorm\.weight, .* \(9 in all\)"),
        ({"num_hidden_layers": 1}, r"unexpected tensors, .*: model\.layers\.1\."),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3 does not divide"),
        ({"num_key_value_heads": 8}, "num_key_value_heads is from 1 to 4"),
        ({"head_dim": 15}, "head_dim is even"),
        ({"vocab_size": 300}, r"embed_tokens\.weight is \[304, 64\], but the configuration makes it \[300, 64\]"),
        ({"intermediate_size": 128}, r"is \[96, 64\], but the configuration makes it \[128, 64\]"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is a finite number over 0"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps is a finite number over 0, not 1000"),
        ({"max_position_embeddings": None}, "max_position_embeddings is missing"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is true or false"),
        ({"eos_token_id": 304}, "eos_token_id is 304, but the vocabulary has 304 tokens"),
        ({"eos_token_id": [2, -1]}, "eos_token_id is -1"),
        ({"eos_token_id": "</s>"}, "eos_token_id is a token id"),
        ({"attention_bias": True}, r"missing tensors: model\.layers\.0\.self_attn\.q_proj\.bias"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        load_folder(write(tmp_path, changes))
    assert "\n" not in str(caught.value)


def test_biases_that_the_configuration_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="unexpected tensors"):
        load_folder(write(tmp_path, {"attention_bias": False}, TINY_MODELS["llama-linear"]))


def test_old_frequencies_are_ignored(tmp_path: Path) -> None:
    load_folder(write(tmp_path, **{"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)}))


def test_eos_ids_of_generation_config_win(tmp_path: Path) -> None:
    folder = write(tmp_path, {"eos_token_id": 256, "bos_token_id": 1})
    assert load_folder(folder).spec.eos_ids == (256,)
    assert load_folder(folder).spec.bos_id == 1
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [257, 258]}))
    assert load_folder(folder).spec.eos_ids == (257, 258)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": None}))
    assert load_folder(folder).spec.eos_ids == (256,)


def test_sampling_defaults(tmp_path: Path) -> None:
    folder = write(tmp_path)
    assert load_folder(folder).generation_defaults == {}
    given = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "max_length": 100, "repetition_penalty": 1.1}
    (folder / "generation_config.json").write_text(json.dumps(given))
    wanted = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.1}
    assert load_folder(folder).generation_defaults == wanted
    (folder / "generation_config.json").write_text(json.dumps(given | {"do_sample": False}))
    assert load_folder(folder).generation_defaults == {}
    (folder / "generation_config.json").write_text(json.dumps(given | {"temperature": "hot"}))
    with pytest.raises(ModelError, match=r"generation_config\.json: temperature is a number"):
        load_folder(folder)


def test_text_files(tmp_path: Path) -> None:
    folder = write_folder(LLAMA, tmp_path / "model")
    text = load_folder(folder).text
    assert text.tokenizer_file == folder / "tokenizer.json"
    assert "<|im_start|>" in text.chat_templates["default"]
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert load_folder(folder).text.chat_templates == {"default": "a", "tool_use": "b"}
    (folder / "chat_template.jinja").write_text("from the file")
    assert load_folder(folder).text.chat_templates == {"default": "from the file"}
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": [{"name": "x"}]}))
    with pytest.raises(ModelError, match="chat_template is neither"):
        load_folder(folder)


def test_which_vocabulary_is_read(tmp_path: Path) -> None:
    folder = write_folder(LLAMA, tmp_path / "model")
    (folder / "tokenizer.json").rename(folder / "qwen.tiktoken")
    assert load_folder(folder).text.tokenizer_file == folder / "qwen.tiktoken"
    for name in ("tokenizer.model", "tekken.json", "tokenizer.json"):
        (folder / name).write_bytes(b"")
        assert load_folder(folder).text.tokenizer_file == folder / name


def test_without_text_files(tmp_path: Path) -> None:
    text = load_folder(write(tmp_path)).text
    assert text.tokenizer_file is None
    assert text.gguf is None
    assert text.chat_templates == {}


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "weights.pkl"])
def test_t03_pickled_weights_are_refused_by_name(name: str, tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(ModelError, match=f"{name} are pickles"):
        load_folder(folder)


def test_t03_code_is_neither_run_nor_read(tmp_path: Path) -> None:
    folder = write(tmp_path)
    canary = tmp_path / "canary"
    (folder / "modeling_evil.py").write_text(f"open({str(canary)!r}, 'w').close()")
    (folder / "pytorch_model.bin").write_bytes(b"cposix\nsystem\n(S'touch canary'\ntR.")
    load_folder(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}}))
    with pytest.raises(ModelError, match=r"tokenizer_config\.json: auto_map asks for code"):
        load_folder(folder)
    assert not canary.exists()


_OPTIMISED = """
import sys
from pathlib import Path
from ramet.errors import ModelError
from ramet.model.folder import load_folder
assert False, "this line is not there under -O"
for folder in sys.argv[1:]:
    try:
        load_folder(Path(folder))
        print("loaded")
    except ModelError as error:
        print(error)
"""


def test_t04_the_same_refusals_where_asserts_are_off(tmp_path: Path) -> None:
    pickled = write(tmp_path / "pickled")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    asking = write(tmp_path / "asking", {"auto_map": {"AutoModel": "evil.Model"}})
    command = [sys.executable, "-O", "-c", _OPTIMISED, str(pickled), str(asking)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    refusals = done.stdout.splitlines()
    assert "pytorch_model.bin are pickles" in refusals[0]
    assert "auto_map asks for code" in refusals[1]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"a": NaN}', b'{"a": 1, "a": 2}', b'{"a":' * 100_000])
def test_config_that_is_no_json_object(content: bytes, tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"config\.json"):
        load_folder(folder)


def test_folders_that_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has neither model\.safetensors nor"):
        load_folder(tmp_path)
    (tmp_path / "some.gguf").touch()
    with pytest.raises(ModelError, match="holds GGUF files; pass one of them"):
        load_folder(tmp_path)
    write_safetensors(tmp_path / "model.safetensors", {})
    with pytest.raises(ModelError, match=r"has no config\.json"):
        load_folder(tmp_path)
    with pytest.raises(ModelError, match="cannot read"):
        load_folder(tmp_path / "absent")


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_half_precision_folders(dtype: str, tmp_path: Path) -> None:
    """The same numbers as a float32 model whose weights are rounded so."""
    folder = write_folder(LLAMA, tmp_path, dtype=dtype, tokenizer=False)
    checkpoint = load_folder(folder)
    assert checkpoint.dtype == {"F16": "float16", "BF16": "bfloat16"}[dtype]
    exact = OneSequence(load_folder(write(tmp_path / "exact")), make_backend("reference")).feed(TOKENS)
    rounded = OneSequence(checkpoint, make_backend("reference")).feed(TOKENS)
    assert 0 < np.abs(exact - rounded).max() < {"F16": 0.02, "BF16": 0.15}[dtype]


def test_fingerprint_is_of_every_byte(tmp_path: Path) -> None:
    first = load_folder(write(tmp_path / "a")).fingerprint()
    assert load_folder(write(tmp_path / "b")).fingerprint() == first
    changed = LLAMA.tensors["model.norm.weight"].copy()
    changed[-1] = np.nextafter(changed[-1], np.float32(9))
    assert load_folder(write(tmp_path / "c", **{"model.norm.weight": changed})).fingerprint() != first


def test_fingerprint_is_of_all_that_decides_a_key_or_a_value(tmp_path: Path) -> None:
    """longrope's factors hang on the context that is served, and so do keys; windows, epsilons, bases are not in the weights."""
    phi = write_folder(TINY_MODELS["phi3"], tmp_path / "phi", tokenizer=False)
    by_served = [load_folder(phi, served).fingerprint() for served in (None, 256, ORIGINAL_CONTEXT, ORIGINAL_CONTEXT - 1)]
    assert by_served[0] == by_served[1] != by_served[2] == by_served[3]
    mistral = TINY_MODELS["mistral"]
    changes: list[dict[str, Any]] = [
        {}, {"sliding_window": 49}, {"sliding_window": None}, {"rope_theta": 9e3}, {"rms_norm_eps": 1e-7},
        {"rope_scaling": {"type": "linear", "factor": 2.0}}, {"rope_scaling": {"type": "yarn", "factor": 4.0}},
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}},
    ]  # fmt: skip
    folder, found = write_folder(mistral, tmp_path / "mistral", tokenizer=False), []
    for change in (*changes, {"eos_token_id": 7}):
        (folder / "config.json").write_text(json.dumps(mistral.config | change))
        found.append(load_folder(folder).fingerprint())
    assert len(set(found)) == len(changes)
    assert found[-1] == found[0]


_OPENED: list[str] = []
_IS_WATCHING = [False]


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook stays for good, so it listens only when it is told to."""
    if _IS_WATCHING[0] and event in ("open", "socket.connect", "socket.getaddrinfo", "import"):
        _OPENED.append(f"{event} {arguments[0]}")


def test_t05_no_field_of_a_nested_config_or_a_tokenizer_names_another_place(tmp_path: Path) -> None:
    """Everything comes from the folder that was asked for, whatever its files say about names, files, revisions and classes."""
    folder = write_folder(LLAMA, tmp_path / "model")
    elsewhere = {
        "_name_or_path": "evil/model", "revision": "evil", "code_revision": "evil", "tokenizer_file": "/etc/passwd",
        "vocab_file": "../tokenizer.model", "base_model_name_or_path": "evil/base", "tokenizer_class": "evil/code--Evil",
    }  # fmt: skip
    for name in ("config.json", "tokenizer_config.json"):
        plain = json.loads((folder / name).read_text())
        nested = {"text_config": elsewhere | {"auto_map": {"AutoConfig": "evil.Evil"}}, "draft": elsewhere}
        (folder / name).write_text(json.dumps(elsewhere | nested | plain))
    load_folder(folder)  # what is imported late is imported
    sys.addaudithook(_watch)
    _IS_WATCHING[0] = True
    try:
        text = load_folder(folder).text
        assert text.tokenizer_file is not None
        Tokenizer.from_file(text.tokenizer_file, text.tokenizer_config).encode("a")
    finally:
        _IS_WATCHING[0] = False
    assert any("config.json" in what for what in _OPENED)
    assert [what for what in _OPENED if not what.startswith(f"open {folder}/")] == []
