"""EBNF as llama.cpp (GBNF) and xgrammar write it, put into Lark.

A grammar without recursion becomes one terminal, a single automaton: exact, and the fastest. One with recursion keeps its rules,
and each literal and class in them stands alone, so that no longest match of a part can shut out a match of the whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from ramet.errors import GrammarError, shown

__all__ = ["lark_of_ebnf"]

_MAX_TOKENS = 20_000
_TOKEN = re.compile(
    r"""
      (?P<space> \s+ | \#[^\n]* )
    | (?P<head> [A-Za-z_][\w-]*\s*::= )
    | (?P<name> [A-Za-z_][\w-]* )
    | (?P<string> "(?:\\.|[^"\\\n])*" )
    | (?P<class> \[(?:\\.|[^\]\\\n])+\] )
    | (?P<count> \{\s*\d*\s*,?\s*\d*\s*\} )
    | (?P<mark> [|()*+?.] )
    """,
    re.VERBOSE | re.DOTALL,
)
_CHAR = re.compile(r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\(.)|(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"} | {c: c for c in "\"'\\[]-^/"}

_Rules = dict[str, list[tuple[str, str]]]


def lark_of_ebnf(text: str) -> str:
    """A Lark grammar of the same language. Raises ``GrammarError``."""
    rules = _parse(text)
    if "root" not in rules:
        raise GrammarError("the grammar has no rule root, where an EBNF grammar starts")
    uses = {name: {text for kind, text in body if kind == "name"} for name, body in rules.items()}
    for name, used in uses.items():
        if missing := sorted(used - rules.keys()):
            raise GrammarError(f"the rule {shown(name)} uses {shown(missing[0])}, which is not defined")
    prefix = "R" if _is_finite_nesting(uses) else "r"  # an upper-case name is a terminal
    names = {name: f"{prefix}{index}" for index, name in enumerate(rules)}
    lines = [f"start: {names['root']}"]
    lines += [f"{names[name]}: {' '.join(_lark(body, names))}" for name, body in rules.items()]
    return "\n".join(lines) + "\n"


def _parse(text: str) -> _Rules:
    rules: _Rules = {}
    place = 0
    body: list[tuple[str, str]] | None = None
    num_tokens = 0
    while place < len(text):
        num_tokens += 1
        if num_tokens > _MAX_TOKENS:
            raise GrammarError(f"the grammar has more than {_MAX_TOKENS:,} tokens; make it smaller")
        found = _TOKEN.match(text, place)
        if found is None or (body is None and found.lastgroup not in ("space", "head")):
            line = text.count("\n", 0, place) + 1
            raise GrammarError(f"the grammar cannot be read at line {line}, from {shown(text[place : place + 20])} on")
        place = found.end()
        if found.lastgroup == "head":
            name = found[0][:-3].rstrip()
            if name in rules:
                raise GrammarError(f"the rule {shown(name)} is defined twice")
            body = rules[name] = []
        elif found.lastgroup != "space" and body is not None:
            body.append((str(found.lastgroup), found[0]))
    return rules


def _is_finite_nesting(uses: dict[str, set[str]]) -> bool:
    """Whether no rule leads back to itself: rules that use only settled ones are settled, until all are or no more can be."""
    waiting = dict(uses)
    while waiting:
        settled = [name for name, used in waiting.items() if not used & waiting.keys()]
        if not settled:
            return False
        for name in settled:
            del waiting[name]
    return True


def _lark(body: list[tuple[str, str]], names: dict[str, str]) -> Iterator[str]:
    """The tokens of a rule; an alternative without any is the empty text."""
    before = "|"
    for kind, text in [*body, ("end", "|")]:
        if before in ("|", "(") and text in ("|", ")"):
            yield '""'
        before = text
        match kind:
            case "name":
                yield names[text]
            case "string":
                yield json.dumps("".join(_chars(text[1:-1])), ensure_ascii=False)
            case "class":
                yield _class(text[1:-1])
            case "mark" | "count":
                yield "/(?s:.)/" if text == "." else text


def _chars(text: str) -> Iterator[str]:
    for found in _CHAR.finditer(text):
        if found[4] is not None and found[4] not in _ESCAPES:
            raise GrammarError(f"the grammar has the escape {shown(found[0])}, which is not known")
        digits = found[1] or found[2] or found[3]
        number = int(digits, 16) if digits else None
        if number is not None and (number > 0x10FFFF or 0xD800 <= number <= 0xDFFF):
            raise GrammarError(f"the grammar has {shown(found[0])}, which is no character")
        yield chr(number) if number is not None else _ESCAPES[found[4]] if found[4] is not None else found[5]


def _class(text: str) -> str:
    """A regex of one character. ``-`` between two is a range; each is written by its number, so none means anything else."""
    negated = text.startswith("^")
    pieces = [(found[0], char) for found, char in zip(_CHAR.finditer(text[negated:]), _chars(text[negated:]), strict=True)]
    parts: list[str] = []
    place = 0
    while place < len(pieces):
        low = high = pieces[place][1]
        if place + 2 < len(pieces) and pieces[place + 1][0] == "-":
            high = pieces[place + 2][1]
            place += 2
        if high < low:
            raise GrammarError(f"the grammar has a class whose range ends before it begins: {shown(text)}")
        parts.append(f"\\x{{{ord(low):x}}}-\\x{{{ord(high):x}}}")
        place += 1
    if not parts:
        raise GrammarError("the grammar has a class without characters")
    return f"/[{'^' * negated}{''.join(parts)}]/"
