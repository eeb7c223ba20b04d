"""Every error that Ramet raises on purpose.

::

    RametError
    ├── InvalidRequest        the caller asked for something wrong; the message says what and how to fix it
    │   └── ContextTooLong    prompt plus output exceed the context or the KV pool
    ├── ModelError            a model file or folder cannot be used; the message names the file and the key
    ├── ConfigError           a start-up option is wrong; the message names the option
    ├── Overloaded            the queue is full; try again later
    └── EngineDead            the engine cannot go on; a defect, not the caller's fault
"""

__all__ = [
    "ConfigError",
    "ContextTooLong",
    "EngineDead",
    "InvalidRequest",
    "ModelError",
    "Overloaded",
    "RametError",
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


class ModelError(RametError):
    """A model file or folder cannot be used."""


class ConfigError(RametError, ValueError):
    """A start-up option is wrong."""


class Overloaded(RametError):
    """The waiting queue is full."""


class EngineDead(RametError):
    """The engine met a defect and cannot go on."""
