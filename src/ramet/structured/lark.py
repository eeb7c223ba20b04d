"""Bounds on a Lark grammar, before anything compiles it, and its JSON schemas put in order.

The grammar is cut into the tokens of the compiler's dialect (llguidance's Lark). What cannot be cut, or would work
behind the back of sampling, is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from ramet.errors import GrammarError, shown
from ramet.structured.regex import MAX_COPIES, RegexBudget
from ramet.structured.schema import MAX_LITERAL, checked_schema

__all__ = ["MAX_NESTING", "MAX_RULES", "MAX_TOKENS", "checked_lark", "has_json", "is_ebnf"]

MAX_RULES = 400  # rules and the deepest nesting within each, added up: the compiler's stack holds several times that
MAX_NESTING = 30
MAX_TOKENS = 20_000
_MAX_SCHEMAS = 128
_DIRECTIVES = {"%ignore", "%import"}
_OPTIONS = {
    "stop": "which takes tokens back that were given out; use lazy or suffix",
    "stop_capture": "which takes tokens back that were given out; use lazy or suffix",
    "max_tokens": "which depends on how a text is cut into tokens; bound the pattern itself, as in /.{0,100}/",
    "temperature": "which belongs to the request",
}

_TOKEN = re.compile(
    r"""
      (?P<space> \s+ | (?://|\#)[^\n]* )
    | (?P<string> "(?:\\.|[^"\\\n])*"i? )
    | (?P<regex> /(?!/)(?:\\.|[^/\\])+/[imslux]* )
    | (?P<special> <[^<>\s]*> )
    | (?P<directive> %[a-z]+ )
    | (?P<count> \{\s*\d*\s*,?\s*\d*\s*\} | ~\s*\d+(?:\s*\.\.\s*\d+)? )
    | (?P<name> [?!]?[A-Za-z_][\w.-]* )
    | (?P<mark> -> | :: | [:|()\[\]*+?=,&~@] )
    """,
    re.VERBOSE | re.DOTALL,
)


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


def is_ebnf(text: str) -> bool:
    """Whether a grammar is EBNF as llama.cpp and xgrammar write it: its rules are made with ``::=``."""
    return re.search(r"^\s*[A-Za-z_][\w-]*\s*::=", text, re.MULTILINE) is not None


def checked_lark(
    text: str, whitespace: str | None = None, *, is_closed: bool = False, specials: Mapping[str, int] = MappingProxyType({})
) -> str:
    """The grammar as the compiler gets it; the options are those of ``checked_schema``. Raises ``GrammarError``.

    ``specials`` are ids of special tokens by their text: ``<[X]>`` is the one that is written ``[X]``.
    """
    parts: list[str] = []
    rules = nesting = deepest = num_schemas = 0
    budget = RegexBudget()
    before = ""
    for index, token in enumerate(_tokens(text)):
        if index == MAX_TOKENS:
            raise GrammarError(f"the grammar has more than {MAX_TOKENS:,} tokens; make it smaller")
        if token.kind == "special" and token.text not in specials and (token_id := specials.get(token.text[1:-1])) is not None:
            parts.append(f"<[{token_id}]>")
            before = token.text
            continue
        _check(token, before)
        if token.kind == "regex":
            budget.check(token.text[1 : token.text.rindex("/")])
        elif token.kind == "schema":
            num_schemas += 1
        budget.spend(token.kind == "count" or token.text in ("(", "[", "?", "*", "+"))
        if num_schemas > _MAX_SCHEMAS:
            raise GrammarError(f"the grammar has over {_MAX_SCHEMAS} JSON schemas; make one of them, with anyOf")
        if token.text in ("(", "["):
            nesting += 1
            deepest = max(deepest, nesting)
        elif token.text in (")", "]"):
            nesting -= 1
        elif token.text == ":":
            rules += 1 + deepest
            deepest = 0
        if deepest > MAX_NESTING:
            raise GrammarError(f"the grammar has groups more than {MAX_NESTING} deep; give the inner ones names of their own")
        if rules + deepest > MAX_RULES:
            raise GrammarError(f"the grammar has over {MAX_RULES} rules, nested groups counted; make it smaller")
        if token.kind == "schema":
            parts.append("%json " + checked_schema(token.text, whitespace, is_closed=is_closed))
        else:
            parts.append(token.text)
        if token.kind != "space":
            before = token.text
    return "".join(parts)


def has_json(text: str) -> bool:
    """Whether a grammar has schemas in it."""
    return any(token.kind == "schema" for token in _tokens(text))


def _tokens(text: str) -> Iterator[_Token]:
    place = 0
    while place < len(text):
        if text.startswith("%json", place):
            start = place
            place = _after_json(text, place + len("%json"))
            yield _Token("schema", text[start + len("%json") : place], start)
            continue
        found = _TOKEN.match(text, place)
        if found is None or found.lastgroup is None:
            line = text.count("\n", 0, place) + 1
            raise GrammarError(f"the grammar cannot be read at line {line}, from {shown(text[place : place + 20])} on")
        yield _Token(found.lastgroup, found[0], place)
        place = found.end()


def _after_json(text: str, place: int) -> int:
    """Where the JSON value after ``place`` ends."""
    while place < len(text) and text[place].isspace():
        place += 1
    try:
        return json.JSONDecoder().raw_decode(text, place)[1]
    except (ValueError, RecursionError):
        raise GrammarError("%json is not followed by a JSON schema that can be read") from None


def _check(token: _Token, before: str) -> None:
    match token.kind:
        case "string" if len(token.text) > MAX_LITERAL:
            raise GrammarError(f"the grammar has a text of {len(token.text):,} characters; at most {MAX_LITERAL:,} are taken")
        case "directive" if token.text not in _DIRECTIVES:
            raise GrammarError(f"the grammar has {shown(token.text)}; {', '.join(sorted(_DIRECTIVES))} and %json are supported")
        case "special" if token.text.startswith("<["):
            raise GrammarError("the grammar names tokens by number; name them by their text, as in <|im_start|>")
        case "count" if max((int(n[:20]) for n in re.findall(r"\d+", token.text)), default=0) > MAX_COPIES:
            raise GrammarError(
                f"the grammar repeats something {shown(token.text)}; at most {MAX_COPIES:,} times, or without an upper bound"
            )
        case "mark" if token.text in ("@", "::"):
            raise GrammarError(f"the grammar has {shown(token.text)}, which is not supported")
        case "mark" if token.text == "=" and before in _OPTIONS:
            raise GrammarError(f"the grammar has the option {before}, {_OPTIONS[before]}")
        case "name" if token.text in ("stop", "temperature") and before == "[":
            raise GrammarError(f"the grammar has the option {token.text}, {_OPTIONS[token.text]}")
