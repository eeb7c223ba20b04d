"""From a GGUF file's keys to a model: which architecture, which shape, which tensors, which text."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ramet.core.ids import Float32
from ramet.errors import ModelError
from ramet.kernels.backend import FloatFormat, Weight, WeightFormat
from ramet.model.families import GGUF_FAMILIES, Expected, Family, check_tensors, expected_tensors, family_of
from ramet.model.files import Fields
from ramet.model.gguf import GGUFFile, GGUFTensor, read_gguf
from ramet.model.gguf_split import join_parts
from ramet.model.quant import as_float32
from ramet.model.rope import linear_divisors
from ramet.model.spec import Checkpoint, ModelSpec, RopeSpec, TextSource

__all__ = ["load_gguf"]

_ROPE_FACTORS = "rope_freqs.weight"  # a divisor a rotary pair: how llama3 scaling is stored
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")  # end of sequence, of turn, of message: each ends the output
# Keys that change the arithmetic in ways not implemented, and the value at which they do nothing.
_NEUTRAL: Mapping[str, object] = {
    "expert_count": 0,
    "logit_scale": 1.0,
    "residual_scale": 1.0,
    "embedding_scale": 1.0,
    "attention.scale": 0.0,
    "attention.causal": True,
}


def load_gguf(path: Path) -> Checkpoint:
    """Open a GGUF model; the weights stay mapped. Raises ``ModelError`` that names the file and the key."""
    file = join_parts(read_gguf(path))
    fields = Fields(file.metadata, str(file.path))
    architecture = fields.text("general.architecture")
    family = family_of(architecture, GGUF_FAMILIES, str(path))
    spec = _spec(file, fields, architecture, family)
    expected = expected_tensors(spec, "gguf")
    shapes = {name: tensor.shape for name, tensor in file.tensors.items()}
    check_tensors(expected.values(), shapes, str(path), lambda name: name == _ROPE_FACTORS)
    return Checkpoint(
        spec=spec,
        tensors=_GGUFTensors(file, expected, spec, family.gguf_interleaved),
        text=TextSource(gguf=file.metadata, chat_templates=_chat_templates(fields)),
        generation_defaults={},
        description=f"{path.stem} ({architecture}, {sum(t.blocks.nbytes for t in file.tensors.values()) >> 20} MiB)",
    )


class _GGUFTensors:
    """``Tensors`` over a mapped GGUF file.

    Files of the llama architecture hold q and k with the two members of a rotary pair on neighbouring rows; here they are
    put back half a head apart, the way Ramet (and the original checkpoint) rotates.
    """

    def __init__(self, file: GGUFFile, expected: Mapping[str, Expected], spec: ModelSpec, interleaved: bool) -> None:
        self._tensors = {name: file.tensors[one.file_name] for name, one in expected.items()}
        self._row_orders: dict[str, npt.NDArray[np.intp]] = {}
        if interleaved:
            self._row_orders = {
                "q": _halves_order(spec.num_heads, spec.head_dim),
                "k": _halves_order(spec.num_kv_heads, spec.head_dim),
            }

    def matrix(self, name: str, dense: FloatFormat | None = None) -> Weight:
        return self._tensors[name].weight(self._row_orders.get(name.rpartition(".")[2]), dense)

    def vector(self, name: str) -> Float32:
        values = _vector(self._tensors[name])
        order = self._row_orders.get(name.rpartition(".")[2].removesuffix("_bias"))
        return values if order is None or not name.endswith("_bias") else values[order]

    def formats(self) -> frozenset[WeightFormat]:
        return frozenset(t.type.format for t in self._tensors.values() if len(t.shape) == 2)

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for name, tensor in sorted(self._tensors.items()):
            digest.update(f"{name} {tensor.type.name} {tensor.shape}\n".encode())
            digest.update(tensor.blocks.data)
        return digest.hexdigest()


def _halves_order(num_heads: int, head_dim: int) -> npt.NDArray[np.intp]:
    """intp[num_heads * head_dim]: for each row of the half-split layout, the row of the interleaved one."""
    rows = np.arange(num_heads * head_dim).reshape(num_heads, head_dim // 2, 2)
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(-1)


def _vector(tensor: GGUFTensor) -> Float32:
    if len(tensor.shape) != 1 or tensor.type.format in ("q8", "q4"):
        raise ModelError(f"tensor {tensor.name} is {tensor.type.name} {list(tensor.shape)}; it must be a dense vector")
    weight = tensor.weight()
    return as_float32(weight.format, weight.data[0])


def _spec(file: GGUFFile, fields: Fields, architecture: str, family: Family) -> ModelSpec:
    def key(name: str) -> str:
        return f"{architecture}.{name}"

    _check_switches(fields, architecture)
    hidden_size, num_heads = fields.integer(key("embedding_length"), high=1 << 20), fields.integer(key("attention.head_count"))
    num_kv_heads = fields.integer(key("attention.head_count_kv"), num_heads, high=num_heads)
    if num_heads % num_kv_heads:
        raise fields.fail(key("attention.head_count_kv"), f"{num_kv_heads} does not divide the {num_heads} heads")
    head_dim = fields.integer(key("attention.key_length"), max(1, hidden_size // num_heads), high=1 << 16)
    for name in ("attention.value_length", "rope.dimension_count"):
        if head_dim % 2 or fields.integer(key(name), head_dim) != head_dim:
            raise fields.fail(key(name), f"is {fields.raw(key(name))}; only the (even) head length is supported, here {head_dim}")
    vocab_size = _vocab_size(file, fields)
    eos = [i for name in _EOS_KEYS for i in fields.token_ids(f"tokenizer.ggml.{name}", vocab_size)]
    bos = fields.token_ids("tokenizer.ggml.bos_token_id", vocab_size)

    def has_bias(rule: str, tensor: str) -> bool:
        return rule == "always" or (rule == "by_file" and tensor in file.tensors)

    return ModelSpec(
        architecture=architecture,
        num_layers=fields.integer(key("block_count"), high=1024),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=fields.integer(key("feed_forward_length")),
        vocab_size=vocab_size,
        max_position=fields.integer(key("context_length")),
        rms_eps=fields.number(key("attention.layer_norm_rms_epsilon")),
        rope=_rope(file, fields, architecture, head_dim),
        tie_embeddings="output.weight" not in file.tensors,
        qk_norm=family.qk_norm,
        qkv_bias=has_bias(family.qkv_bias, "blk.0.attn_q.bias"),
        output_bias=has_bias(family.output_bias, "blk.0.attn_output.bias"),
        eos_ids=tuple(dict.fromkeys(eos)),
        bos_id=bos[0] if bos else None,
    )


def _check_switches(fields: Fields, architecture: str) -> None:
    for name, neutral in _NEUTRAL.items():
        key = f"{architecture}.{name}"
        if fields.has(key) and fields.raw(key) != neutral:
            raise fields.fail(key, f"{fields.raw(key)!r} is not supported; only {neutral!r} is")
    key = f"{architecture}.attention.sliding_window"
    if fields.has(key) and 0 < fields.integer(key, low=0) < fields.integer(f"{architecture}.context_length"):
        raise fields.fail(key, f"of {fields.raw(key)} tokens is in use, which is not supported")


def _vocab_size(file: GGUFFile, fields: Fields) -> int:
    """Rows of the embedding: the key is optional, and the list of tokens may be shorter (padding), never longer."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelError(f"{file.path}: tensor token_embd.weight is missing or no matrix")
    vocab_size = embedding.shape[0]
    tokens = file.metadata.get("tokenizer.ggml.tokens", [])
    if isinstance(tokens, list) and len(tokens) > vocab_size:
        raise fields.fail("tokenizer.ggml.tokens", f"lists {len(tokens)} tokens, but the embedding has {vocab_size} rows")
    return vocab_size


def _rope(file: GGUFFile, fields: Fields, architecture: str, head_dim: int) -> RopeSpec:
    theta = fields.number(f"{architecture}.rope.freq_base", 10_000.0)  # the format's default
    kind_key, factor_key = f"{architecture}.rope.scaling.type", f"{architecture}.rope.scaling.factor"
    if not fields.has(factor_key):
        factor_key = f"{architecture}.rope.scale_linear"  # its name before there were other kinds
    kind = fields.text(kind_key, "linear" if fields.has(factor_key) else "none")
    if kind not in ("none", "linear"):
        raise fields.fail(kind_key, f"{kind!r} is not supported; supported: none, linear, and factors in {_ROPE_FACTORS}")
    divisors = linear_divisors(head_dim, fields.number(factor_key) if kind == "linear" else 1.0)
    if _ROPE_FACTORS in file.tensors:
        factors = _vector(file.tensors[_ROPE_FACTORS])
        if len(factors) != len(divisors) or not all(0 < f < math.inf for f in factors):
            raise ModelError(f"{file.path}: tensor {_ROPE_FACTORS} is {len(divisors)} finite numbers over 0, which it is not")
        divisors = tuple(d * float(f) for d, f in zip(divisors, factors, strict=True))
    return RopeSpec(theta, head_dim, divisors)


def _chat_templates(fields: Fields) -> dict[str, str]:
    """The default template and the named ones, which stand under their own keys."""
    prefix = "tokenizer.chat_template"
    found = {"default": fields.text(prefix)} if fields.has(prefix) else {}
    names = fields.strings("tokenizer.chat_templates")
    return found | {name: fields.text(f"{prefix}.{name}") for name in names}
