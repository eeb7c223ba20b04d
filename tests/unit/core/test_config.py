"""Start-up options: sizes, ranges and messages that name the option."""

from __future__ import annotations

import inspect
import math
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.config import CacheConfig, EngineConfig, ModelConfig, RunnerConfig, SchedulerConfig, parse_size
from ramet.errors import ConfigError
from ramet.llm import LLM

CONFIGS = [ModelConfig, CacheConfig, SchedulerConfig, RunnerConfig]


class NoRepr:
    def __repr__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (1, 1), ("1", 1), ("2GiB", 2 << 30), ("512m", 512 << 20), ("32K", 32 << 10), ("1.5g", 3 << 29), (" 4 MB ", 4 << 20),
        ("1t", 1 << 40), ("3kib", 3 << 10), ("7b", 7), (2**50, 2**50), ("0.5K", 512),
    ],
)  # fmt: skip
def test_sizes(text, size):
    assert parse_size(text, "kv_cache_memory") == size


NO_NUMBERS = ["", " ", "G", "inf", "nan", "1e9", "0x10", "1,5G", "2..5G", "2Q", "2 GiB extra", "²G", "٣G", True, 1.5, None, [1]]
TOO_SMALL = [0, -1, "0", "0G", "0.0001", "-2G"]


@pytest.mark.parametrize("text", NO_NUMBERS + TOO_SMALL, ids=ascii)
def test_sizes_that_are_none(text):
    with pytest.raises(ConfigError, match="kv_cache_memory") as caught:
        parse_size(text, "kv_cache_memory")
    assert "--kv-cache-memory" in str(caught.value)


@pytest.mark.parametrize("text", ["9" * 400, "9" * 400 + "T", "9" * 5000])
def test_sizes_that_no_machine_has(text):
    with pytest.raises(ConfigError, match="kv_cache_memory") as caught:
        parse_size(text, "kv_cache_memory")
    assert len(str(caught.value)) < 200


@given(st.integers(1, 2**40), st.sampled_from(["", "K", "M", "G"]))
def test_whole_sizes_are_exact(number, unit):
    assert parse_size(f"{number}{unit}", "x") == number << {"": 0, "K": 10, "M": 20, "G": 30}[unit]


BAD_WHOLE = [0, -1, 1.5, True, "8", math.nan, math.inf]


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (ModelConfig, "max_model_len"),
        (CacheConfig, "max_total_tokens"),
        (SchedulerConfig, "max_running_seqs"),
        (SchedulerConfig, "max_batch_tokens"),
        (SchedulerConfig, "max_queued_requests"),
        (SchedulerConfig, "chunked_prefill_size"),
        (RunnerConfig, "threads"),
        (CacheConfig, "page_size"),
    ],
)
@pytest.mark.parametrize("bad", BAD_WHOLE, ids=repr)
def test_limits_are_whole_and_over_0(config, name, bad):  # B044
    with pytest.raises(ConfigError, match=name) as caught:
        config(**{name: bad})
    assert "--" + name.replace("_", "-") in str(caught.value)


@pytest.mark.parametrize(
    ("config", "name", "known"),
    [
        (ModelConfig, "dtype", "bfloat16"),
        (ModelConfig, "quantization", "int4"),
        (CacheConfig, "prefix_cache", "radix"),
        (CacheConfig, "kv_cache_dtype", "bfloat16"),
        (SchedulerConfig, "schedule_policy", "fcfs"),
    ],
)
@pytest.mark.parametrize("bad", ["", "FP8", 0, True, [], {}], ids=repr)
def test_choices_name_what_is_known(config, name, known, bad):
    with pytest.raises(ConfigError, match=f"{name} is one of .*{known}") as caught:
        config(**{name: bad})
    assert "--" + name.replace("_", "-") in str(caught.value)
    assert getattr(config(**{name: known}), name) == known


def test_an_empty_name_is_no_folder() -> None:
    with pytest.raises(ConfigError, match="weight_cache is a folder or auto"):
        ModelConfig(weight_cache="")


def test_page_size_has_a_ceiling():
    assert CacheConfig(page_size=128).page_size == 128
    with pytest.raises(ConfigError, match="1 to 128, not 129"):
        CacheConfig(page_size=129)


def test_memory_becomes_bytes():
    assert CacheConfig(kv_cache_memory="2GiB").kv_cache_memory == 2 << 30
    assert CacheConfig().kv_cache_memory is None


def test_a_step_holds_a_token_of_each_running_sequence():
    with pytest.raises(ConfigError, match="max_batch_tokens 8 is under max_running_seqs 9"):
        SchedulerConfig(max_batch_tokens=8, max_running_seqs=9)


@pytest.mark.parametrize("bad", [-1, 2**64, 1.0, True, None, "0"], ids=repr)
def test_seed(bad):
    with pytest.raises(ConfigError, match="seed"):
        EngineConfig(seed=bad)


@pytest.mark.parametrize("config", CONFIGS)
def test_every_option_has_a_help_text_and_a_default(config):
    config()
    for option in fields(config):
        assert len(option.metadata["help"]) > 15


def test_the_python_api_has_the_same_options_and_defaults():
    keywords = inspect.signature(LLM).parameters
    options = [option for config in CONFIGS for option in fields(config)]
    assert [option.name for option in options if option.name not in keywords] == ["max_queued_requests"]
    for option in options:
        assert option.name not in keywords or keywords[option.name].default == option.default


def test_options_by_their_names_come_to_their_parts():
    config = EngineConfig.of(model="m", offline=True, page_size=8, threads=2, max_loras=3, seed=4)
    assert (config.model.model, config.model.offline, config.cache.page_size) == ("m", True, 8)
    assert (config.runner.threads, config.lora.max_loras, config.seed) == (2, 3, 4)
    assert EngineConfig.of() == EngineConfig()
    with pytest.raises(TypeError, match="pages"):
        EngineConfig.of(pages=8)


def test_the_python_api_passes_its_options_on(monkeypatch):
    class Built(Exception):
        pass

    def build(config, progress):
        raise Built(config)

    monkeypatch.setattr("ramet.llm.build_engine", build)
    given = {
        "offline": True, "weight_cache": "there", "weight_cache_size": 5 << 30, "revision": "v1", "page_size": 8, "seed": 4,
        "dtype": "float16", "quantization": "int8", "kv_cache_dtype": "int8", "threads": 3, "isa": "avx2", "max_loras": 2,
        "max_total_tokens": 900, "max_model_len": 90, "chunked_prefill_size": 64, "prefix_cache": "hash", "speculative": "ngram",
        "num_speculative_tokens": 3, "jump_forward": "off", "schedule_policy": "longest-prefix", "max_running_seqs": 7,
        "max_batch_tokens": 70, "max_lora_rank": 8, "kv_cache_memory": 1 << 30,
    }  # fmt: skip
    with pytest.raises(Built) as caught:
        LLM(Path("m"), lora={"a": Path("b")}, **given)
    more = {"model": "m", "lora_modules": ("a=b",), "max_queued_requests": 2**31}
    assert caught.value.args[0] == EngineConfig.of(**given, **more)


def test_configs_are_frozen():
    with pytest.raises(AttributeError):
        CacheConfig().page_size = 4


UNSHOWABLE = [10**5000, -(10**5000), [10**5000], np.array([1, 2]), NoRepr(), {1}, object()]


@pytest.mark.parametrize("bad", UNSHOWABLE, ids=lambda bad: type(bad).__name__)
@pytest.mark.parametrize(("config", "name"), [(config, field.name) for config in CONFIGS for field in fields(config)])
def test_whatever_is_given_is_refused_in_one_short_line(config, name, bad):
    with pytest.raises(ConfigError, match=name) as caught:
        config(**{name: bad})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("name", ["max_running_seqs", "max_batch_tokens", "max_queued_requests"])
def test_limits_that_cannot_be_left_out(name):
    with pytest.raises(ConfigError, match=name):
        SchedulerConfig(**{name: None})
