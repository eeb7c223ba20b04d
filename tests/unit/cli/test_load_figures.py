"""Figures of made-up times, worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.cli.load.figures import Bounds, Figures, Record, Spread, figures, percentile
from ramet.cli.load.report import as_json, table

QUICK = Record(1.0, 1.0, [1.1, 1.2, 1.4], 1.5, prompt_tokens=100, cached_tokens=64, output_tokens=4)
LATE = Record(1.0, 1.3, [1.5, 1.75], 2.0, prompt_tokens=50, cached_tokens=0, output_tokens=2)  # sent late: the wait counts
SHORT = Record(2.0, 2.0, [2.25], 2.5, prompt_tokens=10, cached_tokens=9, output_tokens=1)
REFUSED = Record(2.0, 2.0, [], 2.1, error="HTTP 429", error_text="queue is full")
CUT_OFF = Record(2.0, 2.0, [2.2, 2.3])


def made(*records: Record, num_planned: int | None = None, duration_s: float = 2.0, bounds: Bounds | None = None) -> Figures:
    planned = len(records) if num_planned is None else num_planned
    return figures(records, num_planned=planned, duration_s=duration_s, bounds=bounds or Bounds())


def only(spread: Spread | None) -> float:
    assert spread is not None
    assert spread.num == 1
    return spread.max


# --- percentiles ---


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([7.0], 50, 7.0),
        ([7.0], 99, 7.0),
        ([1.0, 2.0], 50, 1.0),
        ([1.0, 2.0], 51, 2.0),
        ([1.0, 2.0, 3.0], 50, 2.0),
        ([1.0, 2.0, 3.0], 90, 3.0),
        ([float(i) for i in range(1, 11)], 90, 9.0),
        ([float(i) for i in range(1, 100)], 99, 99.0),
        ([float(i) for i in range(1, 101)], 99, 99.0),
        ([float(i) for i in range(1, 102)], 99, 100.0),
        ([float(i) for i in range(1, 201)], 99, 198.0),
    ],
)
def test_percentiles_of_few_values(values, percent, expected):
    assert percentile(values, percent) == expected


@given(st.lists(st.integers(0, 20), min_size=1, max_size=150), st.sampled_from([1, 50, 90, 99, 100]))
def test_a_percentile_is_the_least_value_that_is_enough(values, percent):
    ordered = sorted(map(float, values))
    found = percentile(ordered, percent)

    def share(limit: float) -> int:
        return 100 * sum(value <= limit for value in ordered)

    assert found in ordered
    assert share(found) >= percent * len(ordered)
    assert all(share(value) < percent * len(ordered) for value in ordered if value < found)


def test_spread():
    assert Spread.of([4.0, 1.0, 2.0, 3.0]) == Spread(p50=2.0, p90=4.0, p99=4.0, mean=2.5, max=4.0, num=4)
    assert Spread.of([]) is None


# --- one request ---


def test_times_of_one_request():
    found = made(QUICK)
    assert only(found.ttft_ms) == pytest.approx(100)
    assert only(found.tpot_ms) == pytest.approx(100), "0.3 s for the 3 tokens after the first, in however many chunks"
    assert only(found.e2e_ms) == pytest.approx(500)
    assert found.itl_ms is not None
    assert (found.itl_ms.p50, found.itl_ms.max, found.itl_ms.num) == (pytest.approx(100), pytest.approx(200), 2)


def test_times_count_from_when_the_request_was_due():
    found = made(LATE)
    assert only(found.ttft_ms) == pytest.approx(500)
    assert only(found.e2e_ms) == pytest.approx(1000)
    assert only(found.lag_ms) == pytest.approx(300)


@pytest.mark.parametrize(
    "record",
    [
        SHORT,
        Record(0, 0, [0.5], 1.0, output_tokens=20),  # all in one chunk: nothing is known of the time between tokens
        Record(0, 0, [0.5, 0.6], 1.0, output_tokens=1),
        Record(0, 0, [], 1.0, output_tokens=0),
    ],
)
def test_no_time_per_token_where_none_can_be_told(record):
    assert made(record).tpot_ms is None


def test_an_answer_without_text_has_an_end_and_no_first_token():
    found = made(Record(0, 0, [], 1.0, prompt_tokens=5, output_tokens=0))
    assert (found.num_answered, found.ttft_ms, found.itl_ms) == (1, None, None)
    assert only(found.e2e_ms) == 1000


# --- a run ---


def test_sums_of_a_run():
    found = made(QUICK, LATE, SHORT, REFUSED, CUT_OFF, num_planned=9)
    assert (found.num_answered, found.num_failed, found.num_unfinished, found.num_unsent) == (3, 1, 1, 4)
    assert (found.prompt_tokens, found.cached_tokens, found.output_tokens) == (160, 73, 7)
    assert found.hit_rate == 73 / 160
    assert found.per_s(found.num_answered) == 1.5
    assert found.ttft_ms is not None
    assert (found.ttft_ms.num, found.ttft_ms.max) == (3, pytest.approx(500)), "of answered requests only"
    assert found.lag_ms is not None
    assert found.lag_ms.num == 5


def test_errors_are_counted_by_kind_with_the_first_text_of_each():
    again = Record(3.0, 3.0, [], 3.1, error="HTTP 429", error_text="still full")
    found = made(Record(1.0, 1.0, [], 9.0, error="timeout", error_text="60 s"), REFUSED, again)
    assert found.errors == {"HTTP 429": 2, "timeout": 1}
    assert found.error_texts == {"HTTP 429": "queue is full", "timeout": "60 s"}


def test_hit_rate_is_not_told_or_zero():
    silent = Record(0, 0, [0.5], 1.0, prompt_tokens=100, output_tokens=1)
    assert made(silent).hit_rate is None
    assert made(silent, LATE).hit_rate == 0.0
    assert made(silent, QUICK).hit_rate == 64 / 200, "a server that leaves the field out on a miss has a miss there"


def test_chunks_are_counted_where_usage_is_not_told():
    found = made(Record(0, 0, [0.5, 0.6, 0.7], 1.0), QUICK)
    assert (found.output_tokens, found.is_estimated) == (7, True)
    assert made(QUICK).is_estimated is False


@pytest.mark.parametrize(
    ("bounds", "num_good"),
    [
        (Bounds(), None),
        (Bounds(ttft_ms=100.1), 1),
        (Bounds(ttft_ms=99), 0),
        (Bounds(ttft_ms=600), 3),
        (Bounds(tpot_ms=99), 1),  # SHORT, which has no second token to be late
        (Bounds(tpot_ms=101), 2),
        (Bounds(tpot_ms=250.1), 3),
        (Bounds(ttft_ms=251, tpot_ms=101), 2),
    ],
)
def test_goodput(bounds, num_good):
    empty = Record(0, 0, [], 1.0, output_tokens=0)
    assert made(QUICK, LATE, SHORT, REFUSED, CUT_OFF, bounds=bounds).num_good == num_good
    assert made(empty, bounds=Bounds(ttft_ms=1e9)).num_good == 0, "no token came in time"


def test_a_run_of_nothing():
    found = made(num_planned=3, duration_s=0.0)
    assert (found.num_unsent, found.ttft_ms, found.hit_rate, found.per_s(0)) == (3, None, None, 0.0)
    assert table(found, Bounds()).startswith("3 requests in 0.0 s: 0 answered, 0 failed, 3 not sent")


# --- the report ---


def test_table():
    bounds = Bounds(ttft_ms=251, tpot_ms=101)
    told = table(made(QUICK, LATE, SHORT, REFUSED, CUT_OFF, num_planned=9, bounds=bounds), bounds)
    assert told == (
        "9 requests in 2.0 s: 3 answered, 1 failed, 4 not sent, 1 cut off\n"
        "     1 x HTTP 429: queue is full\n"
        "\n"
        "ms             p50         p90         p99        mean         max    values\n"
        "TTFT         250.0       500.0       500.0       283.3       500.0         3\n"
        "TPOT         100.0       250.0       250.0       175.0       250.0         2\n"
        "ITL          200.0       250.0       250.0       183.3       250.0         3\n"
        "E2E          500.0     1,000.0     1,000.0       666.7     1,000.0         3\n"
        "\n"
        "requests        1.50 /s\n"
        "tokens in       80.0 /s   160 in all\n"
        "tokens out       3.5 /s   7 in all\n"
        "hit rate       45.6%      73 of 160 prompt tokens\n"
        "goodput         1.00 /s   2 requests with TTFT <= 251 ms and TPOT <= 101 ms\n"
        "\n"
        "note: requests were sent up to 300 ms late (p99); this client is too busy\n"
    ).rstrip("\n")


def test_table_says_what_is_not_known_and_fits_80_columns():
    words = "word " * 60
    unknown = Record(0, 0, [], 1e4, error="HTTP 500", error_text=words)
    told = table(made(Record(0, 0, [1.0], 1e4), unknown, duration_s=1e4), Bounds())
    assert "hit rate    not told" in told
    assert "goodput     not asked" in told
    assert "TPOT      no value" in told
    assert "one token a chunk" in told
    assert max(map(len, told.splitlines())) <= 80


def test_json_has_the_same_figures():
    bounds = Bounds(ttft_ms=251)
    told = as_json(made(QUICK, LATE, SHORT, REFUSED, CUT_OFF, num_planned=9, bounds=bounds), bounds)
    assert told["requests"] == {"planned": 9, "answered": 3, "failed": 1, "unsent": 4, "unfinished": 1}
    assert told["errors"] == {"HTTP 429": 1}
    assert told["ttft_ms"] == {"p50": 250.0, "p90": 500.0, "p99": 500.0, "mean": 283.3333, "max": 500.0, "num": 3}
    assert (told["hit_rate"], told["goodput_per_s"], told["slo"]) == (0.45625, 1.0, {"ttft_ms": 251, "tpot_ms": None})
    assert as_json(made(SHORT), Bounds())["tpot_ms"] is None
    assert as_json(made(SHORT), Bounds())["goodput_per_s"] is None
