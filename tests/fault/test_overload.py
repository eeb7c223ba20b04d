"""H12: ten times what the server can do, from clients that do not wait for each other."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault.cases import Case, answered_alone
from fault.crowd import Crowd
from fault.watch import Watch, held_when_idle
from support.full_server import KEY, full_server
from support.http import Served, write_tiny
from support.serve_process import ServeProcess, serving

from ramet.server.translate import Translator

FULL = os.environ.get("RAMET_FAULT") == "full"
SECONDS = float(os.environ.get("RAMET_OVERLOAD_S", "60" if FULL else "2"))
RUNNING, WAITING = (8, 24) if FULL else (4, 6)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with full_server(tmp_path_factory.mktemp("full")) as served:
        yield served


def test_h12_ten_times_what_it_can_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = ("--threads", "1", "--max-running-seqs", str(4 * RUNNING), "--max-queued-requests", str(WAITING))
    with serving(write_tiny(tmp_path / "model"), tmp_path / "log", *limits) as server:
        cases = heavy_cases(server)
        before = closed_loop(server, cases, SECONDS / 4)
        asyncio.run(Crowd(server.port, cases).rush(10 * before, 1))  # until all threads are there
        held = held_when_idle(server)
        crowd = Crowd(server.port, cases)
        with Watch(server, every_s=0.5) as watch:
            began = time.monotonic()
            asyncio.run(asyncio.wait_for(crowd.rush(10 * before, SECONDS), SECONDS + 60))
            whole_s = time.monotonic() - began
        after = closed_loop(server, cases, SECONDS / 4)
        assert held_when_idle(server) == held
    tally, capacity = crowd.tally, (before + after) / 2
    goodput = tally.num_equal / whole_s
    num_refused = tally.unwhole.pop("429 queue_full")
    assert tally.num_equal > 0
    wait_s = max(tally.seconds)
    with capsys.disabled():
        print(f"\ncapacity {before:.1f} and {after:.1f} requests a second, asked for {10 * before:.0f}; goodput {goodput:.1f}")
        print(f"{tally.num_equal} answered, {num_refused} refused, in {whole_s:.1f} s; the longest took {wait_s:.1f} s")
        print(watch.report())
    assert tally.wrong == watch.faults == watch.unanswered == []
    assert not tally.unwhole
    assert num_refused > (4 * tally.num_equal if FULL else 0)
    assert watch.most_waiting <= WAITING  # a place in the queue is worth the time of those before it
    if FULL:  # what takes time says something of a machine that has nothing else to do
        assert wait_s < 4 * (RUNNING + WAITING) / min(before, goodput)
        assert goodput >= 0.9 * capacity


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/responses", {"input": "a"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
        ("/generate", {"text": "a"}),
    ],
)
def test_h12_nothing_is_put_into_a_prompt_that_is_refused(full: Served, path: str, body: dict[str, Any]) -> None:
    """Neither rendering nor encoding, which go through the one pool."""
    work: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Translator, "run", lambda self, job: work.append(job))
        answer = full.post(path, body, authorization=f"Bearer {KEY}")
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "1"
    assert work == []


def heavy_cases(server: ServeProcess) -> list[Case]:
    """All of the same work."""
    bodies = [
        {"prompt": f"{i} " * 20, "max_tokens": 150, "n": 4, "seed": i, "ignore_eos": True, "return_token_ids": True}
        for i in range(8)
    ]
    return [answered_alone(lambda path, body: server.ask(path, body)[::2], Case("/v1/completions", body)) for body in bodies]


def closed_loop(server: ServeProcess, cases: list[Case], seconds: float) -> float:
    """Answers a second with as many clients as there are places to run."""
    crowd = Crowd(server.port, cases)
    began = time.monotonic()
    asyncio.run(crowd.storm(RUNNING, seconds))
    assert crowd.tally.wrong == []
    return crowd.tally.num_equal / (time.monotonic() - began)
