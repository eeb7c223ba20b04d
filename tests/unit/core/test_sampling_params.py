"""Bad sampling parameters are refused by name, before anything is allocated."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import fields
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.core.sampling import MAX_LOGPROBS, SamplingParams
from ramet.errors import InvalidRequest

NOT_WHOLE = [True, False, 1.0, 1.5, math.nan, math.inf, "1", "", [1], {}, 1 + 0j]
NOT_A_NUMBER = [True, False, math.nan, math.inf, -math.inf, "0.5", [0.5], {}, 1j, Fraction(1, 2)]
HUGE = [2**31, 2**63, 2**64, 10**18, -(2**63)]


def refused(name: str, value: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name
    assert name in str(caught.value)
    return caught.value


def cases(table: dict[str, list]) -> list:
    return [pytest.param(name, value, id=f"{name}={value!r:.24}") for name, values in table.items() for value in values]


@pytest.mark.parametrize(
    ("name", "value"),
    cases(
        {
            "n": [0, -1, 129, 10**6, None, *NOT_WHOLE, *HUGE],
            "top_k": [-2, None, *NOT_WHOLE, *HUGE],
            "max_tokens": [-1, *NOT_WHOLE, *HUGE],
            "min_tokens": [-1, None, *NOT_WHOLE, *HUGE],
            "logprobs": [-1, MAX_LOGPROBS + 1, 49_152, *NOT_WHOLE, *HUGE],
            "prompt_logprobs": [-1, MAX_LOGPROBS + 1, 49_152, *NOT_WHOLE, *HUGE],
            "seed": [-1, 2**64, 10**30, *NOT_WHOLE],
        }
    ),
)
def test_whole_numbers(name, value):  # T12, T13, B137, B184
    refused(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    cases(
        {
            "temperature": [-0.1, -1e-9, 100.1, 1e400, None, *NOT_A_NUMBER],
            "top_p": [0, 0.0, -0.5, 1.0001, 2, None, *NOT_A_NUMBER],
            "min_p": [-0.1, 1.01, None, *NOT_A_NUMBER],
            "presence_penalty": [-2.1, 2.1, None, *NOT_A_NUMBER],
            "frequency_penalty": [-2.1, 2.1, None, *NOT_A_NUMBER],
            "repetition_penalty": [0, -1, 1e-46, 100.5, None, *NOT_A_NUMBER],
        }
    ),
)
def test_numbers(name, value):
    refused(name, value)


BAD_IDS = [-1, 2**31, 2**63, 10**18, True, 1.0, math.nan, math.inf, "1", None, [1]]


@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids"])
@pytest.mark.parametrize("bad", BAD_IDS, ids=repr)
def test_token_id_lists(name, bad):  # T12
    refused(name, [3, bad])


@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids"])
@pytest.mark.parametrize("value", ["12", b"12", 5, {1: 2}, object()], ids=["str", "bytes", "int", "dict", "object"])
def test_token_id_lists_are_lists(name, value):
    refused(name, value)


@pytest.mark.parametrize("bad", [*[b for b in BAD_IDS if b != [1]], "999999", "x"], ids=repr)
def test_logit_bias_ids(bad):  # B136
    refused("logit_bias", {bad: 1.0})


@pytest.mark.parametrize("bad", [*NOT_A_NUMBER, None, 100.01, -101, 1e9], ids=repr)
def test_logit_bias_values(bad):  # B136
    refused("logit_bias", {5: bad})


@pytest.mark.parametrize("value", [[1], "1", 5, [(1, 2.0)]], ids=repr)
def test_logit_bias_is_a_mapping(value):
    refused("logit_bias", value)


@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids", "logit_bias"])
def test_ids_are_held_against_the_vocabulary(name):  # T12
    def params(token_id):
        return SamplingParams(**{name: {token_id: 1.0} if name == "logit_bias" else [0, token_id]})

    params(49_151).check_vocabulary(49_152)
    with pytest.raises(InvalidRequest, match=rf"{name} has 49152; .* 0 to 49151") as caught:
        params(49_152).check_vocabulary(49_152)
    assert caught.value.param == name


def test_allowed_ids_may_not_be_none_at_all():
    assert "no token could be chosen" in str(refused("allowed_token_ids", []))


BAD_STOPS = [5, b"x", {"a"}, {"a": 1}, "", [""], ["a", None], ["a", 1], ["x" * 4097], ["a"] * 65, ["a"] * 10**5]
LONE_SURROGATES = ["\ud800", ["a\udfffb"]]


@pytest.mark.parametrize("value", BAD_STOPS + LONE_SURROGATES, ids=lambda v: f"{v!a:.20}")
def test_stops(value):
    refused("stop", value)


@pytest.mark.parametrize("name", ["ignore_eos", "include_stop_str_in_output", "skip_special_tokens"])
@pytest.mark.parametrize("value", [0, 1, None, "true", 1.0], ids=repr)
def test_flags(name, value):
    refused(name, value)


def test_min_tokens_over_max_tokens():
    with pytest.raises(InvalidRequest, match="min_tokens 5 is over max_tokens 4") as caught:
        SamplingParams(min_tokens=5, max_tokens=4)
    assert caught.value.param == "min_tokens"
    SamplingParams(min_tokens=5, max_tokens=5)
    SamplingParams(min_tokens=5, max_tokens=None)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("temprature", "temperature"),
        ("max_token", "max_tokens"),
        ("stop_tokens_ids", "stop_token_ids"),
        ("topk", "top_k"),
        ("logitbias", "logit_bias"),
    ],
)
def test_an_unknown_name_names_a_near_one(name, near):
    with pytest.raises(InvalidRequest, match=f"unknown sampling parameter '{name}'; did you mean .*{near}") as caught:
        SamplingParams(**{name: 1})
    assert caught.value.param == name


def test_an_unknown_name_with_nothing_near_lists_the_known_ones():
    with pytest.raises(InvalidRequest, match=r"known: n, temperature, .*allowed_token_ids"):
        SamplingParams(zzz=1)
    with pytest.raises(TypeError):
        SamplingParams(1)


def test_messages_stay_short_whatever_the_value():
    assert len(str(refused("temperature", "9" * 10**6))) < 200
    assert len(str(refused("stop", ["x" * 10**6]))) < 200
    assert len(str(refused("stop_token_ids", [10**3000]))) < 200
    assert len(str(refused("ignore_eos", ["x" * 10**6]))) < 200
    assert len(str(problem_with({"x" * 10**6: 1}))) < 600


@pytest.mark.parametrize(
    "good",
    [
        {},
        {"n": 128, "temperature": 0, "top_p": 1, "top_k": -1, "min_p": 1, "seed": 2**64 - 1},
        {"temperature": 100, "top_p": 1e-9, "top_k": 2**31 - 1, "seed": 0, "max_tokens": 0, "logprobs": 0, "prompt_logprobs": 20},
        {"presence_penalty": -2, "frequency_penalty": 2, "repetition_penalty": 0.01, "min_tokens": 3},
        {"stop": "x" * 4096, "stop_token_ids": (), "logit_bias": {}, "max_tokens": None},
    ],
)
def test_the_edges_that_are_allowed(good):
    params = SamplingParams(**good)
    assert all(getattr(params, name) == value for name, value in good.items() if name not in ("stop", "stop_token_ids"))


def test_lists_are_kept_in_one_form():
    params = SamplingParams(
        stop="a", stop_token_ids=[5, 3, 5], allowed_token_ids={9, 1}, logit_bias=OrderedDict([(7, 1), (2, -0.5)])
    )
    assert params.stops == params.stop == ("a",)
    assert params.stop_token_ids == (3, 5)
    assert params.allowed_token_ids == (1, 9)
    assert list(params.logit_bias.items()) == [(2, -0.5), (7, 1.0)]
    assert SamplingParams().stops == SamplingParams(stop=[]).stops == ()


def test_the_callers_lists_are_copied():
    stops, bias = ["a"], {1: 1.0}
    params = SamplingParams(stop=stops, logit_bias=bias)
    stops.append("b")
    bias[2] = 1.0
    assert params.stops == ("a",)
    assert params.logit_bias == {1: 1.0}


def test_parameters_are_frozen():
    with pytest.raises(AttributeError):
        SamplingParams().n = 2


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers(), inner, max_size=4),
    max_leaves=8,
)


def problem_with(values: dict) -> InvalidRequest | None:
    try:
        SamplingParams(**values)
    except InvalidRequest as error:
        return error
    return None


@given(st.dictionaries(st.sampled_from(sorted(SamplingParams.__dataclass_fields__)), JSON, min_size=1, max_size=4))
def test_anything_is_taken_or_refused_never_worse(values):
    problem = problem_with(values)
    assert problem is None or (problem.param in values and len(str(problem)) < 200)


class NoRepr:
    def __repr__(self):
        raise RuntimeError


UNSHOWABLE = [10**400, 10**5000, -(10**5000), [10**5000], NoRepr(), [NoRepr()], {1: NoRepr()}, {NoRepr(): 1}]


@pytest.mark.parametrize("bad", UNSHOWABLE, ids=lambda bad: type(bad).__name__)
@pytest.mark.parametrize("name", [field.name for field in fields(SamplingParams)])
def test_whatever_is_given_is_refused_in_one_short_line(name, bad):
    error = refused(name, bad)
    assert "\n" not in str(error)
    assert len(str(error)) < 200
