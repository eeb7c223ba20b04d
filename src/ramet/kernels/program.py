"""A model's pass over a batch as data: steps over registers, put down once and run by a backend at every step of the engine.

A register is float32[rows, width]. Its rows are the batch's tokens, or from ``TakeRows`` on those that are wanted of it. A step
that is not said to look at other rows makes each row from its own row alone, so a backend may do the steps a block of rows at a
time. ``composed.py`` says what each step is in terms of the backend's operations, and every backend gives those bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from ramet.core.ids import Float32, Int32, UInt32
from ramet.kernels.backend import AttentionPlan, Choosing, KVLayer, PackedWeight, Picks

__all__ = [
    "AS_IT_IS",
    "NO_ADAPTERS",
    "Adapt",
    "Adapter",
    "Adapters",
    "Add",
    "AsItIs",
    "Attend",
    "ChooseExperts",
    "CompiledProgram",
    "Embed",
    "Expert",
    "GeluMul",
    "Heads",
    "Load",
    "LowRank",
    "MixExperts",
    "Pairs",
    "Program",
    "Project",
    "ProjectAdd",
    "Prologue",
    "Register",
    "RmsNorm",
    "RotateAndStore",
    "Scale",
    "SiluMul",
    "SoftCap",
    "Step",
    "TakeRows",
    "TokenFeed",
    "Up",
]


@dataclass(frozen=True, slots=True, eq=False)
class Register:
    """A matrix that steps read and write. Two registers are the same only if they are one object."""

    width: int


@dataclass(frozen=True, slots=True)
class AsItIs:
    """The row itself."""


AS_IT_IS = AsItIs()


@dataclass(frozen=True, slots=True, eq=False)
class RmsNorm:
    weight: Float32
    eps: float


@dataclass(frozen=True, slots=True)
class SiluMul:
    """silu of a row's first half, times its second half."""


@dataclass(frozen=True, slots=True)
class GeluMul:
    """gelu of a row's first half, by its tanh form, times its second half."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The row times a number."""

    factor: float


Prologue: TypeAlias = AsItIs | RmsNorm | SiluMul | GeluMul | Scale
"""What is done to a row on its way into a product or a sum."""


@dataclass(frozen=True, slots=True)
class Heads:
    """A row of q, k and v: Hq heads of queries, then Hkv of keys, then Hkv of values, D numbers each."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def width(self) -> int:
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def q_width(self) -> int:
        return self.num_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class Pairs:
    """The pairs of a head's first dims that turn, as columns of the table of angles: ``num`` from ``first`` on."""

    first: int
    num: int


@dataclass(frozen=True, slots=True, eq=False)
class Embed:
    """out = the table's rows of the batch's token ids, times ``scale``."""

    table: PackedWeight
    scale: float
    out: Register


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """out = the rows that the caller gives (``CompiledProgram.run_rows``)."""

    out: Register


@dataclass(frozen=True, slots=True, eq=False)
class Project:
    """out = prologue(source) @ weight.T + bias"""

    source: Register
    prologue: Prologue
    weight: PackedWeight
    bias: Float32 | None
    out: Register


@dataclass(frozen=True, slots=True, eq=False)
class ProjectAdd:
    """total += prologue(source) @ weight.T + bias"""

    source: Register
    prologue: Prologue
    weight: PackedWeight
    bias: Float32 | None
    total: Register


@dataclass(frozen=True, slots=True, eq=False)
class Add:
    """total += prologue(source)"""

    source: Register
    prologue: Prologue
    total: Register


@dataclass(frozen=True, slots=True, eq=False)
class SoftCap:
    """In place, ``limit * tanh(x / limit)``."""

    values: Register
    limit: float


@dataclass(frozen=True, slots=True, eq=False)
class RotateAndStore:
    """In place, heads of q and k through their norms and rotated; then k and v into KV layer ``layer`` at the batch's slots.

    A norm as long as a head norms each head, one as long as all of them norms them together. No two rows of a batch have one
    slot.
    """

    qkv: Register
    heads: Heads
    q_norm: AsItIs | RmsNorm
    k_norm: AsItIs | RmsNorm
    pairs: Pairs
    layer: int


@dataclass(frozen=True, slots=True, eq=False)
class Attend:
    """out = attention of the q in ``qkv`` over KV layer ``layer`` (``Backend.attention``). Looks at all rows' keys and values."""

    qkv: Register
    heads: Heads
    scale: float
    layer: int
    out: Register
    window: int | None = None
    cap: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Up:
    """One part of a ``LowRank``: from output ``first_output`` on, ``weight`` times the ranks from ``first_rank`` on, times scale.

    ``weight`` is [outputs, ranks], of one matrix.
    """

    weight: PackedWeight
    first_rank: int
    first_output: int
    scale: float


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """What an adapter adds to one product: of each row x the ups of ``x @ down.T``, float32[rows, ranks of all ups]."""

    down: PackedWeight
    ups: tuple[Up, ...]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Adapter:
    """What is added to a model's products (Hu et al. 2021, LoRA), by their numbers; None for those that stay as they are."""

    changes: tuple[LowRank | None, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the packed matrices."""
        return sum(one.down.nbytes + sum(up.weight.nbytes for up in one.ups) for one in self.changes if one is not None)


@dataclass(frozen=True, slots=True, eq=False)
class Adapt:
    """total += what the row's adapter adds to product ``number`` of prologue(source); nothing for a row without one."""

    source: Register
    prologue: Prologue
    number: int
    total: Register


@dataclass(frozen=True, slots=True, eq=False)
class ChooseExperts:
    """In place, a router's scores become the weights of the ``num_chosen`` best experts (``Backend.choose_experts``)."""

    routing: Register
    num_chosen: int
    is_normalized: bool


@dataclass(frozen=True, slots=True, eq=False)
class Expert:
    gate_up: PackedWeight
    down: PackedWeight


@dataclass(frozen=True, slots=True, eq=False)
class MixExperts:
    """out = the sum of weight * (gate(row @ gate_up.T) @ down.T), row = prologue(source), over experts whose weight is not zero.

    ``routing`` has a weight for each expert; products are added in the experts' order, each rounded first.
    """

    source: Register
    prologue: AsItIs | RmsNorm
    routing: Register
    experts: tuple[Expert, ...]
    gate: SiluMul | GeluMul
    out: Register


@dataclass(frozen=True, slots=True, eq=False)
class TakeRows:
    """out = the wanted rows of ``source``, in the order in which they are wanted. Looks at all rows."""

    source: Register
    out: Register


Step: TypeAlias = (
    Embed | Load | Project | ProjectAdd | Add | Adapt | SoftCap | RotateAndStore | Attend | ChooseExperts | MixExperts | TakeRows
)


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Steps in their order, and the register that holds the result in the end."""

    steps: tuple[Step, ...]
    result: Register


class Adapters(NamedTuple):
    """The adapters of a batch: ``of_rows`` int32[T] is 0 for a row without one, i for one with ``loaded[i - 1]``."""

    loaded: tuple[Adapter, ...]
    of_rows: Int32


NO_ADAPTERS = Adapters((), np.empty(0, np.int32))
"""Those of a batch in which no row has one; its ``of_rows`` is left out."""


@dataclass(slots=True, eq=False)
class TokenFeed:
    """What changes from run to run of a program over tokens. Not frozen, for it is made at each step; nobody changes it.

    ``cos`` and ``sin`` float32[positions, columns] are a table of rotary angles that reaches as far as the batch does; ``Pairs``
    names columns of it. ``wanted`` int32[R] are rows of the batch, in any order. ``kv_layers``
    should be the same object in each run.
    """

    token_ids: Int32
    positions: Int32
    slots: Int32
    wanted: Int32
    cos: Float32
    sin: Float32
    plan: AttentionPlan
    kv_layers: Sequence[KVLayer]
    adapters: Adapters = NO_ADAPTERS


class CompiledProgram(Protocol):
    """A program that a backend has made its own. Calls may come from any thread, one at a time each."""

    def run_tokens(self, feed: TokenFeed) -> Float32:
        """The result's rows, float32[T or R, width]. Raises ``ValueError`` where the feed does not fit the program."""
        ...

    def run_rows(self, rows: Float32) -> Float32:
        """The same for a program that begins with ``Load``."""
        ...

    def choose_tokens(self, feed: TokenFeed, choosing: Choosing) -> tuple[Float32, Picks]:
        """The result of ``run_tokens``, whose rows are logits, and ``Backend.sample`` of it, in one go.

        The result's memory may be used again by the next call of this kind.
        """
        ...

    def choose_rows(self, rows: Float32, outputs: UInt32 | None, choosing: Choosing) -> tuple[Float32, Picks]:
        """The same of ``run_rows``.

        ``outputs`` uint32[T, W] has a bit for each logit that is wanted of a row, bit i % 32 of word i // 32 for logit i, where
        not all are; the others mean nothing. They are at least those that the masks of ``choosing`` leave.
        """
        ...
