"""A model folder as transformers writes it: config.json, safetensors and text files. Never code, never pickles."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ramet.core.ids import Float32
from ramet.errors import ModelError
from ramet.kernels.backend import FloatFormat, Weight, WeightFormat
from ramet.model.families import HF_FAMILIES, Expected, Family, check_tensors, expected_tensors, family_of
from ramet.model.files import Fields, few, read_json, read_text, size_of
from ramet.model.quant import as_float32, round_to
from ramet.model.rope import linear_divisors, llama3_divisors
from ramet.model.safetensors import INDEX_NAME, SINGLE_NAME, StoredTensor, read_folder
from ramet.model.spec import Checkpoint, ModelSpec, RopeSpec, TextSource

__all__ = ["TEXT_FILES", "load_folder"]

TEXT_FILES = ("generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
"""Files a folder may have beside config.json and the weights."""

_CODE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")  # pickles: loading one runs whatever it holds
_SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_NEUTRAL: Mapping[str, object] = {"mlp_bias": False, "rope_interleaved": False, "partial_rotary_factor": 1.0}


def load_folder(folder: Path) -> Checkpoint:
    """Open a folder; the weights stay mapped. Raises ``ModelError`` that names the file and the key."""
    _refuse_code(folder)
    path = folder / "config.json"
    config = Fields(read_json(path), str(path))
    if config.has("auto_map"):
        raise config.fail("auto_map", "asks for code from the model folder, which Ramet never runs")
    family = _family(config)
    generation = _optional(folder / "generation_config.json")
    tokenizer_config = _optional(folder / "tokenizer_config.json")
    if "auto_map" in tokenizer_config:
        raise ModelError(f"{folder / 'tokenizer_config.json'}: auto_map asks for code from the folder, which Ramet never runs")
    generation_fields = Fields(generation, str(folder / "generation_config.json"))
    spec = _spec(config, generation_fields, family)
    stored = read_folder(folder)
    expected = expected_tensors(spec, "hf")
    check_tensors(expected.values(), {n: t.data.shape for n, t in stored.items()}, str(folder), lambda n: _ignored(n, spec))
    text = TextSource(
        tokenizer_json=_tokenizer_json(folder),
        tokenizer_config=tokenizer_config,
        chat_templates=_chat_templates(folder, tokenizer_config),
    )
    tensors = _FolderTensors({name: (one, stored[one.file_name]) for name, one in expected.items()})
    megabytes = sum(t.data.nbytes for t in stored.values()) >> 20
    return Checkpoint(
        spec=spec,
        tensors=tensors,
        text=text,
        generation_defaults=_sampling(generation_fields),
        description=f"{folder.resolve().name} ({spec.architecture}, {megabytes} MiB)",
    )


class _FolderTensors:
    """``Tensors`` over mapped safetensors files."""

    def __init__(self, stored: dict[str, tuple[Expected, StoredTensor]]) -> None:
        self._stored = stored

    def matrix(self, name: str, dense: FloatFormat | None = None) -> Weight:
        tensor = self._stored[name][1]
        weight = Weight(tensor.format, np.require(tensor.data, requirements=["C", "A"]))
        return weight if dense is None else round_to(weight, dense)

    def vector(self, name: str) -> Float32:
        tensor = self._stored[name][1]
        return as_float32(tensor.format, tensor.data)

    def formats(self) -> frozenset[WeightFormat]:
        return frozenset(t.format for _, t in self._stored.values() if t.data.ndim == 2)

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for name, (_, tensor) in sorted(self._stored.items()):
            digest.update(f"{name} {tensor.format} {tensor.data.shape}\n".encode())
            digest.update(np.ascontiguousarray(tensor.data).view(np.uint8).data)
        return digest.hexdigest()


def _refuse_code(folder: Path) -> None:
    """Say so by name where the folder is no model that Ramet reads."""
    try:
        names = sorted(p.name for p in folder.iterdir())
    except OSError as error:
        raise ModelError(f"cannot read {folder}: {error.strerror}") from None
    if not {SINGLE_NAME, INDEX_NAME} & set(names):
        pickles = [n for n in names if n.endswith(_CODE_SUFFIXES)]
        ggufs = [n for n in names if n.endswith(".gguf")]
        if pickles:
            raise ModelError(f"{folder}: weights in {few(pickles)} are pickles, which can run code; convert them to safetensors")
        if ggufs:
            raise ModelError(f"{folder} holds GGUF files; pass one of them: {few([folder / n for n in ggufs])}")
        raise ModelError(f"{folder} has neither {SINGLE_NAME} nor {INDEX_NAME}")
    if "config.json" not in names:
        raise ModelError(f"{folder} has no config.json")


def _family(config: Fields) -> Family:
    names = config.strings("architectures")
    if len(names) != 1:
        raise config.fail("architectures", f"names one architecture, not {len(names)}")
    return family_of(names[0], HF_FAMILIES, config.where)


def _optional(path: Path) -> dict[str, object]:
    return read_json(path) if path.exists() else {}


def _ignored(name: str, spec: ModelSpec) -> bool:
    """Tensors that may be there but are not used: a head beside tied embeddings, and frequencies of old Llama files."""
    return (name == "lm_head.weight" and spec.tie_embeddings) or name.endswith(".rotary_emb.inv_freq")


def _spec(config: Fields, generation: Fields, family: Family) -> ModelSpec:
    _check_switches(config)
    hidden_size, num_heads = config.integer("hidden_size", high=1 << 20), config.integer("num_attention_heads", high=1 << 16)
    num_kv_heads = config.integer("num_key_value_heads", num_heads, high=num_heads)
    if num_heads % num_kv_heads:
        raise config.fail("num_key_value_heads", f"{num_kv_heads} does not divide num_attention_heads {num_heads}")
    if not config.has("head_dim") and hidden_size % num_heads:
        raise config.fail("hidden_size", f"{hidden_size} is no multiple of {num_heads} heads, and there is no head_dim")
    head_dim = config.integer("head_dim", hidden_size // num_heads, high=1 << 16)
    if head_dim % 2:
        raise config.fail("head_dim", f"is even (rotary pairs), not {head_dim}")
    vocab_size = config.integer("vocab_size")
    attention_bias = config.boolean("attention_bias", False)

    def has_bias(rule: str) -> bool:
        return rule == "always" or (rule == "by_file" and attention_bias)

    if attention_bias and family.qkv_bias == "never":
        raise config.fail("attention_bias", "is true, which this architecture does not have")
    eos_source = generation if generation.has("eos_token_id") else config
    bos = config.token_ids("bos_token_id", vocab_size)
    return ModelSpec(
        architecture=config.strings("architectures")[0],
        num_layers=config.integer("num_hidden_layers", high=1024),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=config.integer("intermediate_size"),
        vocab_size=vocab_size,
        max_position=config.integer("max_position_embeddings"),
        rms_eps=config.number("rms_norm_eps"),
        rope=_rope(config, family, head_dim),
        tie_embeddings=config.boolean("tie_word_embeddings", False),
        qk_norm=family.qk_norm,
        qkv_bias=has_bias(family.qkv_bias),
        output_bias=has_bias(family.output_bias),
        eos_ids=eos_source.token_ids("eos_token_id", vocab_size),
        bos_id=bos[0] if bos else None,
    )


def _check_switches(config: Fields) -> None:
    """Refuse, by name, whatever would change the arithmetic and is not implemented."""
    if config.has("quantization_config"):
        raise config.fail("quantization_config", "marks quantised weights; use the original, or a GGUF of it")
    if (activation := config.text("hidden_act", "silu")) != "silu":
        raise config.fail("hidden_act", f"{activation!r} is not supported; supported: silu")
    for key, neutral in _NEUTRAL.items():
        if config.has(key) and config.raw(key) != neutral:
            raise config.fail(key, f"{config.raw(key)!r} is not supported; only {neutral!r} is")
    other = sorted(set(config.strings("layer_types")) - {"full_attention"})
    if other:
        raise config.fail("layer_types", f"{few(other)} is not supported; only full_attention is")
    # use_sliding_window is Qwen's switch; without it a window that is set is in use (Mistral)
    if config.has("sliding_window") and config.boolean("use_sliding_window", True):
        window = config.integer("sliding_window")
        if window < config.integer("max_position_embeddings"):
            raise config.fail("sliding_window", f"of {window} tokens is in use, which is not supported")


def _rope(config: Fields, family: Family, head_dim: int) -> RopeSpec:
    """Rotary angles from ``rope_parameters`` (transformers 5) or ``rope_theta`` and ``rope_scaling`` (before)."""
    if config.has("rope_parameters") and config.has("rope_scaling"):
        raise config.fail("rope_scaling", "stands beside rope_parameters; it is not clear which one counts")
    parameters = config.mapping("rope_parameters" if config.has("rope_parameters") else "rope_scaling")
    theta = (parameters if parameters.has("rope_theta") else config).number("rope_theta", family.default_theta)
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    if parameters.text("type", kind) != kind:
        raise parameters.fail("rope_type", f"is {kind!r}, but type is {parameters.raw('type')!r}")
    if parameters.has("partial_rotary_factor") and parameters.number("partial_rotary_factor") != 1.0:
        raise parameters.fail("partial_rotary_factor", "is not supported; only 1.0 is")
    if kind == "default":
        if parameters.has("factor"):
            raise parameters.fail("factor", "is given, but no rope_type says what it scales")
        return RopeSpec(theta, head_dim, linear_divisors(head_dim))
    if kind == "linear":
        return RopeSpec(theta, head_dim, linear_divisors(head_dim, parameters.number("factor")))
    if kind == "llama3":
        low, high = parameters.number("low_freq_factor"), parameters.number("high_freq_factor")
        if low >= high:
            raise parameters.fail("low_freq_factor", f"{low} is not under high_freq_factor {high}")
        divisors = llama3_divisors(
            head_dim,
            theta,
            factor=parameters.number("factor"),
            low=low,
            high=high,
            original_max_position=parameters.integer("original_max_position_embeddings"),
        )
        return RopeSpec(theta, head_dim, divisors)
    raise parameters.fail("rope_type", f"{kind!r} is not supported; supported: default, linear, llama3")


def _sampling(generation: Fields) -> dict[str, float | int]:
    """The makers' sampling parameters; none unless ``do_sample`` is true, without which transformers ignores them too."""
    found: dict[str, float | int] = {}
    if not generation.boolean("do_sample", False):
        return found
    for key in _SAMPLING_KEYS:
        if generation.has(key):
            found[key] = generation.integer(key, low=0) if key == "top_k" else generation.fraction(key)
    return found


def _tokenizer_json(folder: Path) -> Path | None:
    path = folder / "tokenizer.json"
    if not path.exists():
        return None
    size_of(path)  # its reader would wait for a pipe
    return path


def _chat_templates(folder: Path, tokenizer_config: Mapping[str, object]) -> dict[str, str]:
    """Templates by name; chat_template.jinja wins over tokenizer_config.json, as in transformers."""
    path = folder / "chat_template.jinja"
    if path.exists():
        return {"default": read_text(path)}
    found = tokenizer_config.get("chat_template")
    if found is None:
        return {}
    if isinstance(found, str):
        return {"default": found}
    if isinstance(found, list):
        named = {e.get("name"): e.get("template") for e in found if isinstance(e, dict)}
        if len(named) == len(found) and all(isinstance(v, str) for pair in named.items() for v in pair):
            return {str(name): str(template) for name, template in named.items()}
    raise ModelError(f"{folder / 'tokenizer_config.json'}: chat_template is neither a string nor a list of named ones")
