"""Backends by name."""

from __future__ import annotations

from ramet.errors import ConfigError
from ramet.kernels.backend import Backend
from ramet.kernels.reference import ReferenceBackend

__all__ = ["make_backend"]


def make_backend(name: str = "reference", threads: int | None = None, isa: str | None = None) -> Backend:
    """The backend called ``name``. Raises ``ConfigError`` where it, or ``isa``, is unknown or not on this machine."""
    if name == "reference":
        return ReferenceBackend()
    raise ConfigError(f"the backend is one of reference, not {name!r}")
