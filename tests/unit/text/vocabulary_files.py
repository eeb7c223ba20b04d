"""Metadata of GGUF files that hold a vocabulary and no tensors, which the model reader refuses."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


def vocabulary_metadata(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    at = 16  # magic, version, number of tensors

    def read(layout: str) -> Any:
        nonlocal at
        (value,) = struct.unpack_from("<" + layout, data, at)
        at += struct.calcsize("<" + layout)
        return value

    def value(kind: int) -> Any:
        if kind == _STRING:
            return read(f"{read('Q')}s").decode()
        if kind == _ARRAY:
            of, count = read("I"), read("Q")
            return [value(of) for _ in range(count)]
        return read(_SCALARS[kind])

    return {value(_STRING): value(read("I")) for _ in range(read("Q"))}
