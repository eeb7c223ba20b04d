"""Vocabularies with values changed at random: refused by a ``ModelError``, or they read texts without a fault. tokenizer.json is
F3 of tests/fuzz.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from small_vocabularies import gguf

from ramet.errors import ModelError
from ramet.text.byte_level import CUTS
from ramet.text.tokenizer import Tokenizer

STEPS: list[Any] = [
    {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
    {"type": "Precompiled", "precompiled_charsmap": "BAAAAAEAAIAA"},
    {"type": "Prepend", "prepend": "x"},
    {"type": "Replace", "pattern": {"Regex": ""}, "content": "x"},
    {"type": "FixedLength", "length": 0},
    {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False},
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "q"},
    {"type": "Unigram", "unk_id": None, "vocab": [["a", 1.0], ["b", -2.0]], "byte_fallback": False},
    {"type": "Unigram", "unk_id": 1, "vocab": [["a", 1e308], ["<s>", -2.0]], "byte_fallback": True},
]
VALUES: list[Any] = [None, True, -1, 0, 1, 2**31, 2**32 - 1, 2**63, 1e308, "", "a", "\0", "<0xFF>", "▁", "x" * 999, [], {}, [[]]]
TEXTS = ["a b<s> 한x lead</s>", "", "<0x41>", "e\u0301 ①", "\ufeff\u200b" * 3]


def places(value: Any, root: Any = None) -> Iterator[tuple[Any, Any]]:
    """Each place in a JSON value: the container and its key; of long lists the first few."""
    keys = list(value) if isinstance(value, dict) else range(min(len(value), 6)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from places(value[key])


def changed(source: random.Random, value: dict[str, Any], tops: tuple[str, ...]) -> dict[str, Any]:
    """A copy with one to three values changed, half of the time whole parts."""
    value = copy.deepcopy(value)
    for _ in range(source.choice([1, 1, 2, 3])):
        if source.random() < 0.5:
            value[source.choice(tops)] = copy.deepcopy(source.choice(VALUES + STEPS))
        else:
            container, key = source.choice(list(places(value)))
            container[key] = copy.deepcopy(source.choice(VALUES))
    return value


def outcomes(make: Callable[[random.Random], Tokenizer], count: int) -> int:
    """How many of so many seeds made a tokenizer; any error but ours ends the test."""
    works = 0
    for seed in range(count):
        try:
            tokenizer = make(random.Random(seed))
        except ModelError:
            continue
        works += 1
        for text in TEXTS:
            tokenizer.decode(tokenizer.encode(text))
            tokenizer.decode(tokenizer.encode(text, parse_special=False), skip_special_tokens=False)
    return works


def test_tekken_json(tmp_path: Path) -> None:
    entries = [{"rank": i, "token_bytes": token} for i, token in enumerate(["AA==", "AQ=="])]
    settings = {"pattern": CUTS["tekken"].steps[0], "default_vocab_size": 5, "default_num_special_tokens": 3}
    good = {"config": settings, "vocab": entries, "special_tokens": [{"rank": 1, "token_str": "<s>"}]}
    path = tmp_path / "tekken.json"

    def make(source: random.Random) -> Tokenizer:
        path.write_text(json.dumps(changed(source, good, ("config", "vocab", "special_tokens"))), encoding="utf-8")
        return Tokenizer.from_file(path)

    assert outcomes(make, 200) == 0  # for want of 254 bytes at the least


@pytest.mark.parametrize("model", ["gpt2", "llama", "t5"])
def test_gguf_metadata(model: str) -> None:
    good: dict[str, Any] = dict(gguf(model=model, scores=[-float(i) for i in range(262)], pre="llama-bpe"))
    if model != "gpt2":
        good["tokenizer.ggml.token_type"] = [2, 3, 3, *[1] * 259]
    assert 20 < outcomes(lambda source: Tokenizer.from_gguf(changed(source, good, tuple(good))), 250) < 240
