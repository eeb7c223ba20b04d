"""Vocabularies inside a GGUF file: byte-level BPE, and SentencePiece's two kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import tokenizers
from tokenizers import AddedToken

from ramet.errors import ModelError
from ramet.text.byte_level import CUTS, Cut, byte_level_backend
from ramet.text.sentencepiece import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, SentencePieces, Spelling
from ramet.text.vocabulary import MAX_TOKENS, Vocabulary, byte_level_bytes, byte_token, unique_ids

__all__ = ["vocabulary_of_gguf"]

_KEY = "tokenizer.ggml."
_Number = TypeVar("_Number", int, float)
_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|end_of_text|>", "<|endoftext|>")
_HARMONY = "<|return|>"  # in its vocabularies <|end|> ends a part of an answer only
_NO_RSTRIP = ("<unk>", "<s>", "<|endoftext|>")  # of Phi-3's special tokens


def vocabulary_of_gguf(metadata: Mapping[str, object]) -> Vocabulary:
    """Build the vocabulary that a GGUF file's metadata describe. Raises ``ModelError`` naming the key."""
    model = metadata.get(_KEY + "model")
    if model == "gpt2":
        return _byte_level(metadata)
    if model in ("llama", "t5"):
        return _sentencepiece(metadata, "bpe" if model == "llama" else "unigram")
    raise ModelError(
        f"{_KEY}model is {model!r}; supported are 'gpt2' (byte-level BPE), 'llama' (SentencePiece BPE) and 't5' (unigram)"
    )


def _byte_level(metadata: Mapping[str, object]) -> Vocabulary:
    name = metadata.get(_KEY + "pre")
    cut = CUTS.get(name) if isinstance(name, str) else None
    if cut is None:
        raise ModelError(f"{_KEY}pre is {name!r}; the known pre-tokenizers are {', '.join(CUTS)}")
    tokens = _strings(metadata, "tokens")
    merges = _merges(metadata)
    types = _types(metadata, len(tokens))
    bos_id = _token_id(metadata, "bos_token_id", len(tokens))
    eos_ids = _eos_ids(metadata, tokens, types)
    if _KEY + "token_type" not in metadata:
        for token_id in (bos_id, *eos_ids):
            if token_id is not None:
                types[token_id] = CONTROL
    return Vocabulary(
        backend=_backend(cut, tokens, types, merges),
        pieces=_pieces(tokens, types, merges),
        special_ids=frozenset(i for i, kind in enumerate(types) if kind in (CONTROL, UNKNOWN)),
        bos_id=bos_id,
        eos_ids=eos_ids,
        prefix=_affix(metadata, "add_bos_token", bos_id, default=cut.add_bos),
        suffix=_affix(metadata, "add_eos_token", eos_ids[0] if eos_ids else None, default=False),
    )


def _sentencepiece(metadata: Mapping[str, object], kind: Literal["bpe", "unigram"]) -> Vocabulary:
    tokens = _strings(metadata, "tokens")
    types = _types(metadata, len(tokens))
    is_bpe = kind == "bpe"
    bos_id = _token_id(metadata, "bos_token_id", len(tokens), default=1 if is_bpe else None)
    eos_ids = _eos_ids(metadata, tokens, types, default=2 if is_bpe else 1)
    spelling = Spelling(
        space="each" if metadata.get(_KEY + "add_space_prefix", True) else "never",
        trims=bool(metadata.get(_KEY + "remove_extra_whitespaces", False)),
        charsmap=_charsmap(metadata),
    )
    pieces = SentencePieces(
        where=_KEY + "tokens",
        kind=kind,
        tokens=tokens,
        scores=_numbers(metadata, "scores", len(tokens), float),
        types=types,
        unknown_id=_token_id(
            metadata, "unknown_token_id", len(tokens), default=types.index(UNKNOWN) if UNKNOWN in types else None
        ),
        spelling=spelling,
        rstrip_ids=_rstrip_ids(metadata, tokens, types),
    )
    backend, plain = pieces.backends()
    return Vocabulary(
        backend=backend,
        plain=plain,
        pieces=pieces.pieces(),
        special_ids=pieces.special_ids(),
        bos_id=bos_id,
        eos_ids=eos_ids,
        prefix=_affix(metadata, "add_bos_token", bos_id, default=is_bpe),
        suffix=_affix(metadata, "add_eos_token", eos_ids[0] if eos_ids else None, default=not is_bpe),
        leading_spaces=pieces.leading_spaces,
    )


def _rstrip_ids(metadata: Mapping[str, object], tokens: Sequence[str], types: Sequence[int]) -> frozenset[int]:
    """Phi-3's special tokens take the line break behind them along. GGUF has no key for this; its readers know the model."""
    if metadata.get("general.architecture") != "phi3":
        return frozenset()
    return frozenset(i for i, kind in enumerate(types) if kind in (CONTROL, USER_DEFINED) and tokens[i] not in _NO_RSTRIP)


def _charsmap(metadata: Mapping[str, object]) -> bytes:
    values: Any = metadata.get(_KEY + "precompiled_charsmap", b"")
    try:
        return bytes(values)
    except (TypeError, ValueError) as error:
        raise ModelError(f"{_KEY}precompiled_charsmap is no list of bytes") from error


def _backend(cut: Cut, tokens: Sequence[str], types: Sequence[int], merges: Sequence[tuple[str, str]]) -> tokenizers.Tokenizer:
    added = {
        token_id: AddedToken(token, special=kind != USER_DEFINED, normalized=False)
        for token_id, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (CONTROL, UNKNOWN, USER_DEFINED) and token
    }
    return byte_level_backend(cut, unique_ids(tokens, _KEY + "tokens"), merges, added, _KEY + "merges")


def _pieces(tokens: Sequence[str], types: Sequence[int], merges: Sequence[tuple[str, str]]) -> tuple[bytes, ...]:
    """Bytes of each token: special and user-defined ones are their text; ``<0x0A>`` is the byte, whichever way it is typed
    (converters differ), unless the merges can build it, for then it stands for those six characters.
    """
    spelled = [
        token.encode("utf-8", "replace") if kind in (CONTROL, UNKNOWN, USER_DEFINED) else byte_level_bytes(token)
        for token, kind in zip(tokens, types, strict=True)
    ]
    bytes_of = {i: byte for i, token in enumerate(tokens) if token.startswith("<0x") and (byte := byte_token(token))}
    built = {left + right for left, right in merges} if bytes_of else set()
    for token_id, byte in bytes_of.items():
        if types[token_id] == BYTE or (types[token_id] == NORMAL and tokens[token_id] not in built):
            spelled[token_id] = byte
    return tuple(spelled)


def _strings(metadata: Mapping[str, object], key: str) -> list[str]:
    values = metadata.get(_KEY + key)
    if not isinstance(values, Sequence) or not values or not all(isinstance(value, str) for value in values):
        raise ModelError(f"{_KEY}{key} is missing or not a list of strings")
    if len(values) > MAX_TOKENS:
        raise ModelError(f"{_KEY}{key} has {len(values)} entries; {MAX_TOKENS} are allowed")
    return list(values)


def _merges(metadata: Mapping[str, object]) -> list[tuple[str, str]]:
    if _KEY + "merges" not in metadata:
        raise ModelError(f"{_KEY}merges is missing; a byte-level BPE needs it")
    pairs = []
    for merge in _strings(metadata, "merges"):
        cut = merge.find(" ", 1)
        if cut < 0:
            raise ModelError(f"{_KEY}merges has {merge[:40]!r}, which is not two parts with a space between")
        pairs.append((merge[:cut], merge[cut + 1 :]))
    return pairs


def _types(metadata: Mapping[str, object], num_tokens: int) -> list[int]:
    """Token types; all normal where the file is silent."""
    if metadata.get(_KEY + "token_type") is None:
        return [NORMAL] * num_tokens
    return _numbers(metadata, "token_type", num_tokens, int)


def _numbers(metadata: Mapping[str, object], key: str, num_tokens: int, of: Callable[[Any], _Number]) -> list[_Number]:
    """A number for each token."""
    values: Any = metadata.get(_KEY + key)
    try:
        numbers = [of(value) for value in values]
    except (TypeError, ValueError, OverflowError) as error:
        raise ModelError(f"{_KEY}{key} is missing or not a list of numbers") from error
    if len(numbers) != num_tokens:
        raise ModelError(f"{_KEY}{key} has {len(numbers)} entries for {num_tokens} tokens")
    return numbers


def _eos_ids(
    metadata: Mapping[str, object], tokens: Sequence[str], types: Sequence[int], default: int | None = None
) -> tuple[int, ...]:
    """Ids that end an output: those of the keys, and the known ends of turns, for which many files have no key."""
    found = [
        _token_id(metadata, "eos_token_id", len(tokens), default),
        _token_id(metadata, "eot_token_id", len(tokens)),
        _token_id(metadata, "eom_token_id", len(tokens)),
    ]
    ends = set(_ENDS) - ({"<|end|>"} if _HARMONY in tokens else set())
    found += [i for i, token in enumerate(tokens) if types[i] in (CONTROL, USER_DEFINED) and token in ends]
    return tuple(dict.fromkeys(token_id for token_id in found if token_id is not None))


def _token_id(metadata: Mapping[str, object], key: str, num_tokens: int, default: int | None = None) -> int | None:
    value = metadata.get(_KEY + key)
    if value is None:
        return default if default is not None and default < num_tokens else None
    if not isinstance(value, int) or not 0 <= value < num_tokens:
        raise ModelError(f"{_KEY}{key} is {value!r}; this vocabulary has {num_tokens} tokens")
    return int(value)


def _affix(metadata: Mapping[str, object], key: str, token_id: int | None, *, default: bool) -> tuple[int, ...]:
    wanted = metadata.get(_KEY + key)
    if wanted is None:
        wanted = default and token_id is not None
    if not wanted:
        return ()
    if token_id is None:
        raise ModelError(f"{_KEY}{key} is true but {_KEY}{key[4:]}_id is missing")
    return (token_id,)
