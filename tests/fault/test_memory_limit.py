"""H11: what clients send does not decide how much memory a server takes."""

from __future__ import annotations

import json
import os
import resource
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from fault.watch import held_when_idle
from support.serve_process import ServeProcess, serving
from tiny_models import TINY_MODELS, write_folder

FULL = os.environ.get("RAMET_FAULT") == "full"
CONTEXT = 10_000
SPARE = 0.2  # of what a process holds under load, and may take beyond it


def test_h11_large_bodies_and_long_prompts_are_refused_or_answered(tmp_path: Path) -> None:
    model = TINY_MODELS["llama"]
    write_folder(replace(model, config={**model.config, "max_position_embeddings": CONTEXT}), tmp_path / "model")
    num_prompts, num_tokens = (64, 8000) if FULL else (24, 1000)
    limits = ("--max-total-tokens", "40000", "--max-queued-requests", "16")
    with serving(tmp_path / "model", tmp_path / "log", *limits) as server:
        prompts = [f"{number} ".ljust(num_tokens, "x") for number in range(num_prompts)]
        with ThreadPoolExecutor(num_prompts) as pool:  # as it is under load: the cache is full, and all threads are there
            assert set(pool.map(lambda prompt: ask(server, prompt[::-1]), prompts)) <= {200, 429}
        before = held_when_idle(server)
        engine = server.engine_pid
        for pid in (server.pid, engine):
            most = resident(pid, "VmData") + int(SPARE * resident(pid, "VmRSS"))
            resource.prlimit(pid, resource.RLIMIT_DATA, (most, most))
        with ThreadPoolExecutor(20) as pool:
            bodies = [pool.submit(server.ask, "/v1/completions", b" " * 50_000_000) for _ in range(20)]
            assert {one.result()[0] for one in bodies} == {413}
        with ThreadPoolExecutor(num_prompts) as pool:
            statuses = list(pool.map(lambda prompt: ask(server, prompt), prompts))
        assert set(statuses) <= {200, 429}
        assert statuses.count(200) >= 16
        assert held_when_idle(server) == before
        assert server.engine_pid == engine
        assert "defect" not in server.log.read_text()


def ask(server: ServeProcess, prompt: str) -> int:
    status, _, body = server.ask("/v1/completions", {"prompt": prompt, "max_tokens": 2}, timeout=300)
    told: dict[str, Any] = json.loads(body)
    assert ("choices" in told) == (status == 200)
    return status


def resident(pid: int, name: str) -> int:
    """Bytes of memory that a process has: resident (VmRSS), or its own by address space (VmData)."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields[name].split()[0]) << 10
