"""What importing Ramet brings in: never torch; for the command line, nothing heavy."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

from source_tree import ROOT, imports, source_modules

HEAVY = {"torch", "triton", "ray", "transformers", "tensorflow", "jax"}
DISTRIBUTIONS = {"yaml": "pyyaml"}  # where the name to install is another

_IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*sorted({name.split(".")[0] for name in sys.modules}))
"""


def loaded_after(names: list[str]) -> set[str]:
    """Top names in ``sys.modules`` of a fresh interpreter once ``names`` are imported."""
    done = subprocess.run([sys.executable, "-c", _IMPORT_ALL, *names], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_every_module_imports_without_torch():
    names = [module.name for module in source_modules() if not module.name.endswith("__main__")]
    loaded = loaded_after(names)
    assert "numpy" in loaded
    assert loaded & HEAVY == set()


def test_the_command_line_and_the_package_start_light():
    loaded = loaded_after(["ramet", "ramet.cli"])
    assert "ramet" in loaded
    assert loaded & {"numpy", "tokenizers", "jinja2", "huggingface_hub", *HEAVY} == set()


def test_third_party_modules_are_declared_dependencies():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    declared = {re.split(r"[<>=!~\[; ]", line)[0].lower().replace("-", "_") for line in project["dependencies"]}
    used = {found.top for module in source_modules() for found in imports(module)}
    outside = {DISTRIBUTIONS.get(name, name) for name in used - set(sys.stdlib_module_names) - {"ramet"}}
    assert outside <= declared
    assert declared <= outside, "a dependency that nothing imports"
