"""What an installed Ramet brings in, all told; run as a script it prints the lock file, constraints.txt."""

from __future__ import annotations

import importlib.metadata
import re

from packaging.requirements import Requirement

HEADER = """\
# The versions that Ramet is tested with: its dependencies and theirs. Made by tests/architecture/runtime_closure.py.
# `make` installs these; whoever installs Ramet with pip gets what pyproject.toml allows."""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def runtime_closure(name: str = "ramet") -> dict[str, str]:
    """Distributions that ``name`` needs, with their installed versions; extras are not followed."""
    found: dict[str, str] = {}
    left = [name]
    while left:
        distribution = importlib.metadata.distribution(left.pop())
        for line in distribution.requires or ():
            requirement = Requirement(line)
            wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if wanted and normal(requirement.name) not in found:
                found[normal(requirement.name)] = importlib.metadata.version(requirement.name)
                left.append(requirement.name)
    return found


if __name__ == "__main__":
    print(HEADER)
    for package, version in sorted(runtime_closure().items()):
        print(f"{package}=={version}")
