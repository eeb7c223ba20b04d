"""Patterns of Rust's regex crate and of RE2, with what they match (RE2's exhaustive part is sampled, unless RAMET_EXACT=full)."""

from __future__ import annotations

import ast
import gzip
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ramet._native import TokenAutomaton, Vocabulary, Walk
from ramet.errors import GrammarError
from ramet.structured.regex_syntax import UnknownSyntax, program_of_regex

ROOT = Path(__file__).resolve().parents[3]
CORPORA = Path(os.environ.get("RAMET_SHARED") or ROOT.parent / "shared") / "data" / "regex-corpora"
BYTES = Vocabulary([bytes([byte]) for byte in range(256)], 8, 2**20)
TOO_LARGE = {"expensive/backtrack-blow-visited-capacity"}  # with any text around it

pytestmark = pytest.mark.skipif(not CORPORA.is_dir(), reason="the shared data are not here")


class Language:
    def __init__(self, pattern: str) -> None:
        self._automaton = TokenAutomaton(BYTES, np.array(program_of_regex(pattern), np.int32))

    def takes(self, text: str) -> bool:
        if not self._automaton.num_states:
            return False
        walk = Walk(self._automaton, [])
        return all(map(walk.accept, text.encode())) and walk.is_accepting


# ---- Rust


def rust_cases() -> Iterator[tuple[str, str, str, dict[str, object]]]:
    """Name, pattern and haystack of each case that is of one pattern over a whole text, and the case."""
    for path in sorted(CORPORA.glob("rust-regex/**/*.toml")):
        if path.stem == "regex-lite":
            continue  # another crate, whose classes are ASCII
        for case in tomllib.loads(path.read_text("utf-8"))["test"]:
            pattern, haystack = case["regex"], case["haystack"]
            if isinstance(pattern, list) or case.keys() & {"bounds", "line-terminator"}:
                continue
            if case.get("unescape"):
                try:
                    haystack = haystack.encode().decode("unicode_escape").encode("latin-1").decode()
                except UnicodeDecodeError:
                    continue  # bytes that are no text
            flags = "i" * bool(case.get("case-insensitive")) + "-u" * (case.get("unicode") is False)
            yield f"{path.stem}/{case['name']}", f"(?{flags}:{pattern})" if flags else pattern, haystack, case


def span(match: object) -> list[int]:
    """A match is a span, or has the spans of its groups, or of its pattern's number and them."""
    if isinstance(match, dict):
        match = match.get("span") or match["spans"]
    return span(match[0]) if isinstance(match[0], list) else match


def test_rust_patterns_have_rusts_verdicts() -> None:
    """What is found anywhere is matched in full with any text around it; and a match of the whole text is one in full."""
    wrong, num_compared = [], 0
    for name, pattern, haystack, case in rust_cases():
        matches = [span(match) for match in case["matches"]]
        try:
            exact = Language(pattern)
        except GrammarError as error:
            if case.get("compiles", True) and not (isinstance(error, UnknownSyntax) or "not supported" in str(error)):
                wrong.append((name, pattern, str(error)))
            continue
        if not case.get("compiles", True):
            wrong.append((name, pattern, "is no pattern"))
        if matches and matches[0] == [0, len(haystack.encode())] and not exact.takes(haystack):
            wrong.append((name, pattern, haystack))
        if name in TOO_LARGE:
            continue
        padded = Language(f"{'' if case.get('anchored') else '(?s:.*)'}(?:{pattern})(?s:.*)")
        if padded.takes(haystack) != bool(matches):
            wrong.append((name, pattern, haystack, matches))
        num_compared += 1
    assert wrong == []
    assert num_compared > 500


# ---- RE2


def unquoted(line: str) -> str:
    """A string as Go writes it, which may hold line breaks of other systems."""
    return ast.literal_eval(line.replace("\r", r"\r")) if "\\" in line else line[1:-1]


def re2_blocks(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """The strings of each block, and the lines of its patterns: each is followed by one line for each string."""
    for block in text.split("\nstrings\n")[1:]:
        strings, _, rest = block.partition("\nregexps\n")
        lines = [line for line in rest.split("\n") if line and line[0] in '"-0123456789']
        yield [unquoted(line) for line in strings.split("\n")], lines


@pytest.mark.parametrize(("name", "every"), [("re2-search.txt", 1), ("re2-exhaustive.txt.gz", 251)])
def test_re2_patterns_have_re2s_verdicts(name: str, every: int) -> None:
    r"""``\d``, ``\s`` and ``\w`` are compared on ASCII alone, which is all that they take in RE2, and there without ``\v``."""
    data = (CORPORA / "re2" / name).read_bytes()
    text = (gzip.decompress(data) if name.endswith(".gz") else data).decode()
    wrong, num_verdicts = [], 0
    for strings, lines in re2_blocks(text):
        step = 1 + len(strings)
        for at in range(0, len(lines), step * (1 if os.environ.get("RAMET_EXACT") == "full" else every)):
            pattern = unquoted(lines[at])
            try:
                language = Language(pattern)
            except GrammarError as error:
                if not (isinstance(error, UnknownSyntax) or "not supported" in str(error) or r"\C" in pattern):
                    wrong.append((pattern, str(error)))
                continue
            for one, result in zip(strings, lines[at + 1 : at + step], strict=True):
                if (one.isascii() and "\v" not in one) or not re.search(r"\\[dDsSwW]", pattern):
                    num_verdicts += 1
                    wrong += [(pattern, one)] if language.takes(one) == result.startswith("-") else []
    assert wrong == []
    assert num_verdicts > 900
