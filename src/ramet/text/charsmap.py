"""SentencePiece's table of replacements, ``precompiled_charsmap``: looked at before anyone follows it.

Its layout: uint32 size of the trie in bytes; the trie, a double array of uint32 units; then the replacements, UTF-8, each
ended by NUL. A unit that is no leaf holds the way to its children (XOR), a leaf the place of a replacement. The reader in the
``tokenizers`` package follows these without looking, and a way out of the array is a panic in the middle of a request.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ramet.errors import ModelError

__all__ = ["MAX_REPLACEMENT", "check_charsmap"]

MAX_REPLACEMENT = 256
"""Bytes that one character may become; Unicode's own NFKC needs 33. More would let a short text fill the memory."""

_LEAF = np.uint32(1 << 31)
_HAS_LEAF = np.uint32(1 << 8)
_LONG = np.uint32(1 << 9)


def check_charsmap(charsmap: bytes, where: str) -> None:
    """Raise ``ModelError`` where some text would lead the reader out of the table. An empty one is none."""
    if not charsmap:
        return
    size = int.from_bytes(charsmap[:4], "little")
    if len(charsmap) < 4 or size % 4 or not 0 < size <= len(charsmap) - 4:
        raise ModelError(f"{where}: precompiled_charsmap says its trie has {size} bytes, and there are {len(charsmap)} in all")
    replacements = charsmap[4 + size :]
    try:
        replacements.decode()
    except UnicodeDecodeError as error:
        raise ModelError(f"{where}: precompiled_charsmap has a replacement that is not UTF-8, at byte {error.start}") from None
    longest = max(map(len, replacements.split(b"\0")))
    if longest > MAX_REPLACEMENT:
        raise ModelError(f"{where}: precompiled_charsmap has a replacement of {longest} bytes; {MAX_REPLACEMENT} are allowed")
    units = np.frombuffer(charsmap, "<u4", size // 4, 4)
    if not _stays_inside(units) or not _leads_to_replacements(units, replacements):
        raise ModelError(f"{where}: precompiled_charsmap leads out of its own table")


def _children(units: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    """uint64[n]: for each unit, the place from which its children are counted."""
    far = ((units & _LONG) >> np.uint32(6)).astype(np.uint64)
    offsets = (units >> np.uint32(10)).astype(np.uint64) << far
    return np.arange(len(units), dtype=np.uint64) ^ offsets


def _stays_inside(units: npt.NDArray[np.uint32]) -> bool:
    """Whether each byte leads from each unit that is no leaf to a unit: the child of byte c is at ``place ^ c``."""
    places = _children(units)[(units & _LEAF) == 0]
    return bool((places | np.uint64(0xFF) < len(units)).all())


def _leads_to_replacements(units: npt.NDArray[np.uint32], replacements: bytes) -> bool:
    """Whether each leaf that a unit points to names the beginning of a character in the replacements, ended by NUL."""
    if not replacements.endswith(b"\0"):
        return False
    holders = ((units & _LEAF) == 0) & ((units & _HAS_LEAF) != 0)
    places = (units[_children(units)[holders]] & ~_LEAF).astype(np.int64)
    if (places >= len(replacements)).any():
        return False
    heads = np.frombuffer(replacements, np.uint8)[places]
    return bool(((heads & 0xC0) != 0x80).all())
