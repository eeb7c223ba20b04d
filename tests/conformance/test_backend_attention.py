"""Attention of every backend: near the reference; and a row's bits depend on nothing but its own keys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from support.instruction_sets import CPUS
from support.kv_layers import KV_FORMATS, unwritten_kv
from support.sampling_rows import rows_of

from ramet import _native
from ramet.core.batch import Batch, PageCopies
from ramet.core.ids import Float32, Int32
from ramet.kernels.backend import Backend, KVFormat, KVLayer
from ramet.kernels.reference import ReferenceBackend, bf16_to_f32, f32_to_bf16, kv_to_f32
from ramet.kernels.registry import make_backend

REFERENCE = ReferenceBackend()
NONE = np.zeros(0, np.int32)


@pytest.fixture(scope="module", params=[None, *CPUS], ids=lambda p: "reference" if p is None else f"{p[0]}-{p[1]}")
def backend(request: pytest.FixtureRequest) -> Backend:
    if request.param is None:
        return REFERENCE
    isa, threads = request.param
    return make_backend("cpu", threads=threads, isa=isa)


@dataclass(frozen=True)
class Row:
    """A sequence: its pages, and the rows to compute, the last ``num_rows`` of ``context_len`` positions."""

    pages: list[int]
    context_len: int
    num_rows: int


def make_batch(page_size: int, rows: list[Row]) -> Batch:
    positions = [np.arange(row.context_len - row.num_rows, row.context_len) for row in rows]
    return Batch(
        step=0,
        page_size=page_size,
        seq_ids=np.arange(len(rows)),
        query_indptr=indptr([row.num_rows for row in rows]),
        context_lens=np.array([row.context_len for row in rows], np.int32),
        token_ids=np.zeros(sum(row.num_rows for row in rows), np.int32),
        positions=np.concatenate([*positions, NONE]).astype(np.int32),
        slots=NONE,
        page_indptr=indptr([len(row.pages) for row in rows]),
        page_ids=np.concatenate([*(row.pages for row in rows), NONE]).astype(np.int32),
        sample_rows=NONE,
        sampling=rows_of(),
        prompt_logprob_rows=NONE,
        prompt_logprob_targets=NONE,
        prompt_logprob_k=NONE,
        page_copies=PageCopies(NONE, NONE, NONE),
    )


def indptr(lengths: list[int]) -> Int32:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


class Sequence:
    """Keys, values and queries of one line of tokens, independent of where a test stores them."""

    def __init__(self, seed: int, length: int, heads: tuple[int, int], head_dim: int) -> None:
        rng = np.random.default_rng(seed)
        num_heads, num_kv_heads = heads
        self.length, self.head_dim = length, head_dim
        self.q = rng.standard_normal((length, num_heads, head_dim), dtype=np.float32) * 2
        self.keys, self.values = rng.standard_normal((2, length, num_kv_heads, head_dim), dtype=np.float32)

    def num_pages(self, page_size: int) -> int:
        return -(-self.length // page_size)


def store(sequences: list[tuple[Sequence, list[int]]], num_pages: int, page_size: int, kv: KVFormat) -> KVLayer:
    """A layer that is NaN wherever no sequence put a key."""
    first = sequences[0][0]
    (layer,) = unwritten_kv(1, num_pages * page_size, *first.keys.shape[1:], kv)
    for sequence, pages in sequences:
        slots = (np.array(pages)[:, None] * page_size + np.arange(page_size)).reshape(-1)[: sequence.length]
        REFERENCE.write_kv(layer, sequence.keys, sequence.values, slots.astype(np.int32))
    return layer


def attend(backend: Backend, sequence: Sequence, page_size: int, chunks: list[int], kv: KVFormat = "float32") -> Float32:
    """The sequence alone, its rows computed in chunks: float32[length, Hq * D]."""
    pages = np.random.default_rng(page_size).permutation(sequence.num_pages(page_size) + 3)[: sequence.num_pages(page_size)]
    layer = store([(sequence, list(pages))], len(pages) + 3, page_size, kv)
    out, done = [], 0
    for chunk in chunks:
        batch = make_batch(page_size, [Row(list(pages), done + chunk, chunk)])
        q = np.ascontiguousarray(sequence.q[done : done + chunk])
        out.append(backend.attention(q, layer, backend.plan(batch), sequence.head_dim**-0.5))
        done += chunk
    assert done == sequence.length
    return np.concatenate(out)


def takes_tiles(backend: Backend, kv: KVFormat) -> bool:
    return backend.isa in ("amx", "avx512_bf16") and kv != "float32"


def rounded(backend: Backend, kv: KVFormat, x: npt.NDArray[np.floating], scale: float = 1.0) -> npt.NDArray[np.float64]:
    """Queries (their scores' scale in them), keys or values as tiles take them: bfloat16."""
    if not takes_tiles(backend, kv):
        return x.astype(np.float64)
    factor = np.float32(scale) * np.float32(1.44269504) if scale != 1.0 else np.float32(1)
    return bf16_to_f32(f32_to_bf16(x.astype(np.float32) * factor)).astype(np.float64) / factor


def assert_near(backend: Backend, kv: KVFormat, got: Float32, want: npt.NDArray[np.floating], rtol: float, atol: float) -> None:
    """Tiles take weights of 8 bits, each off by at most 2^-7.3 of itself; what that does to a sum of values that differ by
    several units is some thousandths. Queries have 8 bits too: ``want`` is of rounded ones."""
    if takes_tiles(backend, kv):
        rtol, atol = 0.0, 1.2e-2
        assert np.sqrt(np.mean((got - want) ** 2)) < 1.5e-3
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)


@pytest.mark.parametrize("kv", KV_FORMATS)
@pytest.mark.parametrize(
    ("heads", "head_dim"), [((9, 3), 64), ((4, 4), 80), ((2, 1), 8), ((8, 1), 96), ((5, 1), 112), ((2, 2), 256), ((6, 2), 24)]
)
def test_near_the_definition(backend: Backend, heads: tuple[int, int], head_dim: int, kv: KVFormat) -> None:
    """Against plain softmax in float64, with no blocks at all."""
    sequence = Sequence(3, 75, heads, head_dim)
    got = attend(backend, sequence, 16, [75], kv).reshape(75, *sequence.q.shape[1:])
    layer = store([(sequence, [0])], 1, 75, kv)
    keys, values = kv_to_f32(layer.keys), kv_to_f32(layer.values)
    keys, values = (rounded(backend, kv, a.repeat(heads[0] // heads[1], axis=1)) for a in (keys, values))
    scores = np.einsum("thd,shd->ths", rounded(backend, kv, sequence.q, head_dim**-0.5), keys) * head_dim**-0.5
    scores = np.where(np.arange(75)[:, None, None] < np.arange(75), -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    want = np.einsum("ths,shd->thd", weights / weights.sum(axis=2, keepdims=True), values)
    assert_near(backend, kv, got, want, 2e-5, 5e-6)


@pytest.mark.parametrize("kv", ["bfloat16", "int8"])
def test_long_context(backend: Backend, kv: KVFormat) -> None:
    """Many spans: a few rows (split by spans) and many (walked in one go)."""
    sequence = Sequence(4, 1100, (2, 1), 16)
    pages = list(range(sequence.num_pages(16)))
    layer = store([(sequence, pages)], len(pages), 16, kv)
    for num_rows in (1, 20):
        batch, q = make_batch(16, [Row(pages, 1100, num_rows)]), sequence.q[-num_rows:]
        seen = rounded(backend, kv, q, 0.25).astype(np.float32)
        want = REFERENCE.attention(seen, layer, REFERENCE.plan(batch), 0.25)
        got = backend.attention(q, layer, backend.plan(batch), 0.25)
        assert_near(backend, kv, got, want, 1e-4, 2e-6)


@pytest.mark.parametrize("kv", KV_FORMATS)
def test_bits_do_not_depend_on_pages_or_chunks(backend: Backend, kv: KVFormat) -> None:
    sequence = Sequence(5, 301, (3, 1), 40)
    want = attend(backend, sequence, 16, [301], kv)
    few = [250, 2, 3, 4, 5, 2, 3, 1, 4, 5, 2, 3, 4, 13]  # rows of a sequence that go one after another, or in a block
    for page_size, chunks in [
        (1, [301]),
        (3, [200, 101]),
        (64, [7] * 43),
        (16, [290, *[1] * 11]),
        (128, [100, 5, 150, 46]),
        (16, few),
    ]:
        assert attend(backend, sequence, page_size, chunks, kv).tobytes() == want.tobytes(), (page_size, chunks)


@pytest.mark.parametrize("kv", ["bfloat16", "int8"])
@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_bits_do_not_depend_on_mates(backend: Backend, page_size: int, kv: KVFormat) -> None:
    """Branches of one root, strangers, decoding and prefilling rows in one batch, in two orders."""
    length = 600
    root = Sequence(6, length, (3, 1), 32)
    branches = [Sequence(6, length, (3, 1), 32) for _ in range(4)]
    shared_pages = 576 // page_size
    for i, branch in enumerate(branches):
        other = Sequence(50 + i, length, (3, 1), 32)
        branch.keys[576:], branch.values[576:], branch.q[:] = other.keys[576:], other.values[576:], other.q
    stranger = Sequence(7, 333, (3, 1), 32)
    num_pages = 0

    def take(n: int) -> list[int]:
        nonlocal num_pages
        num_pages += n
        return list(range(num_pages - n, num_pages))

    root_pages = take(root.num_pages(page_size))
    placed = [(root, root_pages)]
    placed += [(b, root_pages[:shared_pages] + take(b.num_pages(page_size) - shared_pages)) for b in branches]
    placed.append((stranger, take(stranger.num_pages(page_size))))
    layer = store(placed, num_pages, page_size, kv)
    num_rows = [3, 1, 1, 5, 24, 40]
    rows = [Row(pages, sequence.length, n) for (sequence, pages), n in zip(placed, num_rows, strict=True)]
    queries = [sequence.q[-n:] for (sequence, _), n in zip(placed, num_rows, strict=True)]
    alone = [
        backend.attention(np.ascontiguousarray(q), layer, backend.plan(make_batch(page_size, [row])), 0.2)
        for q, row in zip(queries, rows, strict=True)
    ]
    for order in ([0, 1, 2, 3, 4, 5], [5, 3, 1, 4, 2, 0]):
        batch = make_batch(page_size, [rows[i] for i in order])
        together = backend.attention(np.concatenate([queries[i] for i in order]), layer, backend.plan(batch), 0.2)
        assert together.tobytes() == np.concatenate([alone[i] for i in order]).tobytes()


@pytest.mark.parametrize("kv", ["bfloat16", "int8"])
@pytest.mark.parametrize("odd", [0.0, np.inf])
def test_bits_where_branches_part(backend: Backend, kv: KVFormat, odd: float) -> None:
    """A span that branches share at first: what one has of its own, infinities too, is none of the others' business."""
    page_size, shared, lengths = 8, 400, [450, 405, 511, 412, 460, 401, 420, 499, 512, 430]
    root = Sequence(8, 512, (9, 3), 64)
    placed, num_pages = [], 64
    for i, length in enumerate(lengths):
        branch = Sequence(60 + i, length, (9, 3), 64)
        branch.keys[:shared], branch.values[:shared] = root.keys[:shared], root.values[:shared]
        own = branch.num_pages(page_size) - shared // page_size
        placed.append((branch, [*range(shared // page_size), *range(num_pages, num_pages + own)]))
        num_pages += own
    placed[3][0].values[410, 1, 7] = odd
    layer = store(placed, num_pages, page_size, kv)
    rows = [Row(pages, branch.length, 1 + i % 2) for i, (branch, pages) in enumerate(placed)]
    queries = [np.ascontiguousarray(branch.q[-row.num_rows :]) for (branch, _), row in zip(placed, rows, strict=True)]
    alone = [
        backend.attention(q, layer, backend.plan(make_batch(page_size, [row])), 0.125)
        for q, row in zip(queries, rows, strict=True)
    ]
    together = backend.attention(np.concatenate(queries), layer, backend.plan(make_batch(page_size, rows)), 0.125)
    assert together.tobytes() == np.concatenate(alone).tobytes()


@pytest.mark.parametrize("kv", KV_FORMATS)
@pytest.mark.parametrize(("name", "odd"), [("keys", np.nan), ("values", np.nan), ("values", np.inf)])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # the reference's, in numpy
def test_what_is_not_finite_reaches_later_rows_alone(backend: Backend, kv: KVFormat, name: str, odd: float) -> None:
    """Whatever chunk the row is computed in: what is before it may be cached, and read by others."""
    sequence = Sequence(10, 301, (3, 1), 40)
    clean = attend(backend, sequence, 16, [301], kv)
    getattr(sequence, name)[270, 0, 5] = odd
    want = attend(backend, sequence, 16, [1] * 301, kv)
    assert want[:270].tobytes() == clean[:270].tobytes()
    assert not np.isfinite(want[270:]).all(axis=1).any()
    for chunks in ([301], [200, 101], [7] * 43, [265, 6, 30]):
        got = attend(backend, sequence, 16, chunks, kv)
        assert got[:270].tobytes() == clean[:270].tobytes(), chunks
        assert (np.isfinite(got) == np.isfinite(want)).all(), chunks


@pytest.mark.parametrize("kv", ["bfloat16", "int8"])
@pytest.mark.parametrize(("heads", "head_dim"), [((9, 3), 64), ((4, 4), 40), ((16, 2), 32), ((7, 1), 96), ((10, 2), 64)])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # the reference's, in numpy
def test_bits_do_not_depend_on_heads_beside(backend: Backend, heads: tuple[int, int], head_dim: int, kv: KVFormat) -> None:
    """Of many decoding rows a thread may take several KV heads at once: they give what a prefill does, where one
    head's key outweighs all others or is not finite, too, or values are so small that sums of them are no normal numbers."""
    sequences = [Sequence(20 + i, length, heads, head_dim) for i, length in enumerate([1, 15, 16, 33, 70, 300, 40])]
    sequences[0].values *= np.float32(3e-20)  # a row's largest weight is about 2^-64, so these products are no normal numbers
    sequences[2].values *= np.float32(3e-20)
    late = sequences[6]  # here weights are near 2^-1, and it is values that are no normal numbers
    late.values *= np.float32(1e-38)
    late.keys[:16], late.keys[16:], late.q[-1] = 0, np.random.default_rng(1).uniform(1.9, 2.1, late.keys[16:].shape), 2.75
    sequences[4].values[0] = 0
    sequences[4].values[1, 0, 0], sequences[4].values[2, 0, 0] = -np.float32(np.nan), np.float32(np.nan)
    sequences[3].keys[20, 0] = np.nan
    sequences[4].keys[50, -1] *= 1e4
    for page_size in (16, 3):
        placed, num_pages = [], 0
        for sequence in sequences:
            n = sequence.num_pages(page_size)
            placed.append((sequence, list(range(num_pages, num_pages + n))))
            num_pages += n
        layer = store(placed, num_pages, page_size, kv)
        batch = make_batch(page_size, [Row(pages, sequence.length, 1) for sequence, pages in placed])
        queries = np.stack([sequence.q[-1] for sequence in sequences])
        got = backend.attention(queries, layer, backend.plan(batch), head_dim**-0.5)
        for row, sequence in zip(got, sequences, strict=True):
            want = attend(backend, sequence, page_size, [sequence.length], kv)[-1]
            assert row.tobytes() == want.tobytes(), (page_size, sequence.length)
            assert np.isfinite(want).all() == (sequence.length not in (33, 70))


def test_threads_do_not_change_bits() -> None:
    sequence = Sequence(8, 700, (6, 2), 64)
    for isa in _native.isas():
        one, two = (attend(make_backend("cpu", threads=n, isa=isa), sequence, 16, [640, 59, 1]) for n in (1, 2))
        assert one.tobytes() == two.tobytes()


def test_large_scores(backend: Backend) -> None:
    """One key outweighs all others by more than float32's exponent: its value comes out, no NaN."""
    sequence = Sequence(9, 40, (1, 1), 16)
    sequence.q[:] = 30
    sequence.keys[:] = np.linspace(-9, 9, 40, dtype=np.float32)[:, None, None]
    out = attend(backend, sequence, 16, [40])
    np.testing.assert_allclose(out, sequence.values[:, 0], rtol=1e-6)


def test_empty_batch(backend: Backend) -> None:
    layer = KVLayer(np.zeros((16, 1, 8), np.float32), np.zeros((16, 1, 8), np.float32))
    batch = make_batch(16, [])
    assert backend.attention(np.zeros((0, 2, 8), np.float32), layer, backend.plan(batch), 1.0).shape == (0, 16)
