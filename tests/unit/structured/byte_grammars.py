"""Grammars over a vocabulary of single bytes: a text is walked byte by byte under the masks, as an output would be."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from ramet.core.grammar import GrammarSpec
from ramet.core.ids import UInt32
from ramet.core.ports import Matcher
from ramet.structured.compiler import GrammarCompiler, TokenTable

EOS, EXTRA_EOS, SPECIAL = 256, 257, 258
VOCAB_SIZE = 304  # 45 ids beyond the tokenizer's
TABLE = TokenTable(
    [*(bytes([b]) for b in range(256)), b"<eos>", b"<end>", b"<x>"],
    frozenset({EOS, EXTRA_EOS, SPECIAL}),
    frozenset({EOS, EXTRA_EOS}),
    VOCAB_SIZE,
)
COMPILER = GrammarCompiler(TABLE)


def matcher(constraint: object, stop_ids: frozenset[int] = frozenset({EOS, EXTRA_EOS})) -> Matcher:
    return COMPILER.matcher(GrammarSpec.of(constraint), stop_ids).result()


def mask(of: Matcher) -> UInt32:
    row = np.zeros(of.num_words, np.uint32)
    of.fill_mask(row)
    return row


def allowed(of: Matcher) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(mask(of).view(np.uint8), bitorder="little")).tolist())


def walk(of: Matcher, text: str | bytes) -> bool:
    """Whether each byte is allowed where it comes."""
    for byte in text.encode() if isinstance(text, str) else text:
        if byte not in allowed(of):
            return False
        of.accept(byte)
    return True


def accepts(constraint: object, text: str | bytes) -> bool:
    """Whether the text is a whole output; EOS must then be allowed, and else must not."""
    one = matcher(constraint)
    if not walk(one, text):
        return False
    ends = allowed(one) & {EOS, EXTRA_EOS}
    assert ends == ({EOS, EXTRA_EOS} if one.is_accepting else set())
    return one.is_accepting


def accepts_json(schema: Any, value: Any) -> bool:
    return accepts({"json": schema}, json.dumps(value, ensure_ascii=False))
