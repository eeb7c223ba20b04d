"""SentencePiece: what such a model says, from whichever file, and the vocabulary that comes of it.

The ``tokenizers`` package does the arithmetic: BPE with byte fallback, or unigram. Spaces are spelled ``▁`` in tokens, and most
models put one in front of a text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers

from ramet.errors import ModelError
from ramet.text.charsmap import check_charsmap
from ramet.text.merges import merges_of_ranks
from ramet.text.patterns import linear
from ramet.text.vocabulary import add_in_order, byte_token, unique_ids

__all__ = ["BYTE", "CONTROL", "NORMAL", "UNKNOWN", "UNUSED", "USER_DEFINED", "SentencePieces", "SpaceInFront", "Spelling"]

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Types of tokens, as SentencePiece and GGUF number them."""

SpaceInFront = Literal["never", "first", "each"]
"""Where a text gets the space that it does not have: nowhere, at its beginning, or after each special token too."""

_NONE: Mapping[int, AddedToken] = MappingProxyType({})
_MARK = "\u2581"
_BYTE_NAME = Regex(r"(?<=<0x[0-9A-F]{2})>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """What is done to a text before it is cut.

    ``charsmap`` is SentencePiece's own table of replacements (NFKC and the like), empty for none; ``trims`` takes spaces away
    at both ends and leaves one of several.
    """

    space: SpaceInFront = "each"
    trims: bool = False
    charsmap: bytes = b""

    def normalizer(self) -> normalizers.Normalizer:
        steps: list[normalizers.Normalizer] = []
        if self.charsmap:
            steps.append(normalizers.Precompiled(self.charsmap))
        if self.trims:
            steps += [normalizers.Strip(right=False), normalizers.Replace(Regex(" {2,}"), " ")]
        if self.space == "each":
            steps.append(normalizers.Prepend(_MARK))
        if self.space != "first":
            steps.append(normalizers.Replace(" ", _MARK))
        if self.trims:
            steps.append(normalizers.Replace(Regex(linear(f"[ {_MARK}]+$")), ""))
        return normalizers.Sequence(steps)

    def pre_tokenizers(self) -> list[pre_tokenizers.PreTokenizer]:
        if self.space == "first":
            return [pre_tokenizers.Metaspace(replacement=_MARK, prepend_scheme="first", split=False)]
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class SentencePieces:
    """Tokens, scores (higher is better) and types by id. ``unknown_id`` stands for what no token spells; tokens of
    ``rstrip_ids`` take the white space behind them along.
    """

    where: str
    kind: Literal["bpe", "unigram"]
    tokens: Sequence[str]
    scores: Sequence[float]
    types: Sequence[int]
    unknown_id: int | None
    spelling: Spelling
    rstrip_ids: frozenset[int] = frozenset()

    def backends(self, added: Mapping[int, AddedToken] = _NONE) -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer | None]:
        """The encoder, and one that takes special tokens for text where the first cannot be told to.

        ``added`` are tokens by id, over the own ones and after them. Raises ``ModelError``.
        """
        self._check()
        found = {
            i: AddedToken(self._name(i), special=kind != USER_DEFINED, normalized=False, rstrip=i in self.rstrip_ids)
            for i, kind in enumerate(self.types)
            if kind in (CONTROL, UNKNOWN, USER_DEFINED) and self.tokens[i]
        }
        found |= added
        backend = self._backend(self._bpe if self.kind == "bpe" else self._unigram)
        add_in_order(backend, found, self.where)
        if self.kind == "bpe":
            return backend, None
        plain = self._backend(self._unigram_without_special)
        plain.add_tokens([token for _, token in sorted(found.items()) if not token.special])
        return backend, plain

    def pieces(self) -> tuple[bytes, ...]:
        """The bytes of each token."""
        return tuple(self._bytes(token, kind) for token, kind in zip(self.tokens, self.types, strict=True))

    def special_ids(self) -> frozenset[int]:
        return frozenset(i for i, kind in enumerate(self.types) if kind in (CONTROL, UNKNOWN))

    @property
    def leading_spaces(self) -> int:
        return 0 if self.spelling.space == "never" else 1

    def _check(self) -> None:
        for token_id, score in enumerate(self.scores):
            if not math.isfinite(score):
                raise ModelError(f"{self.where}: the score of token {token_id} is {score}; scores are finite numbers")
        if self.kind == "unigram" and self.unknown_id is None:
            raise ModelError(f"{self.where}: a unigram vocabulary needs a token for the unknown, and none is of that type")
        if self.unknown_id is not None and not self.tokens[self.unknown_id]:
            raise ModelError(f"{self.where}: token {self.unknown_id}, which stands for the unknown, is empty")
        check_charsmap(self.spelling.charsmap, self.where)

    def _name(self, token_id: int) -> str:
        """A token's spelling in the encoder: user-defined ones are found in the text as it is written."""
        token = self.tokens[token_id]
        return token.replace(_MARK, " ") if self.types[token_id] == USER_DEFINED else token

    def _bytes(self, token: str, kind: int) -> bytes:
        if kind == BYTE:
            byte = byte_token(token)
            if byte is None:
                raise ModelError(f"{self.where}: token {token[:40]!r} is of the type of bytes, but names none, such as <0x0A>")
            return byte
        return (token if kind in (CONTROL, UNKNOWN) else token.replace(_MARK, " ")).encode("utf-8", "replace")

    def _backend(self, model: Callable[[], models.Model]) -> tokenizers.Tokenizer:
        try:
            backend = tokenizers.Tokenizer(model())
        except ModelError:
            raise
        except Exception as error:  # the package raises bare Exception
            raise ModelError(f"{self.where}: not a vocabulary that can be used: {error}") from error
        backend.normalizer = self.spelling.normalizer()
        steps = self.spelling.pre_tokenizers()
        if self.kind == "unigram" and self._has_bytes:
            # the package would take "<0x41>" in a text for the byte; cut before its end, it cannot
            steps.append(pre_tokenizers.Split(_BYTE_NAME, "isolated"))
        if steps:
            backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
        return backend

    @property
    def _has_bytes(self) -> bool:
        return BYTE in self.types

    def _bpe(self) -> models.BPE:
        names = [self._name(i) for i in range(len(self.tokens))]
        ids = unique_ids(names, self.where)
        normal = [i for i, kind in enumerate(self.types) if kind == NORMAL]
        ranked = sorted(normal, key=lambda i: -self.scores[i])  # stable: of equal scores the lower id first
        parts = {names[i]: i for i in normal}
        return models.BPE(
            vocab=ids,
            merges=merges_of_ranks([names[i] for i in ranked], parts, self.where),
            unk_token=None if self.unknown_id is None else names[self.unknown_id],
            fuse_unk=True,
            byte_fallback=self._has_bytes,
        )

    def _unigram(self) -> models.Unigram:
        names = [self._name(i) for i in range(len(self.tokens))]
        unique_ids(names, self.where)
        scored = [(name, float(score)) for name, score in zip(names, self.scores, strict=True)]
        return models.Unigram(vocab=scored, unk_id=self.unknown_id, byte_fallback=self._has_bytes)

    def _unigram_without_special(self) -> models.Unigram:
        """The same without the spelling of special tokens, for in a unigram vocabulary any token may be found in a text."""
        special = self.special_ids()
        scored = [("" if i in special else self._name(i), float(score)) for i, score in enumerate(self.scores)]
        return models.Unigram(vocab=scored, unk_id=self.unknown_id, byte_fallback=self._has_bytes)
