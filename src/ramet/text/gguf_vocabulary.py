"""Vocabularies inside a GGUF file: byte-level BPE with one of the known pre-tokenizers.

The splits are facts of the models, as their own ``tokenizer.json`` states them; llama.cpp names them by
``tokenizer.ggml.pre``. A name that is not known is refused: a wrong split gives wrong tokens without any sign of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers

from ramet.errors import ModelError
from ramet.text.vocabulary import Vocabulary, byte_level_bytes, byte_token

__all__ = ["vocabulary_of_gguf"]

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6
_KEY = "tokenizer.ggml."

_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_HEAD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"


@dataclass(frozen=True, slots=True)
class _Pre:
    """One pre-tokenizer: how text is cut before the merges, and what goes with it.

    ``split`` is a regular expression of pieces, GPT-2's own where None; ``digits`` cuts each digit off first;
    ``whole_words`` takes a piece that is a token as it stands, without the merges; ``add_bos`` holds where the file is silent.
    """

    split: str | None = None
    digits: bool = False
    nfc: bool = False
    whole_words: bool = False
    add_bos: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        if self.split is not None:
            steps.append(pre_tokenizers.Split(Regex(self.split), "isolated"))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.split is None))
        return pre_tokenizers.Sequence(steps)


_LLAMA3 = _Pre(split=_HEAD + r"\p{N}{1,3}" + _TAIL, whole_words=True, add_bos=True)
_PRE: Mapping[str, _Pre] = {
    "gpt-2": _Pre(),
    "smollm": _Pre(digits=True),
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "qwen2": _Pre(split=_HEAD + r"\p{N}" + _TAIL, nfc=True),
}


def vocabulary_of_gguf(metadata: Mapping[str, object]) -> Vocabulary:
    """Build the vocabulary that a GGUF file's metadata describe. Raises ``ModelError`` naming the key."""
    model = metadata.get(_KEY + "model")
    if model != "gpt2":
        raise ModelError(f"{_KEY}model is {model!r}; only 'gpt2' (byte-level BPE) is supported")
    name = metadata.get(_KEY + "pre")
    pre = _PRE.get(name) if isinstance(name, str) else None
    if pre is None:
        raise ModelError(f"{_KEY}pre is {name!r}; the known pre-tokenizers are {', '.join(_PRE)}")
    tokens = _strings(metadata, "tokens")
    merges = _merges(metadata)
    types = _types(metadata, len(tokens))
    bos_id = _token_id(metadata, "bos_token_id", len(tokens))
    eos_ids = [_token_id(metadata, key, len(tokens)) for key in ("eos_token_id", "eot_token_id", "eom_token_id")]
    known_eos = tuple(dict.fromkeys(token_id for token_id in eos_ids if token_id is not None))
    if _KEY + "token_type" not in metadata:
        for token_id in (bos_id, *known_eos):
            if token_id is not None:
                types[token_id] = _CONTROL
    return Vocabulary(
        backend=_backend(pre, tokens, types, merges),
        pieces=_pieces(tokens, types, merges),
        special_ids=frozenset(i for i, kind in enumerate(types) if kind in (_CONTROL, _UNKNOWN)),
        bos_id=bos_id,
        eos_ids=known_eos,
        prefix=_affix(metadata, "add_bos_token", bos_id, default=pre.add_bos and bos_id is not None),
        suffix=_affix(metadata, "add_eos_token", known_eos[0] if known_eos else None, default=False),
    )


def _backend(pre: _Pre, tokens: Sequence[str], types: Sequence[int], merges: Sequence[tuple[str, str]]) -> tokenizers.Tokenizer:
    ids: dict[str, int] = {}
    for token_id, token in enumerate(tokens):
        ids.setdefault(token, token_id)
    try:
        backend = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=list(merges), ignore_merges=pre.whole_words))
    except Exception as error:  # the package raises bare Exception
        raise ModelError(f"{_KEY}merges do not fit {_KEY}tokens: {error}") from error
    if pre.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre.pre_tokenizer()
    backend.add_tokens(
        [
            AddedToken(token, special=kind != _USER_DEFINED, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind in (_CONTROL, _UNKNOWN, _USER_DEFINED) and token
        ]
    )
    return backend


def _pieces(tokens: Sequence[str], types: Sequence[int], merges: Sequence[tuple[str, str]]) -> tuple[bytes, ...]:
    """Bytes of each token: special and user-defined ones are their text; ``<0x0A>`` is the byte, whichever way it is typed
    (converters differ), unless the merges can build it, for then it stands for those six characters.
    """
    spelled = [
        token.encode("utf-8", "replace") if kind in (_CONTROL, _UNKNOWN, _USER_DEFINED) else byte_level_bytes(token)
        for token, kind in zip(tokens, types, strict=True)
    ]
    bytes_of = {i: byte for i, token in enumerate(tokens) if token.startswith("<0x") and (byte := byte_token(token))}
    built = {left + right for left, right in merges} if bytes_of else set()
    for token_id, byte in bytes_of.items():
        if types[token_id] == _BYTE or (types[token_id] == _NORMAL and tokens[token_id] not in built):
            spelled[token_id] = byte
    return tuple(spelled)


def _strings(metadata: Mapping[str, object], key: str) -> list[str]:
    values = metadata.get(_KEY + key)
    if not isinstance(values, Sequence) or not values or not all(isinstance(value, str) for value in values):
        raise ModelError(f"{_KEY}{key} is missing or not a list of strings")
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
    values: Any = metadata.get(_KEY + "token_type")
    if values is None:
        return [_NORMAL] * num_tokens
    try:
        types = [int(value) for value in values]
    except (TypeError, ValueError) as error:
        raise ModelError(f"{_KEY}token_type is not a list of whole numbers") from error
    if len(types) != num_tokens:
        raise ModelError(f"{_KEY}token_type has {len(types)} entries for {num_tokens} tokens")
    return types


def _token_id(metadata: Mapping[str, object], key: str, num_tokens: int) -> int | None:
    value = metadata.get(_KEY + key)
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value < num_tokens:
        raise ModelError(f"{_KEY}{key} is {value!r}; this vocabulary has {num_tokens} tokens")
    return int(value)


def _affix(metadata: Mapping[str, object], key: str, token_id: int | None, *, default: bool) -> tuple[int, ...]:
    wanted = metadata.get(_KEY + key, default)
    if not wanted:
        return ()
    if token_id is None:
        raise ModelError(f"{_KEY}{key} is true but {_KEY}{key[4:]}_id is missing")
    return (token_id,)
