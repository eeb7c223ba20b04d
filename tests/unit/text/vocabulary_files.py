"""Real vocabularies and texts, where they are at hand: vocabulary-only GGUF files, vectors of text and ids, packages that hold a
``tokenizer.json``.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


def vocabulary_metadata(path: Path) -> dict[str, Any]:
    """Metadata of a GGUF file that holds a vocabulary and no tensors, which the model reader refuses."""
    data = path.read_bytes()
    at = 16  # magic, version, number of tensors

    def read(layout: str) -> Any:
        nonlocal at
        (value,) = struct.unpack_from("<" + layout, data, at)
        at += struct.calcsize("<" + layout)
        return value

    def value(kind: int) -> Any:
        if kind == _STRING:
            return read(f"{read('Q')}s").decode()
        if kind == _ARRAY:
            of, count = read("I"), read("Q")
            return [value(of) for _ in range(count)]
        return read(_SCALARS[kind])

    return {value(_STRING): value(read("I")) for _ in range(read("Q"))}


def vectors(shared: Path, name: str) -> list[tuple[str, list[int]]]:
    """llama.cpp's pairs of text and ids."""
    stem = shared / f"tokenizers/llama.cpp/ggml-vocab-{name}.gguf"
    texts = stem.with_suffix(".gguf.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    rows = stem.with_suffix(".gguf.out").read_text().split("\n")
    pairs = [(text, list(map(int, row.split()))) for text, row in zip(texts, rows, strict=False)]
    assert len(pairs) >= 46
    return pairs


def hard_texts(shared: Path) -> list[str]:
    """Naughty strings, 39 languages, and every emoji, sixteen a text."""
    folder = shared / "unicode-text"
    texts = json.loads((folder / "blns/blns.json").read_text())
    texts += [json.loads(line)["text"] for line in (folder / "udhr_39_languages.jsonl").read_text().splitlines()]
    lines = (folder / "unicode-15.0/emoji-zwj-sequences.txt").read_text().splitlines()
    lines += (folder / "unicode-15.0/emoji-test.txt").read_text().splitlines()
    emoji = [line.split(";")[0].split() for line in lines if line and not line.startswith("#")]
    assert len(emoji) > 4000
    written = ["".join(chr(int(code, 16)) for code in codes) for codes in emoji]
    return texts + ["".join(written[i : i + 16]) for i in range(0, len(written), 16)]


def metadata_of_json(path: Path, pre: str) -> dict[str, object]:
    """What a GGUF file would say of the byte-level vocabulary in a ``tokenizer.json``."""
    file = json.loads(path.read_text(encoding="utf-8"))
    merges = file["model"]["merges"]
    ids = dict(file["model"]["vocab"])
    ids |= {token["content"]: token["id"] for token in file["added_tokens"]}
    tokens = {token_id: token for token, token_id in ids.items()}
    kinds = {token["id"]: 3 if token["special"] else 4 for token in file["added_tokens"]}
    count = max(tokens) + 1
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [tokens.get(i, f"[PAD{i}]") for i in range(count)],
        "tokenizer.ggml.token_type": [kinds.get(i, 1) if i in tokens else 5 for i in range(count)],
        "tokenizer.ggml.merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in merges],
    }
