"""What ``tokenizer_config.json`` says about a vocabulary, whichever file that is in."""

from __future__ import annotations

import re
from collections.abc import Mapping

import tokenizers
from tokenizers import AddedToken

from ramet.errors import ModelError, shown
from ramet.text.vocabulary import MAX_TOKENS

__all__ = ["added_tokens", "affix", "named_token"]

_ID = re.compile("[0-9]{1,9}")
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")


def named_token(
    backend: tokenizers.Tokenizer, config: Mapping[str, object], key: str, where: str, default: int | None = None
) -> int | None:
    """Id of the token that the config names by a string, or an object with ``content``; ``default`` where it names none."""
    value = config.get(key)
    text = value.get("content") if isinstance(value, Mapping) else value
    if text is None:
        return default
    token_id = backend.token_to_id(text) if isinstance(text, str) else None
    if token_id is None:
        raise ModelError(f"{where}: tokenizer_config.json has {key} {value!r}, which the vocabulary lacks")
    return int(token_id)


def affix(config: Mapping[str, object], key: str, token_id: int | None, found: tuple[int, ...], where: str) -> tuple[int, ...]:
    """``add_bos_token`` and ``add_eos_token`` where given; else ``found``, which is what the vocabulary's own file does."""
    wanted = config.get(key)
    if wanted is None:
        return found
    if not wanted:
        return ()
    if token_id is None:
        raise ModelError(f"{where}: tokenizer_config.json has {key} but names no {key[4:]}")
    return (token_id,)


def added_tokens(config: Mapping[str, object], where: str) -> dict[int, AddedToken]:
    """``added_tokens_decoder``: tokens by id, with how each is found in a text."""
    entries = config.get("added_tokens_decoder") or {}
    found: dict[int, AddedToken] = {}
    if not isinstance(entries, Mapping):
        raise ModelError(f"{where}: added_tokens_decoder is {shown(entries, 60)}, not an object")
    for key, entry in entries.items():
        content = entry.get("content") if isinstance(entry, Mapping) else None
        if not isinstance(content, str) or not content or not _ID.fullmatch(str(key)) or int(key) >= MAX_TOKENS:
            raise ModelError(f"{where}: added_tokens_decoder has {shown({key: entry}, 60)}, which is no id with a token")
        flags = {flag: entry.get(flag, False) for flag in _FLAGS}
        if not all(isinstance(value, bool) for value in flags.values()):
            raise ModelError(
                f"{where}: added_tokens_decoder has {shown({key: entry}, 60)}, whose flags are not all true or false"
            )
        found[int(key)] = AddedToken(content, **flags)
    return found
