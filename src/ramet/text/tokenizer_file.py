"""Which reader a tokenizer's file takes, by its name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ramet.errors import ModelError
from ramet.text.ranks import vocabulary_of_tekken, vocabulary_of_tiktoken
from ramet.text.sentencepiece_file import vocabulary_of_sentencepiece
from ramet.text.tokenizer_json import vocabulary_of_json
from ramet.text.vocabulary import Vocabulary

__all__ = ["vocabulary_of_file"]

_MAX_BYTES = 64 << 20  # three times the largest known


def vocabulary_of_file(path: Path, config: Mapping[str, object]) -> Vocabulary:
    """Read ``tokenizer.json``, ``tekken.json``, ``tokenizer.model`` or ``NAME.tiktoken``. Raises ``ModelError``.

    Llama 3's own ``tokenizer.model`` has tiktoken's lines, so that name is told by the content.
    """
    if path.name.endswith(".json") and not path.name.startswith("tekken"):
        _size_checked(path)
        return vocabulary_of_json(path, config)
    data = _read(path)
    where = str(path)
    if path.name.endswith(".json"):
        return vocabulary_of_tekken(_json(data, where), config, where)
    if path.name.endswith(".tiktoken") or _is_lines(data):
        return vocabulary_of_tiktoken(data, config, where)
    return vocabulary_of_sentencepiece(data, config, where)


def _is_lines(data: bytes) -> bool:
    """Whether the first line is base64, a space and a rank; a protocol buffer begins with control characters."""
    first, _, rank = data[:100].split(b"\n", 1)[0].partition(b" ")
    return first.isascii() and first.isalnum() | first.endswith(b"=") and rank.isdigit()


def _size_checked(path: Path) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from None
    if size > _MAX_BYTES:
        raise ModelError(f"{path} has {size >> 20} MiB; no tokenizer is over {_MAX_BYTES >> 20} MiB")


def _read(path: Path) -> bytes:
    _size_checked(path)
    try:
        return path.read_bytes()  # a read of up to a limit would allocate the limit
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from None


def _json(data: bytes, where: str) -> Mapping[str, object]:
    try:
        file = json.loads(data)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ModelError(f"{where} is not valid JSON: {reason}") from None
    if not isinstance(file, dict):
        raise ModelError(f"{where} holds a JSON {type(file).__name__}, not an object")
    return file
