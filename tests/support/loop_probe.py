"""How long a request keeps the event loop from everybody else."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.http import Called, call

__all__ = ["Probed", "probe", "resident_bytes"]


@dataclass(frozen=True)
class Probed:
    """``held_s`` is the longest that the loop's thread computed between two of its turns; ``away_s`` the longest time between
    two turns by the clock, which others on the machine make longer."""

    answer: Called
    held_s: float
    away_s: float


async def probe(app: Any, path: str, body: Any, **options: Any) -> Probed:
    """Ask, and take a turn of the loop a thousand times a second meanwhile."""
    turns: list[tuple[float, float]] = []

    async def tick() -> None:
        while True:
            turns.append((time.thread_time(), time.perf_counter()))
            await asyncio.sleep(0.001)

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0.003)
    del turns[:-1]
    answer = await call(app, path, body, **options)
    await asyncio.sleep(0.002)
    ticking.cancel()
    pairs = list(itertools.pairwise(turns))
    return Probed(answer, max(b[0] - a[0] for a, b in pairs), max(b[1] - a[1] for a, b in pairs))


def resident_bytes(pid: int | str = "self") -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
