"""Sets of characters, and those that Unicode names.

A set is a tuple of ranges (first, last) of code points: rising, apart from each other, and without surrogates, which no UTF-8
has. Names and cases are those of ``unicode_tables``.
"""

from __future__ import annotations

import base64
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from typing import TypeAlias

from ramet.structured.unicode_tables import CASES, CLASSES, NAMES

__all__ = ["ANY", "ASCII", "Ranges", "both", "either", "folded", "named", "negated", "ranges_of"]

Ranges: TypeAlias = tuple[tuple[int, int], ...]

ANY: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))

_CATEGORIES = """
letter L lowercaseletter Ll uppercaseletter Lu titlecaseletter Lt modifierletter Lm otherletter Lo casedletter LC mark M
nonspacingmark Mn spacingmark Mc enclosingmark Me number N decimalnumber Nd digit Nd letternumber Nl othernumber No
punctuation P punct P connectorpunctuation Pc dashpunctuation Pd openpunctuation Ps closepunctuation Pe initialpunctuation Pi
finalpunctuation Pf otherpunctuation Po symbol S mathsymbol Sm currencysymbol Sc modifiersymbol Sk othersymbol So separator Z
spaceseparator Zs lineseparator Zl paragraphseparator Zp other C control Cc cntrl Cc format Cf privateuse Co unassigned Cn
surrogate Cs
"""
_ALIASES = dict(zip(_CATEGORIES.split()[::2], _CATEGORIES.split()[1::2], strict=True)) | {
    "alpha": "Alphabetic", "lower": "Lowercase", "upper": "Uppercase", "wspace": "White_Space", "space": "White_Space",
}  # fmt: skip

ASCII: dict[str, Ranges] = {
    "alnum": ((48, 57), (65, 90), (97, 122)),
    "alpha": ((65, 90), (97, 122)),
    "ascii": ((0, 127),),
    "blank": ((9, 9), (32, 32)),
    "cntrl": ((0, 31), (127, 127)),
    "digit": ((48, 57),),
    "graph": ((33, 126),),
    "lower": ((97, 122),),
    "print": ((32, 126),),
    "punct": ((33, 47), (58, 64), (91, 96), (123, 126)),
    "space": ((9, 13), (32, 32)),
    "upper": ((65, 90),),
    "word": ((48, 57), (65, 90), (95, 95), (97, 122)),
    "xdigit": ((48, 57), (65, 70), (97, 102)),
}
"""The classes that POSIX names."""


def ranges_of(pairs: Iterable[tuple[int, int]]) -> Ranges:
    """The set of all characters in ranges that may be in any order, meet or overlap. Surrogates are left out."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(pairs):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    if any(first <= 0xDFFF and last >= 0xD800 for first, last in found):
        return both(tuple(found), ANY)
    return tuple(found)


def either(*sets: Ranges) -> Ranges:
    return ranges_of(pair for one in sets for pair in one)


def both(a: Ranges, b: Ranges) -> Ranges:
    found, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        first, last = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if first <= last:
            found.append((first, last))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def negated(of: Ranges) -> Ranges:
    starts = [0, *(last + 1 for _, last in of)]
    ends = [*(first - 1 for first, _ in of), 0x10FFFF]
    return both(tuple((first, last) for first, last in zip(starts, ends, strict=True) if first <= last), ANY)


@lru_cache(256)
def folded(of: Ranges) -> Ranges:
    """With each character all that differ from it by case alone."""
    points, orbits = _cased()
    met: set[int] = set()
    for first, last in of:
        for orbit in orbits[bisect_left(points, first) : bisect_right(points, last)]:
            met.update(orbit)
    return either(of, tuple((point, point) for point in met))


@lru_cache(256)
def named(name: str) -> Ranges | None:
    """The class of ``\\p{name}``: a general category, a script by its long name, ``Any``, ``ASCII``, ``Assigned`` or one of a few
    properties; None where it is not known. Case, spaces, ``-`` and ``_`` make no difference.
    """
    kind, _, value = name.rpartition("=")
    kind, value = _plain(kind), _plain(value)
    if kind in ("script", "sc"):
        return _classes().get(f"sc={value}")
    if kind not in ("", "generalcategory", "gc"):
        return None
    value = _plain(_ALIASES.get(value, value))
    found = _of_category(value)
    if found is not None or kind:
        return found
    special = {"any": ANY, "ascii": ASCII["ascii"], "assigned": negated(_unassigned())}
    return special.get(value) or _classes().get(value) or _classes().get(f"sc={value}")


def _of_category(name: str) -> Ranges | None:
    if name == "cs":
        return ()
    if name == "cn":
        return _unassigned()
    if name == "lc":
        return either(*(_classes()[part] for part in ("lu", "ll", "lt")))
    if len(name) == 1 and name in "lmnpszc":
        parts = [_classes()[key] for key in _classes() if len(key) == 2 and key[0] == name]
        return either(*parts, *([_unassigned()] if name == "c" else []))
    return _classes().get(name) if len(name) == 2 else None


@cache
def _unassigned() -> Ranges:
    return negated(either(*(of for key, of in _classes().items() if len(key) == 2)))


def _plain(name: str) -> str:
    return "".join(char for char in name.lower() if char not in " -_\t")


@cache
def _classes() -> dict[str, Ranges]:
    numbers = _numbers(CLASSES)
    found = {}
    for name in NAMES.split():
        cuts, point = [], 0
        for _ in range(next(numbers)):
            point += next(numbers)
            cuts.append(point)
        found[name[:3] + _plain(name[3:]) if name.startswith("sc=") else _plain(name)] = tuple(
            (first, past - 1) for first, past in zip(cuts[::2], cuts[1::2], strict=True)
        )
    return found


@cache
def _cased() -> tuple[list[int], list[list[int]]]:
    """The characters that have a case, rising, and for each those that differ from it by case alone, and it."""
    numbers = _numbers(CASES)
    found: dict[int, list[int]] = {}
    start = 0
    for step in numbers:
        start += step
        orbit = [start]
        for _ in range(next(numbers)):
            orbit.append(orbit[-1] + next(numbers))
        found |= dict.fromkeys(orbit, orbit)
    points = sorted(found)
    return points, [found[point] for point in points]


def _numbers(text: str) -> Iterator[int]:
    """What ``packed`` of the tool wrote: seven bits a byte, the last byte of a number below 128."""
    number = shift = 0
    for byte in zlib.decompress(base64.b85decode(text)):
        number += (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield number
            number = shift = 0
