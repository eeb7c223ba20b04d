"""All that is fuzzed. To add one: a ``Target``, some inputs in ``corpus/<name>``, and its place here."""

from __future__ import annotations

from fuzz.grammars import GRAMMAR, REGEX, SCHEMA, TAGS
from fuzz.harness import Target

__all__ = ["TARGETS"]

TARGETS: tuple[Target, ...] = (REGEX, GRAMMAR, SCHEMA, TAGS)
