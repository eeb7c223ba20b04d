"""Vocabularies of ranked bytes: Mistral's ``tekken.json``, and the lines of tiktoken (``BASE64 RANK``).

A text is cut as the model's own pattern says; then whichever two neighbours make the lowest ranked token are joined. The
files give ranks; the patterns are those of the models known here, for a pattern is a program, and a stranger's may never end.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import tokenizers
from tokenizers import AddedToken

from ramet.errors import ModelError, shown
from ramet.text.byte_level import CUTS, Cut, byte_level_backend
from ramet.text.merges import merges_of_ranks
from ramet.text.tokenizer_config import added_tokens, affix, named_token
from ramet.text.vocabulary import MAX_TOKENS, Vocabulary, byte_level_bytes, byte_level_name

__all__ = ["vocabulary_of_tekken", "vocabulary_of_tiktoken"]

_LLAMA3_NAMES = [
    "begin_of_text",
    "end_of_text",
    "reserved_special_token_0",
    "reserved_special_token_1",
    "finetune_right_pad_id",
    "reserved_special_token_2",
    "start_header_id",
    "end_header_id",
    "eom_id",
    "eot_id",
    "python_tag",
    *(f"reserved_special_token_{i}" for i in range(3, 248)),
]
_QWEN_NAMES = ["endoftext", "im_start", "im_end", *(f"extra_{i}" for i in range(205))]


@dataclass(frozen=True, slots=True)
class _Known:
    """What tiktoken keeps in programs and not in files: the cut of a vocabulary, and its special tokens from one id on."""

    cut: str
    first_special: int
    names: Sequence[str]
    asks_bos: bool = False

    def added(self) -> dict[int, AddedToken]:
        return {
            self.first_special + i: AddedToken(f"<|{name}|>", special=True, normalized=False) for i, name in enumerate(self.names)
        }


_BY_RANKS: Mapping[int, _Known] = {
    50256: _Known("gpt-2", 50256, ["endoftext"]),
    100256: _Known("dbrx", 100257, ["endoftext", "fim_prefix", "fim_middle", "fim_suffix"]),
    128000: _Known("llama-bpe", 128000, _LLAMA3_NAMES, asks_bos=True),
    151643: _Known("qwen2", 151643, _QWEN_NAMES),
    199998: _Known("gpt-4o", 199999, ["endoftext"]),
}
"""The vocabularies of tiktoken's kind, by how many ranks their files have: r50k, cl100k, Llama 3, Qwen, o200k."""

_TEKKEN_NAMES = [  # of files that do not name them
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
]  # fmt: skip
_TEKKEN_BOS, _TEKKEN_EOS = 1, 2


def vocabulary_of_tiktoken(data: bytes, config: Mapping[str, object], where: str) -> Vocabulary:
    """Of a file of lines, each a token in base64 and its rank, which is its id. Raises ``ModelError``.

    Special tokens are those of ``added_tokens_decoder`` in ``tokenizer_config.json``, else those the vocabulary is known to have.
    """
    tokens: dict[int, bytes] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line:
            continue
        text, _, rank = line.partition(b" ")
        if not rank.isdigit() or len(rank) > 9 or int(rank) >= MAX_TOKENS or int(rank) in tokens:
            raise ModelError(f"{where}: line {number} is not a token in base64, a space and a rank of its own: {shown(line)}")
        tokens[int(rank)] = _bytes(text, f"{where}: line {number}")
    known = _BY_RANKS.get(len(tokens))
    if known is None:
        counts = ", ".join(map(str, _BY_RANKS))
        raise ModelError(f"{where} has {len(tokens)} ranks; how to cut text is known for vocabularies of {counts} only")
    added = added_tokens(config, where) or known.added()
    backend = _backend(CUTS[known.cut], tokens, added, where)
    first = known.first_special
    bos_id = named_token(backend, config, "bos_token", where, first if known.asks_bos else None)
    eos_id = named_token(backend, config, "eos_token", where, first + 1 if known.asks_bos else first)
    asks = (bos_id,) if known.asks_bos and bos_id is not None else ()
    return Vocabulary(
        backend=backend,
        pieces=_pieces(tokens, added),
        special_ids=frozenset(i for i, token in added.items() if token.special),
        bos_id=bos_id,
        eos_ids=() if eos_id is None else (eos_id,),
        prefix=affix(config, "add_bos_token", bos_id, asks, where),
        suffix=affix(config, "add_eos_token", eos_id, (), where),
    )


def vocabulary_of_tekken(file: Mapping[str, object], config: Mapping[str, object], where: str) -> Vocabulary:
    """Of Mistral's ``tekken.json``: special tokens first, then the tokens by rank. Raises ``ModelError``."""
    settings = file.get("config")
    entries = file.get("vocab")
    if not isinstance(settings, Mapping) or not isinstance(entries, list):
        raise ModelError(f"{where}: has no config or no list vocab, so it is no tekken file")
    size, num_special = settings.get("default_vocab_size"), settings.get("default_num_special_tokens")
    if not isinstance(size, int) or not isinstance(num_special, int) or not 2 < num_special < size <= num_special + len(entries):
        raise ModelError(
            f"{where}: {shown(num_special)} special tokens of default_vocab_size {shown(size)} do not fit {len(entries)} in vocab"
        )
    if settings.get("pattern") != CUTS["tekken"].steps[0]:
        raise ModelError(f"{where}: cuts text by a pattern that is not known: {shown(settings.get('pattern'), 80)}")
    tokens = {num_special + rank: data for rank, data in enumerate(_tekken_tokens(entries[: size - num_special], where))}
    names = _tekken_names(file.get("special_tokens"), num_special, where)
    added = {i: AddedToken(name, special=True, normalized=False) for i, name in enumerate(names)}
    backend = _backend(CUTS["tekken"], tokens, added, where)
    return Vocabulary(
        backend=backend,
        pieces=_pieces(tokens, added),
        special_ids=frozenset(added),
        bos_id=named_token(backend, config, "bos_token", where, _TEKKEN_BOS),
        eos_ids=(named_token(backend, config, "eos_token", where) or _TEKKEN_EOS,),
        prefix=affix(config, "add_bos_token", _TEKKEN_BOS, (_TEKKEN_BOS,), where),
        suffix=affix(config, "add_eos_token", _TEKKEN_EOS, (), where),
    )


def _tekken_tokens(entries: Sequence[object], where: str) -> list[bytes]:
    tokens = []
    for rank, entry in enumerate(entries):
        if not isinstance(entry, Mapping) or entry.get("rank") != rank or not isinstance(entry.get("token_bytes"), str):
            raise ModelError(f"{where}: vocab entry {rank} is not its rank and token_bytes: {shown(entry, 80)}")
        tokens.append(_bytes(entry["token_bytes"], f"{where}: vocab entry {rank}"))
    return tokens


def _tekken_names(entries: object, count: int, where: str) -> list[str]:
    """The special tokens' texts; places that have none are called as Mistral calls them."""
    names = [f"<SPECIAL_{i}>" for i in range(count)]
    if entries is None:
        names[: len(_TEKKEN_NAMES)] = _TEKKEN_NAMES[:count]
        return names
    if not isinstance(entries, list) or len(entries) > count:
        raise ModelError(f"{where}: special_tokens is no list of at most {count}")
    for entry in entries:
        rank = entry.get("rank") if isinstance(entry, Mapping) else None
        name = entry.get("token_str") if isinstance(entry, Mapping) else None
        if not isinstance(rank, int) or not 0 <= rank < count or not isinstance(name, str) or not name:
            raise ModelError(f"{where}: special_tokens has {shown(entry, 80)}, which is no rank under {count} with token_str")
        names[rank] = name
    return names


def _backend(cut: Cut, tokens: Mapping[int, bytes], added: Mapping[int, AddedToken], where: str) -> tokenizers.Tokenizer:
    """``tokens`` by id, the best ranked first in the order of ids."""
    ranked = {token_id: byte_level_name(data) for token_id, data in sorted(tokens.items())}
    ids = {name: token_id for token_id, name in ranked.items()}
    if len(ids) < len(ranked):
        twice = next(name for token_id, name in ranked.items() if ids[name] != token_id)
        raise ModelError(f"{where}: two ranks are the token {byte_level_bytes(twice)[:40]!r}")
    if len(missing := {byte_level_name(bytes([b])) for b in range(256)} - set(ids)):
        raise ModelError(f"{where}: {len(missing)} of the 256 bytes are no tokens; this is no vocabulary of ranked bytes")
    merges = merges_of_ranks(ids, ids, where)
    clashing = [token.content for token in added.values() if token.content in ids]
    if clashing:
        raise ModelError(f"{where}: the special token {clashing[0][:40]!r} is an ordinary one too")
    ids |= {token.content: token_id for token_id, token in added.items()}
    return byte_level_backend(replace(cut, whole_words=True), ids, merges, added, where)


def _pieces(tokens: Mapping[int, bytes], added: Mapping[int, AddedToken]) -> tuple[bytes, ...]:
    found = {**tokens, **{token_id: token.content.encode("utf-8", "replace") for token_id, token in added.items()}}
    return tuple(found.get(token_id, b"") for token_id in range(max(found) + 1))


def _bytes(text: str | bytes, where: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if not data:
        raise ModelError(f"{where}: {shown(text)} is no base64 of a token")
    return data
