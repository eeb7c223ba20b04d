"""Text that is to stay text where special tokens are read: a mark in each place where one would begin."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["Guards", "unguarded"]

_DEEPEST = 64  # groups in a pattern: those of a few hundred are over what Python can read; no model's marks are as long
_GUARD = "\ufdd0"  # a noncharacter: no text is meant to have it, and what has it is without it from here on


def unguarded(text: str) -> str:
    return text.replace(_GUARD, "")


class Guards:
    """For the special tokens whose texts are ``marks``. Looks at each character of a text about once, whatever it is."""

    def __init__(self, marks: Iterable[str]) -> None:
        pattern = _either({mark for mark in marks if len(mark) > 1})
        self._begin = re.compile(f"(?={pattern}).", re.DOTALL)
        self._mark = re.compile(f"({pattern})")

    def guarded(self, text: str) -> str:
        """The text with a guard behind the first character of each mark."""
        return self._begin.sub(lambda found: found[0] + _GUARD, unguarded(text))

    def all_guarded(self, value: Any) -> Any:
        """Plain data, all texts of it guarded."""
        if isinstance(value, str):
            return self.guarded(value)
        if isinstance(value, dict):
            return {self.guarded(key): self.all_guarded(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.all_guarded(item) for item in value]
        return value

    def runs(self, text: str) -> Iterator[tuple[str, bool]]:
        """A text in runs, without guards, and of each whether its marks are text. White space beside marks that are none stays
        with them, since some take it along.
        """
        run = ""
        for chunk in self._mark.split(text) if _GUARD in text else (text,):
            if _GUARD not in chunk:
                run += chunk
                continue
            body = chunk.strip()
            start = chunk.index(body)
            yield run + chunk[:start], False
            yield unguarded(body), True
            run = chunk[start + len(body) :]
        yield run, False


def _either(words: set[str], depth: int = 0) -> str:
    """A pattern of any of these, the longest there is; words that begin alike share that, so no place is looked at often."""
    if not words:
        return "(?!)"
    if depth == _DEEPEST:
        return f"(?:{'|'.join(re.escape(word) for word in sorted(words, key=len, reverse=True))})"
    by_first: dict[str, set[str]] = {}
    for word in words - {""}:
        by_first.setdefault(word[0], set()).add(word[1:])
    ways = "|".join(
        re.escape(first) + (_either(rest, depth + 1) if rest != {""} else "") for first, rest in sorted(by_first.items())
    )
    return f"(?:{ways}){'?' if '' in words else ''}"
