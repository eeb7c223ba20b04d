"""Automata over tokens: the masks of llguidance to the bit, what is forced, what is kept, and what is left to llguidance."""

from __future__ import annotations

import queue
import re
import threading
from typing import Any

import numpy as np
import pytest
from byte_grammars import COMPILER, EOS, allowed, mask, matcher
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ramet._native import TokenAutomaton, Vocabulary, Walk
from ramet.core.grammar import GrammarSpec
from ramet.core.ports import Matcher
from ramet.errors import GrammarError
from ramet.structured import automaton
from ramet.structured.automaton import Automata, AutomatonMatcher
from ramet.structured.compiler import GrammarCompiler, TokenTable
from ramet.structured.digits import NoWatch
from ramet.structured.matcher import GuidanceMatcher
from ramet.structured.regex_syntax import program_of_regex
from ramet.structured.unicode_ranges import ANY, both, either, folded, named, negated, ranges_of

TEXT = 'Hello World, the straße of ΑΒΓ αβγ: "12.5e3" \\n 東京 서울 🌀🗿☕ K \u017f \u0131 İ ǅ Éé\n\t no-one@ab.com 2024-01-31 '


def _pieces() -> list[bytes]:
    """All bytes, and pieces of a text of all sorts, many of which begin or end inside a character."""
    data = TEXT.encode()
    cuts = {data[i : i + n] for n in (2, 3, 4, 5, 8) for i in range(len(data) - n)}
    return [bytes([byte]) for byte in range(256)] + sorted(cuts) + [b"a", b"", b"<e>"]


PIECES = _pieces()
END = len(PIECES) - 1
TOKENS = GrammarCompiler(TokenTable(PIECES, frozenset({END}), frozenset({END}), len(PIECES)))

PATTERNS = [
    "a+", r"\d+", r"\w+", r"[\w\s]*", ".*", "(?s).*", "(?i)hello|World", r"(?i)straße\s*[k-m]+", "[🌀-🗿]+", r"\p{Greek}+ \P{L}*",
    r"[^\W\d]{2,5}", r"\d{4}-\d{2}-\d{2}( [a-z]+){1,20}", r"[\w.+-]+@[\w-]+\.[\w.-]+", r"^(up\nto|down\nby)$", "(a|b)*abb",
    r"([^\x00-\x7f]|q){3}", r"\S+( \S+)*", "[[:alpha:]&&[^aeiou]]+", "(?i)[^k]{1,9}", r"\x{1F600}?é|ñ+",
    r'"(\\.|[^"\\])*"',
    r"\p{Lu}\p{Ll}*( \p{Lu}\p{Ll}*){0,3}", r"(?-u:\w)+\s", r"(?i:\p{Lu})x", r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?",
    r"\PL\P{Nd}",
    "(?i)[a-z&&[^k]]\u017f?", r"[\p{Han}--東]+", r"[a-f~~d-h]{2}", r"[]a^-]+", r"(?<x>a)(?P<y>b)??",
    r"\A(?s-i:.)\z", "a{2}{3}|b{0}c",
    r"[\]\-\x41-\u0043\U00000044]{2,}?", "(?R).+", "()*x", "(|a)+", r"\x{7F}|\p{Zs}|\pN|\p{sc=Cyrillic}|\p{LC}",
    "(?:(?:a|b|)*){3}c",
]  # fmt: skip
CHOICES = [
    ["yes", "yesterday"],
    ["☕", "🙂"],
    ["a", "ab", ""],
    [f"value number {i}" for i in range(300)],
    ["Hello", "Hello World"],
]


def agree(compiler: GrammarCompiler, spec: GrammarSpec, stop_ids: frozenset[int], rng: np.random.Generator) -> None:
    """Both ways to keep to a constraint allow the same in all places of one output."""
    ours = compiler.matcher(spec, stop_ids).result()
    assert isinstance(ours, AutomatonMatcher)
    ending = np.zeros(ours.num_words * 32, np.uint8)
    ending[list(stop_ids)] = 1
    ending = np.packbits(ending, bitorder="little").view(np.uint32)
    theirs = GuidanceMatcher(compiler._guided(spec).guide, compiler._unending & ~ending, ending, NoWatch())
    for _ in range(12):
        row = mask(ours)
        assert np.array_equal(row, mask(theirs))
        assert (ours.is_accepting, ours.is_finished) == (theirs.is_accepting, theirs.is_finished)
        assert ours.forced_bytes().startswith(theirs.forced_bytes())
        drafts = rng.choice(len(PIECES), 3).tolist() if compiler is TOKENS else []
        assert ours.validate(drafts) == theirs.validate(drafts)
        ids = [one for one in np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")) if one not in stop_ids]
        if not ids:
            break
        token_id = int(rng.choice(ids))
        assert ours.validate([token_id]) == 1
        ours.accept(token_id)
        theirs.accept(token_id)


@pytest.mark.parametrize("constraint", [*({"regex": p} for p in PATTERNS), *({"choice": c} for c in CHOICES)], ids=str)
def test_masks_are_those_of_llguidance(constraint: Any) -> None:
    """B077, B095, B110."""
    rng = np.random.default_rng(7)
    for stop_ids in ({END}, {END, ord("a"), ord(" ")}, set()):
        agree(TOKENS, GrammarSpec.of(constraint), frozenset(stop_ids), rng)


ATOMS = st.sampled_from(
    ["a", "b", "é", "東", ".", r"\w", r"\D", r"\s", "[a-c]", "[^b]", r"\p{Lu}", "(?i:k)", "", "^", "$", r"\n"]
)
REGEXES = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map("".join)
        | st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({'|'.join(parts)})")
        | st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}", "*?"])).map(lambda p: f"(?:{p[0]}){p[1]}")
    ),
    max_leaves=6,
)


def _is_taken(compile_it: Any) -> bool:
    try:
        compile_it()
    except GrammarError:
        return False
    return True


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(REGEXES, st.integers(0, 99))
def test_masks_of_any_pattern_are_those_of_llguidance(pattern: str, seed: int) -> None:
    spec = GrammarSpec("regex", pattern or "a")
    if _is_taken(lambda: COMPILER._guided(spec)):
        agree(COMPILER, spec, frozenset({EOS}), np.random.default_rng(seed))


@settings(max_examples=150)
@given(st.text(r"ab(){}[]|*+?\^$.,019-&~:=<>P#ipwdxuL\n ", min_size=1, max_size=12))
def test_what_llguidance_takes_is_taken(pattern: str) -> None:
    spec = GrammarSpec("regex", pattern)
    if _is_taken(lambda: COMPILER._guided(spec)):
        COMPILER.check(spec)
    elif _compiled(spec) is not None:
        assert set(pattern) & set("^$\\<b"), "we know anchors in more places than they"


def _compiled(spec: GrammarSpec) -> object:
    try:
        return COMPILER._automata.compile(spec)
    except GrammarError:
        return None


# ---- what is refused, and what is left to llguidance


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ("a(?=b)", r"look-around is not supported: \(\?="),
        ("(?<!a)b", r"look-around is not supported: \(\?<!"),
        (r"\bword", r"look-around is not supported: \\b"),
        (r"(a)\1", r"back-references are not supported: \\1"),
        ("a*(", "a group does not end"),
        ("a)", "did not begin"),
        ("*a", "nothing to repeat before"),
        ("(?i)*", "nothing to repeat before"),
        ("a{,3}", "a count is like"),
        ("a{3,2}", "ends before it begins"),
        ("[z-a]", "ends before it begins"),
        ("[a", "does not end"),
        (r"[\d-z]", "between two characters"),
        ("(?P<x>a)(?P<x>b)", "two groups have the name 'x'"),
        ("(?ii)a", "is no flag"),
        ("(?)", "a group with"),
        ("a\\", "ends too early"),
        (r"\x{D800}", "0xd800 is no character"),
        (r"\xg0", "hexadecimal"),
        (r"\q", r"\\q has no meaning"),
        (r"[\b]", "no meaning in a class"),
        (r"\p{Nothing}", "Unicode property not found"),
        ("a^b", "no text can match it"),
        ("a|$", None),
        (r"\z", "no token can come next"),
    ],
)
def test_what_is_wrong_is_named(pattern: str, what: str | None) -> None:
    if what is None:
        assert isinstance(matcher({"regex": pattern}), AutomatonMatcher)
    else:
        with pytest.raises(GrammarError, match=what):
            matcher({"regex": pattern})


@pytest.mark.parametrize(
    "pattern", ["(a|b)*a(a|b){24}", r"\w{1,1000}", "(.{1,1000}){1,90}", r"\p{Emoji}+", r"(?:a{0,300}b{0,300}){0,300}"]
)
def test_b182_t16_what_is_too_much_for_an_automaton_is_left_to_llguidance(pattern: str) -> None:
    """B182, T16: states are made as they are met; nothing that it can take is refused."""
    assert isinstance(matcher({"regex": pattern}), GuidanceMatcher)


@pytest.mark.parametrize("pattern", ["(a+)+b", "(x+x+)+y", "(a|a)*b", "(a*)*b", "(a|a?)+b", "(.*a){20}b", "a{1,30}{1,30}b"])
def test_t16_patterns_that_are_slow_to_search_for_are_small_automata(pattern: str) -> None:
    """T16."""
    program = np.array(program_of_regex(pattern), np.int32)
    assert TokenAutomaton(COMPILER._automata._vocabulary, program).num_states < 20_001


# ---- matchers


def test_what_is_forced_is_told_up_to_where_ways_part() -> None:
    def forced(constraint: Any, *token_ids: int) -> bytes:
        one = matcher(constraint)
        for token_id in token_ids:
            one.accept(token_id)
        return one.forced_bytes()

    assert forced({"choice": ["Final Answer: yes", "Final Answer: no"]}) == b"Final Answer: "
    assert forced({"choice": ["yes", "yesterday"]}) == b"yes", "the end is a way on, too"
    assert forced({"choice": ["yes", "yesterday"]}, *b"yest") == b"erday"
    assert forced({"choice": ["ab", "cd"]}) == b""
    assert forced({"regex": "é{3}[0-9]"}) == "ééé".encode()
    assert forced({"regex": "[🌀-🗿]+"}) == b"\xf0\x9f", "a character's first bytes"
    assert forced({"regex": "a{1000}"}) == b"a" * 512
    assert forced({"regex": "ab"}, *b"ab") == b""


def test_guesses_are_tried_without_going_there() -> None:
    one = matcher({"regex": "a+b"})
    assert one.validate([*b"aab", ord("a")]) == 3
    assert one.validate([*b"aa", EOS, ord("a")]) == 2, "none may end the output"
    assert one.validate([-1]) == one.validate([2**31 - 1]) == one.validate([]) == 0
    assert allowed(one) == {ord("a")}


def test_a_matcher_goes_back_as_far_as_it_came_and_no_further() -> None:
    one = matcher({"regex": "[ab]*"})
    for byte in b"abab":
        one.accept(byte)
    one.rollback(3)
    one.rollback(0)
    with pytest.raises(GrammarError, match="fewer than 2"):
        one.rollback(2)
    one.rollback(1)
    other = one.fork()
    other.accept(ord("a"))
    assert not one.is_finished
    with pytest.raises(GrammarError):
        one.accept(ord("c"))
    one.rollback(1)
    assert allowed(one) == allowed(other)


def test_a_place_that_the_vocabulary_cannot_leave_is_a_fault() -> None:
    lacking = GrammarCompiler(TokenTable([b"a", b"<e>"], frozenset(), (1,), 2))
    one = lacking.matcher(GrammarSpec("regex", "ab"), frozenset({1})).result()
    one.accept(0)
    with pytest.raises(GrammarError, match="the vocabulary lacks it"):
        mask(one)
    with pytest.raises(GrammarError, match="no token can come next"):
        lacking.check(GrammarSpec("regex", "b"))


# ---- what is kept


def masks_of(of: Matcher, text: bytes) -> list[bytes]:
    found = []
    for byte in text:
        found.append(mask(of).tobytes())
        of.accept(byte)
    return found


def test_rows_are_kept_within_bounds_and_found_anew_beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    """B083: a mask is the same whether it was kept or not."""
    monkeypatch.setattr(automaton, "_MAX_ROW_BYTES", 5 * 8 * 4)
    small = Automata([bytes([byte]) for byte in range(256)], 8)
    text = b"the text of a request"
    specs = [GrammarSpec("regex", pattern) for pattern in ("[a-z ]{0,50}", "the.{1,99}", "(?i)THE [text of]+ A REQUEST")]
    compiled = [small.compile(spec) for spec in specs]
    wanted = [masks_of(matcher({"regex": spec.text}, frozenset()), text) for spec in specs]
    for _ in range(2):
        for one, masks in zip(compiled, wanted, strict=True):
            assert [row[:32] for row in masks] == masks_of(small.matcher(one, []), text)
    assert small._vocabulary.num_rows == 5


def test_automata_may_be_made_in_one_thread_and_walked_in_others() -> None:
    automata = Automata([*PIECES[:END], b""], -(-len(PIECES) // 32))
    patterns = [rf"[a-z]{{{n}}}.*" for n in range(4)] * 3
    wanted = {p: masks_of(TOKENS.matcher(GrammarSpec("regex", p), frozenset()).result(), b"hello world") for p in patterns}
    made: queue.Queue[tuple[str, TokenAutomaton | None]] = queue.Queue()
    found: list[bool] = []

    def make() -> None:
        for pattern in patterns:
            compiled = automata.compile(GrammarSpec("regex", pattern))
            for _ in walkers:
                made.put((pattern, compiled))

    def walk() -> None:
        for _ in patterns:
            pattern, compiled = made.get(timeout=60)
            assert compiled is not None
            found.append(masks_of(automata.matcher(compiled, []), b"hello world") == wanted[pattern])

    walkers = [threading.Thread(target=walk) for _ in range(2)]
    threads = [threading.Thread(target=make), *walkers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 24


# ---- the native part by itself


@settings(max_examples=300)
@given(st.lists(st.integers(-2, 9) | st.integers(-(2**31), 2**31 - 1), max_size=14))
def test_any_numbers_are_a_program_or_refused(numbers: list[int]) -> None:
    vocabulary = COMPILER._automata._vocabulary
    try:
        made = TokenAutomaton(vocabulary, np.array(numbers, np.int32))
    except ValueError as error:
        refusal = str(error)
    else:
        refusal = "" if made.num_states else "no text"
        walks = [Walk(made, [])] if made.num_states else []
        assert all(len(walk.forced(9)) <= 9 for walk in walks)
    assert re.fullmatch("|no text|.*malformed|.*too large|.*too much work|.*too deeply", refusal)


def test_native_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="a row has a bit for each token"):
        Vocabulary([b"a"] * 33, 1, 100)
    with pytest.raises(ValueError, match="pieces are bytes"):
        Vocabulary(["a"], 1, 100)  # type: ignore[list-item]
    empty = TokenAutomaton(Vocabulary([b"a"], 1, 100), np.array([3, 0], np.int32))
    with pytest.raises(ValueError, match="no text is in the language"):
        Walk(empty, [])
    full = TokenAutomaton(Vocabulary([b"a"], 1, 100), np.array([2, 0], np.int32))
    for ending_id in (-1, 32):
        with pytest.raises(ValueError, match="beyond the masks"):
            Walk(full, [ending_id])


# ---- sets of characters


def test_sets_of_characters() -> None:
    assert ranges_of([(5, 9), (1, 2), (3, 3), (8, 12)]) == ((1, 3), (5, 12))
    assert ranges_of([(0xD700, 0xE001)]) == ((0xD700, 0xD7FF), (0xE000, 0xE001)), "surrogates are no characters"
    assert negated(()) == ANY
    assert negated(ANY) == ()
    assert folded(((ord("k"), ord("k")),)) == ((75, 75), (107, 107), (0x212A, 0x212A))
    greek, letters = named("Greek"), named("gc = letter")
    assert greek
    assert letters
    assert both(greek, negated(greek)) == ()
    assert either(greek, negated(greek)) == ANY
    assert named("IsNothing") is None
    assert named("script=Lu") is None
    categories = [named(name) for name in ("L", "M", "N", "P", "S", "Z", "C")]
    assert either(*(one for one in categories if one)) == ANY
