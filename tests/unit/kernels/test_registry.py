"""Which backend is made, and the errors that name what could be."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from ramet import _native
from ramet.errors import ConfigError
from ramet.kernels.backend import Weight
from ramet.kernels.cpu import CpuBackend, default_threads
from ramet.kernels.reference import ReferenceBackend
from ramet.kernels.registry import make_backend


def test_names() -> None:
    assert isinstance(make_backend("reference"), ReferenceBackend)
    with pytest.raises(ConfigError, match="cpu or reference"):
        make_backend("tpu")


def test_instruction_set_from_argument_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def isa_of(**options: str) -> str:
        backend = make_backend("cpu", threads=1, **options)
        assert isinstance(backend, CpuBackend)
        return backend.isa

    monkeypatch.delenv("RAMET_ISA", raising=False)
    assert isa_of() == _native.isas()[0]
    monkeypatch.setenv("RAMET_ISA", "generic")
    assert isa_of() == "generic"
    assert isa_of(isa=_native.isas()[0]) == _native.isas()[0]
    with pytest.raises(ConfigError, match="generic on this machine, not 'sse9'"):
        isa_of(isa="sse9")


@pytest.mark.parametrize("threads", [0, -1, 100_000])
def test_threads_out_of_range(threads: int) -> None:
    with pytest.raises(ConfigError, match="--threads"):
        make_backend("cpu", threads=threads)


def test_default_threads_respect_the_container(tmp_path: Path) -> None:
    unlimited = default_threads(tmp_path)
    assert unlimited >= 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert default_threads(tmp_path) == unlimited
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert default_threads(tmp_path) == 1


def test_default_threads_on_cgroup_v1(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("30000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert default_threads(tmp_path) == 1


def test_b175_no_rights_to_ask_is_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(pid: int) -> set[int]:
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(os, "sched_getaffinity", refused, raising=False)
    assert default_threads(tmp_path) == (os.cpu_count() or 1)
    for nonsense in ("", "x 100000\n", "100000 0\n", "1 2 3\n"):
        (tmp_path / "cpu.max").write_text(nonsense)
        assert default_threads(tmp_path) == (os.cpu_count() or 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_computes_alone() -> None:
    """The pool's threads stay in the parent; the child gets the same bits, and its end does not hang."""
    backend = make_backend("cpu", threads=2)
    weight = backend.pack([Weight("f32", np.ones((3000, 320), np.float32))])
    x = np.ones((4, 320), np.float32)
    want = backend.linear(x, weight)
    time.sleep(0.01)  # the worker is asleep
    child = os.fork()
    if child == 0:
        agrees = backend.linear(x, weight).tobytes() == want.tobytes()
        del backend
        os._exit(0 if agrees else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
