"""Inputs that are nearly like known ones: bytes cut, moved and spliced, and JSON changed as the tree it is."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from random import Random
from typing import Any

__all__ = ["as_json", "mutated_bytes", "mutated_json"]

_ODD = (b"\x00", b"\xff", b"\x7f", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"99999999999999999999", b"-1", b"\n")
_SCALARS: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 0.5, 1e300, 2**31, 2**53, 2**63, -(2**63), 2.0**60, "", "a", "é\n\"", "\u0000",
)  # fmt: skip
_MAX_BYTES = 64 * 1024


def mutated_bytes(rng: Random, data: bytes, pool: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """One to six changes. ``words`` are what the format is made of, ``pool`` other inputs to splice in."""
    for _ in range(rng.randint(1, 6)):
        start = rng.randint(0, len(data))
        stop = min(len(data), start + rng.choice((1, 1, 2, 4, 16)))
        kind = rng.randrange(6)
        if kind == 0:
            data = data[:start] + data[stop:]
        elif kind == 1:
            data = data[:start] + data[start:stop] * rng.choice((2, 3, 50)) + data[stop:]
        elif kind == 2 and start < len(data):
            data = data[:start] + bytes([data[start] ^ 1 << rng.randrange(8)]) + data[start + 1 :]
        elif kind == 3:
            other = rng.choice(pool)
            cut = rng.randint(0, len(other))
            data = data[:start] + other[cut : cut + rng.randint(1, 40)] + data[stop:]
        else:
            data = data[:start] + rng.choice(rng.choice((words, words, _ODD))) + data[stop if kind == 4 else start :]
    return data[:_MAX_BYTES]


def mutated_json(rng: Random, value: Any, pool: Sequence[Any], words: Sequence[str]) -> Any:
    """One to four changes of a JSON value. ``words`` are keys and texts that mean something."""
    root = [copy.deepcopy(value)]
    for _ in range(rng.randint(1, 4)):
        places = list(_places(root))
        holder, key = rng.choice(places)
        kind = rng.randrange(6)
        if kind == 0 and holder is not root:
            del holder[key]
        elif kind == 1:
            holder[key] = copy.deepcopy(rng.choice(list(_values([rng.choice(pool)]))))
        elif kind == 2:
            holder[key] = rng.choice((*_SCALARS, *words))
        elif kind == 3 and isinstance(holder, dict):
            holder[rng.choice(words)] = holder.pop(key)
        elif kind == 4 and isinstance(holder[key], dict):
            holder[key][rng.choice(words)] = copy.deepcopy(rng.choice(list(_values([rng.choice(pool)]))))
        elif kind == 5 and isinstance(holder[key], list):
            holder[key].append(copy.deepcopy(rng.choice((*_SCALARS, *holder[key]))))
    return root[0]


def _places(root: list[Any]) -> list[tuple[Any, Any]]:
    """Every holder (a list or an object) with each of its keys; of a large value the first thousand."""
    found, waiting = [], [root]
    while waiting and len(found) < 1_000:
        holder = waiting.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        for key in keys:
            found.append((holder, key))
            if isinstance(holder[key], (dict, list)):
                waiting.append(holder[key])
    return found


def _values(root: list[Any]) -> list[Any]:
    return [holder[key] for holder, key in _places(root)]


def as_json(data: bytes) -> Any:
    """None where it is not JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
