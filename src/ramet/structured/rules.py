"""Rules of a grammar as trees, and which of them are regular: a rule that leads to itself at one end alone is a loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

__all__ = [
    "EMPTY", "MAX_DEPTH", "Class", "Either", "Lexeme", "Node", "Nothing", "Ref", "Repeat", "Rules", "Seq", "Text", "TooLong",
    "Work", "regular_rules", "uses",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Text:
    """One character or more."""

    text: str


@dataclass(frozen=True, slots=True)
class Class:
    """One character, as a regex says."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Ref:
    name: str


@dataclass(frozen=True, slots=True)
class Lexeme:
    """A regular part of a rule, by its number (``lexemes``)."""

    number: int


@dataclass(frozen=True, slots=True)
class Seq:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Either:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """``most`` is None where there is no end."""

    item: Node
    least: int
    most: int | None


Node: TypeAlias = Text | Class | Ref | Lexeme | Seq | Either | Repeat
Rules: TypeAlias = Mapping[str, Node]
EMPTY = Seq(())
MAX_DEPTH = 100
"""Of parts within each other, those of the rules that they use counted in: each is a call."""


def uses(node: Node) -> frozenset[str]:
    """Names of the rules in it."""
    found = set()
    waiting = [node]
    while waiting:
        match waiting.pop():
            case Ref(name):
                found.add(name)
            case Seq(items) | Either(items):
                waiting += items
            case Repeat(item):
                waiting.append(item)
    return frozenset(found)


def regular_rules(rules: Rules) -> dict[str, Node]:
    """Those whose texts an automaton can hold, without those that lead to themselves: each uses others of them alone."""
    regular: dict[str, Node] = {}
    used = {name: uses(node) for name, node in rules.items()}
    waiting = list(rules)
    while True:
        stuck = []
        for name in waiting:
            if used[name] <= regular.keys():
                regular[name] = rules[name]
            elif used[name] - {name} <= regular.keys():
                if (loop := _as_loop(name, rules[name])) is not None:
                    regular[name] = loop
            else:
                stuck.append(name)
        if len(stuck) == len(waiting):
            return regular
        waiting = stuck


def _as_loop(name: str, node: Node) -> Node | None:
    """``x ::= a x | b`` is ``a* b``, and ``x ::= x a | b`` is ``b a*``."""
    for at_end in (True, False):
        again, ends = _ways(node, name, at_end) or _Ways(None, None)
        if again is None or ends is None or name in uses(again) | uses(ends):
            continue
        loop = Repeat(again, 0, None)
        return Seq((loop, ends) if at_end else (ends, loop))
    return None


class _Ways(NamedTuple):
    """What comes before the rule itself (or behind it), and what there is without it; None where nothing is."""

    again: Node | None
    ends: Node | None


def _ways(node: Node, name: str, at_end: bool) -> _Ways | None:
    """Of a node, by the last of its parts (or the first); None where the rule stands elsewhere."""
    if name not in uses(node):
        return _Ways(None, node)
    match node:
        case Ref():
            return _Ways(EMPTY, None)
        case Either(items):
            parts = [part for item in items if (part := _ways(item, name, at_end)) is not None]
            return _Ways(*map(_either, zip(*parts, strict=True))) if len(parts) == len(items) else None
        case Seq(items):
            rest, last = (items[:-1], items[-1]) if at_end else (items[1:], items[0])
            part = _ways(last, name, at_end)
            return part and _Ways(*(way and _joined(rest, way, at_end) for way in part))
        case Repeat(item, 0, 1):
            part = _ways(item, name, at_end)
            return part and part._replace(ends=_either((part.ends, EMPTY)))
    return None


def _either(ways: tuple[Node | None, ...]) -> Node | None:
    some = tuple(way for way in ways if way is not None)
    return Either(some) if len(some) > 1 else some[0] if some else None


def _joined(rest: tuple[Node, ...], way: Node, at_end: bool) -> Node:
    own = way.items if isinstance(way, Seq) else (way,)
    return Seq((*rest, *own) if at_end else (*own, *rest))


class TooLong(Exception):
    """To make lexemes of a grammar would take too long."""


class Work:
    """What may be done for one grammar, in steps of a microsecond or less."""

    def __init__(self, most: int) -> None:
        self._left = most

    def spend(self, num: int) -> None:
        self._left -= num
        if self._left < 0:
            raise TooLong


class Nothing:
    """Takes the empty text out of regular nodes. Brackets come apart in that, so it is ``work`` that may be too much."""

    def __init__(self, regular: Rules, work: Work) -> None:
        self._regular = regular
        self._work = work

    def out_of(self, node: Node, depth: int = 0) -> tuple[Node | None, bool]:
        """A node but for the empty text, None where nothing is left; and whether that was one of its texts."""
        self._work.spend(1)
        if depth > MAX_DEPTH:
            raise TooLong
        match node:
            case Ref(name):
                left, was_there = self.out_of(self._regular[name], depth + 1)
                return (left, True) if was_there else (node, False)
            case Seq(items):
                return self._out_of_seq(items, depth + 1)
            case Either(items):
                parts = [self.out_of(item, depth + 1) for item in items]
                some = tuple(part for part, _ in parts if part is not None)
                was_there = any(one for _, one in parts)
                return (Either(some) if some else None, True) if was_there else (node, False)
            case Repeat(item, least, most):
                part, was_there = self.out_of(item, depth + 1)
                if part is None:
                    return None, True
                return (Repeat(part, 1, most), True) if was_there or least == 0 else (node, False)
        return node, False

    def _out_of_seq(self, items: tuple[Node, ...], depth: int) -> tuple[Node | None, bool]:
        """The first part that is not empty may be any of them, and those before it are."""
        parts = [self.out_of(item, depth) for item in items]
        if not all(was_there for _, was_there in parts):
            return Seq(items), False
        self._work.spend(len(items) ** 2)
        ways = tuple(Seq((part, *items[i + 1 :])) for i, (part, _) in enumerate(parts) if part is not None)
        return (Either(ways) if ways else None), True
