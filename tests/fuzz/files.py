"""F1 and F2: model files whose headers lie. Each is refused in one line, or packed and run, in little time and memory.

An input is a header; what stands behind it is the same for all, and long enough for what was true in the known ones.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

import numpy as np
from fuzz.harness import Target, kind_of
from fuzz.mutation import as_json, mutated_bytes, mutated_json
from support.memory import allocating_at_most

from ramet.errors import ModelError
from ramet.kernels.registry import make_backend
from ramet.model.folder import load_folder
from ramet.model.gguf_model import load_gguf
from ramet.model.spec import Checkpoint
from ramet.text.tokenizer import Tokenizer

sys.path.append(str(Path(__file__).parents[1] / "unit/model"))
from one_sequence import OneSequence

__all__ = ["GGUF", "SAFETENSORS", "bounded", "refused"]

_SLACK = 64 << 20
_MAX_SECONDS = 3  # of processor time; to watch what is allocated takes two thirds of it
_DATA = np.random.default_rng(1).integers(0, 0x40, 560_000, dtype=np.uint8).tobytes()  # as floats of any width: small and finite
_MAX_BODY = 1 << 20
_NUMBERS = (0, 1, 2, 3, 31, 32, 64, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**48, 2**63 - 1, 2**63, 2**64 - 1)
_WORD = re.compile(rb"[a-z0-9_.]{4,}")
_GGUF_WORDS = [
    b"general.alignment", b"llama.attention.head_count", b"llama.block_count", b"llama.embedding_length", b"llama.expert_count",
    b"llama.rope.dimension_count", b"split.count", b"token_embd.weight", b"output_norm.weight", b"blk.0.attn_q.weight", b"GGUF",
]  # fmt: skip
_SAFETENSORS_WORDS = [
    "dtype", "shape", "data_offsets", "__metadata__", "F32", "F16", "BF16", "I32", "I64", "I8", "F8_E4M3", "U4", "config",
    "header", "model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
    "model.layers.0.self_attn.q_proj.qweight", "model.layers.0.self_attn.q_proj.g_idx",
    "model.layers.0.self_attn.q_proj.weight_scale", "quantization_config", "quant_method", "bits", "group_size", "desc_act",
    "sym", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "rope_scaling", "rope_type",
    "factor", "longrope", "yarn", "dynamic", "max_position_embeddings", "sliding_window", "layer_types", "num_experts",
    "num_experts_per_tok", "LlamaForCausalLM", "Phi3ForCausalLM", "Gemma3ForCausalLM", "MixtralForCausalLM",
]  # fmt: skip


@contextmanager
def bounded(num_bytes: int) -> Iterator[None]:
    """Within 64 MiB over ``num_bytes``, and within a time."""
    started_s = time.process_time()
    with allocating_at_most(num_bytes + _SLACK):
        yield
    assert time.process_time() - started_s < _MAX_SECONDS, "it took too long"


def refused(error: Exception) -> str:
    """The kind of an error, which is one that people can be shown."""
    text = str(error)
    assert text.isprintable(), "not one plain line"
    assert len(text) < 1000, "a long one"
    return kind_of(error)


class _Files:
    """A folder to write in, and what runs the models that are none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._backend = make_backend("cpu", threads=1)

    def gguf(self, data: bytes) -> Hashable:
        path = self._folder / "model.gguf"
        path.write_bytes(data + _DATA)
        with bounded(len(data) + len(_DATA)):
            try:
                checkpoint = load_gguf(path)
            except ModelError as error:
                return refused(error)
            return self._run(checkpoint), self._tokenizer(checkpoint)

    def safetensors(self, data: bytes) -> Hashable:
        """``config`` and ``header`` as JSON, with a body of so many times the byte ``fill``; what is no JSON is a whole file."""
        value = as_json(data)
        model = data
        if isinstance(value, dict):
            (self._folder / "config.json").write_text(json.dumps(value.get("config")))
            size, fill = value.get("body"), value.get("fill")
            header = json.dumps(value.get("header")).encode()
            body = bytes([fill & 255 if isinstance(fill, int) else 0]) * (min(size, _MAX_BODY) if isinstance(size, int) else 0)
            model = len(header).to_bytes(8, "little") + header + body
        (self._folder / "model.safetensors").write_bytes(model)
        with bounded(len(model)):
            try:
                return self._run(load_folder(self._folder))
            except ModelError as error:
                return refused(error)

    def _run(self, checkpoint: Checkpoint) -> Hashable:
        """Weights are packed, and some tokens computed with them."""
        try:
            sequence = OneSequence(checkpoint, self._backend, max_tokens=32)
        except ModelError as error:
            return refused(error)
        logits = sequence.feed([1, 2, min(3, checkpoint.spec.vocab_size - 1)])
        return checkpoint.spec.architecture, tuple(sorted(checkpoint.tensors.formats())), bool(np.isfinite(logits).all())

    def _tokenizer(self, checkpoint: Checkpoint) -> Hashable:
        assert checkpoint.text.gguf is not None
        try:
            return len(Tokenizer.from_gguf(checkpoint.text.gguf).encode("ab 12"))
        except ModelError as error:
            return refused(error)


def _mutate_gguf(rng: Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    """Mostly numbers, and mostly those behind a name: types, lengths, dimensions, offsets."""
    if rng.random() < 0.1:
        return mutated_bytes(rng, data, pool, _GGUF_WORDS)
    changed = bytearray(data)
    words = [match.end() for match in _WORD.finditer(data)] or [0]
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.choice(words) + rng.choice((0, 4, 8, 12, 16, 20, 24, 28)) if rng.random() < 0.8 else rng.randrange(len(data) + 1)
        size = rng.choice((4, 8))
        kind = rng.randrange(3)
        number = int.from_bytes(changed[at : at + size], "little")
        number = (rng.choice(_NUMBERS), number ^ 1 << rng.randrange(size * 8), number + rng.choice((-1, 1, 32)))[kind]
        changed[at : at + size] = (number & (1 << size * 8) - 1).to_bytes(size, "little")
    return bytes(changed)


def _mutate_safetensors(rng: Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    value = as_json(data)
    if not isinstance(value, dict) or rng.random() < 0.05:
        return mutated_bytes(rng, data, pool, [word.encode() for word in _SAFETENSORS_WORDS])
    part = rng.choice(("config", "header"))
    others = [other for other in map(as_json, rng.choices(pool, k=4)) if other is not None]
    return json.dumps(value | {part: mutated_json(rng, value.get(part), others or [{}], _SAFETENSORS_WORDS)}).encode()


GGUF = Target("F1", "gguf", lambda folder: _Files(folder).gguf, _mutate_gguf)
SAFETENSORS = Target("F2", "safetensors", lambda folder: _Files(folder).safetensors, _mutate_safetensors)
