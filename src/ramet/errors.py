"""Every error that Ramet raises on purpose, and how a message shows what it complains of.

::

    RametError
    ├── InvalidRequest        the caller asked for something wrong; the message says what and how to fix it
    │   ├── ContextTooLong    prompt plus output exceed the context or the KV pool
    │   ├── GrammarError      a schema, regex or grammar cannot be used
    │   └── UnknownAdapter    no adapter has this name, or none may be loaded from this path
    ├── ModelError            a model file or folder cannot be used; the message names the file and the key
    ├── ConfigError           a start-up option is wrong; the message names the option
    ├── Overloaded            the queue is full; try again later
    ├── Unavailable           there is no engine to ask just now: it loads, or the server stops; try again later
    ├── RequestFailed         a defect met this request alone; others go on
    └── EngineDead            the engine cannot go on; a defect, not the caller's fault
"""

from collections.abc import Iterator

__all__ = [
    "ConfigError",
    "ContextTooLong",
    "EngineDead",
    "GrammarError",
    "InvalidRequest",
    "ModelError",
    "Overloaded",
    "RametError",
    "RequestFailed",
    "Unavailable",
    "UnknownAdapter",
    "shown",
]


class RametError(Exception):
    """Root of the tree."""


class InvalidRequest(RametError, ValueError):
    """The request is wrong; nothing was changed.

    ``param`` names the offending field where there is one.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextTooLong(InvalidRequest):
    """Prompt and output do not fit the context length or the KV pool."""


class GrammarError(InvalidRequest):
    """A schema, regex or grammar cannot be used; the message says what in it and why."""

    def __init__(self, message: str, param: str = "structured_outputs") -> None:
        super().__init__(message, param)


class UnknownAdapter(InvalidRequest):
    """There is no adapter of this name, or none at this path that may be read."""


class ModelError(RametError):
    """A model file or folder cannot be used."""


class ConfigError(RametError, ValueError):
    """A start-up option is wrong."""


class Overloaded(RametError):
    """The waiting queue is full."""


class Unavailable(RametError):
    """No engine takes requests just now."""


class RequestFailed(RametError):
    """A defect that met one request."""


class EngineDead(RametError):
    """The engine met a defect and cannot go on."""


def shown(value: object, limit: int = 40) -> str:
    """A value the caller gave, for an error message: its repr on one line, cut to ``limit`` characters. Never raises."""
    try:
        text = ""
        for piece in _pieces(value, 4 * limit):
            text += piece
            if len(text) > 4 * limit:  # spaces in a row will be one
                break
        text = " ".join(text.split())
    except Exception:  # an int of over 4,300 digits has no repr, nor need an object of the caller's have one
        text = f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _pieces(value: object, max_chars: int) -> Iterator[str]:
    """The repr of JSON piece by piece: it may be megabytes long, or deeper than Python goes, and who has enough of it stops."""
    if type(value) is str:
        yield repr(value[: max_chars + 1])
    elif type(value) is list:
        yield "["
        for i, one in enumerate(value):
            yield ", " if i else ""
            yield from _pieces(one, max_chars)
        yield "]"
    elif type(value) is dict:
        yield "{"
        for i, (key, one) in enumerate(value.items()):
            yield ", " if i else ""
            yield from _pieces(key, max_chars)
            yield ": "
            yield from _pieces(one, max_chars)
        yield "}"
    else:
        yield repr(value)
