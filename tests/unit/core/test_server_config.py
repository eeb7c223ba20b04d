"""Options of the server: what is refused, who may reach it, and that no key is ever shown."""

from __future__ import annotations

from dataclasses import fields

import pytest

from ramet.config import CacheConfig, SchedulerConfig, ServerConfig, is_key
from ramet.errors import ConfigError


def test_by_default_it_is_for_this_machine_alone():
    config = ServerConfig()
    assert (config.host, config.port, config.is_local, config.allow_unauthenticated) == ("127.0.0.1", 8000, True, False)
    assert config.max_body_size == 4 << 20
    assert not config.log_requests


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LocalHost"])
def test_loopback_needs_no_key(host):
    assert ServerConfig(host=host).is_local


BEYOND = ["0.0.0.0", "::", "203.0.113.1", "example.org", "127.1", "2130706433", "localhost.example.org", "128.0.0.1", "::2"]


@pytest.mark.parametrize("host", BEYOND)
def test_beyond_this_machine_a_key_is_needed(host):  # T33
    with pytest.raises(ConfigError, match=r"--allow-unauthenticated"):
        ServerConfig(host=host)
    with pytest.raises(ConfigError, match=r"--api-key"):
        ServerConfig(host=host, admin_api_key="a-key-of-admins-opens-no-other-route")
    for given in ({"api_key": ("k",)}, {"api_key_file": "keys"}, {"allow_unauthenticated": True}):
        assert not ServerConfig(host=host, **given).is_local


@pytest.mark.parametrize("host", ["", " ", "a b", "a\n", None, 7])
def test_hosts_that_are_none(host):
    with pytest.raises(ConfigError, match=r"host is an address or a name.*--host"):
        ServerConfig(host=host)


BAD_KEYS = ["", " ", "se cret", "secret\n", "sécret", "secr\x00et", "\x7fsecret", "🔑secret"]


@pytest.mark.parametrize("key", BAD_KEYS, ids=ascii)
@pytest.mark.parametrize("name", ["api_key", "admin_api_key"])
def test_bad_keys_are_refused_without_being_shown(name, key):  # T36
    assert not is_key(key)
    flag = "--" + name.replace("_", "-")
    with pytest.raises(ConfigError, match=f"{name} number .*{flag}") as caught:
        ServerConfig(**{name: ("fine", key) if name == "api_key" else key})
    assert "cret" not in str(caught.value)
    assert "fine" not in str(caught.value)


@pytest.mark.parametrize("keys", ["secret", None, 7, {"secret"}])
def test_keys_are_a_list(keys):
    with pytest.raises(ConfigError, match="api_key is a list of keys") as caught:
        ServerConfig(api_key=keys)
    assert "secret" not in str(caught.value)


def test_keys_are_in_no_repr():  # T36
    config = ServerConfig(api_key=("canary-1", "canary-2"), admin_api_key="canary-3")
    assert "canary" not in repr(config) + str(config)


def test_a_key_is_of_clients_or_of_admins():
    with pytest.raises(ConfigError, match="--admin-api-key") as caught:
        ServerConfig(api_key=("a", "canary"), admin_api_key="canary")
    assert "canary" not in str(caught.value)


def test_lists_are_taken_apart_and_hold_each_once():
    config = ServerConfig(
        metrics_compat=("vllm,sglang", "vllm"), allowed_hosts=("a.example, b.example",), api_key=("k", "k", "l")
    )
    assert config.metrics_compat == ("vllm", "sglang")
    assert config.allowed_hosts == ("a.example", "b.example")
    assert config.api_key == ("k", "l")
    assert ServerConfig(served_model_name=["a,b"]).served_model_name == ("a,b",)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("port", -1), ("port", 65536), ("port", "80"), ("port", None), ("port", True),
        ("drain_timeout_s", 0), ("drain_timeout_s", float("nan")), ("drain_timeout_s", float("inf")), ("drain_timeout_s", "3"),
        ("max_body_size", "4 apples"), ("max_body_size", 0), ("log_level", "loud"), ("log_level", None),
        ("metrics_compat", ("tgi",)), ("metrics_compat", ("vllm,",)), ("metrics_compat", "vllm"),
        ("allowed_hosts", ("",)), ("allowed_hosts", (1,)), ("served_model_name", ("",)), ("served_model_name", "m"),
        ("share_cache", 1), ("log_requests", "yes"), ("allow_unauthenticated", None), ("api_key_file", 3),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_and_the_flag_is_named(name, bad):
    with pytest.raises(ConfigError, match=f"{name} .*--{name.replace('_', '-')}"):
        ServerConfig(**{name: bad})


def test_every_option_says_what_it_is():
    assert all(len(option.metadata["help"]) > 10 for option in fields(ServerConfig))


def test_the_pool_is_a_size_or_a_share():
    assert CacheConfig(mem_fraction=0.95).mem_fraction == 0.95
    for bad in (0, -0.1, 0.96, 1, True, "0.5", float("nan")):
        with pytest.raises(ConfigError, match=r"mem_fraction is a number over 0 and up to 0\.95"):
            CacheConfig(mem_fraction=bad)
    with pytest.raises(ConfigError, match=r"leave one out \(--kv-cache-memory, --mem-fraction\)"):
        CacheConfig(mem_fraction=0.5, kv_cache_memory="1GiB")


def test_policies_have_a_short_name():
    assert SchedulerConfig(schedule_policy="lpm").schedule_policy == "longest-prefix"
