"""How much a piece of code allocates."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["allocating_at_most"]


@contextmanager
def allocating_at_most(num_bytes: int) -> Iterator[None]:
    """Fails where Python and numpy hold more than ``num_bytes`` at once over what there was. Mapped files do not count."""
    tracemalloc.start()
    try:
        yield
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak <= num_bytes, f"{peak >> 20} MiB were held at once, over {num_bytes >> 20}"
