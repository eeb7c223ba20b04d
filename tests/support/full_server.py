"""A server that can take no more, and the server's own hand on what runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.http import Served, serve_tiny, write_tiny

from ramet.config import SchedulerConfig, ServerConfig
from ramet.core.sampling import SamplingParams
from ramet.server.generation import Prompted

KEY = "sesame"


@contextmanager
def full_server(folder: Path) -> Iterator[Served]:
    """One request runs, one waits, and there is room for no other. Callers need ``KEY``."""
    scheduler = SchedulerConfig(max_running_seqs=1, max_queued_requests=1)
    with serve_tiny(write_tiny(folder), ServerConfig(api_key=(KEY,)), scheduler=scheduler) as served:
        served.run(_fill(served))
        yield served
        abort_all(served)


def abort_all(served: Served) -> None:
    """End what runs, without the clients' doing."""

    async def work() -> None:
        for generation in served.services.client.generations:
            generation.abort()

    served.run(work())


async def _fill(served: Served) -> None:
    client = served.services.client
    endless = Prompted(token_ids=[1, 2, 3], sampling=SamplingParams(max_tokens=2000, ignore_eos=True))
    (first,) = client.submit([endless], "runs")
    async with asyncio.timeout(10):
        while first.started_s is None:
            await first.changed()
    client.submit([endless], "waits")
