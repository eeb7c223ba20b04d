"""Vocabularies of ``tokenizer.json`` (Hugging Face ``tokenizers``) with what ``tokenizer_config.json`` says."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import tokenizers
from tokenizers import models

from ramet.errors import ModelError
from ramet.text.byte_level import KNOWN_PATTERNS
from ramet.text.charsmap import MAX_REPLACEMENT, check_charsmap
from ramet.text.patterns import check_flat, check_size, linear
from ramet.text.tokenizer_config import affix, named_token
from ramet.text.vocabulary import MAX_TOKENS, Vocabulary, byte_level_bytes, byte_token, is_panic, special_affixes

__all__ = ["vocabulary_of_json"]

_MAX_PATTERNS = 16

_Spell = Callable[[str, bool], bytes]
"""(token, is it an added one) -> its bytes."""


def vocabulary_of_json(path: Path, config: Mapping[str, Any]) -> Vocabulary:
    """Read a tokenizer.json. Raises ``ModelError``."""
    try:
        steps = _Steps.of(path)
        backend = tokenizers.Tokenizer.from_file(str(path))
        return _vocabulary(backend, steps.settle(backend, str(path)), config, path)
    except ModelError:
        raise
    except BaseException as error:  # the package raises bare Exception, and its panics are not even that
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise ModelError(f"{path}: not a tokenizer that can be read: {error}") from error


class _Steps(msgspec.Struct):
    """The parts of a tokenizer.json that may hold patterns, read without the vocabulary."""

    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None

    @classmethod
    def of(cls, path: Path) -> _Steps:
        """Raises ``ModelError`` where compiling the patterns might take minutes."""
        steps = msgspec.json.decode(path.read_bytes(), type=cls)
        patterns = [holder["Regex"] for holder in steps._holders()]
        if len(patterns) > _MAX_PATTERNS:
            raise ModelError(f"{path}: cuts text by {len(patterns)} patterns; {_MAX_PATTERNS} are allowed")
        for pattern in patterns:
            check_size(pattern, str(path))
        return steps

    def settle(self, backend: tokenizers.Tokenizer, where: str) -> tuple[str, ...]:
        """Put patterns of linear time in place of the file's, where the same is known; what is left is to be tried, and flat.
        Raises ``ModelError`` where it is not.
        """
        given = [holder["Regex"] for holder in self._holders()]
        settled = list(map(linear, given))
        left = sorted({*settled} - KNOWN_PATTERNS)
        for pattern in left:
            check_flat(pattern, where)
        if settled != given:
            self._put(backend, settled)
        return tuple(left)

    def _put(self, backend: tokenizers.Tokenizer, patterns: Sequence[str]) -> None:
        for holder, pattern in zip(self._holders(), patterns, strict=True):
            holder["Regex"] = pattern
        for name, state in (("normalizer", self.normalizer), ("pre_tokenizer", self.pre_tokenizer)):
            if state is not None:
                step = getattr(backend, name)  # a copy
                step.__setstate__(msgspec.json.encode(state))
                setattr(backend, name, step)

    def _holders(self) -> Iterator[dict[str, str]]:
        waiting: list[Any] = [self.normalizer, self.pre_tokenizer]
        while waiting:
            value = waiting.pop()
            if isinstance(value, dict) and isinstance(value.get("Regex"), str):
                yield value
            waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _vocabulary(backend: tokenizers.Tokenizer, patterns: tuple[str, ...], config: Mapping[str, Any], path: Path) -> Vocabulary:
    backend.no_truncation()
    backend.no_padding()
    if backend.normalizer is not None:
        _check_normalizer(json.loads(backend.normalizer.__getstate__()), str(path))
    spell, leading_spaces = _spelling(backend, path)
    added = backend.get_added_tokens_decoder()
    tokens = {token_id: token for token, token_id in backend.get_vocab(with_added_tokens=True).items()}
    count = max(tokens, default=-1) + 1
    if count > MAX_TOKENS:
        raise ModelError(f"{path}: has a token with id {count - 1}; ids are under {MAX_TOKENS}")
    pieces = [b""] * count
    for token_id, token in tokens.items():
        pieces[token_id] = spell(token, token_id in added)
    bos_id = named_token(backend, config, "bos_token", str(path))
    eos_id = named_token(backend, config, "eos_token", str(path))
    special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
    plain = _plain(backend, special_ids, path)
    prefix, suffix = special_affixes(lambda text, special: backend.encode(text, add_special_tokens=special).ids)
    return Vocabulary(
        backend=backend,
        plain=plain,
        pieces=tuple(pieces),
        special_ids=special_ids,
        bos_id=bos_id,
        eos_ids=() if eos_id is None else (eos_id,),
        prefix=affix(config, "add_bos_token", bos_id, prefix, str(path)),
        suffix=affix(config, "add_eos_token", eos_id, suffix, str(path)),
        leading_spaces=leading_spaces,
        patterns=patterns,
    )


def _check_normalizer(state: Mapping[str, Any], where: str) -> None:
    """Refuse what could break or fill the memory in the middle of a request."""
    for step in state.get("normalizers", ()):
        _check_normalizer(step, where)
    if state["type"] == "Precompiled":
        check_charsmap(base64.b64decode(state["precompiled_charsmap"]), where)
    longest = max(len(str(state.get("content", ""))), len(str(state.get("prepend", ""))))
    if longest > MAX_REPLACEMENT:
        raise ModelError(f"{where}: a normalizer puts {longest} characters in place of some; {MAX_REPLACEMENT} are allowed")


def _plain(backend: tokenizers.Tokenizer, special_ids: frozenset[int], path: Path) -> tokenizers.Tokenizer | None:
    """An encoder that takes special tokens for text, where the model needs one of its own: see sentencepiece.py."""
    if isinstance(backend.model, models.BPE):
        unknown = backend.model.unk_token
        if unknown is not None and backend.model.token_to_id(unknown) is None:
            raise ModelError(f"{path}: unk_token {unknown[:40]!r} is not in the vocabulary")
        return None
    if not isinstance(backend.model, models.Unigram):
        raise ModelError(f"{path}: model {type(backend.model).__name__} is not supported; BPE and Unigram are")
    state = json.loads(backend.model.__getstate__())
    if state["unk_id"] is None:
        raise ModelError(f"{path}: a Unigram model without unk_id, which cannot read what it has no token for")
    scored = [("" if i in special_ids else token, score) for i, (token, score) in enumerate(state["vocab"])]
    plain = tokenizers.Tokenizer(models.Unigram(scored, state["unk_id"], state.get("byte_fallback", False)))
    if backend.normalizer is not None:
        plain.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        plain.pre_tokenizer = backend.pre_tokenizer
    plain.add_tokens([token for _, token in sorted(backend.get_added_tokens_decoder().items()) if not token.special])
    return plain


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
