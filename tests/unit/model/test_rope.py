from __future__ import annotations

import numpy as np

from ramet.core.ids import Float32, Int32
from ramet.kernels.program import Pairs
from ramet.model.rope import RopeTable, inverse_frequencies, linear_divisors, llama3_divisors, yarn_divisors, yarn_scale
from ramet.model.spec import NO_ROPE, RopeSpec


def rows(table: RopeTable, positions: Int32) -> tuple[Float32, Float32]:
    cos, sin = table.reaching(positions)
    return cos[positions], sin[positions]


def test_b163_llama3_scaling_by_pair() -> None:
    divisors = llama3_divisors(64, 500_000.0, factor=8, low=1, high=4, original_max_position=8192)
    ratios = 1 / np.array(divisors)
    assert np.array_equal(ratios[:15], np.ones(15))
    assert np.allclose(ratios[15:18], [0.643743, 0.371122, 0.190211], atol=1e-6)
    assert np.array_equal(ratios[18:], np.full(14, 0.125))
    assert np.isclose(inverse_frequencies(RopeSpec(500_000.0, 64, divisors))[16], 5.2484616e-04, rtol=1e-7)


def test_b164_linear_scaling_is_positions_divided() -> None:
    plain = RopeTable([RopeSpec(10_000.0, 32, linear_divisors(32))])
    halved = RopeTable([RopeSpec(10_000.0, 32, linear_divisors(32, 2.0))])
    positions = np.arange(0, 2000, 2, dtype=np.int32)
    for slow, fast in zip(rows(halved, positions), rows(plain, positions // 2), strict=True):
        assert np.array_equal(slow, fast)


def test_rows_are_the_definition_rounded_once() -> None:
    table = RopeTable([RopeSpec(10_000.0, 16, linear_divisors(16))])
    positions = np.array([0, 1, 5, 1023, 1024, 4000], np.int32)
    cos, sin = rows(table, positions)
    angles = positions[:, None].astype(np.float64) * 10_000.0 ** -(np.arange(0, 16, 2) / 16)
    assert np.allclose(cos, np.cos(angles), atol=6e-8, rtol=0)
    assert np.allclose(sin, np.sin(angles), atol=6e-8, rtol=0)
    assert cos.dtype == sin.dtype == np.float32


def test_bits_do_not_depend_on_what_was_asked_before() -> None:
    spec = [RopeSpec(500_000.0, 64, linear_divisors(64)), RopeSpec(10_000.0, 8, linear_divisors(8), 1.5)]
    positions = np.arange(5000, dtype=np.int32)
    at_once = rows(RopeTable(spec), positions)
    grown = RopeTable(spec)
    for last in (0, 1, 1023, 1024, 1030, 3100):
        grown.reaching(np.array([last], np.int32))
    for one, other in zip(at_once, rows(grown, positions), strict=True):
        assert np.array_equal(one.view(np.uint32), other.view(np.uint32))


def test_no_positions() -> None:
    cos, sin = RopeTable([RopeSpec(10_000.0, 16, linear_divisors(16))]).reaching(np.empty(0, np.int32))
    assert cos.shape == sin.shape == (0, 8)


def test_kinds_stand_side_by_side_once_each() -> None:
    one, other = RopeSpec(10_000.0, 16, linear_divisors(16)), RopeSpec(500.0, 8, linear_divisors(8), 2.0)
    table = RopeTable([one, NO_ROPE, other, one])
    assert (table.pairs(one), table.pairs(NO_ROPE), table.pairs(other)) == (Pairs(0, 8), Pairs(8, 0), Pairs(8, 4))
    positions = np.arange(20, dtype=np.int32)
    cos, sin = rows(table, positions)
    for spec, columns in ((one, slice(0, 8)), (other, slice(8, 12))):
        for own, all_of_them in zip(rows(RopeTable([spec]), positions), (cos, sin), strict=True):
            assert np.array_equal(own, all_of_them[:, columns])
    assert np.allclose(cos[:, 8:] ** 2 + sin[:, 8:] ** 2, 4.0)  # the scale


def test_no_layer_turns() -> None:
    cos, sin = rows(RopeTable([NO_ROPE]), np.arange(3, dtype=np.int32))
    assert cos.shape == sin.shape == (3, 0)


def test_yarn_by_pair() -> None:
    """Fast pairs keep their pace, slow ones are divided by the factor; the ramp ends at whole pairs unless told otherwise."""
    given = {"factor": 4.0, "slow": 1.0, "fast": 32.0, "original_max_position": 4096}
    divisors = np.array(yarn_divisors(128, 10_000.0, **given))
    assert np.array_equal(divisors[:21], np.ones(21))
    assert np.array_equal(divisors[46:], np.full(18, 4.0))
    assert (np.diff(divisors[20:47]) > 0).all()
    ragged = np.array(yarn_divisors(128, 10_000.0, **given, whole=False))
    assert 0 < np.abs(ragged - divisors).max() < 0.5
    assert set(yarn_divisors(8, 10_000.0, factor=2.0, slow=1.0, fast=32.0, original_max_position=2)) == {1.0, 2.0}  # no ramp
    assert yarn_scale(0.5) == 1.0
    assert np.isclose(yarn_scale(4.0), 1.1386294)
