"""All that is fuzzed. To add one: a ``Target``, some inputs in ``corpus/<name>``, and its place here."""

from __future__ import annotations

from fuzz.files import GGUF, SAFETENSORS
from fuzz.grammars import GRAMMAR, REGEX, SCHEMA, TAGS
from fuzz.harness import Target
from fuzz.texts import SENTENCEPIECE, TEMPLATE, TOKENIZER

__all__ = ["TARGETS"]

TARGETS: tuple[Target, ...] = (GGUF, SAFETENSORS, TOKENIZER, SENTENCEPIECE, TEMPLATE, REGEX, GRAMMAR, SCHEMA, TAGS)
