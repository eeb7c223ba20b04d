"""Servers' parts over engines with the fake runner, in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from support.engines import EOS_IDS, VOCAB_SIZE

from ramet.config import SchedulerConfig
from ramet.core.batch import Batch
from ramet.engine.admission import Admission, Limits
from ramet.engine.clock import MonotonicClock
from ramet.engine.engine import Engine
from ramet.engine.wire import Ready
from ramet.kv.manager import KVManager
from ramet.kv.pool import PagePool
from ramet.kv.radix import RadixCache
from ramet.runner.fake import FakeRunner, VirtualClock, no_faults
from ramet.schedule.policy import make_policy
from ramet.schedule.scheduler import Scheduler
from ramet.server.client import EngineClient
from ramet.server.links import ThreadLink


def fake_engine(
    *,
    page_size: int = 4,
    num_pages: int = 64,
    max_model_len: int = 256,
    faults: Callable[[Batch], Mapping[int, str]] = no_faults,
    **config: Any,
) -> tuple[Engine, Ready]:
    """An engine over the fake runner, and what it tells a server of itself."""
    kv = KVManager(PagePool(num_pages), RadixCache(page_size), page_size)
    scheduler = Scheduler(SchedulerConfig(**config), kv, make_policy("fcfs", kv))
    runner = FakeRunner(VOCAB_SIZE, page_size, num_pages, VirtualClock(), faults=faults)
    clock, limits = MonotonicClock(), Limits.of(VOCAB_SIZE, max_model_len, kv.fits)
    engine = Engine(runner, scheduler, kv, clock, Admission(limits, EOS_IDS, clock, seed=0))
    ready = Ready(
        limits=engine.limits,
        eos_ids=tuple(EOS_IDS),
        num_pages=num_pages,
        page_size=page_size,
        page_bytes=page_size,
        threads=1,
        isa="fake",
    )
    return engine, ready


@asynccontextmanager
async def fake_client(
    make: Callable[[], tuple[Engine, Ready]] = fake_engine, *, max_queued_requests: int = 100
) -> AsyncIterator[EngineClient]:
    """A client of such an engine, up and ready; closed at the end."""
    client = EngineClient(lambda: ThreadLink(make), None, MonotonicClock(), max_queued_requests=max_queued_requests, seed=0)
    running = asyncio.create_task(client.run())
    try:
        up = asyncio.create_task(client.until_ready())
        await asyncio.wait([up, running], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            up.cancel()
            await running
        yield client
    finally:
        await client.close()
        await asyncio.gather(running, return_exceptions=True)
