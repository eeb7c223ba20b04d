"""Vocabularies small enough to read, in both file formats."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import pre_tokenizers

from ramet.text.vocabulary import byte_level_bytes

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet(), key=byte_level_bytes)
"""The 256 tokens of one byte each; their ids are their bytes."""

BOS, EOS, CALL, FIRST_MERGED = 256, 257, 258, 259


def gguf(
    merges: Sequence[str] = ("Ġ t", "h e", "Ġt he"), more: Sequence[tuple[str, int]] = (), **values: Any
) -> dict[str, object]:
    """Metadata of a byte-level vocabulary: the bytes, ``<s>``, ``</s>``, ``<call>`` (user-defined), one token a merge, ``more``.

    ``values`` are further ``tokenizer.ggml`` keys; None takes one away.
    """
    tokens = [(token, NORMAL) for token in BYTES]
    tokens += [("<s>", CONTROL), ("</s>", CONTROL), ("<call>", USER_DEFINED)]
    tokens += [(merge.replace(" ", ""), NORMAL) for merge in merges]
    tokens += more
    found = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [token for token, _ in tokens],
        "token_type": [kind for _, kind in tokens],
        "merges": list(merges),
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        **values,
    }
    return {"tokenizer.ggml." + key: value for key, value in found.items() if value is not None}


def varint(value: int) -> bytes:
    """A number in a protocol buffer."""
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def field(number: int, value: int | float | bytes) -> bytes:
    """A field of a protocol buffer."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def piece(token: str, score: float = 0.0, kind: int = NORMAL) -> bytes:
    return field(1, field(1, token.encode()) + field(2, score) + field(3, kind))


def sentencepiece_model(*more: bytes, kind: int = 2, normalizer: bytes = b"\x20\x00") -> bytes:
    """A SentencePiece model: ``<unk> <s> </s>``, the bytes from id 3, the words of ``PIECES`` from id 259, ``more`` fields."""
    pieces = [piece("<unk>", 0.0, UNKNOWN), piece("<s>", 0.0, CONTROL), piece("</s>", 0.0, CONTROL)]
    pieces += [piece(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    pieces += [piece(token, -1.0 - i) for i, token in enumerate(PIECES)]
    return b"".join(pieces) + b"".join(more) + field(2, field(3, kind)) + field(3, normalizer)


PIECES = ["▁", "a", "b", "▁a", "ab", "▁ab"]
FIRST_PIECE = 259

WORDS = ["▁", "▁lead", "▁one", ".", "▁two", "▁three", "x"]
FIRST_WORD = 259


def sentencepiece_file(folder: Path, *, strip: bool = True, bos: bool = True, metaspace: bool = False) -> Path:
    """A ``tokenizer.json`` in the manner of Llama 2: bytes at ids 3 to 258, words after; the decoder strips one space."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    steps = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if strip else []),
    ]
    decoder: dict[str, Any] = {"type": "Sequence", "decoders": steps}
    if metaspace:
        decoder = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
    template = {"Sequence": {"id": "A", "type_id": 0}}
    single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, template] if bos else [template]
    file = {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": None,
        "added_tokens": [
            {"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
            for i, t in enumerate(tokens[:3])
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [template],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": decoder,
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "byte_fallback": True,
            "fuse_unk": True,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [],
        },
    }
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(file), encoding="utf-8")
    return path
