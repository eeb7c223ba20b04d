"""From flags, environment and file to configurations: which goes before which, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from ramet.cli.help import GroupedCommand
from ramet.cli.options import (
    check_environment,
    start_up_options,
    with_engine_options,
    with_named_model,
    with_sampling_options,
    with_server_options,
)
from ramet.config import CacheConfig, EngineConfig, LoraConfig, ModelConfig, RunnerConfig, SchedulerConfig, ServerConfig
from ramet.errors import ConfigError

SOURCE = Path(__file__).parents[3] / "src"
Run = Callable[..., tuple[EngineConfig, ServerConfig]]


class Served:
    """``ramet serve`` as far as its options go."""

    def __init__(self) -> None:
        self.engine = EngineConfig()
        self.server = ServerConfig()

        @click.command(cls=GroupedCommand)
        @click.argument("model_name", required=False)
        @with_engine_options
        @with_server_options
        def serve(model_name: str | None, config: EngineConfig, server: ServerConfig) -> None:
            self.engine, self.server = with_named_model(config, model_name), server

        self._command = serve

    def __call__(self, *args: str, **variables: str) -> tuple[EngineConfig, ServerConfig]:
        result = self.result(*args, **variables)
        if isinstance(result.exception, ConfigError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return self.engine, self.server

    def result(self, *args: str, **variables: str) -> Result:
        return CliRunner().invoke(self._command, args, env=variables)


@pytest.fixture
def serve() -> Served:
    return Served()


def test_every_field_has_one_option():
    names = [option.name for option in start_up_options()]
    configs = (ModelConfig, CacheConfig, SchedulerConfig, RunnerConfig, LoraConfig, ServerConfig)
    assert sorted(names) == sorted([field.name for config in configs for field in fields(config)] + ["seed"])


def test_without_options_all_is_as_the_classes_say(serve):
    engine, server = serve()
    assert server == ServerConfig()
    assert (engine.model, engine.cache, engine.scheduler, engine.runner) == (
        ModelConfig(), CacheConfig(), SchedulerConfig(), RunnerConfig(),
    )  # fmt: skip
    assert engine.seed != serve()[0].seed


def test_options_of_every_type(serve):
    engine, server = serve(
        "--page-size", "8", "--mem-fraction", "0.5", "--prefix-cache", "hash", "--seed", "7", "--port", "0", "--share-cache",
        "--drain-timeout-s", "2.5", "--api-key", "a", "--api-key", "b", "--max-body-size", "1m", "--metrics-compat", "vllm",
    )  # fmt: skip
    assert (engine.cache.page_size, engine.cache.mem_fraction, engine.cache.prefix_cache, engine.seed) == (8, 0.5, "hash", 7)
    assert (server.port, server.share_cache, server.api_key, server.max_body_size) == (0, True, ("a", "b"), 1 << 20)
    assert (server.drain_timeout_s, server.metrics_compat) == (2.5, ("vllm",))


def test_adapters_as_vllm_has_them_on_its_command_line(serve):
    """Several behind one flag, or the flag several times; a switch that says no more than that there may be some."""
    flags = (
        "--enable-lora",
        "--lora-modules",
        "a=/x",
        "b=y=z",
        "--lora-modules",
        "c=.",
        "--max-lora-rank",
        "8",
        "--lora-root",
        "/x",
    )
    engine, _ = serve("--max-loras=3", *flags)
    assert engine.lora == LoraConfig(lora_modules=("a=/x", "b=y=z", "c=."), lora_root=("/x",), max_loras=3, max_lora_rank=8)
    assert engine.lora.modules == [("a", "/x"), ("b", "y=z"), ("c", ".")]


def test_tools_are_switched_on_as_with_vllm(serve):
    switch, named = ["--enable-auto-tool-choice"], ["--tool-call-parser", "hermes"]
    for args, parser in ((switch, "auto"), (switch + named, "hermes"), (named + switch, "hermes")):
        assert serve(*args)[1].tool_call_parser == parser
    assert serve(*switch, RAMET_TOOL_CALL_PARSER="hermes")[1].tool_call_parser == "hermes"


def test_a_switch_leaves_what_a_file_says(serve, tmp_path):
    file = tmp_path / "options.yaml"
    file.write_text("max_loras: 3\n")
    args = ("--enable-lora", "--lora-modules", "a=/x", "--config", str(file))
    assert serve(*args)[0].lora.max_loras == 3
    assert serve(*args[:3])[0].lora.max_loras == 16


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (["--block-size", "4"], {"page_size": 4}),
        (["--max-running-requests", "3"], {"max_running_seqs": 3}),
        (["--max-num-seqs=3"], {"max_running_seqs": 3}),
        (["--max-num-batched-tokens", "99"], {"max_batch_tokens": 99}),
        (["--context-length", "77"], {"max_model_len": 77}),
        (["--schedule-policy", "lpm"], {"schedule_policy": "longest-prefix"}),
        (["--no-enable-prefix-caching"], {"prefix_cache": "none"}),
        (["--disable-radix-cache"], {"prefix_cache": "none"}),
        (["--disable-radix-cache", "--prefix-cache", "hash"], {"prefix_cache": "hash"}),
        (["--prefix-cache", "hash", "--disable-radix-cache"], {"prefix_cache": "none"}),
    ],
)
def test_names_that_people_know_from_elsewhere(serve, args, found):
    engine, _ = serve(*args)
    options = {name: getattr(part, name) for part in (engine.model, engine.cache, engine.scheduler) for name in part.__slots__}
    assert options.items() >= found.items()


def test_what_comes_after_two_dashes_is_no_flag(serve):
    engine, _ = serve("--", "--disable-radix-cache")
    assert engine.model.model == "--disable-radix-cache"
    assert engine.cache.prefix_cache == "radix"


def test_the_model_is_named_with_a_flag_or_without(serve):
    assert serve("./m")[0].model.model == "./m"
    assert serve("--model", "./m")[0].model.model == "./m"
    assert serve("./m", "--model", "./m")[0].model.model == "./m"
    assert serve("./m", RAMET_MODEL="./other")[0].model.model == "./m"
    result = serve.result("./m", "--model", "./other")
    assert result.exit_code == 2
    assert "Two models are named: ./m and --model ./other" in result.output


def test_command_line_before_environment_before_file_before_default(serve, tmp_path):
    file = tmp_path / "serve.yaml"
    file.write_text("page-size: 4\nport: 4\nshare-cache: true\n")
    config = ("--config", str(file))
    assert serve()[0].cache.page_size == 16
    assert serve(*config)[0].cache.page_size == 4
    assert serve(*config, RAMET_PAGE_SIZE="8")[0].cache.page_size == 8
    assert serve(*config, "--page-size", "32", RAMET_PAGE_SIZE="8")[0].cache.page_size == 32
    assert serve(*config)[1].share_cache
    assert not serve(*config, "--no-share-cache")[1].share_cache
    assert not serve(*config, RAMET_SHARE_CACHE="0")[1].share_cache
    assert serve(RAMET_CONFIG=str(file))[1].port == 4


def test_keys_come_from_the_environment(serve):
    _, server = serve(RAMET_API_KEY="one two", RAMET_ADMIN_API_KEY="three")
    assert (server.api_key, server.admin_api_key) == (("one", "two"), "three")


def test_an_empty_variable_is_none(serve):
    assert serve(RAMET_PORT="", RAMET_API_KEY="", RAMET_MODEL="")[1] == ServerConfig()


@pytest.mark.parametrize("name", ["RAMET_PROT", "RAMET_", "RAMET_PAGESIZE", "RAMET_SERVICE", "RAMET_PORT_X"])
def test_variables_that_set_nothing_are_refused(serve, name):
    with pytest.raises(ConfigError, match=f"^the variable {name} sets nothing; nearest: RAMET_") as caught:
        serve(**{name: "canary"})
    assert "canary" not in str(caught.value)


def test_a_service_of_kubernetes_with_our_name_is_no_option(serve):
    address = "tcp://203.0.113.1:8000"
    found = {
        "RAMET_PORT": address, "RAMET_SERVICE_HOST": "203.0.113.1", "RAMET_SERVICE_PORT": "8000",
        "RAMET_SERVICE_PORT_HTTP": "8000", "RAMET_PORT_8000_TCP": address, "RAMET_PORT_8000_TCP_ADDR": "203.0.113.1",
    }  # fmt: skip
    assert serve(**found)[1].port == 8000


def test_every_variable_that_the_code_names_is_known():
    text = "\n".join(path.read_text("utf-8") for path in SOURCE.rglob("*.py"))
    names = set(re.findall(r"\"(RAMET_[A-Z_]+)\"", text)) | {"RAMET_SHARED", "RAMET_EXACT"}
    assert "RAMET_CACHE" in names
    check_environment(dict.fromkeys(names | {"PATH", "XRAMET_Y"}, "x"))


def test_a_command_takes_what_it_has_from_a_file_for_all(tmp_path):
    """One file for every command: what only the server has is no error in a chat, and its seed is not the sampling's."""
    got: dict[str, Any] = {}

    @click.command(cls=GroupedCommand)
    @with_sampling_options
    @with_engine_options
    def chat(sampling: dict[str, Any], config: EngineConfig) -> None:
        got.update(sampling=sampling, config=config)

    file = tmp_path / "all.yaml"
    file.write_text("page-size: 4\nport: 1\nseed: 5\napi-key: [canary]\n")
    result = CliRunner().invoke(chat, ["--config", str(file), "--stop", "a"], env={"RAMET_HOST": "x", "RAMET_SEED": "1"})
    assert result.exit_code == 0, result.output
    assert got["sampling"] == {"stop": ("a",)}
    assert got["config"].cache.page_size == 4
