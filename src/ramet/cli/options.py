"""Command-line options. Start-up options are made from the configuration classes, whose texts they show."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import Field, fields, replace
from typing import Any, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource

from ramet.cli.config_file import read_config_file
from ramet.cli.help import GroupedOption, Shorthand, nearest
from ramet.config import CacheConfig, EngineConfig, LoraConfig, ModelConfig, RunnerConfig, SchedulerConfig, ServerConfig
from ramet.errors import ConfigError

__all__ = [
    "check_environment",
    "start_up_options",
    "with_engine_options",
    "with_named_model",
    "with_sampling_options",
    "with_server_options",
]

_CONFIGS = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "runner": RunnerConfig,
    "lora": LoraConfig,
}
_GROUPS = {  # in the order of --help; those of the first line are in the short one
    "model": (
        "model served_model_name max_model_len quantization threads",
        "revision offline dtype weight_cache weight_cache_size isa seed tool_call_parser reasoning_parser "
        "lora_modules lora_root max_loras max_lora_rank",
    ),
    "memory": (
        "kv_cache_memory max_running_seqs kv_cache_dtype",
        "mem_fraction max_total_tokens max_batch_tokens chunked_prefill_size max_queued_requests speculative "
        "num_speculative_tokens jump_forward",
    ),
    "cache": (
        "prefix_cache page_size share_cache",
        "schedule_policy",
    ),
    "network": (
        "host port api_key api_key_file admin_api_key",
        "allowed_hosts allow_unauthenticated max_body_size drain_timeout_s metrics_compat log_requests log_level",
    ),
}
_ALIASES = {
    "page_size": ["--block-size"],
    "max_model_len": ["--context-length"],
    "max_running_seqs": ["--max-running-requests", "--max-num-seqs"],
    "max_batch_tokens": ["--max-num-batched-tokens"],
    "num_speculative_tokens": ["--speculative-num-draft-tokens"],
}
_SHORTHANDS = {
    "prefix_cache": {"--no-enable-prefix-caching": Shorthand("none"), "--disable-radix-cache": Shorthand("none")},
    "jump_forward": {"--no-jump-forward": Shorthand("off")},
    "max_loras": {"--enable-lora": Shorthand("16", is_weak=True)},
    "tool_call_parser": {"--enable-auto-tool-choice": Shorthand("auto", is_weak=True)},
}
_OTHER_VARIABLES = {"RAMET_CACHE", "RAMET_CONFIG", "RAMET_EXACT", "RAMET_SHARED"}  # the cache folder; two of the tests
_OF_KUBERNETES = re.compile(r"RAMET_SERVICE_(HOST|PORT)\w*|RAMET_PORT_[0-9]+_\w+")  # set beside a service called "ramet"


def with_sampling_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the sampling options; it receives those that were given as one ``sampling: dict``, by their names in
    ``SamplingParams``.
    """
    options = [
        _sampling("--temperature", type=float, help="0 is greedy", unset="model's"),
        _sampling("--top-p", type=float, help="nucleus sampling", unset="model's"),
        _sampling("--top-k", type=int, help="sample from the k likeliest tokens", unset="model's"),
        _sampling("--min-p", type=float, help="least probability, as a share of the likeliest's"),
        _sampling("--seed", type=int, help="makes a sampled answer repeatable", unset="new each time"),
        _sampling("--stop", multiple=True, help="string that ends the answer; may be repeated"),
    ]
    names = [option.name for option in options if option.name is not None]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        given = {name: values.pop(name) for name in names}
        command(**values, sampling={name: value for name, value in given.items() if value not in (None, ())})

    return _with_options(run, options)


def with_engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the start-up options of the engine, and ``--config``; it receives them as one ``config: EngineConfig``.

    The command line goes before the environment (``--page-size`` is ``RAMET_PAGE_SIZE``), that before the file, that before
    the default. Requests without a seed get a new one each run, unless the command has a start-up option for it.
    """
    options = [option for config in _CONFIGS.values() for option in _options_of(config)]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        import secrets

        check_environment(os.environ)
        made: dict[str, Any] = {group: config(**_taken(values, config)) for group, config in _CONFIGS.items()}
        seed = values.pop("seed", None)
        command(**values, config=EngineConfig(**made, seed=secrets.randbits(64) if seed is None else seed))

    return _with_options(run, [*options, _config_option()])


def with_server_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command of the engine the start-up options of the server too; it receives them as one ``server: ServerConfig``."""

    @functools.wraps(command)
    def run(**values: Any) -> None:
        server = ServerConfig(**_taken(values, ServerConfig))
        command(**values, server=server)

    return _with_options(run, [*_options_of(ServerConfig), *_options_of(EngineConfig)])


def with_named_model(config: EngineConfig, name: str | None) -> EngineConfig:
    """``config`` for the model that is named without a flag, if one is. A ``--model`` that says otherwise is a usage error."""
    if name is None:
        return config
    source = click.get_current_context().get_parameter_source("model")
    if source is ParameterSource.COMMANDLINE and config.model.model != name:
        raise click.UsageError(f"Two models are named: {name} and --model {config.model.model}. Name one.")
    return replace(config, model=replace(config.model, model=name))


def check_environment(environment: Mapping[str, str]) -> None:
    """Refuse a ``RAMET_`` variable that means nothing: it is a flag misspelled. Raises ``ConfigError``."""
    known = _OTHER_VARIABLES | {str(option.envvar) for option in start_up_options()}
    for name in sorted(environment):
        if name.startswith("RAMET_") and name not in known and not _OF_KUBERNETES.fullmatch(name):
            raise ConfigError(f"the variable {name} sets nothing; nearest: {', '.join(nearest(name, sorted(known)))}")


@functools.cache
def start_up_options() -> tuple[GroupedOption, ...]:
    """Every start-up option of every command."""
    return tuple(o for config in (*_CONFIGS.values(), EngineConfig, ServerConfig) for o in _options_of(config))


def _with_options(command: Callable[..., None], options: list[GroupedOption]) -> Callable[..., None]:
    """The command with ``options`` before those it has. ``click.command`` reads them, last first, from this attribute."""
    command.__click_params__ = [*getattr(command, "__click_params__", ()), *reversed(options)]  # type: ignore[attr-defined]
    return command


def _taken(values: dict[str, Any], config: type) -> dict[str, Any]:
    return {option.name: values.pop(option.name) for option in fields(config)}


def _sampling(flag: str, **options: Any) -> GroupedOption:
    return GroupedOption([flag], group="sampling", **options)


def _config_option() -> GroupedOption:
    return GroupedOption(
        ["--config"],
        group="other",
        common=False,
        is_eager=True,
        expose_value=False,
        callback=_read_config,
        envvar="RAMET_CONFIG",
        help="YAML file of start-up options",
        more="Its keys are names of flags, with - or _. The command line and the environment go before it.",
    )


def _read_config(ctx: click.Context, parameter: click.Parameter, path: str | None) -> None:
    """Make the file's values the command's defaults. Options that other commands have may be in the file too."""
    if path is None:
        return
    given = read_config_file(path, start_up_options())
    own = {param.name for param in ctx.command.params if param.envvar}  # a sampling option may have the name of another's
    ctx.default_map = {name: value for name, value in given.items() if name in own}


def _options_of(config: type) -> list[GroupedOption]:
    """The options of one class, in the order of ``_GROUPS``. What is itself a class of options is left out."""
    hints = get_type_hints(config)
    known = {option.name: option for option in fields(config) if option.name not in _CONFIGS or config is not EngineConfig}
    return [
        _start_up(known[name], hints[name], group, names is common)
        for group, (common, rare) in _GROUPS.items()
        for names in (common, rare)
        for name in names.split()
        if name in known
    ]


def _start_up(option: Field[Any], hint: Any, group: str, common: bool) -> GroupedOption:
    """Choices and sizes are strings on the command line, checked by the configuration classes."""
    flag = "--" + option.name.replace("_", "-")
    is_list = get_origin(hint) is tuple
    members = {member for member in get_args(hint) or (hint,) if member is not type(None)}
    accepts = tuple(kind for kind in (bool, int, float, str) if kind in members) or (str,)  # members of a Literal are texts
    if accepts == (bool,):
        flag = f"{flag}/--no-{flag[2:]}"
    return GroupedOption(
        [flag, *_ALIASES.get(option.name, [])],
        group=group,
        common=common,
        more=option.metadata["more"],
        unset=option.metadata["unset"],
        shorthands=_SHORTHANDS.get(option.name),
        accepts=accepts,
        type=accepts[0] if len(accepts) == 1 else str,
        multiple=is_list,
        default=None if option.name == "seed" else option.default,  # left out, each start has another
        help=option.metadata["help"],
        envvar=f"RAMET_{option.name.upper()}",
    )
