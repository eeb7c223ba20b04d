"""Command-line options, in groups. Start-up options are made from the configuration classes, whose help texts they show."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable
from dataclasses import Field, fields
from typing import Any, get_args, get_type_hints

import click

from ramet.config import CacheConfig, EngineConfig, ModelConfig, RunnerConfig, SchedulerConfig

__all__ = ["GroupedCommand", "GroupedOption", "with_engine_options", "with_sampling_options"]

_CONFIGS = {"model": ModelConfig, "cache": CacheConfig, "scheduler": SchedulerConfig, "runner": RunnerConfig}
_ALIASES = {
    "page_size": ["--block-size"],
    "max_model_len": ["--context-length"],
    "max_running_seqs": ["--max-running-requests", "--max-num-seqs"],
    "max_batch_tokens": ["--max-num-batched-tokens"],
}


class GroupedOption(click.Option):
    """An option that ``--help`` lists under ``group``."""

    def __init__(self, *args: Any, group: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group


class GroupedCommand(click.Command):
    """A command whose ``--help`` lists its options by group, in the order in which the groups first appear."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for option in sorted(self.get_params(ctx), key=lambda param: not isinstance(param, GroupedOption)):
            record = option.get_help_record(ctx) if isinstance(option, click.Option) else None
            if record is not None:
                groups.setdefault(getattr(option, "group", "other"), []).append(record)
        for name, records in groups.items():
            with formatter.section(f"{name.capitalize()} options"):
                formatter.write_dl(records)


def with_sampling_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the sampling options; it receives those that were given as one ``sampling: dict``, by their names in
    ``SamplingParams``.
    """
    options = [
        _sampling("--temperature", type=float, help="0 is greedy; the model's default if left out"),
        _sampling("--top-p", type=float, help="nucleus sampling"),
        _sampling("--top-k", type=int, help="sample from the k likeliest tokens"),
        _sampling("--min-p", type=float, help="least probability, as a share of the likeliest token's"),
        _sampling("--seed", type=int, help="makes a sampled answer repeatable"),
        _sampling("--stop", multiple=True, help="stop string; may be repeated"),
    ]
    names = [option.name for option in options if option.name is not None]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        given = {name: values.pop(name) for name in names}
        command(**values, sampling={name: value for name, value in given.items() if value not in (None, ())})

    return _with_options(run, options)


def with_engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command every start-up option; it receives them as one ``config: EngineConfig``.

    Each option is also read from the environment: ``--page-size`` from ``RAMET_PAGE_SIZE``. Requests without a seed get a new
    one each run.
    """
    options = [option for group, config in _CONFIGS.items() for option in _options_of(group, config)]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        made: dict[str, Any] = {
            group: config(**{option.name: values.pop(option.name) for option in fields(config)})
            for group, config in _CONFIGS.items()
        }
        command(**values, config=EngineConfig(**made, seed=secrets.randbits(64)))

    return _with_options(run, options)


def _with_options(command: Callable[..., None], options: list[click.Option]) -> Callable[..., None]:
    """The command with ``options`` before those it has. ``click.command`` reads them, last first, from this attribute."""
    command.__click_params__ = [*getattr(command, "__click_params__", ()), *reversed(options)]  # type: ignore[attr-defined]
    return command


def _sampling(flag: str, **options: Any) -> click.Option:
    return GroupedOption([flag], group="sampling", **options)


def _options_of(group: str, config: type) -> list[click.Option]:
    hints = get_type_hints(config)
    return [_start_up(group, option, hints[option.name]) for option in fields(config)]


def _start_up(group: str, option: Field[Any], hint: Any) -> click.Option:
    """Choices and sizes are strings on the command line, checked by the configuration classes."""
    members = {member for member in get_args(hint) or (hint,) if member is not type(None)}
    return GroupedOption(
        ["--" + option.name.replace("_", "-"), *_ALIASES.get(option.name, [])],
        group=group,
        type=int if members == {int} else str,
        default=option.default,
        show_default=option.default is not None,
        help=option.metadata["help"],
        envvar=f"RAMET_{option.name.upper()}",
    )
