"""Reading model files, which are untrusted input: every fault is a ``ModelError`` that names the file and the key."""

from __future__ import annotations

import hashlib
import json
import mmap
import stat
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ramet.errors import ModelError, shown

__all__ = [
    "Fields",
    "few",
    "hash_array",
    "map_file",
    "mapped_files",
    "mappings",
    "parse_json",
    "plain",
    "read_json",
    "read_text",
    "release_pages",
    "size_of",
]

_MAX_JSON_BYTES = 64 << 20
_MAX_INT = 2**31 - 1
_HASHED_BYTES = 64 << 20
_MAX_NAME, _MAX_REASON = 100, 500  # characters of a file's names, and of what is wrong, in a message


def plain(name: str) -> str:
    """A name out of a file, for messages: as it is, or, where it is long or not all of it can be printed, ``shown``."""
    return name if len(name) <= _MAX_NAME and name.isprintable() else shown(name, _MAX_NAME)


def few(names: Iterable[object], limit: int = 5) -> str:
    """The first names of a collection, for messages: ``a, b, c (12 in all)``."""
    found = [plain(str(n)) for n in names]
    return ", ".join(found[:limit]) + (f", ... ({len(found)} in all)" if len(found) > limit else "")


def size_of(path: Path) -> int:
    """Bytes of a regular file, or of what a link leads to. All else is refused: a pipe would be waited for, a device never ends.

    Raises ``OSError`` where it cannot be looked up.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ModelError(f"{path} is not a regular file")
    return status.st_size


def map_file(path: Path) -> npt.NDArray[np.uint8]:
    """uint8[n], read-only: the bytes of a regular file, mapped."""
    try:
        if size_of(path) == 0:
            raise ModelError(f"{path} is empty")
        return np.memmap(path, np.uint8, mode="r").view(np.ndarray)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from None


def release_pages(arrays: Iterable[npt.NDArray[np.generic]]) -> None:
    """Let go of the memory of all mapped files that these arrays are views of; their pages are read again when asked for."""
    for mapped in mappings(arrays):
        pages: Any = mapped.base
        pages.madvise(mmap.MADV_DONTNEED)


def mapped_files(arrays: Iterable[npt.NDArray[np.generic]]) -> tuple[Path, ...]:
    """The files that these arrays are views of."""
    return tuple(sorted({Path(mapped.filename) for mapped in mappings(arrays) if mapped.filename is not None}))


def hash_array(digest: hashlib._Hash, array: npt.NDArray[np.generic]) -> None:
    """Add an array's bytes, letting go of a mapped file's pages on the way."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    for at in range(0, len(data), _HASHED_BYTES):
        digest.update(data[at : at + _HASHED_BYTES].data)
        release_pages([array])


def mappings(arrays: Iterable[npt.NDArray[np.generic]]) -> list[np.memmap[Any, Any]]:
    """The mapped files behind arrays, each once."""
    found: dict[int, np.memmap[Any, Any]] = {}
    for array in arrays:
        base: object = array
        while isinstance(base, np.ndarray) and not (isinstance(base, np.memmap) and isinstance(base.base, mmap.mmap)):
            base = base.base
        if isinstance(base, np.memmap):
            found[id(base)] = base
    return list(found.values())


def read_text(path: Path) -> str:
    """A small UTF-8 file."""
    try:
        if size_of(path) > _MAX_JSON_BYTES:
            raise ModelError(f"{path} is over {_MAX_JSON_BYTES >> 20} MiB")
        return path.read_text("utf-8")
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ModelError(f"{path} is not UTF-8 at byte {error.start}") from None


def read_json(path: Path) -> dict[str, object]:
    """A file that holds one JSON object."""
    return parse_json(read_text(path), str(path))


def parse_json(text: str, where: str) -> dict[str, object]:
    """One strict JSON object: no NaN, no duplicate keys."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ModelError(f"{where} is not valid JSON: {reason}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{where} holds a JSON {type(value).__name__}, not an object")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"duplicate key {shown(twice, _MAX_NAME)}")
    return found


class Fields:
    """Typed access to a mapping from a file. A key that is absent or null takes the default; without one it is an error."""

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self._values = values
        self.where = where

    def has(self, key: str) -> bool:
        return self._values.get(key) is not None

    def names(self) -> list[str]:
        """All keys."""
        return list(self._values)

    def fail(self, key: str, why: str) -> ModelError:
        """An error about ``key``, to be raised."""
        return ModelError(f"{self.where}: {plain(key)} {why if len(why) <= _MAX_REASON else why[:_MAX_REASON] + '...'}")

    def raw(self, key: str) -> object:
        """The value as it stands, None where absent."""
        return self._values.get(key)

    def integer(self, key: str, default: int | None = None, low: int = 1, high: int = _MAX_INT) -> int:
        value = self._get(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.fail(key, f"is a whole number, not {shown(value, 60)}")
        if not low <= value <= high:
            raise self.fail(key, f"is from {low} to {high}, not {value}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number over 0: all that models have are."""
        value = self._get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.fail(key, f"is a number, not {shown(value, 60)}")
        if not 0 < value <= sys.float_info.max:  # whole numbers have no end
            raise self.fail(key, f"is a finite number over 0, not {shown(value, 60)}")
        return float(value)

    def numbers(self, key: str, length: int) -> tuple[float, ...]:
        """A list of ``length`` finite numbers over 0."""
        values = self._get(key, None)
        if not isinstance(values, list):
            raise self.fail(key, f"is a list of numbers, not {shown(values, 60)}")
        if len(values) != length:
            raise self.fail(key, f"has {length} numbers, not {len(values)}")
        each = Fields({f"{key}[{i}]": value for i, value in enumerate(values)}, self.where)
        return tuple(each.number(f"{key}[{i}]") for i in range(length))

    def fraction(self, key: str) -> float:
        """A finite number, 0 or over."""
        return 0.0 if self._values.get(key) in (0, 0.0) else self.number(key)

    def boolean(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.fail(key, f"is true or false, not {shown(value, 60)}")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.fail(key, f"is a string, not {shown(value, 60)}")
        return value

    def strings(self, key: str) -> list[str]:
        """A list of strings; empty where absent."""
        value = self._values.get(key)
        value = [] if value is None else value
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self.fail(key, f"is a list of strings, not {shown(value, 60)}")
        return value

    def mapping(self, key: str) -> Fields:
        """The object at ``key``; empty where absent."""
        value = self._get(key, {})
        if not isinstance(value, Mapping):
            raise self.fail(key, f"is an object, not {shown(value, 60)}")
        return Fields(value, f"{self.where}: {plain(key)}")

    def token_ids(self, key: str, vocab_size: int) -> tuple[int, ...]:
        """Ids of a key that holds one, a list or nothing. Raises where one is not in the vocabulary."""
        value = self._values.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        for one in ids:
            if not isinstance(one, int) or isinstance(one, bool):
                raise self.fail(key, f"is a token id, not {shown(one, 60)}")
            if not 0 <= one < vocab_size:
                raise self.fail(key, f"is {one}, but the vocabulary has {vocab_size} tokens")
        return tuple(ids)

    def _get(self, key: str, default: object) -> object:
        value = self._values.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.fail(key, "is missing")
        return value
