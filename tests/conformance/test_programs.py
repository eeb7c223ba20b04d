"""Programs x cpu on each instruction set: the bits of the operations that they are made of, in each row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from support.instruction_sets import CPUS
from support.kv_layers import KV_FORMATS, unwritten_kv
from support.sampling_rows import rows_of
from test_backend import REFERENCE, make_weight, normal, same_bits

from ramet.core.ids import Float32, Int32
from ramet.kernels.backend import Backend, Choosing, KVFormat, KVLayer, RowFault, WeightFormat
from ramet.kernels.composed import ComposedProgram
from ramet.kernels.program import (
    AS_IT_IS,
    Add,
    Attend,
    ChooseExperts,
    Embed,
    Expert,
    GeluMul,
    Heads,
    Load,
    MixExperts,
    Pairs,
    Program,
    Project,
    ProjectAdd,
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
from ramet.kernels.registry import make_backend

HIDDEN, FFN, VOCAB, LAYERS, PAGE = 96, 160, 70, 2, 16
HEADS = Heads(4, 2, 24)
KINDS: tuple[tuple[WeightFormat, ...], ...] = (("f32",), ("bf16",), ("q8",), ("q4",), ("q4", "q8", "f16"))
"""Formats of q, k and v in one product, in turn."""


@pytest.fixture(scope="module", params=CPUS, ids=lambda p: f"{p[0]}-{p[1]}")
def cpu(request: pytest.FixtureRequest) -> Backend:
    isa, threads = request.param
    return make_backend("cpu", threads=threads, isa=isa)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def model(backend: Backend, kinds: tuple[WeightFormat, ...]) -> Program:
    """Two layers with everything that a step may have or lack: biases, scales, norms of heads and after products, some pairs that
    turn or none, a cap, wanted rows at the end.
    """
    rng = np.random.default_rng(11)
    odd_ffn = FFN if {"q8", "q4"} & set(kinds) else 152  # not whole groups, where that can be

    def packed(n: int, k: int, parts: int = 1) -> object:
        return backend.pack([make_weight(rng, kinds[i % len(kinds)], n // parts, k) for i in range(parts)])

    def norm(width: int) -> RmsNorm:
        return RmsNorm(normal(rng, width), 1e-5)

    def layer(i: int, x: Register, qkv: Register, mixed: Register) -> Iterator[Step]:
        q_norm, k_norm = (norm(HEADS.q_width), norm(24)) if i else (AS_IT_IS, AS_IT_IS)
        yield Project(x, norm(HIDDEN), packed(HEADS.width, HIDDEN, 4), normal(rng, HEADS.width), qkv)
        yield RotateAndStore(qkv, HEADS, q_norm, k_norm, Pairs(3, 7) if i else Pairs(0, 10), i)
        yield Attend(qkv, HEADS, 0.2, i, mixed, *((90, 1.5) if i else (None, None)))

    def mlp(x: Register, mixed: Register, gate_up: Register, bias: Float32 | None) -> Iterator[Step]:
        yield ProjectAdd(mixed, AS_IT_IS, packed(HIDDEN, HEADS.q_width), bias, x)
        yield Project(x, norm(HIDDEN), packed(2 * FFN, HIDDEN, 2), None, gate_up)
        yield ProjectAdd(gate_up, SiluMul(), packed(HIDDEN, FFN), None, x)

    def mlp_of_gemma(x: Register, mixed: Register, gate_up: Register) -> Iterator[Step]:
        branch = Register(HIDDEN)
        yield Project(mixed, AS_IT_IS, packed(HIDDEN, HEADS.q_width), None, branch)
        yield Add(branch, Scale(0.7), x)
        yield Project(x, norm(HIDDEN), packed(2 * odd_ffn, HIDDEN, 2), None, gate_up)
        yield Project(gate_up, GeluMul(), packed(HIDDEN, odd_ffn), None, branch)
        yield Add(branch, norm(HIDDEN), x)

    x, qkv, mixed, gate_up = (Register(width) for width in (HIDDEN, HEADS.width, HEADS.q_width, 2 * FFN))
    last_x, last_mixed, last_gate_up = (Register(width) for width in (HIDDEN, HEADS.q_width, 2 * odd_ffn))
    logits = Register(VOCAB)
    steps = [
        Embed(packed(VOCAB, HIDDEN), 1.3, x),
        *layer(0, x, qkv, mixed),
        *mlp(x, mixed, gate_up, normal(rng, HIDDEN)),
        *layer(1, x, qkv, mixed),
        TakeRows(x, last_x),
        TakeRows(mixed, last_mixed),
        *mlp_of_gemma(last_x, last_mixed, last_gate_up),
        Project(last_x, norm(HIDDEN), packed(VOCAB, HIDDEN), None, logits),
        SoftCap(logits, 2.0),
    ]
    return Program(tuple(steps), logits)


@dataclass
class Batch:
    """What ``Backend.plan`` reads of a batch."""

    page_size: int
    query_indptr: Int32
    positions: Int32
    page_indptr: Int32
    page_ids: Int32

    @property
    def num_seqs(self) -> int:
        return len(self.query_indptr) - 1


def ints(*values: int) -> Int32:
    return np.array(values, np.int32)


def kv_layers(kv: KVFormat = "bfloat16", num_pages: int = 80) -> list[KVLayer]:
    return unwritten_kv(LAYERS, num_pages * PAGE, HEADS.num_kv_heads, HEADS.head_dim, kv)


def feed(backend: Backend, layers: list[KVLayer], chunks: list[tuple[int, int, int]], wanted: Int32) -> TokenFeed:
    """``chunks``: (first page, first position, number of tokens) of each sequence; the pages of one are neighbours."""
    angles = np.arange(1200)[:, None] * 0.3 ** np.arange(10)[None]
    positions = [np.arange(first, first + num, dtype=np.int32) for _, first, num in chunks]
    tables = [page + np.arange((p[-1] // PAGE) + 1, dtype=np.int32) for (page, _, _), p in zip(chunks, positions, strict=True)]
    slots = [table[p // PAGE] * PAGE + p % PAGE for table, p in zip(tables, positions, strict=True)]
    tokens = [(7 * page + 5 * p) % VOCAB for (page, _, _), p in zip(chunks, positions, strict=True)]
    batch = Batch(
        PAGE,
        np.cumsum([0, *map(len, positions)]).astype(np.int32),
        np.concatenate(positions),
        np.cumsum([0, *map(len, tables)]).astype(np.int32),
        np.concatenate(tables),
    )
    return TokenFeed(
        np.concatenate(tokens).astype(np.int32),
        batch.positions,
        np.concatenate(slots).astype(np.int32),
        wanted,
        np.cos(angles).astype(np.float32),
        np.sin(angles).astype(np.float32),
        backend.plan(batch),  # type: ignore[arg-type]
        layers,
    )


@pytest.mark.parametrize("kv", KV_FORMATS)
@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
def test_a_program_gives_the_bits_of_its_operations(cpu: Backend, kinds: tuple[WeightFormat, ...], kv: KVFormat) -> None:
    """One row, few rows, a mixed batch, and more rows than a block has; the KV written is the same, too."""
    program = model(cpu, kinds)
    compiled, composed = cpu.compile(program), ComposedProgram(cpu, program)
    mine, theirs = kv_layers(kv), kv_layers(kv)
    for chunks, wanted in (
        ([(0, 0, 1)], ints(0)),
        ([(0, 1, 9)], ints(8, 2)),
        ([(0, 10, 1), (4, 0, 3), (8, 0, 33)], ints(0, 36, 3)),
        ([(20, 0, 600), (0, 11, 1)], ints(600, 599, 255, 256, 0)),
        ([(20, 600, 1), (0, 12, 1), (4, 3, 1)], ints(0, 1, 2)),
    ):
        want = composed.run_tokens(feed(cpu, theirs, chunks, wanted))
        got = compiled.run_tokens(feed(cpu, mine, chunks, wanted))
        assert np.isfinite(got).all()
        assert same_bits(got, want)
    for one, other in zip(mine, theirs, strict=True):
        assert same_bits(one.keys, other.keys)
        assert same_bits(one.values, other.values)


@pytest.mark.parametrize("kinds", [("q4",), ("bf16",)], ids="-".join)
def test_near_the_reference(cpu: Backend, kinds: tuple[WeightFormat, ...]) -> None:
    chunks, wanted = [(0, 0, 40), (4, 0, 3)], ints(39, 42, 7)
    got = cpu.compile(model(cpu, kinds)).run_tokens(feed(cpu, kv_layers(), chunks, wanted))
    want = REFERENCE.compile(model(REFERENCE, kinds)).run_tokens(feed(REFERENCE, kv_layers(), chunks, wanted))
    np.testing.assert_allclose(got, want, rtol=0.02, atol=0.02 * np.abs(want).max())  # KV is bfloat16


def test_a_row_has_the_same_bits_in_any_batch(cpu: Backend) -> None:
    program = cpu.compile(model(cpu, ("q4",)))
    together = program.run_tokens(feed(cpu, kv_layers(), [(0, 0, 300), (30, 0, 20), (40, 0, 1)], ints(*range(321))))
    for (page, num), rows in (((0, 300), slice(0, 300)), ((30, 20), slice(300, 320)), ((40, 1), slice(320, 321))):
        alone = program.run_tokens(feed(cpu, kv_layers(), [(page, 0, num)], ints(*range(num))))
        assert same_bits(alone, together[rows])
    layers = kv_layers()
    program.run_tokens(feed(cpu, layers, [(0, 0, 100)], ints()))
    program.run_tokens(feed(cpu, layers, [(0, 100, 199)], ints()))
    last = program.run_tokens(feed(cpu, layers, [(0, 299, 1)], ints(0)))
    assert same_bits(last[0], together[299])


def mixture(backend: Backend, kinds: tuple[WeightFormat, ...], gate: SiluMul | GeluMul, num: int = 5) -> Program:
    """A layer of experts, two chosen for each row."""
    rng = np.random.default_rng(12)

    def packed(n: int, k: int) -> object:
        return backend.pack([make_weight(rng, kinds[0], n, k)])

    x, routing, branch = Register(HIDDEN), Register(num), Register(HIDDEN)
    norm = RmsNorm(normal(rng, HIDDEN), 1e-5)
    router = backend.pack([make_weight(rng, "f32", num, HIDDEN)])
    experts = tuple(Expert(packed(2 * FFN, HIDDEN), packed(HIDDEN, FFN)) for _ in range(num))
    steps = (
        Load(x),
        Project(x, norm, router, None, routing),
        ChooseExperts(routing, 2, True),
        MixExperts(x, norm, routing, experts, gate, branch),
        Add(branch, AS_IT_IS, x),
    )
    return Program(steps, x)


@pytest.mark.parametrize("kinds", [("f32",), ("bf16",), ("q4",)], ids="-".join)
def test_experts(cpu: Backend, kinds: tuple[WeightFormat, ...], rng: np.random.Generator) -> None:
    """The bits of the operations, whatever the number of rows that meet at an expert; and near the reference."""
    program = mixture(cpu, kinds, SiluMul())
    compiled, composed, rows = cpu.compile(program), ComposedProgram(cpu, program), normal(rng, 300, HIDDEN)
    together = compiled.run_rows(rows)
    assert same_bits(together, composed.run_rows(rows))
    for part in (slice(0, 0), slice(7, 8), slice(250, 260), slice(255, 300)):
        assert same_bits(compiled.run_rows(np.ascontiguousarray(rows[part])), together[part])
    want = mixture(REFERENCE, kinds, SiluMul())
    np.testing.assert_allclose(
        together[:9], REFERENCE.compile(want).run_rows(rows[:9]), rtol=1e-3, atol=1e-3 * np.abs(rows).max()
    )


def test_no_rows_wanted_still_writes_keys_and_values(cpu: Backend) -> None:
    program, layers, others = cpu.compile(model(cpu, ("q8",))), kv_layers(), kv_layers()
    assert program.run_tokens(feed(cpu, layers, [(0, 0, 20)], ints())).shape == (0, VOCAB)
    program.run_tokens(feed(cpu, others, [(0, 0, 20)], ints(4)))
    for one, other in zip(layers, others, strict=True):
        assert same_bits(one.keys, other.keys)
        assert same_bits(one.values, other.values)


def test_loaded_rows(cpu: Backend, rng: np.random.Generator) -> None:
    hidden, logits = Register(HIDDEN), Register(VOCAB)
    head = cpu.pack([make_weight(rng, "q8", VOCAB, HIDDEN)])
    program = Program((Load(hidden), Project(hidden, RmsNorm(normal(rng, HIDDEN), 1e-6), head, None, logits)), logits)
    compiled, composed = cpu.compile(program), ComposedProgram(cpu, program)
    for num in (0, 1, 3, 300):
        rows = normal(rng, num, HIDDEN)
        assert same_bits(compiled.run_rows(rows), composed.run_rows(rows))


def test_joined_products_where_outputs_are_named(cpu: Backend, rng: np.random.Generator) -> None:
    x, gate_up = Register(HIDDEN), Register(2 * FFN)
    up, down = (cpu.pack([make_weight(rng, "q8", *shape)]) for shape in ((2 * FFN, HIDDEN), (HIDDEN, FFN)))
    steps = (Load(x), Project(x, AS_IT_IS, up, None, gate_up), ProjectAdd(gate_up, SiluMul(), down, None, x))
    program, rows = cpu.compile(Program(steps, x)), normal(rng, 3, HIDDEN)
    whole = program.run_rows(rows)
    program.run_rows(normal(rng, 3, HIDDEN))  # whose rows of the second product are not to be taken for these
    choosing = Choosing(rows_of(*({"temperature": 0} for _ in range(3))), ints(0, 1, 2), rng.random(3))
    everything = np.full((3, 2 * FFN // 32), 0xFFFFFFFF, np.uint32)
    assert same_bits(program.choose_rows(rows, everything, choosing)[0], whole)


def test_a_profile_counts_each_kind_of_step(cpu: Backend) -> None:
    program = cpu.compile(model(cpu, ("q8",)))
    assert program.profiled() == {}
    program.profile(True)
    program.run_tokens(feed(cpu, kv_layers(), [(0, 0, 20)], ints(4)))
    found = program.profiled()
    kinds = {"embed", "project", "project_add", "add", "soft_cap", "rotate_and_store", "attend", "take_rows"}
    assert set(found) == kinds
    assert all(nanoseconds > 0 for nanoseconds in found.values())
    program.profile(False)
    assert program.profiled() == {}


# --- what does not fit is refused ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def any_cpu() -> Backend:
    return make_backend("cpu", threads=1)


def test_steps_that_do_not_fit_are_refused(any_cpu: Backend, rng: np.random.Generator) -> None:
    square = any_cpu.pack([make_weight(rng, "f32", 32, 32)])
    a, b, wide = Register(32), Register(32), Register(96)
    start = (Load(a),)

    def refused(message: str, *steps: Step, result: Register = b) -> None:
        with pytest.raises(ValueError, match=message):
            any_cpu.compile(Program((*start, *steps), result))

    refused("no step writes the result")
    refused("not of 32", Project(a, AS_IT_IS, square, None, wide))
    refused("a product is of", Project(a, SiluMul(), square, None, b))
    refused("a product is of", Project(a, RmsNorm(normal(rng, 31), 1e-5), square, None, b))
    refused("bias", Project(a, AS_IT_IS, square, normal(rng, 31), b))
    refused("no step has written", ProjectAdd(a, AS_IT_IS, square, None, b))
    refused("mixes", TakeRows(a, b), ProjectAdd(b, AS_IT_IS, square, None, a))
    refused("not now these", Project(a, AS_IT_IS, square, None, b), TakeRows(a, b))
    refused("once", TakeRows(a, b), TakeRows(b, Register(32)))
    heads = Heads(2, 1, 24)
    pairs = Pairs(0, 12)
    refused("no step has written", RotateAndStore(wide, heads, AS_IT_IS, AS_IT_IS, pairs, 0))
    refused("no step has written", Add(b, AS_IT_IS, a))
    experts = tuple(Expert(any_cpu.pack([make_weight(rng, "f32", 64, 32)]), square) for _ in range(3))
    routing, wide_routing = Register(3), Register(1025)
    for num_chosen in (0, -1, 4):
        refused("at least one is chosen", Load(routing), ChooseExperts(routing, num_chosen, True))
    refused("at most 1024", Load(wide_routing), ChooseExperts(wide_routing, 1, True))
    refused("at least one expert", Load(routing), MixExperts(a, AS_IT_IS, routing, (), SiluMul(), b))
    refused("weights of experts", Load(routing), MixExperts(a, AS_IT_IS, routing, experts[:2], SiluMul(), b))
    refused("experts work on", Load(routing), MixExperts(wide, AS_IT_IS, routing, experts, SiluMul(), b))
    refused("experts give", Load(routing), MixExperts(a, AS_IT_IS, routing, experts, SiluMul(), wide))
    other = (*experts[:2], Expert(square, square))
    refused("of one shape", Load(routing), MixExperts(a, AS_IT_IS, routing, other, SiluMul(), b))
    refused("what is added", Add(a, SiluMul(), a))
    refused("no step has written", SoftCap(b, 1.0))
    for bad, message in ((Heads(3, 2, 24), "Hq"), (Heads(2, 1, 20), "multiple of 8"), (Heads(1, 1, 8), "q, k and v")):
        refused(message, Load(wide), Attend(wide, bad, 1.0, 0, b))
    refused("one head, or as all", Load(wide), RotateAndStore(wide, heads, RmsNorm(normal(rng, 8), 1e-5), AS_IT_IS, pairs, 0))
    for bad_pairs in (Pairs(0, 13), Pairs(-1, 2), Pairs(0, -1)):
        refused("pairs that turn", Load(wide), RotateAndStore(wide, heads, AS_IT_IS, AS_IT_IS, bad_pairs, 0))


def test_feeds_that_do_not_fit_are_refused(any_cpu: Backend) -> None:
    program, layers = any_cpu.compile(model(any_cpu, ("q8",))), kv_layers(num_pages=10)
    good = feed(any_cpu, layers, [(0, 0, 5)], ints(4))
    program.run_tokens(good)
    before = layers[0].keys.copy()
    other_heads = [KVLayer(*(np.zeros((160, 1, 24), np.uint16) for _ in range(2))) for _ in range(LAYERS)]
    for change, message in (
        ({"token_ids": ints(0, 1, 2, 3, VOCAB)}, "token ids are from 0 to 69, not 70"),
        ({"token_ids": ints(0, 1, 2, 3)}, "slot for each"),
        ({"slots": ints(0, 1, 2, 3, 160)}, "slots are from 0 to 159, not 160"),
        ({"slots": ints(0, 1, 2, 3, -1)}, "slots"),
        ({"wanted": ints(5)}, "wanted rows are from 0 to 4, not 5"),
        ({"cos": good.cos[:4], "sin": good.sin[:4]}, "positions are from 0 to 3, not 4"),
        ({"cos": good.cos[:9]}, "one shape"),
        ({"cos": np.ones((9, 9), np.float32), "sin": np.ones((9, 9), np.float32)}, "a column for each pair"),
        ({"plan": feed(any_cpu, layers, [(0, 0, 4)], ints()).plan}, "another batch"),
        ({"plan": feed(any_cpu, layers, [(10, 0, 5)], ints()).plan}, "beyond the KV pool"),
        ({"kv_layers": layers[:1]}, "layer 1"),
        ({"kv_layers": other_heads}, "of the model"),
    ):
        with pytest.raises(ValueError, match=message):
            program.run_tokens(replace(good, **change))
    assert same_bits(layers[0].keys, before)
    with pytest.raises(ValueError, match="needs"):
        program.run_rows(np.zeros((2, HIDDEN), np.float32))


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
def test_logits_that_are_wanted_have_the_bits_of_all_and_are_chosen_of_alike(
    cpu: Backend, rng: np.random.Generator, kinds: tuple[WeightFormat, ...]
) -> None:
    """Of stacked parts too, whose panels begin anywhere; and with fewer words than there are outputs."""
    hidden, logits = Register(HIDDEN), Register(2 * VOCAB)
    weight = cpu.pack([make_weight(rng, kinds[i % len(kinds)], VOCAB, HIDDEN) for i in range(2)])
    program = cpu.compile(
        Program(
            (Load(hidden), Project(hidden, RmsNorm(normal(rng, HIDDEN), 1e-5), weight, normal(rng, 2 * VOCAB), logits)), logits
        )
    )
    rows = normal(rng, 9, HIDDEN)
    whole = program.run_rows(rows)
    for num_words in (3, 5):
        bits = (rng.random((9, num_words * 32)) < 0.08) & (np.arange(9) != 4)[:, None]
        outputs = np.packbits(bits, axis=1, bitorder="little").view(np.uint32)
        masked = rows_of(*({"temperature": i % 2, "mask": np.flatnonzero(bits[i]).tolist()} for i in range(9)))
        choosing = Choosing(masked, ints(*range(9)), rng.random(9))
        found, picks = program.choose_rows(rows, outputs, choosing)
        wanted = bits[:, : 2 * VOCAB]
        assert same_bits(found[:, : wanted.shape[1]][wanted], whole[:, : wanted.shape[1]][wanted])
        assert [part.tolist() for part in picks] == [part.tolist() for part in cpu.sample(whole, choosing)]
        assert picks.faults.tolist() == [RowFault.NONE_LEFT if i == 4 else RowFault.NONE for i in range(9)]
    with pytest.raises(ValueError, match="outputs have a row for each row"):
        program.choose_rows(rows, np.zeros((8, 5), np.uint32), choosing)
    rows[3] = np.nan
    _, picks = program.choose_rows(rows, outputs, choosing)
    assert picks.faults[3] == RowFault.NOT_FINITE
    assert picks.fault_sizes[3] == np.count_nonzero(bits[3, : 2 * VOCAB])
