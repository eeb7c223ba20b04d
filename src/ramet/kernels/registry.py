"""Backends by name."""

from __future__ import annotations

import os

from ramet import _native
from ramet.errors import ConfigError
from ramet.kernels.backend import Backend
from ramet.kernels.cpu import CpuBackend, default_threads
from ramet.kernels.reference import ReferenceBackend

__all__ = ["make_backend"]


def make_backend(name: str = "cpu", threads: int | None = None, isa: str | None = None) -> Backend:
    """The backend called ``name``: cpu or reference.

    ``threads`` None is all the cores this process may use; ``isa`` None is what the variable RAMET_ISA says, else the
    best of this machine. Raises ``ConfigError`` where one of them is unknown or not to be had here.
    """
    if name == "reference":
        return ReferenceBackend()
    if name != "cpu":
        raise ConfigError(f"the backend is cpu or reference, not {name!r}")
    known = _native.isas()
    isa = isa or os.environ.get("RAMET_ISA") or known[0]
    if isa not in known:
        raise ConfigError(f"the instruction set is one of {', '.join(known)} on this machine, not {isa!r} (--isa, RAMET_ISA)")
    threads = default_threads() if threads is None else threads
    if not 1 <= threads <= 1024:
        raise ConfigError(f"threads are from 1 to 1024, not {threads} (--threads)")
    return CpuBackend(threads, isa)
