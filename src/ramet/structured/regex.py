"""Bounds on regular expressions, before anything compiles them.

Nothing here decides what a pattern means: that is for the compiler (syntax of the Rust ``regex`` crate, without look-around).
"""

from __future__ import annotations

import re

from ramet.errors import GrammarError, shown

__all__ = ["MAX_COPIES", "RegexBudget", "quoted"]

MAX_COPIES = 100_000  # how often one piece of a pattern may be repeated, nested counts multiplied
_MAX_CHARS = 64 * 1024
_MAX_PIECES = 1_000  # 1,000 of \w? in a row take 0.4 s and 60 MB to compile, and twice as many four times that
_MAX_DEEP = 100

_COUNT = re.compile(r"\{(\d*)(,?)(\d*)\}")
_UNESCAPED_SLASH = re.compile(r"(\\.)|/", re.DOTALL)
_VERBOSE = re.compile(r"\(\?[a-zA-Z]*x")


class RegexBudget:
    """What the patterns of one grammar may cost together: characters, and pieces (groups, classes and repetitions)."""

    def __init__(self) -> None:
        self._chars = self._pieces = 0

    def spend(self, num_pieces: int, num_chars: int = 0) -> None:
        """Raise ``GrammarError`` where that is too much, with all that was spent before."""
        self._pieces += num_pieces
        self._chars += num_chars
        if self._pieces > _MAX_PIECES:
            raise GrammarError(
                f"the regex, or all of a grammar, has over {_MAX_PIECES:,} groups, classes and repetitions; make it smaller"
            )
        if self._chars > _MAX_CHARS:
            raise GrammarError(f"the regex, or all of a grammar, is over {_MAX_CHARS:,} characters; make it smaller")

    def check(self, pattern: str) -> None:
        """Raise ``GrammarError`` where groups are too deep, repetitions too many, or the budget is spent. One pass.

        A repetition without an upper bound counts as its lower one, because a loop costs no copies. ``b**`` and ``b*+`` are
        errors elsewhere, or mean that nothing is given back; the compilers would take them for ``(b*)*``.
        """
        self.spend(0, len(pattern))
        if _VERBOSE.search(pattern):
            raise GrammarError("the regex has the flag x, which is not supported; write it without spaces and comments")
        outer: list[int] = []  # for each open group the copies of the costliest piece before it
        worst, last = 1, 1  # of the group we are in; of the piece that a repetition would apply to
        place, repeated = 0, -1  # where the last repetition ended
        while place < len(pattern):
            char = pattern[place]
            if char in "*+" and place == repeated:
                raise GrammarError(
                    f"the regex repeats a repetition, {shown(pattern[max(0, place - 2) : place + 1])}; no repetition here gives "
                    "nothing back, and to mean one of another write brackets"
                )
            self.spend(char in "([.*+?{" or (char == "\\" and pattern[place + 1 : place + 2] in tuple("wWdDsSpP")))
            if char == "\\":
                last, place = 1, place + 2
            elif char == "[":
                last, place = 1, _after_class(pattern, place)
            elif char == "(":
                outer.append(worst)
                worst = last = 1
                place += 1
                if len(outer) > _MAX_DEEP:
                    raise GrammarError(f"the regex has groups more than {_MAX_DEEP} deep; flatten it")
            elif char == ")" and outer:
                last = worst
                worst = max(outer.pop(), last)
                place += 1
            elif char == "{" and (count := _COUNT.match(pattern, place)):
                last *= max(1, _number(count[3]) or _number(count[1]))
                worst = max(worst, last)
                place = repeated = count.end()
                if last > MAX_COPIES:
                    raise GrammarError(
                        f"the regex repeats a piece {shown(last)} times; at most {MAX_COPIES:,}, or without an upper bound"
                    )
            else:
                place += 1
                if char in "*+?":
                    repeated = place
                else:
                    last = 1


def quoted(pattern: str) -> str:
    """As it stands between two slashes of a Lark grammar."""
    return _UNESCAPED_SLASH.sub(lambda found: found[1] or r"\/", pattern)


def _number(digits: str) -> int:
    return int(digits[:20] or 0)  # a longer one is over every limit anyway


def _after_class(pattern: str, place: int) -> int:
    """Where the class that begins at ``place`` ends; classes may be nested, and ``]`` stands for itself at their start."""
    depth = 0
    while place < len(pattern):
        char = pattern[place]
        if char == "\\":
            place += 2
            continue
        place += 1
        if char == "[":
            depth += 1
            if depth > _MAX_DEEP:
                raise GrammarError(f"the regex has classes more than {_MAX_DEEP} deep; flatten it")
            place += pattern.startswith("^", place)
            place += pattern.startswith("]", place)
        elif char == "]":
            depth -= 1
            if not depth:
                break
    return place
