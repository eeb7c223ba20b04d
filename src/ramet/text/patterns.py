r"""Patterns that files bring along to cut text by: taken where their time grows with the text, and no faster.

A ``tokenizer.json`` holds regular expressions in Oniguruma's language, which a backtracking matcher runs on what clients send:
``(a+)+$`` takes time of 2^n, ``\s+$`` of n^2, and no request can be called back from native code. So a pattern has to be

* short, and of the words that such patterns are made of: no back-references, calls or conditions;
* flat: what is repeated without bound is one character or a class of them, or a group that matches in one way alone. That leaves
  no way to take 2^n steps, only powers of n;
* tried: on texts of growing lengths that lead it as far as it goes, over and over, and then let it fail. They are made from
  its own parts, since to be slow it has to get through the same parts from many places.

The last is a measurement and no proof; what it misses costs a thread of the text pool, never an answer of somebody else. Why not
otherwise: docs/decisions/0024-patterns-of-files.md.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tokenizers import Regex, normalizers

from ramet.core.ports import Clock
from ramet.errors import ModelError, shown
from ramet.text.vocabulary import is_panic

__all__ = ["check_flat", "check_size", "linear", "try_pattern"]

_Count = tuple[int, int | None]
"""How often at the least, and at the most (None: without bound)."""

_MAX_CHARS = 4_096  # three times the longest known; a thousand classes take a second to compile
_MAX_PROBES = 400
_FEW = 8  # times that a group with choices may be repeated
_ENDS = ("", "\n!", "x 1")
_LENGTHS = [2**i for i in range(3, 13)]  # of runs; a larger step, and what takes n^3 would take minutes to be found out
_MAX_S, _MAX_S_A_CHAR = 2e-3, 2e-6  # known patterns take 0.05 to 0.25 us a character
_SAMPLES = " \n\r\taZé中ー\u01c5\u03011²Ⅷ!'/_+€😀\u200dあ한\0("
_RUN_AT_END = re.compile(r"(\\s|\[[^\[\]]+\])\+\$")

_COUNT = re.compile(r"\{(\d*)(,?)(\d*)\}")
_ESCAPE = re.compile(
    r"\\(?:x\{[0-9A-Fa-f]{1,8}\}|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|[pP]\{\^?[\w =]{1,40}\}|[dDwWsShHnrtfvaebBAzZ\W_])"
)
_OPEN = re.compile(r"\((?:\?(?:[im]*(?:-[im]+)?:|=|!|<=|<!|>|<[A-Za-z]\w*>)|(?![?*]))")
_FLAGS = re.compile(r"\(\?[im-]+\)")
_AGAIN = re.compile(r"[*+?]|\{\d*,?\d+,?\}")
_NOTHING = re.compile(r"[\^$]|\\[bBAzZ]")


def check_size(pattern: str, where: str) -> None:
    """Raises ``ModelError`` where a pattern is too long to be compiled."""
    if len(pattern) > _MAX_CHARS:
        raise ModelError(f"{where}: cuts text by a pattern of {len(pattern)} characters; {_MAX_CHARS} are allowed")


def linear(pattern: str) -> str:
    r"""The pattern, or one of linear time that matches the same: a run at the end, as ``\s+$``, from its first place alone."""
    found = _RUN_AT_END.fullmatch(pattern)
    return pattern if found is None else f"(?<!{found[1]}){pattern}"


def check_flat(pattern: str, where: str) -> None:
    """Raises ``ModelError`` where a pattern is not flat, or of words that are not known."""
    check_size(pattern, where)
    _Reader(pattern, where).ways()


def try_pattern(pattern: str, where: str, clock: Clock) -> None:
    """Raises ``ModelError`` where a flat pattern takes more time than is in proportion to a text. ``clock``: of this thread."""
    matcher, ways = normalizers.Replace(Regex(pattern), ""), _Reader(pattern, where).ways()
    probes = list(dict.fromkeys((*_SAMPLES, *_units(ways, ""))))
    if len(probes) > _MAX_PROBES:
        raise ModelError(f"{where}: cuts text by {shown(pattern, 80)}, which has too many parts to be tried")
    rest = "\n" + "".join(part.example() for way in ways for part in way)
    for unit, end in itertools.product(probes, ("", rest)):  # a matcher may see at once that the rest of it is not there
        for length in _LENGTHS:
            text = "".join(unit * (length // len(unit) + 1) + after for after in _ENDS) + end
            if not _is_quick(matcher, text, clock):
                like = f"{shown(pattern, 80)}, which takes too long on texts like {shown(unit * 3, 30)}"
                raise ModelError(f"{where}: cuts text by {like}; a request could hold up the server")


def _is_quick(matcher: normalizers.Normalizer, text: str, clock: Clock) -> bool:
    allowed_s = _MAX_S + _MAX_S_A_CHAR * len(text)
    for _ in range(3):
        started_s = clock.now()
        try:
            matcher.normalize_str(text)
        except BaseException as error:  # Oniguruma gives up after ten million steps from one place, with a panic
            if not is_panic(error):
                raise
            return False
        took_s = clock.now() - started_s
        if took_s < allowed_s or took_s > 8 * allowed_s:  # between them, it may have been the machine
            return took_s < allowed_s
    return False


@dataclass(frozen=True, slots=True)
class _Part:
    """A piece of a pattern: what it says, how often, and for a group its ways to go on."""

    text: str
    count: _Count
    ways: Sequence[Sequence[_Part]] = ()

    @property
    def is_fixed(self) -> bool:
        """Each time it matches in one way alone."""
        return not self.ways or (len(self.ways) == 1 and all(p.count[0] == p.count[1] and p.is_fixed for p in self.ways[0]))

    @property
    def is_small(self) -> bool:
        """There are choices in it, and no repetitions."""
        return all(part.count[1] in (0, 1) and part.is_small for way in self.ways for part in way)

    def example(self) -> str:
        """A text that it matches, as a rule."""
        if self.text.startswith("("):
            looks = self.text.startswith(("(?=", "(?!", "(?<=", "(?<!"))
            return "" if looks or not self.ways else "".join(part.example() for part in self.ways[0])
        if _NOTHING.fullmatch(self.text):
            return ""
        if len(self.text) == 1 and self.text != ".":
            return self.text
        left = normalizers.Replace(Regex(self.text), "").normalize_str(_SAMPLES)
        return next((char for char in _SAMPLES if char not in left), self.text[1:2])


def _units(ways: Sequence[Sequence[_Part]], front: str) -> Iterator[str]:
    """What leads a matcher some way into each alternative: of each the beginnings, and those of the groups in it."""
    for way in ways:
        text = front
        for part in way:
            yield from _units(part.ways, text)
            text += part.example()
            if text:
                yield text
            if len(text) > len(front):
                yield text[-1]


class _Reader:
    """Takes a pattern apart. Raises ``ModelError`` at what is not flat, or not known."""

    def __init__(self, pattern: str, where: str) -> None:
        self._pattern, self._where = pattern, where
        self._at = 0

    def ways(self) -> list[list[_Part]]:
        found = self._ways()
        if self._at < len(self._pattern):
            raise self._refused("has a bracket too many in")
        return found

    def _ways(self) -> list[list[_Part]]:
        ways: list[list[_Part]] = [[]]
        while self._at < len(self._pattern) and self._pattern[self._at] != ")":
            if self._pattern[self._at] == "|":
                self._at += 1
                ways.append([])
            elif (flags := _FLAGS.match(self._pattern, self._at)) is not None:
                self._at = flags.end()
            else:
                ways[-1].append(self._part())
        return ways

    def _part(self) -> _Part:
        start = self._at
        inner: list[list[_Part]] = []
        if (opened := _OPEN.match(self._pattern, start)) is not None:
            self._at = opened.end()
            inner = self._ways()
            if self._pattern[self._at : self._at + 1] != ")":
                raise self._refused("has an open bracket in")
            self._at += 1
        elif self._pattern[start] == "(":
            raise self._refused(f"has {self._pattern[start : start + 3]} in")
        elif self._pattern[start] == "[":
            self._class()
        elif self._pattern[start] == "\\":
            if (escape := _ESCAPE.match(self._pattern, start)) is None:
                raise self._refused(f"has {self._pattern[start : start + 2]} in")
            self._at = escape.end()
        else:
            self._at += 1
        text = self._pattern[start : self._at]
        part = _Part(text, self._count(), inner)
        most = part.count[1]
        if not part.is_fixed and (most is None or most > _FEW or (most > 1 and not part.is_small)):
            raise self._refused(f"repeats {shown(text, 40)} in")
        return part

    def _class(self) -> None:
        """A class goes to its bracket; those in it, and ``]`` as the first of its characters, are not the end."""
        depth, first = 0, self._at
        while self._at < len(self._pattern):
            char = self._pattern[self._at]
            self._at += 2 if char == "\\" else 1
            if char == "[":
                depth += 1
                first = self._at + (self._pattern[self._at : self._at + 1] == "^")
            elif char == "]" and self._at - 1 != first:
                depth -= 1
            if depth == 0:
                return
        raise self._refused("has an open class in")

    def _count(self) -> _Count:
        """How often the part before may come, and past the mark that says which is tried first."""
        mark = self._pattern[self._at : self._at + 1]
        given = _COUNT.match(self._pattern, self._at)
        if given is not None and (given[1] or given[3]):
            self._at = given.end()
            least = int(given[1] or 0)
            most = int(given[3]) if given[3] else None if given[2] else least
            if self._pattern[self._at : self._at + 1] == "+":  # a repetition of its own; trying it tells whether it does harm
                most = None
            self._at += self._pattern[self._at : self._at + 1] in ("?", "+")
        elif mark and mark in "*+?":
            self._at += 1
            least, most = int(mark == "+"), 1 if mark == "?" else None
            self._at += self._pattern[self._at : self._at + 1] in ("?", "+")
        else:
            return 1, 1
        if _AGAIN.match(self._pattern, self._at):
            raise self._refused("has a repetition of a repetition in")
        return least, most

    def _refused(self, what: str) -> ModelError:
        pattern = shown(self._pattern, 80)
        return ModelError(f"{self._where}: {what} a pattern that cuts text, {pattern}, so that its time has no known bound")
