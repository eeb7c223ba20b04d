"""What a tokenizer is made of, whatever file it came from, and how tokens are spelled in bytes.

Token ids turn into text through bytes and nothing else: the text of a list of ids is the lossy UTF-8 decoding of its tokens'
bytes, joined, less at most ``leading_spaces`` spaces in front. Everything that streams, cuts or shows text stands on this.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tokenizers
from tokenizers import AddedToken

from ramet.errors import ModelError

__all__ = [
    "MAX_TOKENS",
    "Vocabulary",
    "add_in_order",
    "byte_level_bytes",
    "byte_level_name",
    "byte_token",
    "is_panic",
    "special_affixes",
    "unique_ids",
]

MAX_TOKENS = 1 << 22
"""Tokens of a vocabulary; sixteen times the largest known. One more than the highest id counts."""


_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def is_panic(error: BaseException) -> bool:
    """Whether the ``tokenizers`` package gave up in its native code, which is no ``Exception``, and has no class to name."""
    return type(error).__name__ == "PanicException"


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """Parts of a tokenizer. ``pieces[id]`` is a token's bytes, empty for ids that name no token.

    ``plain`` is an encoder that takes special tokens for text, where ``backend`` itself cannot be told to.
    ``prefix`` and ``suffix`` are what the model's files put around a prompt (BOS, EOS; mostly one or none). ``patterns`` are
    those of the file that nobody knows, and that have to be tried.
    """

    backend: tokenizers.Tokenizer
    pieces: tuple[bytes, ...]
    special_ids: frozenset[int]
    bos_id: int | None
    eos_ids: tuple[int, ...]
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    leading_spaces: int = 0
    plain: tokenizers.Tokenizer | None = None
    patterns: tuple[str, ...] = ()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's reversible alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 and up, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


_BYTE_OF = _byte_alphabet()
_NAME_OF = {byte: name for name, byte in _BYTE_OF.items()}


def byte_level_bytes(token: str) -> bytes:
    """The bytes that a token of a byte-level BPE stands for; a token outside the alphabet stands for its own text."""
    try:
        return bytes(map(_BYTE_OF.__getitem__, token))
    except KeyError:
        return token.encode("utf-8", "replace")


def byte_level_name(data: bytes) -> str:
    """The token of a byte-level BPE that stands for these bytes."""
    return "".join(map(_NAME_OF.__getitem__, data))


def unique_ids(tokens: Sequence[str], where: str) -> dict[str, int]:
    """Ids by token, empty ones left out. Raises ``ModelError`` where two are equal: which of them is meant, nobody could tell."""
    ids: dict[str, int] = {}
    for token_id, token in enumerate(tokens):
        if token and ids.setdefault(token, token_id) != token_id:
            raise ModelError(f"{where}: tokens {ids[token]} and {token_id} are both {token[:40]!r}")
    return ids


def add_in_order(backend: tokenizers.Tokenizer, added: Mapping[int, AddedToken], where: str) -> None:
    """Make tokens whole in any text, each at its id: the model's own, or those that follow its last. Raises ``ModelError``."""
    backend.add_tokens([token for _, token in sorted(added.items())])
    for token_id, token in added.items():
        got = backend.token_to_id(token.content)
        if got != token_id:
            raise ModelError(
                f"{where}: the added token {token.content[:40]!r} has id {token_id}, where {got} would be the next free one"
            )


def byte_token(token: str) -> bytes | None:
    """The byte that ``<0x0A>`` and its like stand for; None for any other token."""
    found = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(found[1], 16)]) if found else None


def special_affixes(encode: Callable[[str, bool], list[int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids that ``encode(text, True)`` puts before and after those of ``encode(text, False)``."""
    plain, full = encode("a", False), encode("a", True)
    for start in range(len(full) - len(plain) + 1):
        if full[start : start + len(plain)] == plain:
            return tuple(full[:start]), tuple(full[start + len(plain) :])
    return (), ()
