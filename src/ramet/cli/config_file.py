"""``--config``: start-up options from a YAML file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ramet.cli.help import GroupedOption, nearest
from ramet.errors import ConfigError

__all__ = ["read_config_file"]

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text (in quotes where it looks like none)"}


def read_config_file(path: str, options: Iterable[GroupedOption]) -> dict[str, Any]:
    """The file's values by the names of their options. A key is a flag without its dashes, or an alias of one.

    Raises ``ConfigError``: no such file, no YAML, an unknown key (with the nearest), a key that is there twice, a value of
    another type than its option's. No value is in a message: it may be a key that opens the server.
    """
    known = {_spelled(name): option for option in options for name in option.opts}
    values: dict[str, Any] = {}
    for key, value in _pairs(path):
        option = known.get(_spelled(key))
        if option is None:
            raise ConfigError(f"{path}: unknown key {key!r}; nearest: {', '.join(nearest(_spelled(key), known))} (--config)")
        name = str(option.name)
        if name in values:
            raise ConfigError(f"{path}: {option.flag[2:]} is given twice (--config)")
        values[name] = _checked(option, value, f"{path}: {key}")
    return {name: value for name, value in values.items() if value is not None}


def _spelled(name: str) -> str:
    return name.lstrip("-").replace("_", "-")


def _pairs(path: str) -> list[tuple[str, Any]]:
    """Keys and values in their order, those that are there twice included: a dict would keep the last of them."""
    import yaml  # type: ignore[import-untyped]

    try:
        text = Path(path).expanduser().read_text("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no text in UTF-8 (--config)") from None
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or error} (--config)") from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date like 2024-99-99
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{path}{where}: not YAML; a text with signs in it may want quotes (--config)") from None
    if content is None:
        return []
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"{path}: every line is a flag's name, a colon and a value, as in page-size: 16 (--config)")
    keys = [str(key.value) for key, _ in root.value]
    return [(key, content.get(key)) for key in keys]


def _checked(option: GroupedOption, value: Any, where: str) -> Any:
    """The value, as the command line would give it. None is an option left out."""
    if value is None:
        return None
    values = value if option.multiple and isinstance(value, list) else [value]
    types = (*option.accepts, int) if float in option.accepts else option.accepts
    if all(isinstance(one, types) and (bool in types or not isinstance(one, bool)) for one in values):
        return values if option.multiple else value
    kind = " or ".join(_KINDS[accepted] for accepted in option.accepts) + (", or a list of them" if option.multiple else "")
    raise ConfigError(f"{where} is {kind}, not of type {type(value).__name__} (--config)")
