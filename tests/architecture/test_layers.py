"""Imports point down, packages of one layer leave each other alone, and the core touches neither time nor device."""

from __future__ import annotations

import sys

import pytest
from source_tree import Module, imports, planted, source_modules

LAYERS = [
    {"core", "config", "errors", "interrupt"},
    {"kernels", "_native"},
    {"kv", "structured", "text", "model"},
    {"schedule", "runner"},
    {"engine"},
    {"cli", "server", "llm", "scale", "sim", "__main__"},
    {"ramet"},  # the public names
]
LEVEL = {unit: level for level, units in enumerate(LAYERS) for unit in units}
BESIDE = {  # neighbours of one layer that a unit may import after all
    "core": {"errors"},
    "config": {"errors"},
    "kernels": {"_native"},
    "cli": {"llm", "server", "scale", "sim"},  # the command that starts the other edges
    "__main__": {"cli"},
}

PURE = {"core", "kv", "schedule", "structured", "text", "engine"}
IMPURE = {
    "torch", "triton", "ray", "socket", "ssl", "select", "selectors", "http", "urllib", "requests", "httpx", "aiohttp", "time",
    "datetime", "asyncio", "threading", "multiprocessing", "concurrent", "subprocess", "signal", "random", "secrets", "ctypes",
}  # fmt: skip
IMPURE_BUT = {  # the one place that reads the clock, and the one that puts it in
    ("ramet.engine.clock", "time"),
    ("ramet.engine.build", "time"),  # strftime for chat templates
    ("ramet.engine.worker", "concurrent"),  # the thread that compiles grammars
}
NO_FILES = {"core", "kv", "schedule", "structured"}
FILE_MODULES = {"os", "io", "pathlib", "shutil", "tempfile", "mmap", "zipfile", "glob"}


def unit_of(target: str, known: set[str]) -> str:
    """``kv`` of ``ramet.kv.pool.PagePool``; ``ramet`` of a name that ``ramet/__init__.py`` gives."""
    parts = target.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in known | set(LEVEL) else "ramet"


def layer_faults(modules: list[Module]) -> list[str]:
    known = {module.unit for module in modules}
    faults = [f"{module.name}: no layer is given to {module.unit}" for module in modules if module.unit not in LEVEL]
    for module in modules:
        for found in imports(module):
            if found.top != "ramet" or module.unit not in LEVEL:
                continue
            unit = unit_of(found.target, known)
            is_below = LEVEL.get(unit, 99) < LEVEL[module.unit]
            if not is_below and unit != module.unit and unit not in BESIDE.get(module.unit, ()):
                faults.append(f"{module.name}:{found.line}: imports {found.target}")
    return faults


def purity_faults(modules: list[Module]) -> list[str]:
    return [
        f"{module.name}:{found.line}: imports {found.target}"
        for module in modules
        for found in imports(module)
        if (module.unit in PURE and found.top in IMPURE and (module.name, found.top) not in IMPURE_BUT)
        or (module.unit in NO_FILES and found.top in FILE_MODULES)
    ]


def test_imports_point_down():
    assert layer_faults(source_modules()) == []


def test_the_core_touches_neither_time_nor_device():
    assert purity_faults(source_modules()) == []


def test_exceptions_are_in_use():
    """An exception that nothing needs any more is a hole."""
    used = {(module.name, found.top) for module in source_modules() for found in imports(module)}
    assert used >= IMPURE_BUT


def test_only_the_composition_root_knows_concrete_parts():
    concrete = {"HashedCache", "RadixCache", "NullCache", "LocalRunner", "FakeRunner", "CpuBackend", "ReferenceBackend"}
    homes = {"ramet.engine.build", "ramet.kernels.registry"}
    faults = [
        f"{module.name}:{found.line}: imports {found.target}"
        for module in source_modules()
        for found in imports(module)
        if found.target.split(".")[-1] in concrete and module.name not in homes and module.unit not in ("sim", "cli")
    ]
    assert faults == []


@pytest.mark.parametrize(
    "text",
    [
        "from ramet.schedule.scheduler import Scheduler",
        "from ramet.text import tokenizer",
        "import ramet.engine.engine",
        "def f():\n    from ramet.runner.local import LocalRunner",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ramet.model.spec import ModelSpec",
        "from ..text import tokenizer",
        "from .. import text",
        "from ramet import LLM",
        "import importlib\nimportlib.import_module('ramet.engine.build')",
    ],
)
def test_planted_imports_that_point_up_or_sideways_are_found(text):
    assert len(layer_faults(planted(text))) == 1


def test_a_new_package_needs_a_layer():
    assert layer_faults(planted("", "ramet.novel.thing")) == ["ramet.novel.thing: no layer is given to novel"]


@pytest.mark.parametrize("text", ["from ramet.kv import pool", "from . import pool", "from ramet.errors import RametError"])
def test_planted_imports_that_point_down_pass(text):
    assert layer_faults(planted(text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "import time",
        "from time import sleep",
        "def f():\n    import torch.nn",
        "from concurrent.futures import Future",
        "import os.path",
    ],
)
def test_planted_impurities_are_found(text):
    assert len(purity_faults(planted(text))) == 1
    assert purity_faults(planted(text, "ramet.runner.planted")) == []


def test_impure_names_are_modules_of_python_or_well_known():
    outside = {"torch", "triton", "ray", "requests", "httpx", "aiohttp"}
    assert set(sys.stdlib_module_names) >= (IMPURE | FILE_MODULES) - outside
