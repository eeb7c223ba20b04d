"""SentencePiece's ``tokenizer.model``: a protocol buffer, read here without the package that made it.

Of its messages only the fields that decide the tokens are looked at (numbers as in sentencepiece_model.proto); what is not
known is stepped over. Every length is checked against what is left before it is used.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Literal

from ramet.errors import ModelError
from ramet.text.sentencepiece import BYTE, NORMAL, UNKNOWN, SentencePieces, SpaceInFront, Spelling
from ramet.text.tokenizer_config import added_tokens, affix, named_token
from ramet.text.vocabulary import MAX_TOKENS, Vocabulary

__all__ = ["SentencePieceModel", "read_sentencepieces", "vocabulary_of_sentencepiece"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_KINDS: Mapping[int, Literal["bpe", "unigram"]] = {1: "unigram", 2: "bpe"}
_NO_KINDS = {3: "word", 4: "char"}
_PIECE, _TRAINER, _NORMALIZER = 1, 2, 3  # fields of the whole model
_TEXT, _SCORE, _TYPE = 1, 2, 3  # of a piece
_KIND, _SUFFIX_SPACES, _BOS_ID, _EOS_ID = 3, 24, 41, 42  # of the trainer
_CHARSMAP, _SPACE_IN_FRONT, _TRIMS = 2, 3, 4  # of the normaliser

_Value = int | float | memoryview


class SentencePieceModel:
    """A model file: its pieces, and the ids of BOS and EOS (None where it has none)."""

    def __init__(self, pieces: SentencePieces, bos_id: int | None, eos_id: int | None) -> None:
        self.pieces = pieces
        self.bos_id = bos_id
        self.eos_id = eos_id


def vocabulary_of_sentencepiece(data: bytes, config: Mapping[str, object], where: str) -> Vocabulary:
    """The vocabulary of a model file's bytes, with what ``tokenizer_config.json`` adds to it. Raises ``ModelError``.

    ``legacy`` there, true unless it says otherwise, is transformers' word for a space after each special token.
    """
    space: SpaceInFront = "each" if config.get("legacy", True) in (True, None) else "first"
    model = read_sentencepieces(data, where, "never" if config.get("add_prefix_space") is False else space)
    pieces = model.pieces
    added = added_tokens(config, where)
    backend, plain = pieces.backends(added)
    bos_id = named_token(backend, config, "bos_token", where, model.bos_id)
    eos_id = named_token(backend, config, "eos_token", where, model.eos_id)
    asks_bos = () if bos_id is None else (bos_id,)
    return Vocabulary(
        backend=backend,
        plain=plain,
        pieces=(*pieces.pieces(), *(added[i].content.encode() for i in sorted(added) if i >= len(pieces.tokens))),
        special_ids=pieces.special_ids() | {i for i, token in added.items() if token.special},
        bos_id=bos_id,
        eos_ids=() if eos_id is None else (eos_id,),
        prefix=affix(config, "add_bos_token", bos_id, asks_bos, where),
        suffix=affix(config, "add_eos_token", eos_id, (), where),
        leading_spaces=pieces.leading_spaces,
    )


def read_sentencepieces(data: bytes, where: str, space: SpaceInFront) -> SentencePieceModel:
    """Read a model; ``space`` is where it puts a space if it puts one at all. Raises ``ModelError``."""
    tokens: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    trainer: dict[int, _Value] = {}
    normalizer: dict[int, _Value] = {}
    for field, value in _fields(memoryview(data), where):
        if field == _PIECE:
            if len(tokens) == MAX_TOKENS:
                raise ModelError(f"{where}: over {MAX_TOKENS} pieces")
            piece = dict(_fields(_message(value, "a piece", where), where))
            tokens.append(_text(piece.get(_TEXT, memoryview(b"")), f"{where}: piece {len(tokens)}"))
            scores.append(_score(piece, where))
            types.append(_integer(piece, _TYPE, NORMAL, where))
        elif field == _TRAINER:
            trainer = dict(_fields(_message(value, "the trainer's part", where), where))
        elif field == _NORMALIZER:
            normalizer = dict(_fields(_message(value, "the normaliser's part", where), where))
    if not tokens:
        raise ModelError(f"{where}: holds no pieces, so it is no SentencePiece model")
    bad = next((kind for kind in types if not NORMAL <= kind <= BYTE), None)
    if bad is not None:
        raise ModelError(f"{where}: a piece has type {bad}; known are {NORMAL} to {BYTE}")
    kind = _integer(trainer, _KIND, 1, where)
    if kind not in _KINDS:
        raise ModelError(f"{where}: a {_NO_KINDS.get(kind, kind)} model; only unigram and bpe are supported")
    if _integer(trainer, _SUFFIX_SPACES, 0, where):
        raise ModelError(f"{where}: spaces are marked behind words (treat_whitespace_as_suffix), which is not supported")
    spelling = Spelling(
        space=space if _integer(normalizer, _SPACE_IN_FRONT, 1, where) else "never",
        trims=bool(_integer(normalizer, _TRIMS, 1, where)),
        charsmap=bytes(_message(normalizer.get(_CHARSMAP, memoryview(b"")), "precompiled_charsmap", where)),
    )
    unknown_id = types.index(UNKNOWN) if UNKNOWN in types else None
    pieces = SentencePieces(
        where=where, kind=_KINDS[kind], tokens=tokens, scores=scores, types=types, unknown_id=unknown_id, spelling=spelling
    )
    return SentencePieceModel(
        pieces, _special(trainer, _BOS_ID, 1, len(tokens), where), _special(trainer, _EOS_ID, 2, len(tokens), where)
    )


def _special(trainer: Mapping[int, _Value], field: int, default: int, num_tokens: int, where: str) -> int | None:
    """An id that the trainer's part names; -1, which is written in 64 bits, is none."""
    value = _integer(trainer, field, default, where)
    if value >= 1 << 63 or (field not in trainer and value >= num_tokens):
        return None
    if value >= num_tokens:
        raise ModelError(f"{where}: names token {value}, but has {num_tokens}")
    return value


def _fields(data: memoryview, where: str) -> Iterator[tuple[int, _Value]]:
    """The fields of one message: number and value, which is an int, a float (32 bits) or a view of bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at, where)
        wire = key & 7
        if wire == _VARINT:
            value, at = _varint(data, at, where)
            yield key >> 3, value
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(wire)
        if wire == _BYTES:
            size, at = _varint(data, at, where)
        if size is None:
            raise ModelError(f"{where}: no SentencePiece model: wire type {wire}")
        if size > len(data) - at:
            raise ModelError(
                f"{where}: a field says it has {size} bytes, and {len(data) - at} are left; the file is cut or broken"
            )
        part = data[at : at + size]
        at += size
        yield key >> 3, struct.unpack("<f", part)[0] if wire == _FIXED32 else part


def _varint(data: memoryview, at: int, where: str) -> tuple[int, int]:
    value = 0
    for i, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, at + i + 1
    raise ModelError(f"{where}: a number is cut short or over 64 bits; this is no SentencePiece model, or a broken one")


def _message(value: _Value, what: str, where: str) -> memoryview:
    if not isinstance(value, memoryview):
        raise ModelError(f"{where}: {what} is the number {value}; this is no SentencePiece model")
    return value


def _integer(fields: Mapping[int, _Value], field: int, default: int, where: str) -> int:
    value = fields.get(field, default)
    if not isinstance(value, int):
        raise ModelError(f"{where}: field {field} holds no whole number; this is no SentencePiece model")
    return value


def _score(piece: Mapping[int, _Value], where: str) -> float:
    value = piece.get(_SCORE, 0.0)
    if not isinstance(value, float):
        raise ModelError(f"{where}: a piece's score is no number; this is no SentencePiece model")
    return value


def _text(value: _Value, where: str) -> str:
    try:
        return str(_message(value, "its text", where), "utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"{where}: not UTF-8 at byte {error.start}") from None
