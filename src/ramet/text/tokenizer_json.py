"""Vocabularies of ``tokenizer.json`` (Hugging Face ``tokenizers``) with what ``tokenizer_config.json`` says."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from ramet.errors import ModelError
from ramet.text.vocabulary import Vocabulary, byte_level_bytes, byte_token, special_affixes

__all__ = ["vocabulary_of_file"]

_Spell = Callable[[str, bool], bytes]
"""(token, is it an added one) -> its bytes."""


def vocabulary_of_file(path: str | Path, config: Mapping[str, Any]) -> Vocabulary:
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
    bos_id = _token_id(backend, config, "bos_token", path)
    eos_id = _token_id(backend, config, "eos_token", path)
    prefix, suffix = special_affixes(lambda text, special: backend.encode(text, add_special_tokens=special).ids)
    return Vocabulary(
        backend=backend,
        pieces=tuple(pieces),
        special_ids=frozenset(token_id for token_id, token in added.items() if token.special),
        bos_id=bos_id,
        eos_ids=() if eos_id is None else (eos_id,),
        prefix=_affix(config, "add_bos_token", bos_id, prefix, path),
        suffix=_affix(config, "add_eos_token", eos_id, suffix, path),
        leading_spaces=leading_spaces,
    )


def _token_id(backend: tokenizers.Tokenizer, config: Mapping[str, Any], key: str, path: str | Path) -> int | None:
    """Id of the token that the config names: a string, or an object with ``content``."""
    value = config.get(key)
    text = value.get("content") if isinstance(value, Mapping) else value
    if text is None:
        return None
    token_id = backend.token_to_id(text) if isinstance(text, str) else None
    if token_id is None:
        raise ModelError(f"{path}: tokenizer_config.json has {key} {value!r}, which the vocabulary lacks")
    return int(token_id)


def _affix(
    config: Mapping[str, Any], key: str, token_id: int | None, found: tuple[int, ...], path: str | Path
) -> tuple[int, ...]:
    """``add_bos_token`` and ``add_eos_token`` where given; else what the file's post-processor does."""
    wanted = config.get(key)
    if wanted is None:
        return found
    if not wanted:
        return ()
    if token_id is None:
        raise ModelError(f"{path}: tokenizer_config.json has {key} but names no {key[4:]}")
    return (token_id,)


def _spelling(backend: tokenizers.Tokenizer, path: str | Path) -> tuple[_Spell, int]:
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
