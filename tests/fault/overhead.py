"""What HTTP costs: tokens a second through a server against those of ``LLM.generate``, the same prompts in turn in one run.

``python tests/fault/overhead.py [--rounds 8] [--streams 16] [--max-tokens 128] [--threads N]``; the demo model. A machine's speed
changes from minute to minute, so only ratios within a round mean something; the median of them is what is told.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.serve_process import ServeProcess, serving

from ramet import LLM, SamplingParams
from ramet.cli.load.connection import Address
from ramet.cli.load.drive import Run
from ramet.cli.load.server import Asking, open_server
from ramet.cli.load.workloads import Shape, Turn, programs

SHAPE = Shape(prompt_tokens=32, shared_tokens=0, turns=1)


def main() -> None:
    """Rounds of both, the one or the other first in turn; the first round warms up and is not counted."""
    parser = argparse.ArgumentParser()
    for name, default in (("rounds", 8), ("streams", 16), ("max-tokens", 128), ("threads", None)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    flags = [] if asked.threads is None else ["--threads", str(asked.threads)]
    num_tokens = asked.streams * asked.max_tokens
    ratios, busy = [], []
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(None, Path(folder) / "log", *flags) as server,
        LLM(threads=asked.threads) as llm,
    ):
        for number in range(asked.rounds + 1):
            turns = programs("no-share", asked.streams, number, SHAPE, [], 0)
            if number % 2:
                alone_s = alone(llm, turns, asked.max_tokens)
            cpu_s = cpu_seconds(server.pid)
            served_s = through_server(server, turns, asked.max_tokens)
            cpu_s = cpu_seconds(server.pid) - cpu_s
            if not number % 2:
                alone_s = alone(llm, turns, asked.max_tokens)
            if number:
                ratios.append(alone_s / served_s)
                busy.append(1e6 * cpu_s / num_tokens)
                served, own = num_tokens / served_s, num_tokens / alone_s
                print(f"served {served:.1f} tok/s, LLM {own:.1f}: {ratios[-1]:.3f}; server {busy[-1]:.0f} us a token", flush=True)
    median, median_us = statistics.median(ratios), statistics.median(busy)
    print(f"median of {len(ratios)}: {median:.3f}; server process {median_us:.0f} us of CPU a token")


def alone(llm: LLM, turns: list[Turn], max_tokens: int) -> float:
    """Seconds in the Python API."""
    prompts = [turn.messages[0]["content"] for turn in turns]
    began = time.perf_counter()
    llm.generate(prompts, SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True))
    return time.perf_counter() - began


def through_server(server: ServeProcess, turns: list[Turn], max_tokens: int) -> float:
    """Seconds over HTTP, with the client of ``ramet bench serve``."""

    async def work() -> float:
        asking = Asking("", "completions", max_tokens, 600, is_eos_ignored=True)
        async with open_server(Address.parse(f"http://127.0.0.1:{server.port}"), None, asking, time.perf_counter) as client:
            run = Run(client, time.perf_counter)
            began = time.perf_counter()
            await run.closed(turns, len(turns))
            took = time.perf_counter() - began
        assert [record.output_tokens for record in run.records] == [max_tokens] * len(turns), run.records
        return took

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work())


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


if __name__ == "__main__":
    main()
