"""Regular expressions, in the syntax of the Rust ``regex`` crate, as programs of ``_native.TokenAutomaton``.

A program is a list of numbers, operations in postfix order (csrc/automaton.h). A pattern is read once, left to right. Which of
two ways a text matches does not matter here, so lazy and greedy, named and unnamed are the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import NoReturn

from ramet.errors import GrammarError, shown
from ramet.structured.unicode_ranges import ANY, ASCII, Ranges, both, either, folded, named, negated, ranges_of

__all__ = ["UnknownSyntax", "program_of_choices", "program_of_regex"]

_CHARACTERS, _LITERAL, _CONCAT, _EITHER, _REPEAT, _START, _END = range(7)  # as in csrc/automaton.h

_ESCAPES = {"a": 7, "f": 12, "t": 9, "n": 10, "r": 13, "v": 11}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_WORD_BOUNDARIES = "bB<>"
_COUNT = re.compile(r"\{\s*(\d+)\s*(?:(,)\s*(\d*)\s*)?\}", re.ASCII)
_NAME = re.compile(r"P?<([A-Za-z_][A-Za-z0-9_.\[\]]*)>")
_POSIX = re.compile(r"\[:(\^?)([a-z]+):\]")
_MAX_COUNT = 2**31 - 1


class UnknownSyntax(GrammarError):
    """Syntax that the crate has and this module does not; another compiler may."""


def program_of_choices(choices: list[str]) -> list[int]:
    """One of the strings."""
    program: list[int] = []
    for choice in choices:
        _literal(program, choice)
    return [*program, _EITHER, len(choices)]


def program_of_regex(pattern: str) -> list[int]:
    """The texts that a pattern matches as a whole. Raises ``GrammarError`` that says what is wrong with it, and where."""
    try:
        return _Parser(pattern).parse()
    except RecursionError:
        raise GrammarError("the regex is nested too deeply; flatten it") from None


def _literal(program: list[int], text: str) -> None:
    data = text.encode()
    program += (_LITERAL, len(data), *data)


@dataclass(frozen=True, slots=True)
class _Flags:
    ignores_case: bool = False
    dot_is_all: bool = False
    is_unicode: bool = True
    is_multi_line: bool = False
    is_crlf: bool = False


_FLAG_NAMES = {"i": "ignores_case", "s": "dot_is_all", "u": "is_unicode", "m": "is_multi_line", "R": "is_crlf"}


class _Parser:
    """One pass over a pattern; groups and classes within each other are calls, whose depth ``RegexBudget`` has bounded."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._flags = _Flags()
        self._names: set[str] = set()
        self._program: list[int] = []

    def parse(self) -> list[int]:
        self._alternatives()
        if self._at < len(self._text):
            self._fail("a group ends that did not begin: )")
        return self._program

    # ---- what is around a single character

    def _alternatives(self) -> None:
        """Up to the end of the group or the pattern; flags set within hold until there."""
        flags = self._flags
        num_alternatives, num_pieces = 1, 0
        while (char := self._peek()) not in ("", ")"):
            if char in "*+?{":
                self._fail(f"there is nothing to repeat before {char}")
            if self._take("|"):
                self._program += (_CONCAT, num_pieces)
                num_alternatives, num_pieces = num_alternatives + 1, 0
            elif self._piece():
                num_pieces += 1
                while self._peek() in ("*", "+", "?", "{"):
                    self._repetition()
        self._program += (_CONCAT, num_pieces, _EITHER, num_alternatives)
        self._flags = flags

    def _repetition(self) -> None:
        char = self._text[self._at]
        if char == "{":
            found = _COUNT.match(self._text, self._at)
            if found is None:
                self._fail("a count is like {2}, {2,} or {2,5}; to mean the character write \\{")
            least = int(found[1][:12])
            most = int(found[3][:12]) if found[3] else -1 if found[2] else least
            if max(least, most) > _MAX_COUNT:
                self._fail(f"a count is at most {_MAX_COUNT:,}")
            if 0 <= most < least:
                self._fail(f"the count {found[0]} ends before it begins")
            self._at = found.end()
        else:
            least, most = {"*": (0, -1), "+": (1, -1), "?": (0, 1)}[char]
            self._at += 1
        self._take("?")  # lazy: the same texts
        self._program += (_REPEAT, least, most)

    def _piece(self) -> bool:
        """Write what can be repeated; False for flags, which are nothing."""
        char = self._next()
        match char:
            case "(":
                return self._group()
            case "[":
                self._characters(self._class())
            case ".":
                self._characters(self._dot())
            case "^" | "$":
                if self._flags.is_multi_line:
                    raise UnknownSyntax(self._said(f"{char} of the flag m looks around"))
                self._program.append(_START if char == "^" else _END)
            case "\\":
                self._escape()
            case _:
                self._character(ord(char))
        return True

    def _group(self) -> bool:
        outer = self._flags
        if self._take("?"):
            look = self._text[self._at : self._at + 2]
            if look.startswith(("=", "!", "<=", "<!")):
                self._fail(f"look-around is not supported: (?{look if look[0] == '<' else look[0]}")
            if found := _NAME.match(self._text, self._at):
                if found[1] in self._names:
                    self._fail(f"two groups have the name {shown(found[1])}")
                self._names.add(found[1])
                self._at = found.end()
            else:
                self._flags = self._read_flags()
                if self._next() == ")":
                    return False
        self._alternatives()
        if not self._take(")"):
            self._fail("a group does not end: ) is missing")
        self._flags = outer
        return True

    def _read_flags(self) -> _Flags:
        """From behind ``(?`` to before ``)`` or ``:``."""
        flags, value, given = self._flags, True, ""
        while True:
            char = self._next()
            if char in (")", ":"):
                if given.endswith("-") or (char == ")" and not given):
                    self._fail("a group with ? is like (?:..), (?<name>..) or (?i)")
                self._at -= 1
                return flags
            if char == "x":
                self._fail("the flag x is not supported; write the regex without spaces and comments")
            if char in given or char not in "-isUumR":
                self._fail(f"{shown(char)} is no flag; known are i, s, m, u, U and R, each once")
            given += char
            value = value and char != "-"
            if char in _FLAG_NAMES:
                flags = replace(flags, **{_FLAG_NAMES[char]: value})

    # ---- characters

    def _escape(self) -> None:
        char = self._peek()
        if char in ("A", "z"):
            self._at += 1
            self._program.append(_START if char == "A" else _END)
        elif char and char in _WORD_BOUNDARIES:
            self._fail(f"look-around is not supported: \\{char}")
        else:
            found = self._escaped()
            if isinstance(found, int):
                self._character(found)
            else:
                self._characters(found)

    def _escaped(self) -> int | Ranges:
        """A character, or the class of several, behind a backslash."""
        char = self._next()
        if char in "dDsSwW":
            return self._perl(char)
        if char in "pP":
            return self._property(char == "P")
        if char in _HEX_DIGITS:
            return self._number(char)
        if char in _ESCAPES:
            return _ESCAPES[char]
        if char.isdigit():
            self._fail(f"back-references are not supported: \\{char}")
        if not char.isascii() or char.isalnum() or char in "<>":
            self._fail(f"\\{char} has no meaning")
        return ord(char)

    def _perl(self, char: str) -> Ranges:
        name = {"d": "digit", "s": "space", "w": "word"}[char.lower()]
        if self._flags.is_unicode:
            of = named({"digit": "Nd", "space": "White_Space", "word": "Word"}[name]) or ()
            return negated(of) if char.isupper() else of
        if char.isupper():
            raise UnknownSyntax(self._said(f"\\{char} without the flag u takes bytes that are no text"))
        return ASCII[name]

    def _property(self, is_negated: bool) -> Ranges:
        if not self._flags.is_unicode:
            self._fail("\\p needs the flag u")
        name = self._next()
        if name == "{":
            end = self._text.find("}", self._at)
            if end < 0:
                self._fail("\\p{ does not end: } is missing")
            name = self._text[self._at : end]
            self._at = end + 1
        kind, differs, value = name.partition("!=")
        of = named(f"{kind}={value}" if differs else name.replace(":", "="))
        if of is None:
            raise UnknownSyntax(self._said(f"the property {shown(name)} is not known"))
        if self._flags.ignores_case:
            of = folded(of)
        return negated(of) if is_negated != bool(differs) else of

    def _number(self, kind: str) -> int:
        if self._take("{"):
            end = self._text.find("}", self._at)
            digits = self._text[self._at : end] if end >= 0 else ""
            self._at = max(self._at, end + 1)
        else:
            digits = self._text[self._at : self._at + _HEX_DIGITS[kind]]
            self._at += len(digits)
            if len(digits) < _HEX_DIGITS[kind]:
                digits = ""
        if not re.fullmatch(r"[0-9a-fA-F]{1,8}", digits):
            self._fail(f"\\{kind} takes {_HEX_DIGITS[kind]} hexadecimal digits, or any in braces")
        point = int(digits, 16)
        if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
            self._fail(f"{point:#x} is no character")
        if point > 127 and kind == "x" and not self._flags.is_unicode:
            raise UnknownSyntax(self._said("a byte without the flag u is no text"))
        return point

    def _dot(self) -> Ranges:
        if not self._flags.is_unicode:
            raise UnknownSyntax(self._said(". without the flag u takes bytes that are no text"))
        if self._flags.dot_is_all:
            return ANY
        return negated(((10, 10), (13, 13)) if self._flags.is_crlf else ((10, 10),))

    def _character(self, point: int) -> None:
        if self._flags.ignores_case:
            self._characters(self._folded(((point, point),)))
        else:
            _literal(self._program, chr(point))

    def _characters(self, of: Ranges) -> None:
        self._program += (_CHARACTERS, len(of), *(point for pair in of for point in pair))

    def _folded(self, of: Ranges) -> Ranges:
        if self._flags.is_unicode:
            return folded(of)
        shifted = [(first + 32, last + 32) for first, last in both(of, ASCII["upper"])]
        return either(of, ranges_of(shifted), tuple((first - 32, last - 32) for first, last in both(of, ASCII["lower"])))

    # ---- classes

    def _class(self) -> Ranges:
        """From behind ``[`` to behind its ``]``. ``&&``, ``--`` and ``~~`` bind equally, from left to right."""
        is_negated = self._take("^")
        left: Ranges | None = None
        operation = ""
        pairs: list[tuple[int, int]] = []
        while self._take("-"):
            pairs.append((45, 45))
        if not pairs and self._take("]"):  # at the start it stands for itself
            pairs.append((93, 93))
        while not self._take("]"):
            if (pair := self._text[self._at : self._at + 2]) in ("&&", "--", "~~"):
                self._at += 2
                left, operation, pairs = self._combined(left, operation, pairs), pair, []
            elif pair:
                pairs += self._item()
            else:
                self._fail("a class does not end: ] is missing")
        of = self._combined(left, operation, pairs)
        return negated(of) if is_negated else of

    def _combined(self, left: Ranges | None, operation: str, pairs: list[tuple[int, int]]) -> Ranges:
        right = ranges_of(pairs)
        if self._flags.ignores_case:
            right = self._folded(right)
        if left is None:
            return right
        match operation:
            case "&&":
                return both(left, right)
            case "--":
                return both(left, negated(right))
            case _:
                return both(either(left, right), negated(both(left, right)))

    def _item(self) -> Ranges:
        """A nested class, a named one, a range, or one character."""
        if found := _POSIX.match(self._text, self._at):
            of = ASCII.get(found[2])
            if of is not None:
                self._at = found.end()
                of = self._folded(of) if self._flags.ignores_case else of
                return negated(of) if found[1] else of
        if self._take("["):
            return self._class()
        first = self._class_character()
        rest = self._text[self._at : self._at + 2]
        if not rest.startswith("-") or rest in ("-]", "--", "-"):
            return ((first, first),) if isinstance(first, int) else first
        self._at += 1
        last = self._class_character()
        if not isinstance(first, int) or not isinstance(last, int):
            self._fail("a range in a class is between two characters")
        if last < first:
            self._fail("a range in a class ends before it begins")
        return ((first, last),)

    def _class_character(self) -> int | Ranges:
        if not self._take("\\"):
            return ord(self._next())
        if (char := self._peek()) in ("A", "z", *_WORD_BOUNDARIES):
            self._fail(f"\\{char} has no meaning in a class")
        return self._escaped()

    # ---- the text

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        if self._at >= len(self._text):
            self._fail("it ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _take(self, char: str) -> bool:
        is_next = self._text.startswith(char, self._at)
        self._at += is_next * len(char)
        return is_next

    def _said(self, what: str) -> str:
        return f"the regex cannot be used: {what} (before character {self._at + 1})"

    def _fail(self, what: str) -> NoReturn:
        raise GrammarError(self._said(what))
