"""H13: the clock on the wall may jump; what counts time counts by another."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import pytest
from support.http import Served, chunks, texts

import ramet

TEXT = "/v1/completions"
WALL = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "time.localtime", "time.gmtime"}


def test_h13_the_clock_on_the_wall_decides_nothing() -> None:
    """Where it is read in what serves, it is to tell somebody when something was made, or in a log line."""
    told = []
    for part in ("server", "engine", "schedule", "kv", "runner"):
        for path in sorted((Path(ramet.__file__).parent / part).rglob("*.py")):
            source = path.read_text("utf-8")
            told += [
                (path.name, source.splitlines()[node.lineno - 1].strip())
                for node in ast.walk(ast.parse(source))
                if isinstance(node, ast.Call) and ast.unparse(node.func) in WALL
            ]
    assert len(told) >= 3
    assert [one for one in told if "created" not in one[1] and "completed_at" not in one[1]] == []


def test_h13_streams_go_on_when_it_jumps(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"prompt": "steady", "max_tokens": 200, "ignore_eos": True, "seed": 1}
    expected = server.call(TEXT, body).json()["choices"][0]["text"]
    real = time.time
    for jump_s in (3600, -3600, 10 * 365 * 86400, -10 * 365 * 86400):
        with server.http.stream("POST", TEXT, json=body | {"stream": True}) as response:
            lines = response.iter_lines()
            said = [next(lines) for _ in range(8)]
            monkeypatch.setattr(time, "time", lambda jump_s=jump_s: real() + jump_s)
            said += list(lines)
        assert texts(chunks("\n".join(said) + "\n")) == expected
        samples = server.http.get("/metrics").text.splitlines()
        assert not [line for line in samples if line.startswith("ramet") and float(line.rsplit(" ", 1)[1]) < 0]
        monkeypatch.undo()
