"""What each sampling parameter means, and that a row's result is a function of that row alone."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sampling_rows import exact_probabilities, rows_of

import ramet.runner.sampler as sampler
from ramet import _native
from ramet.core.output import TokenLogprobs
from ramet.kernels.backend import Choosing
from ramet.kernels.registry import make_backend
from ramet.runner.sampler import Choice, uniforms

LOGITS = np.array([0.5, 2.0, -1.0, 1.0, 2.0, 0.0, -3.0, 1.5], np.float32)


@pytest.fixture(scope="module", params=["reference", _native.isas()[0]])
def backend(request):
    """The definition and the best set; tests/conformance/test_backend_sampling.py holds every set to the definition."""
    name = request.param
    return make_backend("reference") if name == "reference" else make_backend("cpu", threads=1, isa=name)


@pytest.fixture(scope="module")
def sample(backend):
    return functools.partial(sampler.sample, backend)


@pytest.fixture(scope="module")
def one(sample):
    def sampled(logits, **row) -> Choice:
        return sample(np.asarray(logits, np.float32)[None], rows_of(row), range(1))[0]

    return sampled


@pytest.fixture(scope="module")
def support(sample):
    def reached(logits, **row) -> set[int]:
        """Ids that 400 different random numbers reach."""
        many = rows_of(*[{**row, "counter": i} for i in range(400)])
        choices = sample(np.tile(np.asarray(logits, np.float32), (400, 1)), many, range(400))
        assert not [c.error for c in choices if c.error]
        return {c.token_id for c in choices}

    return reached


@pytest.fixture(scope="module")
def logprobs(backend):
    def told(logits, token_id: int, num_best: int) -> TokenLogprobs:
        row = np.asarray(logits, np.float32)[None]
        return sampler.token_logprobs(backend, row, np.array([token_id], np.int32), np.array([num_best], np.int32))[0]

    return told


def uniform(seed: int, sample_index: int, position: int) -> float:
    numbers = uniforms(np.array([seed], np.uint64), np.array([sample_index], np.int32), np.array([position], np.int64))
    return float(numbers[0])


def bits(choice: Choice) -> tuple:
    found = choice.logprobs
    if found is None:
        return choice.token_id, choice.error
    numbers = (
        found.token_id,
        found.rank,
        np.float64(found.logprob).tobytes(),
        found.top_ids.tobytes(),
        found.top_logprobs.tobytes(),
    )
    return choice.token_id, choice.error, *numbers


# --- the meaning of each parameter ---------------------------------------------------------------------------------------


def test_greedy_takes_the_lowest_id_among_equals(one):
    assert one(LOGITS, temperature=0).token_id == 1


def test_logit_bias_moves_the_choice(one):
    assert one(LOGITS, temperature=0, bias={6: 5.5}).token_id == 6
    assert one(LOGITS, temperature=0, bias={1: -1, 4: -0.25}).token_id == 4


def test_allowed_ids_are_the_only_ones(one, support):
    assert support(LOGITS, temperature=5, allowed=[2, 6]) == {2, 6}
    assert one(LOGITS, temperature=0, allowed=[6]).token_id == 6


@pytest.mark.parametrize("temperature", [0, 1])
def test_banned_ids_stay_out_whatever_their_bias(support, temperature):  # B118, B119
    assert support(LOGITS, temperature=temperature, banned=[1, 4], bias={1: 100, 4: 100}).isdisjoint({1, 4})


def test_repetition_penalty_divides_positive_and_multiplies_negative_over_prompt_and_output(one):
    logits = [2.0, 1.5, -1.0, -1.5]
    assert one(logits, temperature=0, repetition_penalty=2, prompt=[0]).token_id == 1
    assert one(logits, temperature=0, repetition_penalty=2, output=[0]).token_id == 1
    assert one(logits, temperature=0, repetition_penalty=2, prompt=[2], allowed=[2, 3]).token_id == 3


def test_frequency_penalty_counts_and_presence_penalty_does_not(one):
    logits = [2.0, 1.6, 0.0]
    assert one(logits, temperature=0, frequency_penalty=0.25, output=[0]).token_id == 0
    assert one(logits, temperature=0, frequency_penalty=0.25, output=[0, 0]).token_id == 1
    assert one(logits, temperature=0, presence_penalty=0.25, output=[0] * 9).token_id == 0
    assert one(logits, temperature=0, presence_penalty=0.5, output=[0]).token_id == 1
    assert one(logits, temperature=0, presence_penalty=-2, output=[2]).token_id == 0
    assert one(logits, temperature=0, presence_penalty=-2, output=[1]).token_id == 1


def test_frequency_and_presence_penalties_ignore_the_prompt(one):
    assert one([2.0, 1.6], temperature=0, frequency_penalty=2, presence_penalty=2, prompt=[0, 0]).token_id == 0


def test_top_k_keeps_lower_ids_among_equals(support):
    assert support([1, 1, 1, 1, 0], temperature=1, top_k=2) == {0, 1}
    assert support(LOGITS, temperature=1, top_k=1) == {1}
    assert support(LOGITS, temperature=50, top_k=100) == set(range(8))


def test_top_p_keeps_the_fewest_that_reach_it(support):
    logits = np.log([0.5, 0.3, 0.15, 0.05])
    assert support(logits, top_p=0.49) == {0}
    assert support(logits, top_p=0.79) == {0, 1}
    assert support(logits, top_p=0.81) == {0, 1, 2}
    assert support(logits, top_p=1e-6) == {0}
    assert support([0.0] * 8, top_p=0.5) == {0, 1, 2, 3}


def test_top_p_is_of_what_top_k_leaves(support):
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    assert support(logits, top_p=0.6) == {0, 1}
    assert support(logits, top_p=0.55, top_k=2) == {0}  # 0.4 of 0.7 is 0.57


def test_min_p_is_a_share_of_the_most_likely(support):
    logits = np.log([0.5, 0.3, 0.15, 0.05])
    assert support(logits, min_p=0.31) == {0, 1}
    assert support(logits, min_p=0.29) == {0, 1, 2}
    assert support(logits, min_p=1.0) == {0}


def test_temperature_comes_before_the_filters(support):
    logits = np.log([0.5, 0.3, 0.15, 0.05])
    assert support(logits, temperature=4, min_p=0.5) == {0, 1, 2, 3}
    assert support(logits, temperature=0.25, min_p=0.5) == {0}


# --- faults of one row ---------------------------------------------------------------------------------------------------


def test_all_masked_is_an_error_that_says_so(one):
    choice = one(LOGITS, temperature=1, allowed=[3], banned=[3])
    assert choice.token_id == -1
    assert "every token is masked" in choice.error
    assert one(LOGITS, temperature=0, banned=range(8)).error == choice.error


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [{"temperature": 0}, {"temperature": 1}, {"temperature": 1, "top_p": 0.5, "num_logprobs": 3}])
def test_logits_that_are_not_finite_fail_their_row_alone(sample, bad, row):
    logits = np.tile(LOGITS, (3, 1))
    clean = sample(logits, rows_of(row, row, row), range(3))
    logits[1, 5] = bad
    found = sample(logits, rows_of(row, row, row), range(3))
    assert found[1] == Choice(-1, None, "the model gave 1 of 8 logits that are not finite")
    assert [bits(found[i]) for i in (0, 2)] == [bits(clean[i]) for i in (0, 2)]


@pytest.mark.parametrize(
    "fault", [{"bias": {8: 1.0}}, {"banned": [2**31 - 1]}, {"allowed": [8]}, {"repetition_penalty": 2, "prompt": [8]}]
)
def test_an_id_beyond_the_vocabulary_fails_its_row_alone(one, sample, fault):  # T11, T12, B190
    mate = {"temperature": 0.7, "seed": 3, "num_logprobs": 2}
    found = sample(np.tile(LOGITS, (3, 1)), rows_of(mate, fault, mate), range(3))
    assert found[1].token_id == -1
    assert "out of bounds" in found[1].error
    assert bits(found[0]) == bits(found[2]) == bits(one(LOGITS, **mate))


# --- edges of the draw ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("u", [0.0, 0.5, 1 - 2.0**-53])
@pytest.mark.parametrize("logits", [[-1000, 0, -1000, 0.1, -1000], [0.1] * 5, [-700, -690, 0, -690, -700]])
def test_edges_of_the_draw(backend, u, logits):
    """The draw never gives a token whose probability is 0, at either end."""
    for row in ({}, {"top_p": 0.9999}, {"top_k": 4}, {"banned": [0, 4]}):
        draws = np.array([u])
        token_id = int(
            backend.sample(np.array([logits], np.float32), Choosing(rows_of(row), np.zeros(1, np.int32), draws)).token_ids[0]
        )
        chances = exact_probabilities(np.array(logits, np.float32), row)
        assert chances[token_id] > 0
        likely = np.flatnonzero(chances > 1e-12)
        if u in (0.0, 1 - 2.0**-53) and chances.max() < 0.999:
            assert token_id == likely[0 if u == 0.0 else -1]


def test_one_token_left_is_the_only_one(support):
    assert support(LOGITS, temperature=100, banned=[0, 1, 2, 3, 4, 5, 7]) == {6}


@pytest.mark.parametrize("temperature", [1e-45, 1e-30, 1e-5, 100.0])
def test_extreme_temperatures_are_finite(support, temperature):
    expected = {1, 4} if temperature < 1 else set(range(8))
    assert support(LOGITS * np.float32(1e3 if temperature < 1 else 1), temperature=temperature) == expected


# --- random numbers ------------------------------------------------------------------------------------------------------


def philox_4x64_10(counter: int, key: int) -> int:
    """First word of a Philox4x64-10 block, from the paper (Salmon et al., 2011, section 4.3)."""
    mask = 2**64 - 1
    words = [counter >> (64 * i) & mask for i in range(4)]
    keys = [key & mask, key >> 64]
    for _ in range(10):
        first, second = 0xD2E7470EE14C6C93 * words[0], 0xCA5A826395121157 * words[2]
        words = [second >> 64 ^ words[1] ^ keys[0], second & mask, first >> 64 ^ words[3] ^ keys[1], first & mask]
        keys = [(keys[0] + 0x9E3779B97F4A7C15) & mask, (keys[1] + 0xBB67AE8584CAA73B) & mask]
    return words[0]


def test_philox_known_answer():
    assert philox_4x64_10(0, 0) == 0x16554D9ECA36314C  # the vector published with Random123


@given(st.integers(0, 2**64 - 1), st.integers(0, 127), st.integers(0, 2**31))
def test_uniform_is_philox_of_seed_index_and_position(seed, index, position):
    word = philox_4x64_10(position + 1, seed | index << 64)  # numpy steps the counter before each block
    assert uniform(seed, index, position) == (word >> 11) / 2**53


def test_each_of_seed_index_and_position_matters():
    numbers = {uniform(s, i, p) for s in (0, 1, 2**64 - 1) for i in (0, 1) for p in (0, 1, 4096)}
    assert len(numbers) == 18


@given(st.integers(0, 2**64 - 1), st.integers(0, 127), st.integers(1, 2**31))
def test_the_draw_is_that_number_s_place_among_equals(one, seed, index, position):
    token_id = one([0.0] * 1000, seed=seed, sample_index=index, counter=position).token_id
    assert token_id == int(uniform(seed, index, position) * 1000)


@given(st.floats(1, 2**20))
def test_the_largest_random_number_of_a_total_is_below_it(total):
    assert (1 - 2.0**-53) * total < total


# --- distributions -------------------------------------------------------------------------------------------------------


def chi_square(sample, logits, drawn_with: dict, expected_of: dict) -> float:
    """(statistic - df) / sqrt(2 df) of 6000 draws: about a standard normal where the chances are right."""
    num_draws = 6000
    many = rows_of(*[{**drawn_with, "counter": i} for i in range(num_draws)])
    choices = sample(np.tile(logits, (num_draws, 1)), many, range(num_draws))
    counts = np.bincount([c.token_id for c in choices], minlength=len(logits))
    chances = exact_probabilities(logits, expected_of)
    assert counts[chances == 0].sum() == 0
    expected = chances[chances > 0] * num_draws
    statistic = float(((counts[chances > 0] - expected) ** 2 / expected).sum())
    df = len(expected) - 1
    return (statistic - df) / math.sqrt(2 * df)


@pytest.mark.parametrize(
    "row",
    [
        {"seed": 1},
        {"seed": 2, "temperature": 0.6, "sample_index": 3},
        {"seed": 3, "temperature": 1.3, "top_k": 9},
        {"seed": 4, "top_p": 0.8},
        {"seed": 5, "temperature": 0.9, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
        {"seed": 6, "bias": {3: 1.5, 7: -2}, "banned": [1], "repetition_penalty": 1.3, "prompt": [2, 5], "output": [5, 5, 6]},
        {"seed": 7, "frequency_penalty": 0.4, "presence_penalty": 0.3, "output": [0, 0, 1, 2, 2, 2], "allowed": [0, 1, 2, 3, 9]},
    ],
)
def test_draws_follow_the_exact_probabilities(sample, row):
    logits = np.random.default_rng(11).normal(0, 1, 24).astype(np.float32)
    assert abs(chi_square(sample, logits, row, row)) < 4


def test_the_distribution_test_sees_a_small_error(sample):
    logits = np.random.default_rng(11).normal(0, 1, 24).astype(np.float32)
    assert chi_square(sample, logits, {"seed": 1}, {"temperature": 1.15}) > 6


ROWS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 2.5]),
        "top_k": st.sampled_from([0, 1, 3, 30]),
        "top_p": st.sampled_from([1.0, 0.95, 0.5, 0.01]),
        "min_p": st.sampled_from([0.0, 0.05, 0.7]),
        "seed": st.integers(0, 2**64 - 1),
        "counter": st.integers(0, 2**31),
        "banned": st.lists(st.integers(0, 9), max_size=3),
        "allowed": st.sampled_from([[], [9, 1, 4, 10, 11]]),
        "bias": st.dictionaries(st.integers(0, 11), st.sampled_from([-100.0, -1.0, 0.5, 100.0]), max_size=3),
        "prompt": st.lists(st.integers(0, 11), max_size=5),
        "output": st.lists(st.integers(0, 11), max_size=5),
        "repetition_penalty": st.sampled_from([1.0, 1.3, 0.7]),
        "frequency_penalty": st.sampled_from([0.0, 0.5]),
        "presence_penalty": st.sampled_from([0.0, -1.0]),
        "num_logprobs": st.sampled_from([-1, 0, 3, 20]),
    }
)


@settings(max_examples=150)
@given(st.lists(st.integers(-6, 6), min_size=12, max_size=12), ROWS)
def test_the_choice_is_the_inverse_cdf_of_the_exact_probabilities(one, halves, row):
    logits = np.array(halves, np.float32) / 2  # many ties
    chances = exact_probabilities(logits, row)
    token_id = one(logits, **row).token_id
    u = uniform(row["seed"], 0, row["counter"])
    below = chances[:token_id].sum()
    assert chances[token_id] > 0
    assert below - 1e-6 <= u <= below + chances[token_id] + 1e-6 or row["temperature"] == 0


# --- a row is a function of itself alone ---------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.lists(ROWS, min_size=2, max_size=6), st.integers(0, 2**32 - 1))
def test_batch_mates_change_no_bit(one, sample, rows, seed):  # B058, B179
    logits = np.random.default_rng(seed).normal(0, 3, (len(rows), 12)).astype(np.float32)
    together = sample(logits, rows_of(*rows), range(len(rows)))
    alone = [one(logits[i], **row) for i, row in enumerate(rows)]
    backwards = sample(logits[::-1].copy(), rows_of(*rows[::-1]), range(len(rows)))[::-1]
    assert [bits(c) for c in together] == [bits(c) for c in alone] == [bits(c) for c in backwards]


def test_asking_logprobs_changes_no_token(one):
    logits = np.random.default_rng(3).normal(0, 2, 4096).astype(np.float32)
    for row in ({"temperature": 0}, {"seed": 8}, {"seed": 8, "top_p": 0.9, "top_k": 100}):
        assert one(logits, **row).token_id == one(logits, **row, num_logprobs=20).token_id


def test_rows_name_their_place_in_the_parameters(sample):
    """A slab of logits is chosen with the parameters of its own rows, not those at its head."""
    params = rows_of({"temperature": 0}, {"temperature": 0, "banned": [1]}, {"temperature": 0, "banned": [1, 4]})
    found = sample(np.tile(LOGITS, (2, 1)), params, range(1, 3))
    assert [c.token_id for c in found] == [4, 7]


@pytest.mark.parametrize("size", [7, 1000, 49_152])
def test_place_in_memory_changes_no_bit(one, sample, size):
    """Vector loops treat heads and tails of unaligned arrays apart; results must not show it."""
    logits = np.random.default_rng(size).normal(0, 4, size).astype(np.float32)
    rows = [
        {"seed": 1, "num_logprobs": 5},
        {"seed": 2, "temperature": 0.8, "top_p": 0.9, "num_logprobs": 0},
        {"seed": 3, "top_k": 40, "min_p": 0.01},
        {"temperature": 0, "num_logprobs": 20},
    ]
    expected = [bits(one(logits, **row)) for row in rows]
    buffer = np.empty(size + 32, np.float32)
    for offset in range(0, 32, 3 if size > 1000 else 1):
        moved = buffer[offset : offset + size]
        moved[:] = logits
        found = [sample(moved[None], rows_of(row), range(1))[0] for row in rows]
        assert [bits(c) for c in found] == expected


@settings(max_examples=50)
@given(st.lists(st.integers(-3, 3), min_size=9, max_size=9))
def test_the_fast_greedy_path_gives_the_slow_path_s_answer(one, halves):
    logits = np.array(halves, np.float32) / 2
    assert bits(one(logits, temperature=0, num_logprobs=2)) == bits(one(logits, temperature=0, num_logprobs=2, bias={4: 0.0}))


# --- logprobs ------------------------------------------------------------------------------------------------------------


def test_logprobs_are_of_the_raw_distribution(one):  # B128, B133
    plain = one(LOGITS, temperature=0, num_logprobs=3)
    shaped = one(LOGITS, temperature=3, banned=[1, 4, 7, 0, 2, 5, 6], bias={3: 50}, num_logprobs=3)
    assert shaped.token_id == 3
    assert shaped.logprobs.top_ids.tolist() == plain.logprobs.top_ids.tolist() == [1, 4, 7]
    assert shaped.logprobs.top_logprobs.tolist() == plain.logprobs.top_logprobs.tolist()
    assert shaped.logprobs.rank == 4
    exact = LOGITS.astype(np.float64) - np.log(np.exp(LOGITS.astype(np.float64)).sum())
    assert shaped.logprobs.logprob == pytest.approx(exact[3], abs=1e-7)
    assert plain.logprobs.top_logprobs == pytest.approx(exact[[1, 4, 7]], abs=1e-7)
    assert plain.logprobs.logprob == plain.logprobs.top_logprobs[0]


def test_zero_logprobs_give_the_chosen_one_alone(one):  # B128
    found = one(LOGITS, temperature=0, num_logprobs=0).logprobs
    assert found.token_id == 1
    assert math.isfinite(found.logprob)
    assert len(found.top_ids) == len(found.top_logprobs) == 0
    assert one(LOGITS, temperature=0).logprobs is None


def test_equal_logits_rank_by_id(logprobs):
    ranks = [logprobs(np.array([1, 2, 2, 0, 2], np.float32), t, 5).rank for t in range(5)]
    assert ranks == [4, 1, 2, 5, 3]
    assert logprobs(np.array([1, 2, 2, 0, 2], np.float32), 0, 5).top_ids.tolist() == [1, 2, 4, 0, 3]


@given(st.lists(st.floats(-60, 60, width=32), min_size=1, max_size=40), st.data())
def test_logprobs_against_exact_sums(logprobs, values, data):
    logits = np.array(values, np.float32)
    token_id = data.draw(st.integers(0, len(values) - 1))
    found: TokenLogprobs = logprobs(logits, token_id, 50)
    log_total = math.log(math.fsum(math.exp(v - max(values)) for v in values)) + max(values)
    assert found.logprob == pytest.approx(values[token_id] - log_total, abs=1e-5, rel=1e-6)
    assert found.top_ids.dtype == np.int32
    assert found.top_logprobs.dtype == np.float32
    assert found.top_ids.tolist() == sorted(range(len(values)), key=lambda t: (-values[t], t))
    assert found.top_ids[found.rank - 1] == token_id


@pytest.mark.parametrize("token_id", [-1, 8, 2**31 - 1])
def test_a_token_outside_the_vocabulary_has_no_logprob(logprobs, token_id):
    with pytest.raises(IndexError, match="vocabulary of 8"):
        logprobs(LOGITS, token_id, 0)
