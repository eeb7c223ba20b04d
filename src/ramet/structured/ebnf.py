"""EBNF as llama.cpp (GBNF) and xgrammar write it, put into Lark.

A grammar without recursion, or with such as is a loop, becomes one terminal, a single automaton: exact, and the fastest. Of
another what is regular becomes terminals as far as that is exact (``lexemes``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from ramet.errors import GrammarError, shown
from ramet.structured.lark import MAX_NESTING, MAX_RULES, MAX_TOKENS, checked_lark
from ramet.structured.lexemes import Lexemes, characters_of, lexemes_of
from ramet.structured.regex import MAX_COPIES
from ramet.structured.rules import EMPTY, Class, Either, Lexeme, Node, Ref, Repeat, Seq, Text, regular_rules, uses

__all__ = ["lark_of_ebnf"]

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

_Token = tuple[str, str]
_COUNTS: Mapping[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def lark_of_ebnf(text: str) -> str:
    """A Lark grammar of the same language, within the bounds of one. Raises ``GrammarError``."""
    rules = {name: _Body(body).node() for name, body in _parse(text).items()}
    if "root" not in rules:
        raise GrammarError("the grammar has no rule root, where an EBNF grammar starts")
    for name, node in rules.items():
        if missing := sorted(uses(node) - rules.keys()):
            raise GrammarError(f"the rule {shown(name)} uses {shown(missing[0])}, which is not defined")
    regular = regular_rules(rules)
    names: dict[Ref | Lexeme, str] = {Ref(name): f"R{index}" for index, name in enumerate(regular)}
    terminals = {name: f"{names[Ref(name)]}: {_lark(node, names)}" for name, node in regular.items()}
    if "root" in regular:
        return checked_lark("\n".join([f"start: {names[Ref('root')]}", *terminals.values()]) + "\n")
    try:
        return checked_lark(_recursive(lexemes_of("root", rules, regular), names, terminals))
    except GrammarError:  # single characters have fewer names, and no copies of what may be empty
        return checked_lark(_recursive(characters_of("root", rules, regular), names, terminals))


def _recursive(found: Lexemes, regular: Mapping[Ref | Lexeme, str], terminals: Mapping[str, str]) -> str:
    """Rules, lexemes that have a name, and the terminals that these use."""
    named = {number: node for number, node in enumerate(found.nodes) if not isinstance(node, Text | Class)}
    own: dict[Ref | Lexeme, str] = {Ref(name): f"r{index}" for index, name in enumerate(found.rules)}
    own |= {Lexeme(number): f"T{number}" if number in named else _lark(node, {}) for number, node in enumerate(found.nodes)}
    lines = [f"start: {own[Ref('root')]}"]
    lines += [f"{own[Ref(name)]}: {_lark(shape, own)}" for name, shape in found.rules.items()]
    lines += [f"T{number}: {_lark(node, regular)}" for number, node in named.items()]
    return "\n".join([*lines, *(terminals[name] for name in terminals if name in found.used)]) + "\n"


def _parse(text: str) -> dict[str, list[_Token]]:
    rules: dict[str, list[_Token]] = {}
    place = 0
    body: list[_Token] | None = None
    num_tokens = 0
    while place < len(text):
        num_tokens += 1
        if num_tokens > MAX_TOKENS:
            raise GrammarError(f"the grammar has more than {MAX_TOKENS:,} tokens; make it smaller")
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
            if len(rules) > MAX_RULES:
                raise GrammarError(f"the grammar has over {MAX_RULES} rules; make it smaller")
        elif found.lastgroup != "space" and body is not None:
            body.append((str(found.lastgroup), found[0]))
    return rules


class _Body:
    """The tokens of a rule, read once from left to right."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = [*tokens, ("end", "")]
        self._at = 0
        self._depth = 0

    def node(self) -> Node:
        node = self._alternatives()
        if self._tokens[self._at][0] != "end":
            raise GrammarError("the grammar has a bracket that ends and did not begin")
        return node

    def _alternatives(self) -> Node:
        """Up to the end of the brackets or of the rule; an alternative without anything is the empty text."""
        ways: list[Node] = []
        items: list[Node] = []
        while True:
            kind, text = self._tokens[self._at]
            if kind != "end" and text != ")" and not (kind == "mark" and text == "|"):
                items.append(self._repeated(self._item(kind, text)))
                continue
            ways.append(items[0] if len(items) == 1 else Seq(tuple(items)))
            items = []
            if text != "|":
                return ways[0] if len(ways) == 1 else Either(tuple(ways))
            self._at += 1

    def _item(self, kind: str, text: str) -> Node:
        self._at += 1
        match kind:
            case "name":
                return Ref(text)
            case "string":
                literal = "".join(_chars(text[1:-1]))
                return Text(literal) if literal else EMPTY
            case "class":
                return Class(_class(text[1:-1]))
        if text == ".":
            return Class("(?s:.)")
        if text != "(":
            raise GrammarError(f"the grammar has nothing to repeat before {shown(text)}")
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise GrammarError(f"the grammar has groups more than {MAX_NESTING} deep; give the inner ones names of their own")
        node = self._alternatives()
        if self._tokens[self._at][1] != ")":
            raise GrammarError("the grammar has a bracket that does not end")
        self._at += 1
        self._depth -= 1
        return node

    def _repeated(self, node: Node) -> Node:
        kind, text = self._tokens[self._at]
        if kind == "count":
            least, most = _count(text)
        elif kind == "mark" and text in _COUNTS:
            least, most = _COUNTS[text]
        else:
            return node
        self._at += 1
        after = self._tokens[self._at]
        if after[0] == "count" or (after[0] == "mark" and after[1] in _COUNTS):
            raise GrammarError(f"the grammar repeats a repetition, {shown(text + after[1])}; to mean that write brackets")
        return EMPTY if most == 0 else Repeat(node, least, most)


def _count(text: str) -> tuple[int, int | None]:
    """``{m}``, ``{m,}``, ``{,n}`` or ``{m,n}``."""
    first, comma, last = text[1:-1].partition(",")
    least, most = (int(digits.strip()[:12] or 0) for digits in (first, last))
    if not comma and not first.strip():
        raise GrammarError(f"the grammar has the count {shown(text)}; it is like {{2}}, {{2,}} or {{2,5}}")
    if max(least, most) > MAX_COPIES:
        raise GrammarError(
            f"the grammar repeats something {shown(text)}; at most {MAX_COPIES:,} times, or without an upper bound"
        )
    if comma and last.strip() and most < least:
        raise GrammarError(f"the grammar has the count {shown(text)}, which ends before it begins")
    return least, least if not comma else most if last.strip() else None


def _lark(shape: Node, names: Mapping[Ref | Lexeme, str]) -> str:
    match shape:
        case Lexeme() | Ref():
            return names[shape]
        case Text(text):
            return json.dumps(text, ensure_ascii=False)
        case Class(pattern):
            return f"/{pattern}/"
        case Seq(items):
            return (
                " ".join(f"({_lark(item, names)})" if isinstance(item, Either) else _lark(item, names) for item in items) or '""'
            )
        case Either(items):
            return " | ".join(_lark(item, names) for item in items)
        case Repeat(item, least, most):
            inner = _lark(item, names)
            sign = next((sign for sign, counts in _COUNTS.items() if counts == (least, most)), None)
            return f"({inner})" + (sign or f"{{{least},{'' if most is None else most}}}")


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
    return f"[{'^' * negated}{''.join(parts)}]"
