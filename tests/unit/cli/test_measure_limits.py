"""The machine's limits: what is offered, what it says, and how work is held against it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ramet import _native
from ramet.cli.measure.limits import Limits, Rates, Work, linear_work, peaks_of
from ramet.kernels.backend import GROUP, Weight, WeightFormat
from ramet.kernels.registry import make_backend

_RATES = Rates(read=10.0, quantized=100.0, half=50.0, single=20.0)


def test_every_set_of_kernels_has_a_peak_of_single_precision():
    for isa in _native.isas():
        assert "fp32" in [numbers for _, numbers, _ in peaks_of(isa)]


@pytest.mark.parametrize(("isa", "numbers"), [(isa, numbers) for isa, numbers, _ in _native.peaks()])
def test_every_peak_of_this_machine_runs(isa, numbers):
    for threads in (1, 2):
        rate = _native.measure_peak(isa, numbers, threads, 0.002)
        assert math.isfinite(rate)
        assert rate > 1e7, "ten million operations a second were too many for no machine since 1995"


def test_a_stream_is_whole_pieces_and_at_least_one_a_thread():
    assert _native.Stream(1, 3).num_bytes == 3 * 65536
    stream = _native.Stream(10 * 65536 + 5, 3)
    assert stream.num_bytes == 10 * 65536
    assert stream.rate(0.002) > 1e6


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: _native.measure_peak("generic", "fp32", 0, 0.1), "threads"),
        (lambda: _native.measure_peak("generic", "fp32", 1, 0.0), "seconds"),
        (lambda: _native.measure_peak("generic", "fp32", 1, math.nan), "seconds"),
        (lambda: _native.measure_peak("generic", "int4", 1, 0.1), "no peak of int4 in generic"),
        (lambda: _native.Stream(0, 1), "at least one byte"),
        (lambda: _native.Stream(1, 0), "threads"),
        (lambda: _native.Stream(1, 1).rate(1e9), "seconds"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_reading_and_arithmetic_overlap_and_kinds_of_arithmetic_do_not():
    assert _RATES.seconds(Work(num_bytes=30)) == 3
    assert _RATES.seconds(Work(quantized_ops=100, half_ops=50, single_ops=20)) == 3
    work = Work(40, 100, 50, 20)
    assert (_RATES.seconds(work), _RATES.bound(work)) == (4, "read")
    assert (_RATES.seconds(work + Work(single_ops=40)), _RATES.bound(work + Work(single_ops=40))) == (5, "ops")
    assert work * 2 == Work(80, 200, 100, 40)
    assert work.num_ops == 170


def test_the_mean_of_readings_is_taken_rate_by_rate():
    assert Rates.mean([Rates(1, 2, 3, 4), Rates(3, 4, 5, 6)]) == Rates(2, 3, 4, 5)


@pytest.mark.parametrize(
    ("weight_format", "kind"),
    [("q4", "quantized_ops"), ("q8", "quantized_ops"), ("bf16", "half_ops"), ("f16", "half_ops"), ("f32", "single_ops")],
)
def test_the_work_of_a_product_is_what_its_packed_weight_says(weight_format: WeightFormat, kind: str):
    types = {"q4": np.uint8, "q8": np.int8, "bf16": np.uint16, "f16": np.float16, "f32": np.float32}
    n, k = 48, 96
    scales = np.ones((n, k // GROUP), np.float16) if weight_format in ("q4", "q8") else None
    mins = scales if weight_format == "q4" else None
    packed = make_backend(threads=1).pack([Weight(weight_format, np.ones((n, k), types[weight_format]), scales, mins)])
    assert linear_work(packed, 7) == Work(packed.nbytes, **{kind: 2.0 * n * k * 7})


@pytest.mark.parametrize("isa", _native.isas())
def test_limits_are_read_again_and_their_spread_is_kept(isa):
    limits = Limits(isa, 1, 1 << 20, window_s=0.001)
    first, second = limits.now(), limits.now()
    assert limits.readings == [first, second]
    for name, (low, high) in limits.spread().items():
        assert {low, high} == {getattr(first, name), getattr(second, name)}
        assert 0 < low <= high
    assert set(limits.instructions) == {"quantized", "half", "single"}
