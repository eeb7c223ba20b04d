"""``ramet doctor``: it says what it can, whatever is broken, and nothing that is secret."""

from __future__ import annotations

import json
import os
import socket

import pytest
from click.testing import CliRunner

from ramet.cli.doctor import doctor, examine


@pytest.fixture
def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_it_says_what_a_bug_report_needs(free_port):
    found = examine(free_port)
    assert not [value for value in found.values() if value.startswith("failed")]
    assert found["ramet"][0].isdigit()
    assert "numpy 2" in found["packages"]
    assert "tokenizers 0." in found["packages"]
    assert "generic" in found["kernels"]
    assert "GiB free for this process" in found["memory"]
    assert f" usable of {os.cpu_count()}" in found["cores"]
    assert found[f"port {free_port}"] == "free on 127.0.0.1"


def test_a_port_that_is_taken(free_port):
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port))
        server.listen()
        assert examine(free_port)[f"port {free_port}"].startswith("taken on 127.0.0.1 (")


def test_json_is_the_same(free_port):
    done = CliRunner().invoke(doctor, ["--json", "--port", str(free_port)])
    assert done.exit_code == 0
    assert json.loads(done.output).keys() == examine(free_port).keys()


def test_parts_that_fail_say_so_and_the_others_go_on(monkeypatch, tmp_path, free_port):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RAMET_CACHE", str(tmp_path / "file" / "below"))
    monkeypatch.setenv("RAMET_ISA", "mmx")
    done = CliRunner().invoke(doctor, ["--port", str(free_port)])
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert [line[:14].strip() for line in lines if "failed: " in line] == ["kernels", "cache folder", "demo model"]
    assert len(lines) == len(examine(free_port))


def test_nothing_of_the_environment_is_told(monkeypatch, free_port):
    monkeypatch.setenv("RAMET_API_KEY", "canary")
    monkeypatch.setenv("SECRET_TOKEN", "canary")
    assert "canary" not in json.dumps(examine(free_port))


def test_the_cache_folder_is_told_without_whose_it_is(monkeypatch, tmp_path, free_port):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAMET_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    found = examine(free_port)
    assert found["cache folder"].startswith("~/.cache/ramet, ")
    assert found["demo model"].startswith("not there")
