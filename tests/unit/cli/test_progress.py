"""Bars on a terminal, one line in a log."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest

from ramet.cli import progress
from ramet.cli.progress import loading_progress


def test_a_log_gets_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "_WORTH_A_LINE_S", 0.0)
    now = iter([0.0, 2.2, 3.5])
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(now)))  # servers of other tests have a clock too
    with loading_progress() as report:
        report("fetching org/m", 0, 0)
        report("packing weights", 0, 2)
        assert capsys.readouterr().err == ""
    assert capsys.readouterr().err == "loaded: fetching org/m 2.2 s, packing weights 1.3 s\n"


def test_what_is_soon_done_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    with loading_progress() as report:
        report("packing weights", 1, 1)
    with loading_progress():
        pass
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    with loading_progress() as report:
        report("asking the hub", 0, 0)
        report("packing weights", 1, 4)
    assert "asking the hub" in shown.getvalue()
    assert "packing weights" in shown.getvalue()
    assert "loaded:" not in shown.getvalue()
