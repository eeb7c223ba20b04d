"""What a model is, whatever file it came from: its shape (``ModelSpec``) and everything loaded with it (``Checkpoint``).

Loaders turn files into a ``Checkpoint``; ``Decoder`` and the text layer read nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Protocol, TypeAlias

from ramet.core.ids import Float32
from ramet.kernels.backend import FloatFormat, Weight, WeightFormat

__all__ = [
    "ALL_ROWS",
    "MAX_EXPERTS",
    "NO_ROPE",
    "Activation",
    "Checkpoint",
    "Experts",
    "HeadNorms",
    "LayerSpec",
    "LoraMatrix",
    "ModelSpec",
    "Norms",
    "Progress",
    "RopeSpec",
    "Tensors",
    "TextSource",
    "silent",
]

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with what is being done, how much is done, and how much there is."""

Norms: TypeAlias = Literal["before", "after", "both"]
"""Where attention and MLP have a norm: of what goes in, of what comes out before it is added, or of both."""

HeadNorms: TypeAlias = Literal["none", "head", "whole"]
"""The norms of q and k: none, one of each head, one of all heads together."""

Activation: TypeAlias = Literal["silu", "gelu_tanh"]

ALL_ROWS = slice(None)
_NO_VALUES: Mapping[str, object] = MappingProxyType({})
_DTYPES: Mapping[WeightFormat, str] = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "q8": "int8", "q4": "int4"}


def silent(what: str, done: int, total: int) -> None:
    """The progress that nobody sees."""


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary angles: pair i of a head turns by ``position * theta**(-2i / dim) / divisors[i]``; cosine and sine times ``scale``.

    Every scaling that is supported is a constant divisor a pair and a constant scale, so its kind is gone once the file is read.
    ``dim`` is the number of dims that turn, the first ones of a head, 0 for none; ``len(divisors) == dim / 2``.
    """

    theta: float
    dim: int
    divisors: tuple[float, ...]
    scale: float = 1.0


NO_ROPE = RopeSpec(1.0, 0, ())
MAX_EXPERTS = 1024  # in a layer


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """In what layers of one model differ: their rotary angles, and how many positions a token sees, itself among them."""

    rope: RopeSpec
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Experts:
    """Instead of one MLP ``num`` of them, of which each token has ``num_chosen``. ``is_normalized``: weights add up to 1."""

    num: int
    num_chosen: int
    is_normalized: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The shape of one decoder-only transformer and the switches in which families differ.

    ``architecture`` is the name in the file. ``eos_ids`` may be empty. Queries are ``num_heads * head_dim`` wide, which need not
    be ``hidden_size``. The scales multiply what is embedded, what attention and MLP add to the residual, scores, and logits. A
    cap bends scores or logits: ``cap * tanh(x / cap)``. With experts ``intermediate_size`` is one's.
    """

    architecture: str
    layers: tuple[LayerSpec, ...]
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position: int
    rms_eps: float
    tie_embeddings: bool
    attention_scale: float
    norms: Norms = "before"
    qk_norm: HeadNorms = "none"
    activation: Activation = "silu"
    experts: Experts | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    attention_cap: float | None = None
    logit_cap: float | None = None
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def num_outputs(self, role: str) -> int:
        """Rows of a layer's matrix q, k, v, o, gate, up or down."""
        heads = {"q": self.num_heads, "k": self.num_kv_heads, "v": self.num_kv_heads}
        if role in heads:
            return heads[role] * self.head_dim
        return self.hidden_size if role in ("o", "down") else self.intermediate_size


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSource:
    """Where the text layer finds its tokenizer and chat templates; all untrusted data.

    A model has a ``tokenizer_file`` (of ``TOKENIZER_FILES``), or ``gguf`` metadata, or neither (token ids only).
    ``chat_templates`` are Jinja sources by name, "default" the one used unless another is asked for.
    """

    tokenizer_file: Path | None = None
    tokenizer_config: Mapping[str, object] = field(default_factory=lambda: _NO_VALUES)
    gguf: Mapping[str, object] | None = None
    chat_templates: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class LoraMatrix:
    """What an adapter adds to one matrix [N, K] of a model: ``scale * up @ down``, of [N, r] and [r, K]."""

    down: Weight
    up: Weight
    scale: float


class Tensors(Protocol):
    """A model's tensors by their names in Ramet (``embed``, ``layers.3.q``; the table is in families.py), read when asked for.

    Values may share the mapped file's memory: read-only, and good for as long as the arrays live.
    """

    def matrix(self, name: str, dense: FloatFormat | None = None, rows: slice = ALL_ROWS) -> Weight:
        """As the kernels hold it; with ``dense``, what the file's bytes stand for, rounded once to that format.

        ``rows``, a slice without a step, are all that is read and converted.
        """
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Rows and columns of a matrix, size of a vector."""
        ...

    def vector(self, name: str) -> Float32: ...

    def formats(self) -> frozenset[WeightFormat]:
        """Formats of the matrices."""
        ...

    def release(self) -> None:
        """Let go of the memory that the pages of mapped files have in this process. What is asked for later is read again."""
        ...

    def files(self) -> tuple[Path, ...]:
        """Those that decide what is read."""
        ...

    def fingerprint(self) -> str:
        """Hex SHA-256 of all that decides the arithmetic's input: every byte of the tensors. Reads the whole file."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model, ready to be given to a ``Decoder``.

    ``generation_defaults`` holds sampling parameters that the model's makers recommend, by ``SamplingParams`` name.
    """

    spec: ModelSpec
    tensors: Tensors
    text: TextSource
    generation_defaults: Mapping[str, float | int]
    description: str

    @property
    def dtype(self) -> str:
        """Types of the matrices: ``float32``, ``bfloat16``, ..., joined by ``+`` where there are several."""
        return "+".join(sorted(_DTYPES[f] for f in self.tensors.formats()))

    def fingerprint(self) -> str:
        """Hex SHA-256 of the weights and of the shape they are used in, for namespaces that outlive the process.

        The shape holds what settings decide as well as the files: divisors of rotary angles, which in longrope hang on the
        context that is served, windows, scales, caps. Where a text ends, and how long one may be, changes no key and no value.
        """
        shape = replace(self.spec, eos_ids=(), bos_id=None, max_position=0)
        return hashlib.sha256(f"{self.tensors.fingerprint()} {shape}".encode()).hexdigest()
