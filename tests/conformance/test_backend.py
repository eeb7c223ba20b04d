"""Backend x {reference, cpu on each instruction set this machine has}: near the reference, and exact in rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from support.instruction_sets import CPUS
from support.kv_layers import KV_FORMATS, unwritten_kv

from ramet import _native
from ramet.core.batch import PageCopies
from ramet.core.ids import Float32, Int32
from ramet.kernels.backend import Backend, KVFormat, KVLayer, Weight, WeightFormat
from ramet.kernels.reference import ReferenceBackend, bf16_to_f32, f32_to_bf16
from ramet.kernels.registry import make_backend

FORMATS: tuple[WeightFormat, ...] = ("f32", "f16", "bf16", "q8", "q4")
REFERENCE = ReferenceBackend()


@pytest.fixture(scope="module", params=[None, *CPUS], ids=lambda p: "reference" if p is None else f"{p[0]}-{p[1]}")
def backend(request: pytest.FixtureRequest) -> Backend:
    if request.param is None:
        return REFERENCE
    isa, threads = request.param
    return make_backend("cpu", threads=threads, isa=isa)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def normal(rng: np.random.Generator, *shape: int) -> Float32:
    return rng.standard_normal(shape, dtype=np.float32)


def make_weight(rng: np.random.Generator, kind: WeightFormat, n: int, k: int) -> Weight:
    if kind == "f32":
        return Weight(kind, normal(rng, n, k))
    if kind == "f16":
        return Weight(kind, normal(rng, n, k).astype(np.float16))
    if kind == "bf16":
        return Weight(kind, f32_to_bf16(normal(rng, n, k)))
    scales = (rng.random((n, k // 32)) / 64).astype(np.float16)
    if kind == "q8":
        return Weight(kind, rng.integers(-128, 128, (n, k), dtype=np.int8), scales)
    mins = (-8 * rng.random((n, k // 32))).astype(np.float16)
    return Weight(kind, rng.integers(0, 16, (n, k), dtype=np.uint8), scales * np.float16(16), mins)


def same_bits(a: npt.NDArray[np.generic], b: npt.NDArray[np.generic]) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


class TestLinear:
    @pytest.mark.parametrize("kind", FORMATS)
    @pytest.mark.parametrize(("n", "k"), [(1, 32), (16, 64), (50, 96), (33, 576), (130, 1536)])
    def test_near_reference(self, backend: Backend, rng: np.random.Generator, kind: WeightFormat, n: int, k: int) -> None:
        weight, x, bias = make_weight(rng, kind, n, k), normal(rng, 7, k), normal(rng, n)
        got = backend.linear(x, backend.pack([weight]), bias)
        want = REFERENCE.linear(x, REFERENCE.pack([weight]), bias)
        assert got.dtype == np.float32
        # A chain of k roundings of terms whose absolute sum is the bound's scale.
        values = REFERENCE.embed(REFERENCE.pack([weight]), np.arange(n, dtype=np.int32))
        size = np.abs(x) @ np.abs(values).T
        bound = (size + np.abs(bias)) * np.sqrt(k) * 2.0**-23
        if kind == "bf16" and backend.isa == "amx":  # each input as the sum of two bfloat16
            bound += size * 2.0**-18
        assert (np.abs(got - want) <= bound).all()

    @pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
    @pytest.mark.parametrize("k", [1, 5, 31, 100])
    def test_dense_of_any_width(self, backend: Backend, rng: np.random.Generator, kind: WeightFormat, k: int) -> None:
        weight, x = make_weight(rng, kind, 19, k), normal(rng, 3, k)
        want = REFERENCE.linear(x, REFERENCE.pack([weight]))
        np.testing.assert_allclose(backend.linear(x, backend.pack([weight])), want, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("kind", FORMATS)
    def test_rows_do_not_see_each_other(self, backend: Backend, rng: np.random.Generator, kind: WeightFormat) -> None:
        packed, x = backend.pack([make_weight(rng, kind, 83, 160)]), normal(rng, 300, 160)
        whole = backend.linear(x, packed)
        for t in (0, 1, 7, 255, 256, 299):
            assert same_bits(backend.linear(x[t : t + 1], packed)[0], whole[t])
        for start, stop in ((0, 2), (1, 4), (3, 8), (5, 14), (40, 63)):
            assert same_bits(backend.linear(x[start:stop], packed), whole[start:stop])

    @pytest.mark.skipif("avx2" not in _native.isas(), reason="this machine has no second set with fused products")
    @pytest.mark.parametrize("kind", ["q8", "q4"])
    @pytest.mark.parametrize("k", [32, 160, 576, 16416])
    def test_quantised_products_have_the_bits_of_avx2(self, rng: np.random.Generator, kind: WeightFormat, k: int) -> None:
        """Decisions 0031 and 0034. Rows longer than 16,384 are not done by tiles."""
        weight, x = make_weight(rng, kind, 83 if k < 1000 else 17, k), normal(rng, 37, k)
        x[3, 5] = np.nan
        backends = [make_backend("cpu", threads=2, isa=isa) for isa in _native.isas() if isa != "generic"]
        for num in (1, 4, 5, 12, 13, 16, 17, 37):
            *others, avx2 = (b.linear(x[:num], b.pack([weight])) for b in backends)
            for got in others:
                assert same_bits(got, avx2), num

    @pytest.mark.parametrize("isa", _native.isas())
    def test_threads_do_not_change_bits(self, rng: np.random.Generator, isa: str) -> None:
        one, two = (make_backend("cpu", threads=threads, isa=isa) for threads in (1, 2))
        for kind in FORMATS:
            weight, x = make_weight(rng, kind, 83, 160), normal(rng, 70, 160)
            for num in (1, 7, 70):
                assert same_bits(*(b.linear(x[:num], b.pack([weight])) for b in (one, two))), (kind, num)

    def test_parts_are_stacked(self, backend: Backend, rng: np.random.Generator) -> None:
        sizes = dict(zip(FORMATS, (20, 16, 7, 33, 1), strict=True))
        parts = [make_weight(rng, kind, n, 64) for kind, n in sizes.items()]
        x, bias = normal(rng, 3, 64), normal(rng, 77)
        packed = backend.pack(parts)
        assert packed.shape == (77, 64)
        assert packed.nbytes > 0
        alone = np.concatenate([backend.linear(x, backend.pack([part])) for part in parts], axis=1)
        assert same_bits(backend.linear(x, packed, bias), alone + bias)
        ids = rng.permutation(77).astype(np.int32)
        assert same_bits(backend.embed(packed, ids), REFERENCE.embed(REFERENCE.pack(parts), ids))

    def test_zero_rows_and_zero_inputs(self, backend: Backend, rng: np.random.Generator) -> None:
        packed = backend.pack([make_weight(rng, kind, 20, 64) for kind in FORMATS])
        assert backend.linear(np.zeros((0, 64), np.float32), packed).shape == (0, 100)
        assert not backend.linear(np.zeros((2, 64), np.float32), packed).any()

    @pytest.mark.parametrize("size", [1e-38, 1e-20, 1e20])
    def test_extreme_sizes(self, backend: Backend, rng: np.random.Generator, size: float) -> None:
        x = normal(rng, 2, 64) * np.float32(size)
        for kind in FORMATS:
            weight = make_weight(rng, kind, 20, 64)
            want = REFERENCE.linear(x, REFERENCE.pack([weight]))
            # The matrix unit takes subnormal numbers for zero: each of 64 products may be off by a weight times the least normal.
            flushed = 4 * 64 * 2.0**-126 if backend.isa == "amx" and kind == "bf16" else 0.0
            np.testing.assert_allclose(backend.linear(x, backend.pack([weight])), want, rtol=1e-3, atol=size * 1e-3 + flushed)

    def test_extreme_codes_do_not_saturate(self, backend: Backend) -> None:
        x = np.where(np.arange(64) % 2, 1, -1).astype(np.float32)[None]
        ones = np.ones((16, 2), np.float16)
        low = Weight("q8", np.where(np.arange(64) % 2, -128, 127).astype(np.int8)[None].repeat(16, 0), ones)
        high = Weight("q4", np.full((16, 64), 15, np.uint8), ones, ones)
        out = backend.linear(np.concatenate([x, np.abs(x)]), backend.pack([low, high]))
        np.testing.assert_allclose(out[:, 0], [-32 * 255, -32], rtol=1e-6)
        np.testing.assert_allclose(out[:, 16], [0, 64 * 16], rtol=1e-6)
        lowest = Weight("q8", np.full((16, 64), -128, np.int8), ones)
        out = backend.linear(np.concatenate([np.abs(x), -np.abs(x)]), backend.pack([lowest]))
        np.testing.assert_allclose(out[:, 0], [-64 * 128, 64 * 128], rtol=1e-6)

    @pytest.mark.parametrize("kind", ["q8", "q4"])
    @pytest.mark.parametrize("inputs", ["normal", "outlier", "tiny", "subnormal"])
    def test_rounding_of_inputs(self, backend: Backend, rng: np.random.Generator, kind: WeightFormat, inputs: str) -> None:
        """Against float64 with inputs that are not rounded: off by half a step of their codes in each, and by float32's sums."""
        weight, x = make_weight(rng, kind, 50, 576), normal(rng, 7, 576)
        if inputs == "outlier":
            x[:, ::32] *= np.float32(1e4)
        elif inputs != "normal":
            x *= np.float32({"tiny": 1e-28, "subnormal": 1e-39}[inputs])
        values = REFERENCE.embed(REFERENCE.pack([weight]), np.arange(50, dtype=np.int32)).astype(np.float64)
        want = x.astype(np.float64) @ values.T
        got = backend.linear(x, backend.pack([weight]))
        largest = np.abs(x.reshape(7, 18, 32)).max(axis=2).astype(np.float64)
        steps, off_by = (32767, 1e-4) if kind == "q8" else (2047, 1e-3)
        half_steps = np.where(largest > 1e-30, largest / (2 * steps), largest)
        bound = half_steps @ np.abs(values).reshape(50, 18, 32).sum(axis=2).T
        bound += (np.abs(x).astype(np.float64) @ np.abs(values).T) * np.sqrt(576) * 2.0**-23
        assert (np.abs(got - want) <= bound).all()
        if inputs == "normal":
            assert np.linalg.norm(got - want) < off_by * np.linalg.norm(want)

    @pytest.mark.parametrize(("kind", "most"), [("q8", 32767), ("q4", 2047)])
    @pytest.mark.parametrize("rows", [1, 7])
    def test_inputs_round_half_to_even(self, backend: Backend, kind: WeightFormat, most: int, rows: int) -> None:
        ones, zeros = np.ones((32, 1), np.float16), np.zeros((32, 1), np.float16)
        identity = np.eye(32, dtype=np.uint8)
        weight = Weight("q8", identity.view(np.int8), ones) if kind == "q8" else Weight("q4", identity, ones, zeros)
        x = np.array([most, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, most - 0.5, 0.5 - most, -most, 0.75] + [0] * 21, np.float32)
        want = np.array([most, 0, 2, 2, 0, -2, -2, most - 1, 1 - most, -most, 1] + [0] * 21, np.float32)
        out = backend.linear(np.tile(x, (rows, 1)), backend.pack([weight]))
        np.testing.assert_allclose(out, np.tile(want, (rows, 1)), rtol=1e-6)

    @pytest.mark.parametrize("kind", FORMATS)
    @pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
    def test_nan_and_infinity_stay_in_their_row(
        self, backend: Backend, rng: np.random.Generator, kind: WeightFormat, odd: float
    ) -> None:
        weight, x = make_weight(rng, kind, 40, 64), normal(rng, 9, 64)
        packed = backend.pack([weight])
        clean = backend.linear(x, packed)
        x[4, 50] = odd
        out = backend.linear(x, packed)
        if kind in ("q8", "q4") or np.isnan(odd):
            assert np.isnan(out[4]).all()
        else:
            assert np.isinf(out[4]).all()
        assert same_bits(np.delete(out, 4, axis=0), np.delete(clean, 4, axis=0))
        together, alone = out[4], backend.linear(x[4:5], packed)[0]
        assert same_bits(together, alone)

    @pytest.mark.parametrize("isa", _native.isas())
    def test_nan_is_the_same_alone_and_together(self, rng: np.random.Generator, isa: str) -> None:
        """Of NaN of both signs, infinities that meet, and a bias that is NaN, a machine keeps one or makes another."""
        backend, odd = make_backend("cpu", threads=2, isa=isa), np.array([np.nan, -np.nan, np.inf, -np.inf], np.float32)
        for kind in FORMATS:
            packed, bias = backend.pack([make_weight(rng, kind, 37, 96)]), normal(rng, 37)
            bias[20] = -np.nan
            for num in rng.integers(1, 41, 12):
                x = normal(rng, num, 96)
                x[rng.integers(num, size=(2 * num, 1)), rng.integers(96, size=(2 * num, 2))] = rng.choice(odd, (2 * num, 2))
                for b in (None, bias):
                    together = backend.linear(x, packed, b)
                    assert np.isnan(together).any()
                    assert np.unique(together[np.isnan(together)].view(np.int32)).size == 1
                    start = rng.integers(num)
                    stop = rng.integers(start + 1, num + 1)
                    assert same_bits(backend.linear(x[start:stop], packed, b), together[start:stop]), (kind, num, start, stop)

    def test_bad_arguments(self, backend: Backend, rng: np.random.Generator) -> None:
        with pytest.raises(ValueError, match="one K"):
            backend.pack([make_weight(rng, "f32", 4, 32), make_weight(rng, "f32", 4, 64)])
        with pytest.raises(ValueError, match="multiple of 32"):
            backend.pack([Weight("q8", np.zeros((4, 33), np.int8), np.zeros((4, 1), np.float16))])
        with pytest.raises(ValueError, match="at least one"):
            backend.pack([])
        packed = backend.pack([make_weight(rng, "q8", 4, 32)])
        with pytest.raises(ValueError, match="token ids are from 0 to 3"):
            backend.embed(packed, np.array([4], np.int32))
        with pytest.raises(ValueError, match="K"):
            backend.linear(np.zeros((1, 64), np.float32), packed)


class TestRows:
    @pytest.mark.parametrize("shape", [(5, 576), (1, 7), (4, 3, 64), (0, 32), (200, 200)])
    def test_rms_norm(self, backend: Backend, rng: np.random.Generator, shape: tuple[int, ...]) -> None:
        x, weight = normal(rng, *shape), normal(rng, shape[-1])
        got = backend.rms_norm(x, weight, 1e-5)
        np.testing.assert_allclose(got, REFERENCE.rms_norm(x, weight, 1e-5), rtol=1e-5, atol=1e-6)
        if len(x):
            assert same_bits(backend.rms_norm(x[-1:], weight, 1e-5), got[-1:])

    @pytest.mark.parametrize("shape", [(3, 40), (300, 576), (0, 8)])
    def test_add(self, backend: Backend, rng: np.random.Generator, shape: tuple[int, int]) -> None:
        x, y = normal(rng, *shape), normal(rng, *shape)
        want = x + y
        backend.add(x, y)
        assert same_bits(x, want)

    @pytest.mark.parametrize("shape", [(3, 80), (1, 14), (150, 3072), (0, 8)])
    def test_silu_mul(self, backend: Backend, rng: np.random.Generator, shape: tuple[int, int]) -> None:
        x = normal(rng, *shape) * 8
        got = backend.silu_mul(x)
        np.testing.assert_allclose(got, REFERENCE.silu_mul(x), rtol=2e-6, atol=1e-30)
        if len(x):
            assert same_bits(backend.silu_mul(x[-1:]), got[-1:])

    def test_silu_of_large_gates(self, backend: Backend) -> None:
        gate_up = np.array([[-1e4, -100, -20, 0, 20, 1e4] + [1] * 6], np.float32)
        np.testing.assert_allclose(
            backend.silu_mul(gate_up)[0], [0, 0, -20 / (1 + np.exp(20)), 0, 20, 1e4], atol=1e-30, rtol=1e-6
        )

    @pytest.mark.parametrize("shape", [(3, 80), (1, 14), (150, 3072), (0, 8)])
    def test_gelu_mul(self, backend: Backend, rng: np.random.Generator, shape: tuple[int, int]) -> None:
        x = normal(rng, *shape) * 3
        got = backend.gelu_mul(x)
        gate, up = np.split(x.astype(np.float64), 2, axis=1)
        want = gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        if len(x):
            assert same_bits(backend.gelu_mul(x[-1:]), got[-1:])

    def test_gelu_of_large_gates(self, backend: Backend) -> None:
        gate_up = np.array([[-1e30, -1e4, -20, 0, 20, 1e30] + [1] * 6], np.float32)
        np.testing.assert_allclose(backend.gelu_mul(gate_up)[0], [0, 0, 0, 0, 20, 1e30], atol=1e-7, rtol=1e-6)

    @pytest.mark.parametrize("shape", [(3, 41), (1, 1), (40, 3000), (0, 8)])
    def test_soft_cap(self, backend: Backend, rng: np.random.Generator, shape: tuple[int, int]) -> None:
        x = normal(rng, *shape) * 50
        got, last = x.copy(), x[-1:].copy()
        backend.soft_cap(got, 30.0)
        np.testing.assert_allclose(got, 30 * np.tanh(x / 30.0), rtol=1e-6, atol=1e-5)
        backend.soft_cap(last, 30.0)
        assert same_bits(last, got[-1:])

    def test_soft_cap_of_what_is_far_out(self, backend: Backend) -> None:
        x = np.array([[-np.inf, -1e30, -1e4, 0, 1e4, np.inf, np.nan]], np.float32)
        backend.soft_cap(x, 30.0)
        np.testing.assert_array_equal(x[0], np.array([-30, -30, -30, 0, 30, 30, np.nan], np.float32))

    @pytest.mark.parametrize("is_normalized", [True, False])
    @pytest.mark.parametrize(("shape", "num_chosen"), [((5, 8), 2), ((1, 1), 1), ((40, 128), 8), ((3, 17), 17), ((0, 4), 2)])
    def test_choose_experts(
        self, backend: Backend, rng: np.random.Generator, shape: tuple[int, int], num_chosen: int, is_normalized: bool
    ) -> None:
        scores = normal(rng, *shape) * 3
        got, last = scores.copy(), scores[-1:].copy()
        backend.choose_experts(got, num_chosen, is_normalized)
        weights = np.exp(scores.astype(np.float64))
        weights /= weights.sum(axis=1, keepdims=True)
        want = np.where(np.argsort(np.argsort(-weights, axis=1), axis=1) < num_chosen, weights, 0)
        if is_normalized:
            want /= want.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-12)
        backend.choose_experts(last, num_chosen, is_normalized)
        assert same_bits(last, got[-1:])

    def test_experts_of_equal_and_odd_scores(self, backend: Backend) -> None:
        """Of equal ones the first; what is not finite makes the row's weights NaN, and no other row's."""
        scores = np.array([[1, 2, 2, 2], [0, 0, 0, 0], [1, np.nan, 0, 0], [np.inf, 0, 0, 0], [-200, 300, 0, 0]], np.float32)
        with np.errstate(invalid="ignore"):
            backend.choose_experts(scores, 2, True)
        np.testing.assert_array_equal(scores[[0, 1, 4]], [[0, 0.5, 0.5, 0], [0.5, 0.5, 0, 0], [0, 1, 0, 0]])
        assert np.isnan(scores[2:4]).any(axis=1).all()
        for num_chosen in (0, 5):
            with pytest.raises(ValueError, match="experts"):
                backend.choose_experts(scores, num_chosen, True)

    @pytest.mark.parametrize(("head_dim", "half"), [(64, 32), (80, 20), (8, 4), (128, 64), (16, 0)])
    def test_rope(self, backend: Backend, rng: np.random.Generator, head_dim: int, half: int) -> None:
        x, angles = normal(rng, 6, 5, head_dim), normal(rng, 6, half)
        want, last = x.copy(), x[-1:].copy()
        REFERENCE.rope(want, np.cos(angles), np.sin(angles))
        backend.rope(x, np.cos(angles), np.sin(angles))
        np.testing.assert_allclose(x, want, rtol=1e-5, atol=1e-6)
        backend.rope(last, np.cos(angles[-1:]), np.sin(angles[-1:]))
        assert same_bits(last, x[-1:])


class TestWriteKV:
    @pytest.mark.parametrize("head_dim", [8, 24, 64])
    @pytest.mark.parametrize("kv", KV_FORMATS)
    def test_only_the_slots_change(self, backend: Backend, rng: np.random.Generator, head_dim: int, kv: KVFormat) -> None:
        keys, values, slots = normal(rng, 4, 3, head_dim), normal(rng, 4, 3, head_dim), np.array([9, 0, 3, 4], np.int32)
        layers = unwritten_kv(2, 10, 3, head_dim, kv)
        backend.write_kv(layers[0], keys, values, slots)
        REFERENCE.write_kv(layers[1], keys, values, slots)
        assert same_bits(layers[0].keys, layers[1].keys)
        assert same_bits(layers[0].values, layers[1].values)

    def test_rounding_to_bf16(self, backend: Backend) -> None:
        bits = [0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFC00000]
        bits += [0, 0x80000000, 1, 0x00008000, 0x00018000, 0x8000FFFF, 0x7FFFFFFF]
        want = [0x3F80, 0x3F82, 0x3F81, 0x3F80, 0x7F80, 0x7F80, 0xFF80, 0x7FC0, 0xFFC0]
        want += [0, 0x8000, 0, 0, 2, 0x8001, 0x7FFF]
        x = np.array(bits, np.uint32).view(np.float32)
        for rows in (x.reshape(1, 1, 16), x.reshape(1, 2, 8)):  # whole vectors and tails
            layer = KVLayer(*(np.zeros((1, *rows.shape[1:]), np.uint16) for _ in range(2)))
            backend.write_kv(layer, rows, rows, np.zeros(1, np.int32))
            assert layer.keys.reshape(-1).tolist() == want

    def test_rounding_to_int8(self, backend: Backend) -> None:
        """A scale for each token and head, half to even; zeros stay zeros, and what is not finite makes its head NaN."""
        rows = np.zeros((1, 6, 24), np.float32)
        rows[0, 0, :8] = [-127, 126.5, 125.5, 0.5, -0.5, 1.5, 0.499, 3]
        rows[0, 1, 20] = -3e38
        rows[0, 2, :2] = 1e-32, -1e-33
        rows[0, 4, 3], rows[0, 5, 23] = np.inf, np.nan
        (layer,) = unwritten_kv(1, 1, 6, 24, "int8")
        backend.write_kv(layer, rows, -rows, np.zeros(1, np.int32))
        codes, scales = layer.keys[0, :, :24], layer.keys[0, :, 24:].copy().view(np.float32)[:, 0]
        assert codes[0].tolist() == [-127, 126, 126, 0, 0, 2, 0, 3, *[0] * 16]
        assert codes[1].tolist() == [0] * 20 + [-127, 0, 0, 0]
        assert not codes[2:].any()
        assert scales[:4].tolist() == [np.float32(x) * (1 / np.float32(127)) for x in (127, 3e38, 1e-32, 0)]
        assert np.isnan(scales[4:]).all()
        assert same_bits(layer.values[0, :, :24], -codes)

    def test_slots_beyond_the_pool_are_refused(self, backend: Backend) -> None:
        layer = KVLayer(np.zeros((4, 1, 8), np.float32), np.zeros((4, 1, 8), np.float32))
        new = np.zeros((1, 1, 8), np.float32)
        with pytest.raises((ValueError, IndexError)):
            backend.write_kv(layer, new, new, np.array([4], np.int32))


class TestCopyPages:
    @pytest.mark.parametrize("dtype", [np.float32, np.uint16, np.int8])
    def test_one_after_another(self, backend: Backend, rng: np.random.Generator, dtype: type) -> None:
        def ints(*values: int) -> Int32:
            return np.array(values, np.int32)

        stores = [rng.integers(0, 9, (12, 2, 12)).astype(dtype) for _ in range(4)]
        want = [store.copy() for store in stores]
        copies = PageCopies(src=ints(0, 1, 2), dst=ints(1, 2, 0), num_tokens=ints(3, 4, 0))
        backend.copy_pages([KVLayer(*stores[:2]), KVLayer(*stores[2:])], copies, page_size=4)
        for store, before in zip(stores, want, strict=True):
            before[4:7] = before[0:3]
            before[8:12] = before[4:8]
            assert same_bits(store, before)


def test_bf16_round_trip() -> None:
    halves = np.arange(2**16, dtype=np.uint32).astype(np.uint16)
    values = bf16_to_f32(halves)
    finite = ~np.isnan(values)
    assert same_bits(f32_to_bf16(values)[finite], halves[finite])
    assert np.isnan(bf16_to_f32(f32_to_bf16(values)[~finite])).all()
