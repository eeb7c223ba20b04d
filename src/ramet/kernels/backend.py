"""The one protocol between the model and the arithmetic, about a dozen operations.

``reference.py`` (numpy) is the definition of each; ``cpu.py`` is the thin face of csrc. Shape letters: T tokens, K inputs, N
outputs, Hq/Hkv heads, D head dim, P pages, S page size, slot = page * S + offset.

Exactness (docs/design/exactness.md): every result row is a function of its own input row (and, in attention, of the
keys and values at its own positions) alone. Which rows stand beside it, how many there are, the page size and the number of
threads may not change a bit of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ramet.core.batch import Batch, PageCopies, RowSampling
from ramet.core.ids import Float32, Int32, Int64

if TYPE_CHECKING:
    from ramet.kernels.program import CompiledProgram, Program

__all__ = [
    "ATTENTION_SPAN",
    "GROUP",
    "KV_SCALE_BYTES",
    "AttentionPlan",
    "Backend",
    "Choosing",
    "FloatFormat",
    "KVFormat",
    "KVLayer",
    "PackedWeight",
    "Picks",
    "Piece",
    "PieceBackend",
    "RowFault",
    "RowLogprobs",
    "Weight",
    "WeightFormat",
]

GROUP = 32  # inputs that share a scale, in weights and in activations that are rounded
ATTENTION_SPAN = 256  # key positions reduced alone, starting at absolute multiples of it

FloatFormat = Literal["f32", "f16", "bf16"]
WeightFormat = Literal["f32", "f16", "bf16", "q8", "q4"]
KVFormat = Literal["float32", "bfloat16", "int8"]
KV_SCALE_BYTES = 4  # of an int8 row: a float32 behind its codes


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """A matrix as the loaders give it, row-major: N outputs by K inputs.

    ========  ============================================  =====================================================
    format    data                                          value of element (n, k), g = k // 32
    ========  ============================================  =====================================================
    f32       float32[N, K]                                 data
    f16       float16[N, K]                                 data
    bf16      uint16[N, K], upper halves of float32         data
    q8        int8[N, K]; scales float16[N, K/32]           scales[n, g] * data
    q4        uint8[N, K], values 0 to 15; scales and mins  scales[n, g] * data + mins[n, g]
              float16[N, K/32]
    ========  ============================================  =====================================================
    """

    format: WeightFormat
    data: npt.NDArray[np.generic]
    scales: npt.NDArray[np.float16] | None = None
    mins: npt.NDArray[np.float16] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        num_outputs, num_inputs = self.data.shape
        return num_outputs, num_inputs


class PackedWeight(Protocol):
    """A weight in the backend's own layout."""

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)"""
        ...

    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Some rows of a packed weight: ``data`` uint8[n] is its memory."""

    format: WeightFormat
    num_outputs: int
    data: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class KVLayer:
    """Keys and values of one layer: for each slot and KV head a row.

    ::

      float32   float32[D]
      bfloat16  uint16[D], upper halves of float32
      int8      int8[D + 4], codes and behind them the bytes of the float32 that they are multiplied with
    """

    keys: npt.NDArray[np.generic]
    values: npt.NDArray[np.generic]


class AttentionPlan(Protocol):
    """What a backend prepares once a step and uses in every layer."""


class RowFault(IntEnum):
    """Why a row got no token. ``fault_sizes`` says of it: the number of logits that are not finite, or the unknown id."""

    NONE = 0
    NOT_FINITE = 1
    NONE_LEFT = 2
    UNKNOWN_ID = 3


class Choosing(NamedTuple):
    """How a token is chosen for each of R rows of logits.

    Row i has the parameters of row ``rows[i]`` of ``sampling`` and the random number ``draws[i]``, in [0, 1).
    """

    sampling: RowSampling
    rows: Int32
    draws: npt.NDArray[np.float64]

    def of(self, places: slice | Int32) -> Choosing:
        """For some of the R rows."""
        return Choosing(self.sampling, self.rows[places], self.draws[places])


class Picks(NamedTuple):
    """Of R rows, each int[R]: the chosen tokens, -1 where there is a fault (``RowFault``), and its size."""

    token_ids: Int32
    faults: Int32
    fault_sizes: Int64

    @classmethod
    def empty(cls, num_rows: int) -> Picks:
        return cls(np.empty(num_rows, np.int32), np.empty(num_rows, np.int32), np.empty(num_rows, np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class RowLogprobs:
    """Of R rows: logprob float32[R] and rank int32[R], from 1, of a token, and the best ones, [R, W], in falling order.

    A row fills as many of the W places as it asked for; what it did not ask for means nothing.
    """

    logprobs: Float32
    ranks: Int32
    top_ids: Int32
    top_logprobs: Float32

    @classmethod
    def empty(cls, num_best: Int32, vocab_size: int) -> RowLogprobs:
        num_rows, width = len(num_best), min(max(int(num_best.max(initial=0)), 0), vocab_size)
        best_ids, best = np.empty((num_rows, width), np.int32), np.empty((num_rows, width), np.float32)
        return cls(np.empty(num_rows, np.float32), np.empty(num_rows, np.int32), best_ids, best)


class Backend(Protocol):
    """Stateless but for threads. Inputs are C-contiguous; activations are float32. ``isa`` and ``threads`` are for people."""

    name: str

    @property
    def isa(self) -> str: ...

    @property
    def threads(self) -> int: ...

    def pack(self, parts: Iterable[Weight], num_outputs: int = 0) -> PackedWeight:
        """Stack matrices of equal K along N (q, k and v; gate and up) and lay them out for ``linear`` and ``embed``.

        Parts may differ in format; each is asked for when the one before is laid out. ``num_outputs``, that of all together where
        it is known, makes many parts one piece of memory. Raises ``ValueError`` where K differs or a quantised K is no multiple
        of 32.
        """
        ...

    def compile(self, program: Program) -> CompiledProgram:
        """Make a program ready to be run; it keeps what its steps point to. It gives the bits of the operations below, composed.

        Raises ``ValueError`` where the steps do not fit together.
        """
        ...

    def embed(self, table: PackedWeight, token_ids: npt.NDArray[np.int32]) -> Float32:
        """Rows of a packed matrix, dequantised: float32[T, K]."""
        ...

    def linear(self, x: Float32, weight: PackedWeight, bias: Float32 | None = None) -> Float32:
        """``x @ weight.T + bias``: float32[T, N].

        Dense formats accumulate in float32 over K in one order; bf16 may meet each input as the sum of two bfloat16 (off by
        2**-18 of it at most). Quantised ones first round each row of x by groups of 32 to codes of 16 bits (q8) or 12 (q4):
        scale = max|x| / 32767 or 2047, half to even; they take exact integer dot products in a group, and accumulate groups
        in order in float32; NaN or infinity in a row makes the whole row's result NaN.
        """
        ...

    def rms_norm(self, x: Float32, weight: Float32, eps: float) -> Float32:
        """``x / sqrt(mean(x^2) + eps) * weight`` for each row: float32[T, H]. Rows may be heads (q and k norms)."""
        ...

    def add(self, x: Float32, y: Float32) -> None:
        """``x += y``, in place (the residual)."""
        ...

    def silu_mul(self, gate_up: Float32) -> Float32:
        """``silu(gate) * up`` of float32[T, 2F], gate first: float32[T, F]."""
        ...

    def gelu_mul(self, gate_up: Float32) -> Float32:
        """``gelu(gate) * up``, with gelu by its tanh form: ``x / (1 + exp(-2u))`` with u = sqrt(2 / pi) (x + 0.044715 x^3)."""
        ...

    def soft_cap(self, x: Float32, limit: float) -> None:
        """``x = limit * tanh(x / limit)``, in place, of float32[T, N]."""
        ...

    def choose_experts(self, scores: Float32, num_chosen: int, is_normalized: bool) -> None:
        """In place, float32[T, E]: the softmax of a row where it is largest, ``num_chosen`` times, and else 0.

        Of equal ones the first is chosen. ``is_normalized``: what is chosen adds up to 1. A row whose scores are not finite gives
        NaN weights.
        """
        ...

    def rope(self, x: Float32, cos: Float32, sin: Float32) -> None:
        """Rotate float32[T, H, D] in place, the half-split (NeoX) way; cos and sin are float32[T, D_rot / 2].

        Dims beyond D_rot stay as they are.
        """
        ...

    def write_kv(self, layer: KVLayer, keys: Float32, values: Float32, slots: npt.NDArray[np.int32]) -> None:
        """Store float32[T, Hkv, D] at the slots, rounded to the layer's type (half to even).

        The scale of int8 codes is max|x| / 127 of a row, one token's head. NaN or infinity in it makes the scale NaN.
        """
        ...

    def copy_pages(self, layers: Sequence[KVLayer], copies: PageCopies, page_size: int) -> None:
        """Do the copies one after another, in order, in every layer."""
        ...

    def plan(self, batch: Batch) -> AttentionPlan: ...

    def attention(
        self,
        q: Float32,
        layer: KVLayer,
        plan: AttentionPlan,
        scale: float,
        window: int | None = None,
        cap: float | None = None,
    ) -> Float32:
        """Causal attention of float32[T, Hq, D] over the pages of each row's sequence: float32[T, Hq * D].

        Row t at position p sees positions 0 to p, or the last ``window`` of these. With a cap a score s becomes
        ``cap * tanh(s / cap)``. Spans of ``ATTENTION_SPAN`` positions that start at absolute multiples of it
        are reduced alone (the largest score, then the weights and what they sum to) and merged left to right. Head h reads KV
        head h // (Hq / Hkv). Slots beyond p are never read: they may hold anything.
        """
        ...

    def sample(self, logits: Float32, choosing: Choosing) -> Picks:
        """Choose a token for each row of float32[R, V] (``reference_sampling.py`` says how)."""
        ...

    def logprobs(self, logits: Float32, token_ids: Int32, num_best: Int32) -> RowLogprobs:
        """Logprobs of float32[R, V] at ``token_ids[i]`` and of the ``num_best[i]`` best, equal ones by rising id.

        Rows that want -1 are left out; one whose logits are not finite gives NaN, rank V and no best ones. Raises
        ``IndexError`` for a token that is not of the vocabulary.
        """
        ...


@runtime_checkable
class PieceBackend(Backend, Protocol):
    """A backend whose packed weights can be kept and had back, byte for byte."""

    @property
    def layout(self) -> str:
        """Names how packed weights lie in memory: of one name, equal bytes mean equal weights."""
        ...

    def pieces(self, weight: PackedWeight) -> list[Piece]:
        """The memory of a packed weight, in the order of its rows. Good for as long as the arrays live; not to be changed."""
        ...

    def room_for(self, pieces: Sequence[tuple[WeightFormat, int]], num_inputs: int) -> PackedWeight:
        """A weight of pieces (format, rows) whose memory the caller fills in. Raises ``ValueError`` where it can be none."""
        ...
