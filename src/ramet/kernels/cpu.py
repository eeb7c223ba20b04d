"""The thin face of csrc: makes outputs, passes arrays on. The C++ side checks dims, types and bounds."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from ramet import _native
from ramet.core.batch import Batch, PageCopies
from ramet.core.ids import Float32, Int32
from ramet.kernels.backend import (
    AttentionPlan,
    Choosing,
    KVLayer,
    PackedWeight,
    Picks,
    Piece,
    RowLogprobs,
    Weight,
    WeightFormat,
)
from ramet.kernels.cpu_program import CpuProgram
from ramet.kernels.program import Program

__all__ = ["CpuBackend", "default_threads"]


def default_threads(cgroup_root: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores this process may use: those it is bound to, or its container's CPU quota where that is less."""
    try:
        cores = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not on this system, or not in this sandbox
        cores = os.cpu_count() or 1
    return max(1, math.ceil(min(cores, _cpu_quota(cgroup_root))))


def _cpu_quota(root: Path) -> float:
    """CPUs that a container is allowed, cgroup v2 (``cpu.max``) or v1; infinity where there is no limit."""
    try:
        if (root / "cpu.max").exists():
            quota, period = (root / "cpu.max").read_text().split()
        else:
            quota = (root / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu" / "cpu.cfs_period_us").read_text().strip()
        return math.inf if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # no such files, or none that can be read: no limit that we know of
        return math.inf


class CpuBackend:
    """``Backend`` on one instruction set with a pool of threads of its own.

    Calls may come from any thread, one at a time each; the GIL is released inside.
    """

    name = "cpu"

    def __init__(self, threads: int, isa: str) -> None:
        self._kernels = _native.Kernels(isa, threads)

    @property
    def isa(self) -> str:
        return self._kernels.isa

    @property
    def threads(self) -> int:
        return self._kernels.threads

    def pack(self, parts: Iterable[Weight], num_outputs: int = 0) -> PackedWeight:
        return self._kernels.pack(((p.format, p.data, p.scales, p.mins) for p in parts), num_outputs)

    @property
    def layout(self) -> str:
        """That of all instruction sets."""
        return f"cpu {_native.packing_version}"

    def pieces(self, weight: PackedWeight) -> list[Piece]:
        return [Piece(*piece) for piece in _native.pieces(weight)]  # type: ignore[arg-type]

    def room_for(self, pieces: Sequence[tuple[WeightFormat, int]], num_inputs: int) -> PackedWeight:
        return self._kernels.room_for(list(pieces), num_inputs)

    def compile(self, program: Program) -> CpuProgram:
        return CpuProgram(self._kernels, program)

    def embed(self, table: PackedWeight, token_ids: Int32) -> Float32:
        out: Float32 = np.empty((len(token_ids), table.shape[1]), np.float32)
        self._kernels.embed(table, token_ids, out)  # type: ignore[arg-type]
        return out

    def linear(self, x: Float32, weight: PackedWeight, bias: Float32 | None = None) -> Float32:
        out: Float32 = np.empty((len(x), weight.shape[0]), np.float32)
        self._kernels.linear(x, weight, bias, out)  # type: ignore[arg-type]
        return out

    def rms_norm(self, x: Float32, weight: Float32, eps: float) -> Float32:
        out: Float32 = np.empty(x.shape, np.float32)
        self._kernels.rms_norm(x, weight, eps, out)
        return out

    def add(self, x: Float32, y: Float32) -> None:
        self._kernels.add(x, y)

    def silu_mul(self, gate_up: Float32) -> Float32:
        rows, width = gate_up.shape
        out: Float32 = np.empty((rows, width // 2), np.float32)
        self._kernels.silu_mul(gate_up, out)
        return out

    def gelu_mul(self, gate_up: Float32) -> Float32:
        rows, width = gate_up.shape
        out: Float32 = np.empty((rows, width // 2), np.float32)
        self._kernels.gelu_mul(gate_up, out)
        return out

    def soft_cap(self, x: Float32, limit: float) -> None:
        self._kernels.soft_cap(x, limit)

    def choose_experts(self, scores: Float32, num_chosen: int, is_normalized: bool) -> None:
        self._kernels.choose_experts(scores, num_chosen, is_normalized)

    def rope(self, x: Float32, cos: Float32, sin: Float32) -> None:
        self._kernels.rope(x, cos, sin)

    def write_kv(self, layer: KVLayer, keys: Float32, values: Float32, slots: Int32) -> None:
        self._kernels.write_kv(layer.keys, layer.values, keys, values, slots)

    def copy_pages(self, layers: Sequence[KVLayer], copies: PageCopies, page_size: int) -> None:
        stores = [store for layer in layers for store in (layer.keys, layer.values)]
        _native.copy_pages(stores, copies.src, copies.dst, copies.num_tokens, page_size)

    def plan(self, batch: Batch) -> _native.Plan:
        return _native.Plan(batch.page_size, batch.query_indptr, batch.positions, batch.page_indptr, batch.page_ids)

    def attention(
        self,
        q: Float32,
        layer: KVLayer,
        plan: AttentionPlan,
        scale: float,
        window: int | None = None,
        cap: float | None = None,
    ) -> Float32:
        rows, heads, head_dim = q.shape
        out: Float32 = np.empty((rows, heads * head_dim), np.float32)
        self._kernels.attention(q, layer.keys, layer.values, plan, scale, window, cap, out)  # type: ignore[arg-type]
        return out

    def sample(self, logits: Float32, choosing: Choosing) -> Picks:
        picks = Picks.empty(len(logits))
        self._kernels.sample(logits, (*choosing, *picks))
        return picks

    def logprobs(self, logits: Float32, token_ids: Int32, num_best: Int32) -> RowLogprobs:
        found = RowLogprobs.empty(num_best, logits.shape[1])
        best = found.top_ids, found.top_logprobs
        self._kernels.logprobs(logits, token_ids, num_best, found.logprobs, found.ranks, *best)
        return found
