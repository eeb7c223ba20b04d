"""All that is fuzzed. To add one: a ``Target``, some inputs in ``corpus/<name>``, and its place here."""

from __future__ import annotations

from fuzz.grammars import REGEX, SCHEMA
from fuzz.harness import Target

__all__ = ["TARGETS"]

TARGETS: tuple[Target, ...] = (REGEX, SCHEMA)
