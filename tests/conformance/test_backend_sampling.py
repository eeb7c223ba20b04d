"""Sampling on each instruction set against the numpy definition: equal, but for the rounding of weights."""

from __future__ import annotations

import itertools
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.instruction_sets import CPUS
from support.sampling_rows import rows_of

from ramet import _native
from ramet.core.batch import RowSampling
from ramet.core.ids import Float32
from ramet.kernels.backend import Backend, Choosing, Picks, RowFault
from ramet.kernels.reference import ReferenceBackend
from ramet.kernels.reference_sampling import _nucleus
from ramet.kernels.registry import make_backend
from ramet.runner.sampler import uniforms

REFERENCE = ReferenceBackend()
EDGE = 4e-6  # how far float32 weights may move a boundary, as a probability
WEIGHT_STEP = 2.0**-21  # between weights that float32 may not tell apart
LARGEST = float(np.finfo(np.float32).max)
SIZES = [*range(1, 71), 255, 256, 257, 511, 513, 1024, 4095, 9000]


@pytest.fixture(scope="module", params=CPUS, ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    isa, threads = request.param
    return make_backend("cpu", threads=threads, isa=isa)


def make_logits(kind: str, size: int, seed: int) -> Float32:
    rng = np.random.default_rng(seed)
    made = {
        "normal": lambda: rng.normal(0, 3, size),
        "peaked": lambda: rng.normal(0, 1, size) - 30 * (np.arange(size) != seed % size),
        "flat": lambda: rng.normal(0, 1e-3, size),
        "equal": lambda: np.full(size, rng.normal()),
        "ties": lambda: rng.integers(-3, 3, size) / 2,
        "signed zeros": lambda: rng.choice([-0.0, 0.0], size),
        "denormal": lambda: rng.integers(-9, 9, size) * 2.0**-149,
        "huge": lambda: rng.choice([-LARGEST, LARGEST, 1.0, -1e30], size),
        "wide": lambda: rng.normal(0, 40, size),
        "rising": lambda: np.arange(size) * 0.01,
    }
    return made[kind]().astype(np.float32)


KINDS = ["normal", "peaked", "flat", "equal", "ties", "signed zeros", "denormal", "huge", "wide", "rising"]


def draws_of(sampling: RowSampling) -> np.ndarray:
    return uniforms(sampling.seed, sampling.sample_index, sampling.counter)


def pick(backend: Backend, logits: Float32, sampling: RowSampling, draws: np.ndarray) -> Picks:
    return backend.sample(logits, Choosing(sampling, np.arange(len(logits), dtype=np.int32), draws))


def agrees(token_id: int, logits: Float32, sampling: RowSampling, u: float) -> bool:
    """Whether the definition chooses this token, or would with its boundaries moved by ``EDGE``.

    Where the tokens at the end of the nucleus are as good as equally likely one may be in it in another's place, which moves
    the boundaries between them by one token's share.
    """
    edge = EDGE + _share_at_the_end_of_nucleus(logits, sampling)
    for min_p, top_p in itertools.product((0, -EDGE, EDGE), repeat=2):
        moved = replace(
            sampling,
            min_p=np.clip(sampling.min_p * np.float32(1 + min_p), 0, 1).astype(np.float32),
            top_p=np.where(sampling.top_p < 1, np.clip(sampling.top_p + np.float32(top_p), 1e-9, 1), 1).astype(np.float32),
        )
        around = max(u - edge, 0.0), min(u + edge, 1 - 2.0**-53)
        first, last = (int(pick(REFERENCE, logits[None], moved, np.array([at])).token_ids[0]) for at in around)
        if first <= token_id <= last:
            return True
    return False


def _share_at_the_end_of_nucleus(logits: Float32, sampling: RowSampling) -> float:
    """The share of the last token in it and of all that have nearly as much; 0 where there are none of these, or all are in.

    Of bias, penalties and masks nothing is known here: with them there is no such excuse.
    """
    top_k, top_p, temperature = int(sampling.top_k[0]), float(sampling.top_p[0]), float(sampling.temperature[0])
    falling = np.sort(np.exp((logits - logits.max()).astype(np.float64) / temperature))[::-1][: top_k or None]
    shares = falling / falling.sum()
    size = min(int(shares.cumsum().searchsorted(top_p)) + 1, len(shares))
    num_tied = int((np.abs(shares - shares[size - 1]) <= shares[size - 1] * WEIGHT_STEP).sum())
    return float(num_tied * shares[size - 1] / top_p) if top_p < 1 and num_tied > 1 else 0.0


ROWS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.2, 1.0, 1.7, 100.0]),
        "top_k": st.sampled_from([0, 1, 2, 7, 300, 2000]),
        "top_p": st.sampled_from([1.0, 0.999999, 0.9, 0.5, 1e-6]),
        "min_p": st.sampled_from([0.0, 0.02, 0.5, 1.0]),
        "seed": st.integers(0, 2**64 - 1),
        "counter": st.integers(0, 2**31),
        "banned": st.lists(st.integers(0, 2**20), max_size=3),
        "allowed": st.one_of(st.just([]), st.lists(st.integers(0, 2**20), min_size=1, max_size=40)),
        "bias": st.dictionaries(st.integers(0, 2**20), st.sampled_from([-100.0, -1.0, 0.1, 100.0]), max_size=3),
        "prompt": st.lists(st.integers(0, 2**20), max_size=9),
        "output": st.lists(st.integers(0, 9), max_size=9),
        "repetition_penalty": st.sampled_from([1.0, 1.3, 0.7, 100.0]),
        "frequency_penalty": st.sampled_from([0.0, 0.3]),
        "presence_penalty": st.sampled_from([0.0, -1.1]),
        "num_logprobs": st.sampled_from([-1, 0, 5]),
    }
)
PLAIN_ROW = {
    "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0, "counter": 0, "banned": [], "allowed": [], "bias": {},
    "prompt": [], "output": [], "repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0, "num_logprobs": -1,
}  # fmt: skip
MASKS = st.one_of(st.none(), st.lists(st.integers(0, 511), min_size=1, max_size=400))


def within(row: dict[str, Any], size: int, mask: list[int] | None) -> dict[str, Any]:
    """The row with its ids in the vocabulary, each of the bias once."""
    ids = {name: [token_id % size for token_id in row[name]] for name in ("banned", "allowed", "prompt", "output")}
    bias = {token_id % size: value for token_id, value in row["bias"].items()}
    return {**row, **ids, "bias": bias} | ({} if mask is None else {"mask": mask})


@settings(max_examples=300 if os.environ.get("RAMET_EXACT") == "full" else 60, derandomize=True)
@given(st.sampled_from(KINDS), st.sampled_from(SIZES), st.integers(0, 2**32 - 1), ROWS, MASKS)
@example("flat", 4095, 0, {**PLAIN_ROW, "temperature": 100.0, "top_k": 2000, "top_p": 0.9, "counter": 1}, None)
@example("flat", 511, 117, {**PLAIN_ROW, "temperature": 100.0, "top_k": 300, "top_p": 0.5, "counter": 1}, None)
def test_a_choice_is_the_definition_s(
    backend: Backend, kind: str, size: int, seed: int, row: dict[str, Any], mask: list[int] | None
) -> None:
    logits, sampling = make_logits(kind, size, seed), rows_of(within(row, size, mask))
    draws = draws_of(sampling)
    want, got = pick(REFERENCE, logits[None], sampling, draws), pick(backend, logits[None], sampling, draws)
    assert (got.faults[0], got.fault_sizes[0]) == (want.faults[0], want.fault_sizes[0])
    if got.token_ids[0] != want.token_ids[0]:
        assert row["temperature"] > 0, "greedy choices agree to the bit"
        assert agrees(int(got.token_ids[0]), logits, sampling, float(draws[0]))


@pytest.mark.parametrize("size", [49_152, 151_936])
@pytest.mark.parametrize(
    "row",
    [
        {},
        {"temperature": 0},
        {"temperature": 0.8, "top_p": 0.9},
        {"top_p": 0.99999},
        {"temperature": 0.6, "top_k": 50},
        {"top_k": 5000, "top_p": 0.95},
        {"temperature": 1.4, "min_p": 0.05},
        {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.1, "prompt": range(0, 40_000, 37)},
    ],
    ids=str,
)
def test_choices_from_whole_vocabularies(backend: Backend, size: int, row: dict[str, Any]) -> None:
    kinds = ["normal", "flat", "equal", "ties", "wide", "peaked"]
    logits = np.stack([make_logits(kind, size, 7) for kind in kinds])
    sampling = rows_of(*[{**row, "seed": i, "counter": size} for i in range(len(kinds))])
    draws = draws_of(sampling)
    want, got = pick(REFERENCE, logits, sampling, draws), pick(backend, logits, sampling, draws)
    for i in np.flatnonzero(got.token_ids != want.token_ids):
        alone = rows_of({**row, "seed": int(i), "counter": size})
        assert agrees(int(got.token_ids[i]), logits[i], alone, float(draws[i])), kinds[i]
    assert (got.token_ids == want.token_ids).sum() >= len(kinds) - 2, "a boundary is seldom met"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "huge"])  # temperatures are no larger than 100
@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 70, 300, 20_000])
def test_every_top_k_to_the_bit(backend: Backend, kind: str, size: int) -> None:
    """With u at its largest the last of the k survivors that weighs anything is chosen, with 0 the first."""
    logits = make_logits(kind, size, 3)
    wide = float(np.abs(logits).max()) + 1e-30  # all weigh something
    counts = sorted({k for k in (1, 2, 3, size // 2, size - 1, 79, 300, 1500) if 0 < k <= size})
    sampling = rows_of(*[{"temperature": wide, "top_k": k} for k in counts for _ in range(2)])
    draws = np.tile([0.0, 1 - 2.0**-53], len(counts))
    many = logits[None].repeat(len(draws), 0)
    want, got = pick(REFERENCE, many, sampling, draws), pick(backend, many, sampling, draws)
    assert got.token_ids.tolist() == want.token_ids.tolist()


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.95, 0.999999])
@pytest.mark.parametrize("scale", [0.0, 0.01, 3.0, 30.0])
def test_the_nucleus_of_a_whole_vocabulary(scale: float, top_p: float) -> None:
    """Flat, usual and peaked distributions: the floors that save the definition sorting change nothing."""
    logits = np.random.default_rng(5).normal(0, 1, 20_000).astype(np.float32) * np.float32(scale)
    weights = np.exp(logits.astype(np.float64) - logits.max())
    places = _nucleus(weights, top_p)
    order = np.argsort(-weights, kind="stable")
    reached = weights[order].cumsum()
    size = int(np.argmax(reached >= top_p * weights.sum())) + 1
    assert np.array_equal(places, np.sort(order[:size]))


# --- a row is a function of itself alone ---------------------------------------------------------------------------------

MIXED = [
    {"temperature": 0},
    {"temperature": 0.8, "num_logprobs": 3},
    {"top_p": 0.9},
    {"top_k": 60, "top_p": 0.7},
    {"min_p": 0.03, "bias": {5: 2.0}},
    {"temperature": 0, "banned": [3, 4]},
    {"repetition_penalty": 1.2, "presence_penalty": 0.2, "output": [1, 2, 2, 3]},
    {"allowed": [1, 5, 9, 200]},
]


@pytest.mark.parametrize("isa", _native.isas())
def test_threads_mates_and_order_change_no_bit(isa: str) -> None:
    size, rng = 10_001, np.random.default_rng(1)
    rows = [{**row, "seed": i} for i, row in enumerate(MIXED * 4)]
    logits = rng.normal(0, 2, (len(rows), size)).astype(np.float32)
    one, two = (make_backend("cpu", threads=threads, isa=isa) for threads in (1, 2))
    best = np.arange(len(rows), dtype=np.int32) % 9 - 1

    def outcome(backend: Backend, order: np.ndarray) -> list[tuple[int, ...]]:
        sampling = rows_of(*[rows[i] for i in order])
        picks = pick(backend, logits[order], sampling, draws_of(sampling))
        told = backend.logprobs(logits[order], picks.token_ids, best[order])
        found: list[Any] = [()] * len(order)
        for at, i in enumerate(order):
            count = best[i]
            numbers = () if count < 0 else (told.logprobs[at].tobytes(), told.ranks[at])
            lists = () if count < 0 else (told.top_ids[at, :count].tobytes(), told.top_logprobs[at, :count].tobytes())
            found[at] = (i, picks.token_ids[at], *numbers, *lists)
        return sorted(found)

    whole = outcome(one, np.arange(len(rows)))
    for _ in range(10):
        assert outcome(two, rng.permutation(len(rows))) == whole
    assert [outcome(two, np.array([i]))[0] for i in range(len(rows))] == whole


# --- faults --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", [1, 16, 33, 256, 1000])
def test_logits_that_are_not_finite_are_counted(backend: Backend, bad: float, size: int) -> None:
    rows = [{"temperature": 0}, {"top_p": 0.5}, {"temperature": 0, "banned": [size - 1]}]
    for at in {0, size // 2, size - 1}:
        logits = np.zeros((len(rows), size), np.float32)
        logits[:, at] = bad
        for one in (backend, REFERENCE):
            got = pick(one, logits, rows_of(*rows), np.zeros(len(rows)))
            assert got.faults.tolist() == [RowFault.NOT_FINITE] * 3
            assert got.fault_sizes.tolist() == [1] * 3
            assert got.token_ids.tolist() == [-1] * 3
            told = one.logprobs(logits, np.zeros(3, np.int32), np.full(3, 2, np.int32))
            assert np.isnan(told.logprobs).all()
            assert told.ranks.tolist() == [size] * 3


@pytest.mark.parametrize("unknown", [-1, -(2**31), 40, 2**31 - 1])
def test_unknown_ids_are_named(backend: Backend, unknown: int) -> None:
    rows = [
        {"bias": {unknown: 1.0}},
        {"allowed": [1, unknown]},
        {"presence_penalty": 1.0, "output": [unknown]},
        {"banned": [unknown]},
    ]
    for one in (backend, REFERENCE):
        got = pick(one, np.zeros((4, 40), np.float32), rows_of(*rows), np.zeros(4))
        assert got.faults.tolist() == [RowFault.UNKNOWN_ID] * 4
        assert got.fault_sizes.tolist() == [unknown] * 4


def test_arrays_that_do_not_fit_are_refused(backend: Backend) -> None:
    logits, sampling, rows, draws = np.zeros((2, 9), np.float32), rows_of({}, {}), np.arange(2, dtype=np.int32), np.zeros(2)
    broken: list[tuple[Any, ...]] = [
        (logits, sampling, rows + np.int32(1), draws),
        (logits, sampling, rows - np.int32(1), draws),
        (logits, sampling, rows[:1], draws),
        (logits, sampling, rows.astype(np.int64), draws),
        (logits, sampling, rows, draws[:1]),
        (logits, replace(sampling, top_k=sampling.top_k.astype(np.int64)), rows, draws),
        (logits, replace(sampling, top_p=sampling.top_p[:1]), rows, draws),
        (logits, replace(sampling, bias_indptr=np.array([0, 0, 1], np.int32)), rows, draws),
        (logits, replace(sampling, banned_indptr=np.array([0, -1, 0], np.int32)), rows, draws),
        (logits, replace(sampling, mask_indptr=np.array([0, 1, 1], np.int32)), rows, draws),
        (logits, replace(sampling, history_prompt_lens=np.array([0, 1], np.int32)), rows, draws),
        (np.zeros((2, 0), np.float32), sampling, rows, draws),
    ]
    for arguments in broken:
        with pytest.raises(ValueError, match=r"sampling|rows|logits"):
            backend.sample(arguments[0], Choosing(*arguments[1:]))
    assert backend.sample(logits, Choosing(sampling, rows, draws)).token_ids.tolist() == [0, 0]


# --- logprobs ------------------------------------------------------------------------------------------------------------


@settings(max_examples=100)
@given(st.sampled_from(KINDS), st.sampled_from(SIZES), st.integers(0, 2**32 - 1), st.integers(0, 400))
def test_logprobs_are_the_definition_s(backend: Backend, kind: str, size: int, seed: int, num_best: int) -> None:
    logits = make_logits(kind, size, seed)[None]
    token_ids, best = np.array([seed % size], np.int32), np.array([num_best], np.int32)
    want, got = REFERENCE.logprobs(logits, token_ids, best), backend.logprobs(logits, token_ids, best)
    assert got.ranks[0] == want.ranks[0]
    assert got.top_ids.tolist() == want.top_ids.tolist()
    np.testing.assert_allclose(got.logprobs, want.logprobs, rtol=2e-7, atol=5e-7)
    np.testing.assert_allclose(got.top_logprobs, want.top_logprobs, rtol=2e-7, atol=5e-7)


def test_logprobs_of_whole_vocabularies(backend: Backend) -> None:
    kinds = ["normal", "flat", "equal", "ties", "wide", "peaked"]
    for size in (49_152, 151_936):
        logits = np.stack([make_logits(kind, size, 11) for kind in kinds])
        token_ids = np.array([0, size - 1, size // 2, 5, 77, 11], np.int32)
        best = np.array([20, 20, 20, 5, 0, -1], np.int32)
        want, got = REFERENCE.logprobs(logits, token_ids, best), backend.logprobs(logits, token_ids, best)
        assert got.ranks[:5].tolist() == want.ranks[:5].tolist()
        np.testing.assert_allclose(got.logprobs[:5], want.logprobs[:5], rtol=2e-7, atol=5e-7)
        for i, count in enumerate(best.tolist()):
            count = max(count, 0)
            assert got.top_ids[i, :count].tolist() == want.top_ids[i, :count].tolist()
            np.testing.assert_allclose(got.top_logprobs[i, :count], want.top_logprobs[i, :count], rtol=2e-7, atol=5e-7)
