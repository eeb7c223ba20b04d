"""Vocabularies of ``tokenizer.json`` (Hugging Face ``tokenizers``) with what ``tokenizer_config.json`` says."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from ramet.errors import ModelError
from ramet.text.tokenizer_config import affix, named_token
from ramet.text.vocabulary import Vocabulary, byte_level_bytes, byte_token, special_affixes

__all__ = ["vocabulary_of_json"]

_Spell = Callable[[str, bool], bytes]
"""(token, is it an added one) -> its bytes."""


def vocabulary_of_json(path: Path, config: Mapping[str, Any]) -> Vocabulary:
    """Read a tokenizer.json. Raises ``ModelError``."""
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises bare Exception
        raise ModelError(f"{path}: not a tokenizer that can be read: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    spell, leading_spaces = _spelling(backend, path)
    added = backend.get_added_tokens_decoder()
    tokens = {token_id: token for token, token_id in backend.get_vocab(with_added_tokens=True).items()}
    pieces = [b""] * (max(tokens, default=-1) + 1)
    for token_id, token in tokens.items():
        pieces[token_id] = spell(token, token_id in added)
    bos_id = named_token(backend, config, "bos_token", str(path))
    eos_id = named_token(backend, config, "eos_token", str(path))
    prefix, suffix = special_affixes(lambda text, special: backend.encode(text, add_special_tokens=special).ids)
    return Vocabulary(
        backend=backend,
        pieces=tuple(pieces),
        special_ids=frozenset(token_id for token_id, token in added.items() if token.special),
        bos_id=bos_id,
        eos_ids=() if eos_id is None else (eos_id,),
        prefix=affix(config, "add_bos_token", bos_id, prefix, str(path)),
        suffix=affix(config, "add_eos_token", eos_id, suffix, str(path)),
        leading_spaces=leading_spaces,
    )


def _spelling(backend: tokenizers.Tokenizer, path: Path) -> tuple[_Spell, int]:
    """How the file's decoder spells tokens, and how many leading spaces of a text it drops."""
    if backend.decoder is None:
        raise ModelError(f"{path}: has no decoder, so its tokens have no text")
    state = json.loads(backend.decoder.__getstate__())
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    kinds = [step["type"] for step in steps if step["type"] != "Fuse"]
    if kinds == ["ByteLevel"]:
        return (lambda token, added: token.encode() if added else byte_level_bytes(token)), 0
    replaced: list[tuple[str, str]] = []
    leading_spaces = 0
    for step in steps:
        match step:
            case {"type": "Fuse" | "ByteFallback"}:
                pass
            case {"type": "Replace", "pattern": {"String": old}, "content": new}:
                replaced.append((old, new))
            case {"type": "Strip", "content": " ", "start": start, "stop": 0}:
                leading_spaces = start
            case {"type": "Metaspace", "replacement": old, "prepend_scheme": scheme}:
                replaced.append((old, " "))
                leading_spaces = 0 if scheme == "never" else 1
            case _:
                raise ModelError(
                    f"{path}: decoder {step['type']} is not supported; ByteLevel, Metaspace and "
                    "Replace + ByteFallback + Strip are"
                )
    has_bytes = "ByteFallback" in kinds

    def spell(token: str, added: bool) -> bytes:
        byte = byte_token(token) if has_bytes else None
        if byte is not None:
            return byte
        for old, new in replaced:
            token = token.replace(old, new)
        return token.encode("utf-8", "replace")

    return spell, leading_spaces
