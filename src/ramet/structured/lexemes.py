"""A recursive grammar cut into lexemes as long as they can be, so that few steps of a parser take a text far.

Of the lexemes that may come the lexer takes the longest match. So a part of the grammar may be one only where no lexeme can run
on behind a whole one into what may follow it: else a text that the grammar has would be shut out. That is looked for with the
automata of all of them, each against each; one that runs on is cut into its parts, down to single characters, which cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ramet._native import TooLarge, automaton
from ramet.structured.regex_syntax import program_of_regex
from ramet.structured.rules import (
    EMPTY,
    MAX_DEPTH,
    Class,
    Either,
    Lexeme,
    Node,
    Nothing,
    Ref,
    Repeat,
    Rules,
    Seq,
    Text,
    TooLong,
    Work,
    uses,
)

__all__ = ["Lexemes", "characters_of", "lexemes_of"]

_MAX_PATTERN = 20_000
_MAX_WORK = 300_000  # some 0.3 s
_MAX_ROUNDS = 30


class Lexemes(NamedTuple):
    """``nodes`` by their numbers, the regular rules that these use, and the rules that are left, ``root`` among them."""

    nodes: list[Node]
    used: set[str]
    rules: dict[str, Node]


def lexemes_of(root: str, rules: Rules, regular: Rules) -> Lexemes:
    """Of a grammar whose ``root`` is not among the ``regular`` rules."""
    apart: set[Node] = set()
    work = Work(_MAX_WORK)
    known: dict[Node, _Automaton] = {}
    try:
        for _ in range(_MAX_ROUNDS):
            found = _Long(rules, regular, apart, Nothing(regular, work)).of(root)
            for node in found.nodes:
                if node not in known:
                    known[node] = _Automaton.of(_pattern(node, regular, 0), work)
            automata = [known[node] for node in found.nodes]
            too_long = _running_on(automata, _following(found, automata, work), work)
            if not too_long:
                return found
            apart |= {found.nodes[number] for number in too_long}
    except (TooLarge, TooLong):
        pass
    return characters_of(root, rules, regular)


def characters_of(root: str, rules: Rules, regular: Rules) -> Lexemes:
    """Each character is a lexeme: always exact, and slow."""
    return _Cut(rules, regular).of(root)


@dataclass(slots=True)
class _Cut:
    """Makes shapes in which each character is a lexeme."""

    rules: Rules
    regular: Rules
    _numbers: dict[Node, int] = field(default_factory=dict, init=False)
    _wanted: list[str] = field(default_factory=list, init=False)

    def of(self, root: str) -> Lexemes:
        shapes: dict[str, Node] = {}
        self._wanted = [root]
        while self._wanted:
            name = self._wanted.pop()
            if name not in shapes:
                shapes[name] = EMPTY
                shapes[name] = self._shape(self.regular.get(name, self.rules[name]))
        used: set[str] = set()
        waiting = set().union(*map(uses, self._numbers))
        while waiting:
            used |= waiting
            waiting = set().union(*(uses(self.regular[name]) for name in waiting)) - used
        return Lexemes(list(self._numbers), used, shapes)

    def _shape(self, node: Node) -> Node:
        if uses(node) <= self.regular.keys():
            return self._regular(node)
        match node:
            case Seq(items):
                return Seq(tuple(self._runs(items)))
            case Either(items):
                return Either(tuple(map(self._shape, items)))
            case Repeat(item, least, most):
                return Repeat(self._shape(item), least, most)
            case Ref(name):
                self._wanted.append(name)
        return node

    def _runs(self, items: Sequence[Node]) -> list[Node]:
        """Neighbours that are regular are one."""
        shapes: list[Node] = []
        run: list[Node] = []
        for item in items:
            if uses(item) <= self.regular.keys():
                run.append(item)
                continue
            if run:
                shapes.append(self._regular(Seq(tuple(run))))
                run = []
            shapes.append(self._shape(item))
        if run:
            shapes.append(self._regular(Seq(tuple(run))))
        return shapes

    def _regular(self, node: Node) -> Node:
        """The shape of a part that a lexeme could hold."""
        return self._parted(node)

    def _parted(self, node: Node) -> Node:
        match node:
            case Text(text):
                return Seq(tuple(self._numbered(Text(char)) for char in text)) if len(text) > 1 else self._numbered(node)
            case Class():
                return self._numbered(node)
            case Seq(items):
                return Seq(tuple(map(self._regular, items)))
            case Either(items):
                return Either(tuple(map(self._regular, items)))
            case Repeat(item, least, most):
                return Repeat(self._regular(item), least, most)
            case Ref(name):
                self._wanted.append(name)
        return node

    def _numbered(self, node: Node) -> Lexeme:
        return Lexeme(self._numbers.setdefault(node, len(self._numbers)))


@dataclass(slots=True)
class _Long(_Cut):
    """Makes shapes with lexemes as long as they can be, but for those that are ``apart``: these are cut into their parts."""

    apart: set[Node]
    nothing: Nothing

    def _regular(self, node: Node) -> Node:
        """No lexeme may be empty."""
        if isinstance(node, Seq) and len(node.items) == 1:
            return self._regular(node.items[0])
        left, may_be_empty = self.nothing.out_of(node)
        if left is None:
            return EMPTY
        if isinstance(node, Ref) and left in self.apart:  # once, and not in each of its places
            self._wanted.append(node.name)
            return node
        shape = self._parted(left) if left in self.apart else self._numbered(left)
        return Repeat(shape, 0, 1) if may_be_empty else shape


def _pattern(node: Node, regular: Rules, depth: int) -> str:
    """The regex of a regular node. Raises ``TooLong``."""
    if depth > MAX_DEPTH:
        raise TooLong
    match node:
        case Text(text):
            found = "".join(f"\\x{{{ord(char):x}}}" for char in text)
        case Class(pattern):
            found = pattern
        case Ref(name):
            found = _pattern(regular[name], regular, depth + 1)
        case Seq(items):
            found = "".join(f"(?:{_pattern(item, regular, depth + 1)})" for item in items)
        case Either(items):
            found = "|".join(f"(?:{_pattern(item, regular, depth + 1)})" for item in items)
        case Repeat(item, least, most):
            found = f"(?:{_pattern(item, regular, depth + 1)}){{{least},{'' if most is None else most}}}"
        case Lexeme():
            raise ValueError("a lexeme has been made of it")
    if len(found) > _MAX_PATTERN:
        raise TooLong
    return found


class _Edge(NamedTuple):
    to: int
    bytes: int  # a set of them, as bits


class _Automaton(NamedTuple):
    edges: list[list[_Edge]]  # of each state; the first one is the start
    accepts: list[bool]

    @classmethod
    def of(cls, pattern: str, work: Work) -> _Automaton:
        work.spend(len(pattern))
        begins, edges, accepts = automaton(np.array(program_of_regex(pattern), np.int32))
        work.spend(len(edges))
        listed = [_Edge(to, ((1 << (high + 1 - low)) - 1) << low) for to, low, high in edges]
        return cls([listed[begin:end] for begin, end in pairwise(begins)], accepts)

    def next(self, state: int) -> int:
        """The bytes that may come."""
        return reduce(lambda bytes, edge: bytes | edge.bytes, self.edges[state], 0)

    @property
    def first(self) -> int:
        """The bytes that may come first; none where there is no text."""
        return self.next(0) if self.edges else 0


def _running_on(automata: Sequence[_Automaton], following: Sequence[int], work: Work) -> set[int]:
    """Numbers of those that have a whole text of one (or of themselves) as a beginning, and can go on by what may follow it."""
    found: set[int] = set()
    firsts = [one.first for one in automata]
    for a, whole in enumerate(automata):
        work.spend(len(automata) // 10)  # most have nothing to do with it
        for b, longer in enumerate(automata):
            if b in found or not firsts[a] & firsts[b]:
                continue
            seen, waiting = {(0, 0)}, [(0, 0)]
            while waiting:
                state, other = waiting.pop()
                if whole.accepts[state] and longer.next(other) & following[a]:
                    found.add(b)
                    break
                both = {(x.to, y.to) for x in whole.edges[state] for y in longer.edges[other] if x.bytes & y.bytes}
                work.spend(1 + len(whole.edges[state]) * len(longer.edges[other]))
                waiting += both - seen
                seen |= both
    return found


def _following(of: Lexemes, automata: Sequence[_Automaton], work: Work) -> list[int]:
    """For each lexeme the bytes that may come behind it, in any of its places."""
    return _Places(of.rules, [one.first for one in automata], work).following()


class _Places:
    """What may come first in a rule, whether it may be empty, and what may follow: grown until nothing new comes."""

    def __init__(self, rules: dict[str, Node], firsts: Sequence[int], work: Work) -> None:
        self._rules = rules
        self._work = work
        self._of_lexemes = firsts
        self._firsts = dict.fromkeys(rules, 0)
        self._empty = dict.fromkeys(rules, False)
        self._behind_rules = dict.fromkeys(rules, 0)
        self._behind = [0] * len(firsts)

    def following(self) -> list[int]:
        before = None
        while before != (now := (dict(self._firsts), dict(self._empty))):
            before = now
            for name, shape in reversed(self._rules.items()):  # they come from those that are used, which stand behind
                self._firsts[name], self._empty[name] = self._first(shape)
        last = None
        while last != (this := (dict(self._behind_rules), list(self._behind))):
            last = this
            for name, shape in self._rules.items():
                self._put(shape, self._behind_rules[name])
        return self._behind

    def _first(self, shape: Node) -> tuple[int, bool]:
        self._work.spend(1)
        match shape:
            case Lexeme(number):
                return self._of_lexemes[number], False
            case Ref(name):
                return self._firsts[name], self._empty[name]
            case Seq(items):
                first = 0
                for item in items:
                    of_item, may_be_empty = self._first(item)
                    first |= of_item
                    if not may_be_empty:
                        return first, False
                return first, True
            case Either(items):
                parts = list(map(self._first, items))
                return reduce(lambda bytes, part: bytes | part[0], parts, 0), any(part[1] for part in parts)
            case Repeat(item, least, _):
                first, may_be_empty = self._first(item)
                return first, may_be_empty or least == 0
        raise ValueError(f"{shape} is in no lexeme")

    def _put(self, shape: Node, behind: int) -> None:
        match shape:
            case Lexeme(number):
                self._behind[number] |= behind
            case Ref(name):
                self._behind_rules[name] |= behind
            case Seq(items):
                for item in reversed(items):
                    self._put(item, behind)
                    first, may_be_empty = self._first(item)
                    behind = first | behind if may_be_empty else first
            case Either(items):
                for item in items:
                    self._put(item, behind)
            case Repeat(item, _, most):
                self._put(item, behind if most == 1 else behind | self._first(item)[0])
