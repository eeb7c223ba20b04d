"""Programs run operation by operation on any backend: the definition of every step, and the reference's way of running them."""

from __future__ import annotations

import numpy as np

from ramet.core.ids import Float32, UInt32
from ramet.kernels.backend import Backend, Choosing, Picks
from ramet.kernels.program import (
    Adapt,
    Add,
    AsItIs,
    Attend,
    ChooseExperts,
    Embed,
    GeluMul,
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

__all__ = ["ComposedProgram"]


class ComposedProgram:
    """``CompiledProgram`` over the operations of ``backend``."""

    def __init__(self, backend: Backend, program: Program) -> None:
        self._backend = backend
        self._program = program

    def run_tokens(self, feed: TokenFeed) -> Float32:
        return _Run(self._backend, feed, None).result(self._program)

    def run_rows(self, rows: Float32) -> Float32:
        return _Run(self._backend, None, rows).result(self._program)

    def choose_tokens(self, feed: TokenFeed, choosing: Choosing) -> tuple[Float32, Picks]:
        logits = self.run_tokens(feed)
        return logits, self._backend.sample(logits, choosing)

    def choose_rows(self, rows: Float32, outputs: UInt32 | None, choosing: Choosing) -> tuple[Float32, Picks]:
        logits = self.run_rows(rows)
        return logits, self._backend.sample(logits, choosing)


class _Run:
    """The registers of one run."""

    def __init__(self, backend: Backend, feed: TokenFeed | None, rows: Float32 | None) -> None:
        self._backend = backend
        self._feed_or_none = feed
        self._rows = rows
        self._values: dict[Register, Float32] = {}
        self._is_taken: set[Register] = set()  # registers of the wanted rows

    def result(self, program: Program) -> Float32:
        for step in program.steps:
            self._do(step)
        return self._values[program.result]

    @property
    def _feed(self) -> TokenFeed:
        if self._feed_or_none is None:
            raise ValueError("the program needs tokens")
        return self._feed_or_none

    def _do(self, step: Step) -> None:
        values = self._values
        match step:
            case Embed():
                values[step.out] = self._backend.embed(step.table, self._feed.token_ids) * np.float32(step.scale)
            case Load():
                if self._rows is None:
                    raise ValueError("the program needs rows to load")
                values[step.out] = self._rows.copy()
            case Project():
                values[step.out] = self._product(step)
            case ProjectAdd():
                self._backend.add(values[step.total], self._product(step))
            case Add():
                self._backend.add(values[step.total], self._apply(step.prologue, values[step.source]))
            case Adapt():
                self._adapt(step)
            case SoftCap():
                self._backend.soft_cap(values[step.values], step.limit)
            case RotateAndStore():
                self._rotate_and_store(step)
            case Attend():
                heads, _, _ = self._heads(step)
                layer = self._feed.kv_layers[step.layer]
                given = step.scale, step.window, step.cap
                values[step.out] = self._backend.attention(heads, layer, self._feed.plan, *given)
            case ChooseExperts():
                self._backend.choose_experts(values[step.routing], step.num_chosen, step.is_normalized)
            case MixExperts():
                values[step.out] = self._mix_experts(step)
            case TakeRows():
                values[step.out] = values[step.source][self._feed.wanted]
                self._is_taken.add(step.out)
        if isinstance(step, Project | MixExperts) and step.source in self._is_taken:
            self._is_taken.add(step.out)

    def _adapt(self, step: Adapt) -> None:
        source, total = self._values[step.source], self._values[step.total]
        loaded, of_rows = self._feed.adapters
        if loaded and step.total in self._is_taken:
            of_rows = of_rows[self._feed.wanted]
        for i, adapter in enumerate(loaded, start=1):
            change, rows = adapter.changes[step.number], np.flatnonzero(of_rows == i)
            if change is None or not len(rows):
                continue
            ranks = self._backend.linear(self._apply(step.prologue, np.ascontiguousarray(source[rows])), change.down)
            for up in change.ups:
                num_outputs, num_ranks = up.weight.shape
                own = ranks[:, up.first_rank : up.first_rank + num_ranks] * np.float32(up.scale)
                total[rows, up.first_output : up.first_output + num_outputs] += self._backend.linear(own, up.weight)

    def _mix_experts(self, step: MixExperts) -> Float32:
        rows, routing = self._apply(step.prologue, self._values[step.source]), self._values[step.routing]
        total: Float32 = np.zeros((len(rows), step.out.width), np.float32)
        for i, expert in enumerate(step.experts):
            chosen = np.flatnonzero(routing[:, i])
            inner = self._backend.linear(np.ascontiguousarray(rows[chosen]), expert.gate_up)
            made = self._backend.linear(self._apply(step.gate, inner), expert.down)
            total[chosen] += made * routing[chosen, i, None]
        return total

    def _product(self, step: Project | ProjectAdd) -> Float32:
        rows = self._apply(step.prologue, self._values[step.source])
        return self._backend.linear(rows, step.weight, step.bias)

    def _apply(self, prologue: Prologue, rows: Float32) -> Float32:
        match prologue:
            case AsItIs():
                return rows
            case RmsNorm():
                return self._backend.rms_norm(rows, prologue.weight, prologue.eps)
            case SiluMul():
                return self._backend.silu_mul(rows)
            case GeluMul():
                return self._backend.gelu_mul(rows)
            case Scale():
                return rows * np.float32(prologue.factor)

    def _heads(self, step: RotateAndStore | Attend) -> tuple[Float32, Float32, Float32]:
        """Copies of q [T, Hq, D], k and v [T, Hkv, D]."""
        rows, heads = self._values[step.qkv], step.heads
        parts = np.split(
            rows.reshape(len(rows), -1, heads.head_dim), [heads.num_heads, heads.num_heads + heads.num_kv_heads], axis=1
        )
        q, k, v = (np.ascontiguousarray(part) for part in parts)
        return q, k, v

    def _rotate_and_store(self, step: RotateAndStore) -> None:
        feed = self._feed
        q, k, v = self._heads(step)
        q, k = self._norm_heads(step.q_norm, q), self._norm_heads(step.k_norm, k)
        columns = slice(step.pairs.first, step.pairs.first + step.pairs.num)
        cos, sin = (np.ascontiguousarray(table[feed.positions, columns]) for table in (feed.cos, feed.sin))
        self._backend.rope(q, cos, sin)
        self._backend.rope(k, cos, sin)
        self._backend.write_kv(feed.kv_layers[step.layer], k, v, feed.slots)
        self._values[step.qkv] = np.concatenate([q, k, v], axis=1).reshape(len(q), -1)

    def _norm_heads(self, norm: AsItIs | RmsNorm, heads: Float32) -> Float32:
        if isinstance(norm, RmsNorm) and len(norm.weight) != heads.shape[2]:  # of all heads together
            return self._apply(norm, heads.reshape(len(heads), -1)).reshape(heads.shape)
        return self._apply(norm, heads)
