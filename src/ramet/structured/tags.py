"""Structural tags: free text, and from each trigger on a tag whose content is held to a schema or a pattern; put into Lark.

The shapes are xgrammar's, which vLLM and SGLang pass on: ``structures`` with ``triggers``, or a ``format`` made of parts.

Free text is a lexeme that ends with the first trigger (lazy), or else with the output. What is regular and stands together is
one terminal, a single automaton, so that no longest match of a part shuts out a match of the whole; only a JSON schema, and a
special token, are symbols of their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ramet.core.grammar import GrammarSpec
from ramet.errors import GrammarError, shown
from ramet.structured.regex import RegexBudget, quoted
from ramet.structured.schema import checked_schema

__all__ = ["lark_of_tags"]

_MAX_TAGS = 128
_MAX_PARTS = 1_000
_MAX_DEPTH = 16
_ANY_TEXT = "/(?s:.*)/"
_FIELDS = {  # of each type of format: what it must have, and what it may have
    "const_string": ({"value"}, set()),
    "json_schema": ({"json_schema"}, {"style"}),
    "regex": ({"pattern"}, set()),
    "any_text": (set(), {"excludes"}),
    "sequence": ({"elements"}, set()),
    "or": ({"elements"}, set()),
    "tag": ({"begin", "content", "end"}, set()),
    "triggered_tags": ({"triggers", "tags"}, {"at_least_one", "stop_after_first", "excludes"}),
    "tags_with_separator": ({"tags", "separator"}, {"at_least_one", "stop_after_first"}),
}


class _Part(NamedTuple):
    """A Lark expression; a regular one may be part of a terminal."""

    text: str
    is_regular: bool = True


def lark_of_tags(spec: GrammarSpec, specials: Mapping[str, int]) -> str:
    """A Lark grammar of the same language. ``specials`` are the ids of special tokens by their text: where a begin, an end or a
    trigger has one it is that token. Raises ``GrammarError`` naming the place of what is wrong.
    """
    return _Writer(spec, specials).grammar(_loaded(spec.text))


def _loaded(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise GrammarError("structural_tag is not JSON") from None
    if not isinstance(value, dict) or value.get("type", "structural_tag") != "structural_tag":
        raise GrammarError(f'structural_tag is an object of type "structural_tag", not {shown(value)}')
    keys = value.keys() - {"type"}
    if keys == {"format"}:
        return _object(value["format"], "format")
    if keys != {"structures", "triggers"}:
        raise GrammarError(f"structural_tag has structures and triggers, or format, and not {shown(sorted(keys))}")
    return {"type": "triggered_tags", "triggers": value["triggers"], "tags": _tags_of_structures(value["structures"])}


def _tags_of_structures(structures: object) -> list[dict[str, Any]]:
    """The older shape in terms of the newer one."""
    tags = []
    for i, one in enumerate(_list(structures, "structures")):
        if not isinstance(one, dict) or one.keys() != {"begin", "schema", "end"}:
            raise GrammarError(f"structures[{i}] has begin, schema and end, and is not {shown(one)}")
        content = {"type": "json_schema", "json_schema": one["schema"]}
        tags.append({"begin": one["begin"], "content": content, "end": one["end"]})
    return tags


class _Writer:
    """Writes the rules and terminals of one grammar. ``place`` is where in the structural tag a method is."""

    def __init__(self, spec: GrammarSpec, specials: Mapping[str, int]) -> None:
        self._spec = spec
        self._specials = specials
        self._special = re.compile("|".join(map(re.escape, sorted(specials, key=len, reverse=True)))) if specials else None
        self._lines: list[str] = []
        self._budget = RegexBudget()
        self._num_parts = self._num_tags = 0

    def grammar(self, form: dict[str, Any]) -> str:
        start = self._rule(self._last(form, "format", 0))
        return "\n".join([f"start: {start}", *self._lines])

    # ---- formats

    def _last(self, form: object, place: str, depth: int) -> _Part:
        """A format with nothing behind it, so it may end in free text."""
        match self._checked(form, place, depth):
            case {"type": "any_text"}:
                return _Part(_ANY_TEXT)
            case {"type": "triggered_tags"} as one:
                return self._triggered(one, place, depth)
            case {"type": "sequence", "elements": list(elements)} if elements:
                *before, last = elements
                parts = [self._closed(one, f"{place}.elements[{i}]", depth + 1) for i, one in enumerate(before)]
                return self._joined([*parts, self._last(last, f"{place}.elements[{len(before)}]", depth + 1)])
            case one:
                return self._closed(one, place, depth)

    def _closed(self, form: object, place: str, depth: int) -> _Part:
        """A format that says itself where it ends."""
        match self._checked(form, place, depth):
            case {"type": "const_string"} as one:
                return self._literal(one["value"], f"{place}.value")
            case {"type": "regex"} as one:
                pattern = _text(one["pattern"], f"{place}.pattern")
                self._budget.check(pattern)
                return _Part(f"/{quoted(pattern)}/")
            case {"type": "json_schema"} as one:
                return self._json(one, place)
            case {"type": "tag"} as one:
                return self._tag(one, place, depth)
            case {"type": "tags_with_separator"} as one:
                return self._separated(one, place, depth)
            case {"type": "sequence" | "or" as kind} as one:
                elements = _list(one["elements"], f"{place}.elements")
                parts = [self._closed(inner, f"{place}.elements[{i}]", depth + 1) for i, inner in enumerate(elements)]
                return self._joined(parts) if kind == "sequence" else self._either(parts)
            case other:
                raise GrammarError(
                    f"{place}: free text ({other['type']}) can be the whole format, the last element of a sequence there, "
                    "or for any_text what a tag holds; elsewhere it has no end"
                )

    def _checked(self, form: object, place: str, depth: int) -> dict[str, Any]:
        """A format whose type and fields are known."""
        self._num_parts += 1
        if self._num_parts > _MAX_PARTS or depth > _MAX_DEPTH:
            raise GrammarError(f"structural_tag has over {_MAX_PARTS:,} parts, or is nested more than {_MAX_DEPTH} deep")
        one = _object(form, place)
        kind = one.get("type")
        if not isinstance(kind, str) or kind not in _FIELDS:
            raise GrammarError(f"{place}.type is one of {', '.join(_FIELDS)}, not {shown(kind)}")
        needed, optional = _FIELDS[kind]
        if missing := sorted(needed - one.keys()):
            raise GrammarError(f"{place}.{missing[0]} is missing")
        if unknown := sorted(one.keys() - needed - optional - {"type"}):
            raise GrammarError(f"{place} has {shown(unknown[0])}, which a {kind} here has not")
        if one.get("excludes"):
            raise GrammarError(f"{place}.excludes is not supported; leave it out")
        for flag in ("at_least_one", "stop_after_first"):
            if not isinstance(one.get(flag, False), bool):
                raise GrammarError(f"{place}.{flag} is true or false, not {shown(one[flag])}")
        return one

    def _listed(self, form: object, place: str, depth: int) -> dict[str, Any]:
        """A tag of a list of tags, whose type may be left out."""
        one = {"type": "tag", **_object(form, place)}
        if one["type"] != "tag":
            raise GrammarError(f"{place}.type is tag, or left out, not {shown(one['type'])}")
        return self._checked(one, place, depth)

    def _json(self, form: dict[str, Any], place: str) -> _Part:
        if form.get("style", "json") != "json":
            raise GrammarError(f"{place}.style is json, not {shown(form['style'])}")
        schema = form["json_schema"]
        text = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)
        try:
            checked = checked_schema(text, self._spec.whitespace, is_closed=self._spec.is_closed)
        except GrammarError as error:
            raise GrammarError(f"{place}: {error}") from None
        return _Part(self._rule(_Part("%json " + checked, False)), False)

    def _tag(self, form: dict[str, Any], place: str, depth: int, trigger: str = "") -> _Part:
        """``trigger`` is the beginning of the tag that is behind us already."""
        self._num_tags += 1
        if self._num_tags > _MAX_TAGS:
            raise GrammarError(f"structural_tag has over {_MAX_TAGS} tags; use fewer")
        begin = self._literal(_text(form["begin"], f"{place}.begin").removeprefix(trigger), f"{place}.begin")
        ends = form["end"] if isinstance(form["end"], list) else [form["end"]]
        end = self._either([self._literal(one, f"{place}.end") for one in _list(ends, f"{place}.end")])
        content = self._checked(form["content"], f"{place}.content", depth + 1)
        if content["type"] != "any_text":
            return self._joined([begin, self._closed(content, f"{place}.content", depth + 1), end])
        if "" in ends:
            raise GrammarError(f"{place}.end is empty, so any_text before it has no end")
        if not end.is_regular:  # a special token is in no text
            return self._joined([begin, _Part(_ANY_TEXT), end])
        return self._joined([begin, self._until(end)])

    def _triggered(self, form: dict[str, Any], place: str, depth: int) -> _Part:
        """``(text trigger tag)* text``; with ``at_least_one`` the output begins with a tag, as xgrammar has it."""
        triggers = [_text(one, f"{place}.triggers") for one in _list(form["triggers"], f"{place}.triggers")]
        for i, trigger in enumerate(triggers):
            if not trigger or any(trigger in other for other in triggers[:i] + triggers[i + 1 :]):
                raise GrammarError(f"{place}.triggers: {shown(trigger)} is empty, or within another, which never comes then")
        begun: dict[str, list[_Part]] = {}
        first: list[_Part] = []
        for i, tag in enumerate(_list(form["tags"], f"{place}.tags")):
            where = f"{place}.tags[{i}]"
            one = self._listed(tag, where, depth + 1)
            begin = _text(one["begin"], f"{where}.begin")
            head = next((trigger for trigger in triggers if begin.startswith(trigger)), None)
            if head is None:
                raise GrammarError(f"{where}.begin is {shown(begin)}, which begins with none of the triggers")
            begun.setdefault(head, []).append(self._tag(one, where, depth + 1, head))
            first.append(self._joined([self._literal(head, where), begun[head][-1]]))
        if idle := [trigger for trigger in triggers if trigger not in begun]:
            raise GrammarError(f"{place}.triggers: no tag begins with {shown(idle[0])}")
        met = [self._joined([self._met(trigger, place), self._either(tags)]) for trigger, tags in begun.items()]
        begins = self._rule(self._either(first)) if form.get("at_least_one") else ""
        tagged, text = self._rule(self._either(met)), self._terminal(_Part(_ANY_TEXT))
        if form.get("stop_after_first"):
            return _Part(begins or f"({tagged} | {text})", False)
        return _Part(f"({begins} {tagged}* {text})", False)

    def _met(self, trigger: str, place: str) -> _Part:
        """Text up to a trigger, the first that comes."""
        found = self._literal(trigger, place)
        if found.is_regular:
            return self._until(found)
        if self._special is None or not self._special.match(trigger):
            raise GrammarError(f"{place}.triggers: {shown(trigger)} has a special token that it does not begin with")
        return self._joined([_Part(self._terminal(_Part(_ANY_TEXT)), False), found])

    def _separated(self, form: dict[str, Any], place: str, depth: int) -> _Part:
        tags = []
        for i, tag in enumerate(_list(form["tags"], f"{place}.tags")):
            where = f"{place}.tags[{i}]"
            one = self._listed(tag, where, depth + 1)
            tags.append(self._tag(one, where, depth + 1))
        tag = self._rule(self._either(tags))
        separator = self._rule(self._literal(form["separator"], f"{place}.separator"))
        several = f"({tag})" if form.get("stop_after_first") else f"({tag} ({separator} {tag})*)"
        return _Part(several if form.get("at_least_one") else f"{several}?", False)

    # ---- from parts to rules

    def _literal(self, value: object, place: str) -> _Part:
        text = _text(value, place)
        parts, at = [], 0
        for found in self._special.finditer(text) if self._special is not None else ():
            parts += [_Part(_quoted(text[at : found.start()])), _Part(f"<[{self._specials[found[0]]}]>", False)]
            at = found.end()
        return self._joined([*parts, _Part(_quoted(text[at:]))])

    def _joined(self, parts: Sequence[_Part]) -> _Part:
        """One after the other; neighbours that are regular become one."""
        runs: list[_Part] = []
        for part in parts:
            if part.text == '""':
                continue
            if runs and part.is_regular and runs[-1].is_regular:
                runs[-1] = _Part(f"{runs[-1].text} {part.text}")
            else:
                runs.append(part)
        if not runs:
            return _Part('""')
        return runs[0] if len(runs) == 1 else _Part(f"({' '.join(map(self._symbol, runs))})", False)

    def _either(self, parts: Sequence[_Part]) -> _Part:
        if len(parts) == 1:
            return parts[0]
        is_regular = all(part.is_regular for part in parts)
        return _Part(f"({' | '.join(part.text if is_regular else self._symbol(part) for part in parts)})", is_regular)

    def _until(self, end: _Part) -> _Part:
        """Text up to where ``end`` first comes, and that."""
        name = f"t{len(self._lines)}"
        self._lines.append(f"{name}[lazy]: {_ANY_TEXT} {end.text}")
        return _Part(name, False)

    def _symbol(self, part: _Part) -> str:
        return self._terminal(part) if part.is_regular else part.text

    def _terminal(self, part: _Part) -> str:
        return self._named("T", part.text)

    def _rule(self, part: _Part) -> str:
        return self._named("r", self._symbol(part))

    def _named(self, letter: str, text: str) -> str:
        name = f"{letter}{len(self._lines)}"
        self._lines.append(f"{name}: {text}")
        return name


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _text(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise GrammarError(f"{place} is a text, not {shown(value)}")
    return value


def _list(value: object, place: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise GrammarError(f"{place} is a list that is not empty, not {shown(value)}")
    return value


def _object(value: object, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise GrammarError(f"{place} is an object, not {shown(value)}")
    return value
