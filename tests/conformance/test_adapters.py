"""Adapters in programs x cpu on each instruction set: the bits of the operations, in any company."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_backend import REFERENCE, make_weight, normal, same_bits
from test_programs import FFN, HEADS, HIDDEN, any_cpu, cpu, feed, ints, kv_layers  # noqa: F401

from ramet.core.ids import Float32, Int32
from ramet.kernels.backend import Backend, WeightFormat
from ramet.kernels.composed import ComposedProgram
from ramet.kernels.program import (
    AS_IT_IS,
    Adapt,
    Adapter,
    Adapters,
    Attend,
    Embed,
    LowRank,
    Pairs,
    Program,
    Project,
    ProjectAdd,
    Register,
    RmsNorm,
    RotateAndStore,
    SiluMul,
    TakeRows,
    Up,
)

KINDS: tuple[WeightFormat, ...] = ("f32", "f16", "bf16")
CHUNKS = [(0, 0, 40), (4, 0, 3), (8, 0, 290), (30, 0, 1)]
NUM_ROWS = 334


def model(backend: Backend, kind: WeightFormat = "bf16") -> Program:
    """A layer whose four products may all be adapted, the last ones of wanted rows."""
    rng = np.random.default_rng(21)

    def packed(n: int, k: int) -> object:
        return backend.pack([make_weight(rng, kind, n, k)])

    def norm() -> RmsNorm:
        return RmsNorm(normal(rng, HIDDEN), 1e-5)

    x, qkv, mixed, wide = (Register(width) for width in (HIDDEN, HEADS.width, HEADS.q_width, 2 * FFN))
    last_x, last_mixed = Register(HIDDEN), Register(HEADS.q_width)
    attn_norm, mlp_norm = norm(), norm()
    steps = (
        Embed(packed(70, HIDDEN), 1.0, x),
        Project(x, attn_norm, packed(HEADS.width, HIDDEN), None, qkv),
        Adapt(x, attn_norm, 0, qkv),
        RotateAndStore(qkv, HEADS, AS_IT_IS, AS_IT_IS, Pairs(0, 10), 0),
        Attend(qkv, HEADS, 0.2, 0, mixed),
        TakeRows(x, last_x),
        TakeRows(mixed, last_mixed),
        ProjectAdd(last_mixed, AS_IT_IS, packed(HIDDEN, HEADS.q_width), None, last_x),
        Adapt(last_mixed, AS_IT_IS, 1, last_x),
        Project(last_x, mlp_norm, packed(2 * FFN, HIDDEN), None, wide),
        Adapt(last_x, mlp_norm, 2, wide),
        ProjectAdd(wide, SiluMul(), packed(HIDDEN, FFN), None, last_x),
        Adapt(wide, SiluMul(), 3, last_x),
    )
    return Program(steps, last_x)


def adapter(backend: Backend, seed: int, rank: int, kind: WeightFormat) -> Adapter:
    """One that changes q and v of the first product, the second, both halves of the third with ranks of their own, and not the
    fourth; odd seeds change that and not the second.
    """
    rng = np.random.default_rng(seed)

    def change(k: int, *ups: tuple[int, int, int]) -> LowRank:
        """``ups``: first output, outputs and ranks of each."""
        down = backend.pack([make_weight(rng, kind, ranks, k) for _, _, ranks in ups])
        firsts = np.cumsum([0] + [ranks for _, _, ranks in ups]).tolist()
        made = []
        for (first_output, num, ranks), first_rank in zip(ups, firsts, strict=False):
            made.append(Up(backend.pack([make_weight(rng, kind, num, ranks)]), first_rank, first_output, 0.3 + first_rank))
        return LowRank(down, tuple(made))

    qkv = change(HIDDEN, (0, HEADS.q_width, rank), (HEADS.q_width + 48, 48, rank))
    out = change(HEADS.q_width, (0, HIDDEN, rank))
    gate_up = change(HIDDEN, (0, FFN, rank), (FFN, FFN, 2 * rank + 1))
    down = change(FFN, (0, HIDDEN, rank))
    return Adapter((qkv, None if seed % 2 else out, gate_up, down if seed % 2 else None))


def of_rows(seed: int, num_adapters: int) -> Int32:
    return np.random.default_rng(seed).integers(0, num_adapters + 1, NUM_ROWS).astype(np.int32)


@pytest.mark.parametrize("kind", KINDS)
def test_adapted_rows_have_the_bits_of_the_operations(cpu: Backend, kind: WeightFormat) -> None:  # noqa: F811
    """Several adapters in one batch, of other ranks and formats, some that leave a product alone; rows of more than one block."""
    program = model(cpu, kind)
    compiled, composed = cpu.compile(program), ComposedProgram(cpu, program)
    loaded = (adapter(cpu, 1, 5, kind), adapter(cpu, 2, 16, "f32"), adapter(cpu, 3, 40, "bf16"))
    for wanted in (ints(0), ints(333, 7, 40, 41, 42, 43), np.arange(NUM_ROWS, dtype=np.int32)):
        adapters = Adapters(loaded, of_rows(4, 3))
        mine, theirs = (replace(feed(cpu, kv_layers(), CHUNKS, wanted), adapters=adapters) for _ in range(2))
        got, want = compiled.run_tokens(mine), composed.run_tokens(theirs)
        assert np.isfinite(got).all()
        assert same_bits(got, want)
        assert same_bits(mine.kv_layers[0].keys, theirs.kv_layers[0].keys)


def test_a_row_has_the_same_bits_whatever_adapters_the_others_have(cpu: Backend) -> None:  # noqa: F811
    """Rows without one have those of a model that never heard of adapters."""
    compiled = cpu.compile(model(cpu))
    first, second = adapter(cpu, 1, 8, "bf16"), adapter(cpu, 2, 16, "f32")
    every, numbers = np.arange(NUM_ROWS, dtype=np.int32), np.repeat([1, 0, 2, 1], [n for _, _, n in CHUNKS]).astype(np.int32)

    def run(adapters: Adapters) -> Float32:
        return compiled.run_tokens(replace(feed(cpu, kv_layers(), CHUNKS, every), adapters=adapters))

    plain = compiled.run_tokens(feed(cpu, kv_layers(), CHUNKS, every))
    mixed = run(Adapters((first, second), numbers))
    assert same_bits(mixed[numbers == 0], plain[numbers == 0])
    assert not same_bits(mixed[numbers == 1], plain[numbers == 1])
    for number, one in ((1, first), (2, second)):
        alone = run(Adapters((one,), np.ones(NUM_ROWS, np.int32)))
        assert same_bits(mixed[numbers == number], alone[numbers == number])
    swapped = run(Adapters((second, first), np.choose(numbers, [0, 2, 1]).astype(np.int32)))
    assert same_bits(swapped, mixed)


def test_near_the_reference(cpu: Backend) -> None:  # noqa: F811
    wanted = np.arange(NUM_ROWS, dtype=np.int32)
    found = []
    for backend in (cpu, REFERENCE):
        adapters = Adapters((adapter(backend, 1, 8, "bf16"), adapter(backend, 2, 16, "f32")), of_rows(5, 2))
        made = replace(feed(backend, kv_layers("float32"), CHUNKS, wanted), adapters=adapters)
        found.append(backend.compile(model(backend)).run_tokens(made))
    np.testing.assert_allclose(*found, rtol=0.01, atol=0.001 * np.abs(found[1]).max())


def test_adapters_that_do_not_fit_are_refused(any_cpu: Backend) -> None:  # noqa: F811
    compiled, good = any_cpu.compile(model(any_cpu)), adapter(any_cpu, 2, 8, "f32")
    plain = feed(any_cpu, kv_layers(), [(0, 0, 3)], ints(0, 1, 2))
    assert good.changes[0] is not None
    assert good.changes[1] is not None
    for loaded, numbers, message in (
        ((good,), ints(0, 1, 2), "adapters of rows are from 0 to 1, not 2"),
        ((good,), ints(0, -1, 0), "adapters of rows"),
        ((good,), ints(0, 1), "each token has an adapter or none"),
        ((Adapter(good.changes[:3]),), ints(0, 0, 1), "fewer products"),
        ((Adapter((good.changes[1], *good.changes[1:])),), ints(1, 0, 0), None),
        ((Adapter((*good.changes[:3], good.changes[2])),), ints(1, 0, 0), "takes what its product is of"),
        ((Adapter((good.changes[0], good.changes[0], None, None)),), ints(1, 0, 0), "gives more than its product"),
    ):
        made = replace(plain, adapters=Adapters(loaded, numbers))
        if message is None:  # as wide as the other product's, and no wider than this one
            compiled.run_tokens(made)
            continue
        with pytest.raises(ValueError, match=message):
            compiled.run_tokens(made)
    up = good.changes[1].ups[0]
    far = LowRank(good.changes[1].down, (Up(up.weight, 1, 0, 1.0),))
    with pytest.raises(ValueError, match="ranks that down gives"):
        compiled.run_tokens(replace(plain, adapters=Adapters((Adapter((None, far, None, None)),), ints(1, 1, 1))))
