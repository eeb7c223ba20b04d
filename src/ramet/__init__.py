"""Ramet: an LLM serving engine whose KV cache is a tree.

::

    from ramet import LLM, SamplingParams
"""

from typing import TYPE_CHECKING

from ramet.errors import (
    ConfigError,
    ContextTooLong,
    EngineDead,
    GrammarError,
    InvalidRequest,
    ModelError,
    Overloaded,
    RametError,
)

if TYPE_CHECKING:
    from ramet.core.sampling import SamplingParams
    from ramet.engine.assemble import CompletionOutput, Logprob, RequestOutput, Usage
    from ramet.llm import LLM

__all__ = [
    "LLM",
    "CompletionOutput",
    "ConfigError",
    "ContextTooLong",
    "EngineDead",
    "GrammarError",
    "InvalidRequest",
    "Logprob",
    "ModelError",
    "Overloaded",
    "RametError",
    "RequestOutput",
    "SamplingParams",
    "Usage",
]

_HOMES = {
    "LLM": "ramet.llm",
    "SamplingParams": "ramet.core.sampling",
    "CompletionOutput": "ramet.engine.assemble",
    "Logprob": "ramet.engine.assemble",
    "RequestOutput": "ramet.engine.assemble",
    "Usage": "ramet.engine.assemble",
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    """Load the heavy names on first use, so that ``ramet --help`` answers at once."""
    if name not in _HOMES:
        raise AttributeError(f"module 'ramet' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
