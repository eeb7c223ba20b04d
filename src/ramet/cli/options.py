"""Command-line options made from the configuration classes, whose help texts they show."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable
from dataclasses import Field, fields
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from ramet.config import CacheConfig, EngineConfig, ModelConfig, RunnerConfig, SchedulerConfig

__all__ = ["with_engine_options"]

_GROUPS = {"model": ModelConfig, "cache": CacheConfig, "scheduler": SchedulerConfig, "runner": RunnerConfig}
_ALIASES = {
    "page_size": ["--block-size"],
    "max_model_len": ["--context-length"],
    "max_running_seqs": ["--max-running-requests", "--max-num-seqs"],
    "max_batch_tokens": ["--max-num-batched-tokens"],
}


def with_engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command every start-up option; it receives them as one ``config: EngineConfig``.

    Each option is also read from the environment: ``--page-size`` from ``RAMET_PAGE_SIZE``. Requests without a seed get a new
    one each run.
    """
    options = {name: option for config in _GROUPS.values() for name, option in _options_of(config).items()}

    def run(**values: Any) -> None:
        made: dict[str, Any] = {
            group: config(**{option.name: values.pop(option.name) for option in fields(config)})
            for group, config in _GROUPS.items()
        }
        command(**values, config=EngineConfig(**made, seed=secrets.randbits(64)))

    signature = inspect.signature(command, eval_str=True)
    own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in signature.parameters.values() if p.name != "config"]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature([*own, *options.values()])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in [*own, *options.values()]}
    return run


def _options_of(config: type) -> dict[str, inspect.Parameter]:
    hints = get_type_hints(config)
    return {option.name: _parameter(option, hints[option.name]) for option in fields(config)}


def _parameter(option: Field[Any], hint: Any) -> inspect.Parameter:
    name = option.name
    flags = ["--" + name.replace("_", "-"), *_ALIASES.get(name, [])]
    info = typer.Option(*flags, help=option.metadata["help"], envvar=f"RAMET_{name.upper()}", show_envvar=False)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=Annotated[_command_line_type(hint), info]
    )


def _command_line_type(hint: Any) -> Any:
    """The hint as the command line can read it: choices and sizes are strings there, checked by the configuration classes."""
    members = [m for m in get_args(hint) if m is not type(None)] if get_origin(hint) is not None else [hint]
    optional = type(None) in get_args(hint)
    plain: Any = int if members == [int] else str
    return plain | None if optional else plain
