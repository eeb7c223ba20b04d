"""T39: what is installed is written down, and none of it is older than the fix of a known fault."""

from __future__ import annotations

import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from runtime_closure import normal, runtime_closure
from source_tree import ROOT

FLOORS = {  # the first version without the faults named
    "anyio": "4.4.0",  # PYSEC-2024-71: a race in TLS set-up
    "h11": "0.16.0",  # CVE-2025-43859: lax chunk ends, smuggling
    "jinja2": "3.1.6",  # CVE-2025-27516: a way out of the sandbox
    "pyyaml": "5.4",  # CVE-2020-14343: a loader that runs code
    "starlette": "1.3.0",  # CVE-2026-48710 Host, PYSEC-2026-248 path, CVE-2025-62727 Range
    "tqdm": "4.66.3",  # CVE-2024-34062: arguments that are evaluated
    "idna": "3.7",  # CVE-2024-3651: quadratic encoding
    "uvicorn": "0.11.7",  # CVE-2020-7694, -7695: log and response splitting
}
BANNED = {"diskcache", "pickle5", "cloudpickle", "dill"}  # formats that run code (T01)


def locked() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_t39_the_lock_file_names_all_that_is_installed() -> None:
    assert set(runtime_closure()) - set(locked()) == set(), "make it again: see runtime_closure.py"


def test_t39_no_version_that_is_installed_or_locked_has_a_known_fault() -> None:
    for found in (runtime_closure(), locked()):
        old = {name: found[name] for name, floor in FLOORS.items() if Version(found[name]) < Version(floor)}
        assert old == {}
        assert found.keys() & BANNED == set()


def test_t39_what_we_ask_for_ourselves_cannot_be_older_either() -> None:
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for requirement in map(Requirement, asked):
        floor = FLOORS.get(normal(requirement.name))
        if floor is not None:
            lows = [Version(spec.version) for spec in requirement.specifier if spec.operator in (">=", "==")]
            assert lows, requirement
            assert max(lows) >= Version(floor), requirement


@pytest.mark.parametrize("name", sorted(FLOORS))
def test_floors_are_of_packages_that_are_there(name: str) -> None:
    assert name in locked()
