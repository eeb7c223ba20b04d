"""H18: a fault each ten seconds over a mixed load, for as long as there is time. ``RAMET_SOAK_S`` says how long."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from fault.cases import make_cases
from fault.crowd import Crowd
from fault.troubles import Troubles
from fault.watch import Watch, held_when_idle
from support.http import write_tiny
from support.serve_process import ServeProcess, serving

SECONDS = float(os.environ.get("RAMET_SOAK_S", "120"))
EVERY_S = 10.0
CLIENTS = 24
TOLD = {  # what a client may be told instead of an answer, by status and code
    "503 engine_restarted", "200 engine_restarted", "503 unavailable", "429 queue_full", "ConnectionError",
}  # fmt: skip

pytestmark = pytest.mark.skipif(os.environ.get("RAMET_FAULT") != "full", reason="minutes long: set RAMET_FAULT=full")


def test_h18_a_fault_each_ten_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = ("--max-total-tokens", "16000", "--max-queued-requests", "64")
    with serving(write_tiny(tmp_path / "model"), tmp_path / "log", *limits) as server:
        cases = make_cases(lambda path, body: server.ask(path, body)[::2], 60)
        crowd = Crowd(server.port, cases, leaving=0.1)
        troubles = Troubles(server, cases)
        asyncio.run(soak(crowd, troubles, len(troubles.all) * EVERY_S))  # every kind once: whatever grows once has grown
        before = held_when_idle(server)
        began = time.monotonic()
        with Watch(server) as watch:
            asyncio.run(soak(crowd, troubles, SECONDS))
        after = held_when_idle(server)
        num_starts = server.info()["num_engine_starts"]
        hours = (time.monotonic() - began) / 3600
        tally = crowd.tally
        with capsys.disabled():
            print(f"\n{60 * hours:.0f} minutes, {num_starts - 1} restarts, {tally.num_equal:,} answers equal to those alone")
            print(f"({tally.num_tokens:,} tokens); left {dict(tally.left)}; told {dict(tally.unwhole)}")
            print(watch.report())
        assert tally.wrong == troubles.faults == watch.faults == []
        assert len(watch.unanswered) <= 4 * (1 + SECONDS / EVERY_S / len(troubles.all))  # where it has no files left
        assert set(tally.unwhole) <= TOLD
        assert after == before
        # Of the second half: the allocator goes on taking a little for a long while. Half an MB is noise, however long it lasts.
        assert watch.rss_slope(of_engine=False, skipping=0.5) <= max(1.0, 1.0 / hours)
        assert_log_has_no_defect(server)


async def soak(crowd: Crowd, troubles: Troubles, seconds: float) -> None:
    """The load, and beside it one trouble after the other."""
    load = asyncio.create_task(crowd.storm(CLIENTS, seconds))
    made = list(troubles.all.values())
    for number in range(int(seconds / EVERY_S)):
        due = asyncio.create_task(asyncio.sleep(EVERY_S))
        await asyncio.wait_for(made[number % len(made)](), 5 * EVERY_S)
        await due
    await load


def assert_log_has_no_defect(server: ServeProcess) -> None:
    lines = [line for line in server.log.read_text().splitlines() if "defect" in line or "Traceback" in line]
    assert lines == []
