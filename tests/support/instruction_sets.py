"""Which sets of kernels tests run on."""

from __future__ import annotations

from ramet import _native

__all__ = ["CPUS"]

# (instruction set, threads) of a backend: every set of this machine with two. How work is dealt out to threads is the
# same code in all of them, so the best one alone runs with one as well; each has tests of its own that threads change no bit.
CPUS: list[tuple[str, int]] = [(_native.isas()[0], 1), *((isa, 2) for isa in _native.isas())]
