"""Programs on the CPU backend: steps become those of csrc, and a run is one native call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from ramet import _native
from ramet.core.batch import RowSampling
from ramet.core.ids import Float32, Int32, Int64, UInt32
from ramet.kernels.backend import Choosing, KVLayer, Picks
from ramet.kernels.program import (
    Adapt,
    Adapter,
    Add,
    AsItIs,
    Attend,
    ChooseExperts,
    Embed,
    GeluMul,
    Heads,
    Load,
    MixExperts,
    Program,
    Project,
    ProjectAdd,
    Prologue,
    Register,
    RmsNorm,
    RotateAndStore,
    Scale,
    SiluMul,
    SoftCap,
    Step,
    TakeRows,
    TokenFeed,
)

__all__ = ["CpuProgram"]

_NativeChoosing: TypeAlias = tuple[RowSampling, Int32, npt.NDArray[np.float64], Int32, Int32, Int64]  # Choosing and Picks


class CpuProgram:
    """``CompiledProgram`` of csrc/program.h. Raises ``ValueError`` where the steps do not fit together.

    Registers are memory that grows to what the largest batch needs and stays.
    """

    def __init__(self, kernels: _native.Kernels, program: Program) -> None:
        registers = _Registers()
        steps = tuple(_native_step(step, registers) for step in program.steps)
        result = registers[program.result]
        self._kernels = kernels
        self._program = _native.Program(registers.widths, steps, result)
        self._width = program.result.width
        self._takes_rows = any(isinstance(step, TakeRows) for step in program.steps)
        self._room: Float32 = np.empty((0, self._width), np.float32)
        self._kv_layers: Sequence[KVLayer] = ()
        self._native_layers = _native.Layers([])
        self._adapters: WeakKeyDictionary[Adapter, _native.Adapter] = WeakKeyDictionary()

    def run_tokens(self, feed: TokenFeed) -> Float32:
        out: Float32 = np.empty((self._num_results(feed), self._width), np.float32)
        self._run_tokens(feed, out, None)
        return out

    def choose_tokens(self, feed: TokenFeed, choosing: Choosing) -> tuple[Float32, Picks]:
        logits, picks = self._logits(self._num_results(feed)), Picks.empty(len(choosing.rows))
        self._run_tokens(feed, logits, (*choosing, *picks))
        return logits, picks

    def run_rows(self, rows: Float32) -> Float32:
        out: Float32 = np.empty((len(rows), self._width), np.float32)
        self._program.run_rows(self._kernels, rows, None, out, None)
        return out

    def choose_rows(self, rows: Float32, outputs: UInt32 | None, choosing: Choosing) -> tuple[Float32, Picks]:
        logits, picks = self._logits(len(rows)), Picks.empty(len(choosing.rows))
        self._program.run_rows(self._kernels, rows, outputs, logits, (*choosing, *picks))
        return logits, picks

    def _num_results(self, feed: TokenFeed) -> int:
        return len(feed.wanted if self._takes_rows else feed.token_ids)

    def _logits(self, num_rows: int) -> Float32:
        """Memory that stays: to get millions of floats anew from the system at each step takes longer than to choose of them."""
        if len(self._room) < num_rows:
            self._room = np.empty((num_rows, self._width), np.float32)
        return self._room[:num_rows]

    def _run_tokens(self, feed: TokenFeed, out: Float32, choosing: _NativeChoosing | None) -> None:
        if feed.kv_layers is not self._kv_layers:  # a hundred arrays to check, and they stay the same
            self._native_layers = _native.Layers([(layer.keys, layer.values) for layer in feed.kv_layers])
            self._kv_layers = feed.kv_layers
        self._program.run_tokens(
            self._kernels,
            feed.token_ids,
            feed.slots,
            feed.wanted,
            feed.cos,
            feed.sin,
            feed.plan,  # type: ignore[arg-type]
            self._native_layers,
            feed.adapters.of_rows,
            [self._native_adapter(adapter) for adapter in feed.adapters.loaded],
            out,
            choosing,
        )

    def _native_adapter(self, adapter: Adapter) -> _native.Adapter:
        found = self._adapters.get(adapter)
        if found is None:
            changes: list[tuple[object, list[tuple[object, int, int, float]]] | None] = [
                None if one is None else (one.down, [(up.weight, up.first_rank, up.first_output, up.scale) for up in one.ups])
                for one in adapter.changes
            ]
            self._adapters[adapter] = found = _native.Adapter(changes)
        return found

    def profile(self, on: bool) -> None:
        """Begin to count time by kind of step, or end it. While it is off it costs nothing."""
        self._program.profile(on)

    def profiled(self) -> dict[str, int]:
        """Nanoseconds by kind of step since it was switched on."""
        return self._program.profiled()


class _Registers(dict[Register, int]):
    """Numbers of registers, as they turn up."""

    def __missing__(self, register: Register) -> int:
        self[register] = number = len(self)
        return number

    @property
    def widths(self) -> list[int]:
        return [register.width for register in self]


def _native_step(step: Step, registers: _Registers) -> tuple[object, ...]:
    """The arguments that bind_program.cpp knows a step by."""
    match step:
        case Embed():
            return "embed", step.table, step.scale, registers[step.out]
        case Load():
            return "load", registers[step.out]
        case Project():
            return "project", registers[step.source], *_product(step), registers[step.out]
        case ProjectAdd():
            return "project_add", registers[step.source], *_product(step), registers[step.total]
        case Add():
            return "add", registers[step.source], _prologue(step.prologue), registers[step.total]
        case Adapt():
            return "adapt", registers[step.source], _prologue(step.prologue), step.number, registers[step.total]
        case SoftCap():
            return "soft_cap", registers[step.values], step.limit
        case RotateAndStore():
            norms, pairs = (_prologue(step.q_norm), _prologue(step.k_norm)), (step.pairs.first, step.pairs.num)
            return "rotate_and_store", registers[step.qkv], _heads(step.heads), *norms, pairs, step.layer
        case Attend():
            scoring = step.scale, step.window, step.cap
            return "attend", registers[step.qkv], _heads(step.heads), scoring, step.layer, registers[step.out]
        case ChooseExperts():
            return "choose_experts", registers[step.routing], step.num_chosen, step.is_normalized
        case MixExperts():
            experts = [(expert.gate_up, expert.down) for expert in step.experts]
            inputs = registers[step.source], _prologue(step.prologue), registers[step.routing]
            return "mix_experts", *inputs, experts, _prologue(step.gate), registers[step.out]
        case TakeRows():
            return "take_rows", registers[step.source], registers[step.out]


def _product(step: Project | ProjectAdd) -> tuple[object, ...]:
    return _prologue(step.prologue), step.weight, step.bias


def _prologue(prologue: Prologue) -> _native.Prologue:
    match prologue:
        case AsItIs():
            return _native.Prologue()
        case RmsNorm():
            return _native.RmsNorm(prologue.weight, prologue.eps)
        case SiluMul():
            return _native.SiluMul()
        case GeluMul():
            return _native.GeluMul()
        case Scale():
            return _native.Scale(prologue.factor)


def _heads(heads: Heads) -> tuple[int, int, int]:
    return heads.num_heads, heads.num_kv_heads, heads.head_dim
