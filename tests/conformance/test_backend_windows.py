"""Attention that sees a window of positions, or bends its scores: near the definition, and exact as without."""

from __future__ import annotations

import numpy as np
import pytest
from support.kv_layers import KV_FORMATS
from test_backend_attention import REFERENCE, Row, Sequence, assert_near, make_batch, rounded, store

from ramet import _native
from ramet.core.ids import Float32
from ramet.kernels.backend import Backend, KVFormat
from ramet.kernels.reference import kv_to_f32
from ramet.kernels.registry import make_backend

Given = tuple[int | None, float | None]  # window, cap


@pytest.fixture(scope="module", params=[None, *_native.isas()], ids=lambda p: p or "reference")
def backend(request: pytest.FixtureRequest) -> Backend:
    if request.param is None:
        return REFERENCE
    return make_backend("cpu", threads=2, isa=request.param)


def attend(backend: Backend, sequence: Sequence, page_size: int, chunks: list[int], given: Given, kv: KVFormat) -> Float32:
    """The sequence alone, its last rows computed in chunks: float32[sum(chunks), Hq * D]."""
    pages = list(np.random.default_rng(page_size).permutation(sequence.num_pages(page_size)))
    layer = store([(sequence, pages)], len(pages), page_size, kv)
    out, done = [], sequence.length - sum(chunks)
    for chunk in chunks:
        batch = make_batch(page_size, [Row(pages, done + chunk, chunk)])
        q = np.ascontiguousarray(sequence.q[done : done + chunk])
        out.append(backend.attention(q, layer, backend.plan(batch), sequence.head_dim**-0.5, *given))
        done += chunk
    return np.concatenate(out)


@pytest.mark.parametrize("kv", KV_FORMATS)
@pytest.mark.parametrize("given", [(1, None), (31, None), (100, 3.0), (257, 50.0), (1000, None), (None, 2.0)])
@pytest.mark.parametrize("num_rows", [1, 70])
def test_near_the_definition(backend: Backend, num_rows: int, given: Given, kv: KVFormat) -> None:
    """Against plain softmax in float64 over what each row sees: several spans, and rows split by spans or walking them."""
    sequence, (window, cap) = Sequence(3, 600, (6, 2), 40), given
    got = attend(backend, sequence, 16, [num_rows], given, kv).reshape(num_rows, 6, 40)
    layer = store([(sequence, [0])], 1, 600, kv)
    keys, values = (rounded(backend, kv, kv_to_f32(a).repeat(3, axis=1)) for a in (layer.keys, layer.values))
    scores = np.einsum("thd,shd->ths", rounded(backend, kv, sequence.q[-num_rows:], 40**-0.5), keys) * 40**-0.5
    if cap is not None:
        scores = cap * np.tanh(scores / cap)
    distance = np.arange(600 - num_rows, 600)[:, None, None] - np.arange(600)
    scores = np.where((distance < 0) | (distance >= (window or 600)), -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    want = np.einsum("ths,shd->thd", weights / weights.sum(axis=2, keepdims=True), values)
    assert_near(backend, kv, got, want, 3e-5, 6e-6)


@pytest.mark.parametrize("kv", KV_FORMATS)
@pytest.mark.parametrize("given", [(1, None), (50, 4.0), (270, None)])
def test_bits_do_not_depend_on_pages_or_chunks(backend: Backend, given: Given, kv: KVFormat) -> None:
    sequence = Sequence(5, 301, (3, 1), 40)
    want = attend(backend, sequence, 16, [301], given, kv)
    for page_size, chunks in [(1, [301]), (3, [200, 101]), (64, [7] * 43), (16, [290, *[1] * 11])]:
        assert attend(backend, sequence, page_size, chunks, given, kv).tobytes() == want.tobytes(), (page_size, chunks)


@pytest.mark.parametrize("kv", KV_FORMATS)
@pytest.mark.parametrize("window", [20, 200, 400])
def test_bits_do_not_depend_on_mates(backend: Backend, window: int, kv: KVFormat) -> None:
    """Branches of one root at different lengths: their windows begin at different places of spans that they share."""
    root = Sequence(6, 800, (3, 1), 32)
    lengths, num_rows = [800, 560, 700, 513, 641], [1, 3, 1, 1, 20]
    pages = list(range(root.num_pages(16)))
    layer = store([(root, pages)], len(pages), 16, kv)
    rows = [Row(pages[: -(-length // 16)], length, n) for length, n in zip(lengths, num_rows, strict=True)]
    queries = [np.ascontiguousarray(root.q[length - n : length]) for length, n in zip(lengths, num_rows, strict=True)]
    alone = [
        backend.attention(q, layer, backend.plan(make_batch(16, [row])), 0.2, window)
        for q, row in zip(queries, rows, strict=True)
    ]
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1]):
        plan = backend.plan(make_batch(16, [rows[i] for i in order]))
        together = backend.attention(np.concatenate([queries[i] for i in order]), layer, plan, 0.2, window)
        assert together.tobytes() == np.concatenate([alone[i] for i in order]).tobytes()


@pytest.mark.parametrize("kv", KV_FORMATS)
@pytest.mark.parametrize(("name", "odd"), [("keys", np.nan), ("values", np.nan), ("values", np.inf)])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # the reference's, in numpy
def test_what_is_not_finite_reaches_rows_that_see_it_alone(backend: Backend, kv: KVFormat, name: str, odd: float) -> None:
    sequence, window = Sequence(10, 301, (3, 1), 40), 25
    clean = attend(backend, sequence, 16, [301], (window, None), kv)
    getattr(sequence, name)[239, 0, 5] = odd
    others = np.r_[0:239, 239 + window : 301]
    for chunks in ([301], [200, 101], [7] * 43, [235, 6, 60]):
        got = attend(backend, sequence, 16, chunks, (window, None), kv)
        assert got[others].tobytes() == clean[others].tobytes(), chunks
        assert not np.isfinite(got[239 : 239 + window]).all(axis=1).any()


@pytest.mark.parametrize("kv", KV_FORMATS)
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # the reference's, in numpy
def test_bits_do_not_depend_on_where_mates_begin(backend: Backend, kv: KVFormat) -> None:
    """Position 67 sees 28 on, and minus infinity up to 31. What it is measured by then may not be what it sees where a mate
    begins: position 60 is 2^64 times that, and has no values that would cover the others'.
    """
    sequence = Sequence(11, 83, (1, 1), 32)
    sequence.q[:], sequence.keys[:] = 0, 0
    sequence.q[..., 0], sequence.keys[:32, :, 0] = 1e20, -1e20
    sequence.q[..., 1], sequence.keys[60, :, 1] = 1, 64 / (32**-0.5 * 1.4427)
    sequence.values[60] = 0
    together, alone = (attend(backend, sequence, 16, chunks, (40, None), kv) for chunks in ([16], [1] * 16))
    assert together.tobytes() == alone.tobytes()


def test_threads_do_not_change_bits() -> None:
    sequence = Sequence(8, 700, (6, 2), 64)
    for isa in _native.isas():
        backends = [make_backend("cpu", threads=n, isa=isa) for n in (1, 2)]
        one, two = (attend(b, sequence, 16, [640, 59, 1], (300, 5.0), "bfloat16") for b in backends)
        assert one.tobytes() == two.tobytes()


@pytest.mark.parametrize(("given", "message"), [((0, None), "a window"), ((-3, None), "a window"), ((1, 0.0), "a cap")])
def test_what_makes_no_sense_is_refused(given: Given, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attend(make_backend("cpu", threads=1), Sequence(1, 20, (1, 1), 8), 16, [20], given, "float32")
