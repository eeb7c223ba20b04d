"""A model folder as transformers writes it: config.json, safetensors and text files. Never code, never pickles."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ramet.core.ids import Float32
from ramet.errors import ModelError
from ramet.kernels.backend import FloatFormat, Weight, WeightFormat
from ramet.model.families import HF_FAMILIES, Expected, check_tensors, expected_tensors
from ramet.model.files import Fields, few, hash_array, mapped_files, mappings, read_json, read_text, release_pages, size_of
from ramet.model.grouped import CodedMatrix
from ramet.model.hf_config import read_spec
from ramet.model.quant_config import Stored, unpacked
from ramet.model.safetensors import INDEX_NAME, SINGLE_NAME, StoredTensor, read_folder
from ramet.model.spec import ALL_ROWS, Checkpoint, ModelSpec, TextSource

__all__ = ["TEXT_FILES", "TOKENIZER_FILES", "load_folder", "read_config"]

TOKENIZER_FILES = ("tokenizer.json", "tekken.json", "tokenizer.model")
"""Files that hold a vocabulary, the one to be read first; any NAME.tiktoken comes after them."""

TEXT_FILES = ("generation_config.json", "tokenizer_config.json", "chat_template.jinja")
"""Files a folder may have beside config.json, a vocabulary and the weights."""

_CODE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")  # pickles: loading one runs whatever it holds
_SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def load_folder(folder: Path, served: int | None = None) -> Checkpoint:
    """Open a folder; the weights stay mapped. Raises ``ModelError`` that names the file and the key.

    ``served`` is the longest context that requests may have, where that is not the model's own.
    """
    _refuse_code(folder)
    spec, config, generation, tokenizer_config = read_config(folder, served)
    raw = read_folder(folder)
    stored = unpacked(config, raw)
    expected = expected_tensors(spec, "hf")
    check_tensors(expected.values(), {n: t.shape for n, t in stored.items()}, str(folder), lambda n: _ignored(n, spec))
    text = TextSource(
        tokenizer_file=_tokenizer_file(folder),
        tokenizer_config=tokenizer_config,
        chat_templates=_chat_templates(folder, tokenizer_config),
    )
    tensors = _FolderTensors(
        {name: (one, stored[one.file_name]) for name, one in expected.items()},
        raw,
        folder / "config.json",
        json.dumps(config.raw("quantization_config"), sort_keys=True),
        HF_FAMILIES[spec.architecture].hf_norm_offset,
    )
    megabytes = sum(t.data.nbytes for t in raw.values()) >> 20
    return Checkpoint(
        spec=spec,
        tensors=tensors,
        text=text,
        generation_defaults=_sampling(generation),
        description=f"{folder.resolve().name} ({spec.architecture}, {megabytes} MiB)",
    )


def read_config(folder: Path, served: int | None = None) -> tuple[ModelSpec, Fields, Fields, Mapping[str, object]]:
    """The model that a folder's JSON files describe, and those: config, generation_config, tokenizer_config.

    Raises ``ModelError`` where it is none that Ramet knows, or asks for code.
    """
    path = folder / "config.json"
    config = Fields(read_json(path), str(path))
    if config.has("auto_map"):
        raise config.fail("auto_map", "asks for code from the model folder, which Ramet never runs")
    tokenizer_config = _optional(folder / "tokenizer_config.json")
    if "auto_map" in tokenizer_config:
        raise ModelError(f"{folder / 'tokenizer_config.json'}: auto_map asks for code from the folder, which Ramet never runs")
    path = folder / "generation_config.json"
    generation = Fields(_optional(path), str(path))
    return read_spec(config, generation, served), config, generation, tokenizer_config


class _FolderTensors:
    """``Tensors`` over mapped safetensors files.

    ``config`` is config.json's path, and ``label`` what of it the meaning of ``raw``, the files' tensors, depends on.
    ``norm_offset`` is added to each weight of a norm.
    """

    def __init__(
        self,
        stored: Mapping[str, tuple[Expected, Stored]],
        raw: Mapping[str, StoredTensor],
        config: Path,
        label: str,
        norm_offset: float,
    ) -> None:
        self._config = config
        self._stored = stored
        self._raw = raw
        self._mapped = mappings(tensor.data for tensor in raw.values())
        self._label = label
        self._norm_offset = np.float32(norm_offset)
        self._formats: frozenset[WeightFormat] = frozenset(t.format for _, t in stored.values() if len(t.shape) == 2)

    def matrix(self, name: str, dense: FloatFormat | None = None, rows: slice = ALL_ROWS) -> Weight:
        place, tensor = self._stored[name]
        part = tensor.part(place.part(rows))
        return part.weight() if dense is None else part.dense(dense)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._stored[name][0].shape

    def vector(self, name: str) -> Float32:
        place, tensor = self._stored[name]
        if isinstance(tensor, CodedMatrix):
            raise ModelError(f"tensor {tensor.name} is quantised; it must be a dense vector")
        values = tensor.part(place.rows).floats()
        return values + self._norm_offset if name.endswith("norm") else values

    def formats(self) -> frozenset[WeightFormat]:
        return self._formats

    def release(self) -> None:
        release_pages(self._mapped)

    def files(self) -> tuple[Path, ...]:
        return (self._config, *mapped_files(self._mapped))

    def fingerprint(self) -> str:
        digest = hashlib.sha256(self._label.encode())
        for name, tensor in sorted(self._raw.items()):
            digest.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
            hash_array(digest, tensor.data)
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


def _optional(path: Path) -> dict[str, object]:
    return read_json(path) if path.exists() else {}


def _ignored(name: str, spec: ModelSpec) -> bool:
    """Tensors that may be there but are not used: a head beside tied embeddings, and frequencies of old Llama files."""
    return (name == "lm_head.weight" and spec.tie_embeddings) or name.endswith(".rotary_emb.inv_freq")


def _sampling(generation: Fields) -> dict[str, float | int]:
    """The makers' sampling parameters; none unless ``do_sample`` is true, without which transformers ignores them too."""
    found: dict[str, float | int] = {}
    if not generation.boolean("do_sample", False):
        return found
    for key in _SAMPLING_KEYS:
        if generation.has(key):
            found[key] = generation.integer(key, low=0) if key == "top_k" else generation.fraction(key)
    return found


def _tokenizer_file(folder: Path) -> Path | None:
    for path in (*(folder / name for name in TOKENIZER_FILES), *sorted(folder.glob("*.tiktoken"))):
        if path.exists():
            size_of(path)  # its reader would wait for a pipe
            return path
    return None


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
