"""From what is asked (``GrammarSpec``) to matchers: patterns and choices by automata of our own, the rest by way of one Lark
grammar and llguidance, which also takes the patterns whose automaton would be too large: it makes states as they are met.

Bounds come first (``schema``, ``regex``, ``lark``), because the compiler recurses on the machine's stack and cannot be stopped.
Its own limits come second, and a trial third: a grammar that fails within its first tokens is refused here and not in the midst
of an answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, TypeVar

import llguidance
import numpy as np

from ramet._native import TokenAutomaton
from ramet.core.grammar import GrammarSpec
from ramet.core.ids import UInt32
from ramet.core.ports import Matcher, Pending, Worker
from ramet.core.worker import InPlace, Made
from ramet.errors import GrammarError
from ramet.structured.automaton import Automata
from ramet.structured.digits import NoWatch, Numbers, NumberWatch, Watch
from ramet.structured.ebnf import lark_of_ebnf
from ramet.structured.guides import LEXER_BYTES, LIMITS, Guide
from ramet.structured.lark import checked_lark, has_json, is_ebnf
from ramet.structured.matcher import GuidanceMatcher, reason
from ramet.structured.regex import RegexBudget, quoted
from ramet.structured.schema import checked_schema
from ramet.structured.tags import lark_of_tags

__all__ = ["GrammarCompiler", "TokenTable", "lark_of"]

_MAX_CACHED = 128
_MAX_CACHED_BYTES = 512 * 1024 * 1024
_GUIDE_BYTES = 500  # of what llguidance makes, for each byte of a grammar, at worst
_TRIAL_TOKENS = 8
_STRIDE = 7919
# Tokens of plain text by length: llguidance puts all of one kind into a mask at once where a string has room for the longest, and
# else tries each. Its own kinds, of up to 10 and 30 characters, leave it to try most where a ``maxLength`` is near.
_SLICES = [rf'[^"\\\x00-\x1F\x7F]{{1,{length}}}' for length in (8, 12, 16, 30)] + [r'[^"\\\x00-\x1F\x7F]+']

# Where only one text can follow, its tokens are still the model's choice: a mask is all that the grammar allows.
_OPTIONS = '\n%llguidance {"no_forcing": true}\n'

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class TokenTable:
    """What a grammar must know of the vocabulary.

    ``pieces[id]`` is a token's bytes, empty where an id names none: such ids are never allowed, nor are those of the model's
    table beyond the tokenizer's. ``special_ids`` stand for no text. ``eos_ids`` may end an output.
    """

    pieces: Sequence[bytes]
    special_ids: frozenset[int]
    eos_ids: Iterable[int]
    vocab_size: int


@dataclass(frozen=True, slots=True)
class _Guided:
    """What is kept of a grammar that llguidance does; ``watch`` is at the start of an output."""

    guide: Guide
    watch: Watch


@dataclass(slots=True)
class _Kept:
    """``last_use`` counts uses of all."""

    compiled: _Compiled
    last_use: int


class GrammarCompiler:
    """``Grammars`` of all kinds. To make one reads the whole vocabulary: 0.2 s for 49,000 tokens.

    What was compiled is kept, within bounds. Any thread may call; ``worker`` alone compiles and changes what is kept.
    """

    def __init__(self, tokens: TokenTable, worker: Worker | None = None) -> None:
        vocabulary = _Vocabulary(tokens)
        self._tokenizer = llguidance.LLTokenizer(vocabulary, slices=_SLICES)  # type: ignore[arg-type]
        self._vocab_size = tokens.vocab_size
        self._num_words = -(-len(vocabulary.tokens) // 32)
        no_text = {vocabulary.eos_token_id, *tokens.eos_ids}
        self._unending = ~_mask(no_text, self._num_words)
        no_text.update(tokens.special_ids)
        self._automata = Automata([b"" if i in no_text else one for i, one in enumerate(vocabulary.tokens)], self._num_words)
        self._specials = vocabulary.specials
        self._numbers = Numbers(vocabulary.tokens, self._num_words)
        self._limits = llguidance.LLParserLimits(**LIMITS, verbose_errors=False)
        self._worker = worker or InPlace()
        self._prepares = worker is not None  # on the caller's own thread nothing is gained by making what may be needed
        self._kept: dict[GrammarSpec, _Kept] = {}
        self._num_uses = 0

    def knows(self, spec: GrammarSpec) -> bool:
        """Whether ``check`` and ``matcher`` have an answer at once."""
        return self._known(spec) is not None

    def check(self, spec: GrammarSpec) -> None:
        if self._known(spec) is None:
            self._worker.start(partial(self._compiled, spec)).result()

    def matcher(self, spec: GrammarSpec, stop_ids: frozenset[int]) -> Pending[Matcher]:
        if (compiled := self._known(spec)) is not None:
            return Made(self._matcher(spec, compiled, stop_ids))
        return self._worker.start(lambda: self._matcher(spec, self._compiled(spec), stop_ids))

    def _known(self, spec: GrammarSpec) -> _Compiled | None:
        kept = self._kept.get(spec)
        if kept is None:
            return None
        self._num_uses += 1
        kept.last_use = self._num_uses
        return kept.compiled

    def _compiled(self, spec: GrammarSpec) -> _Compiled:
        """Done by the worker. It may be known by now, where two came at once."""
        compiled = self._known(spec)
        if compiled is None:
            compiled = self._compile(spec)
            self._kept[spec] = _Kept(compiled, self._num_uses)
            self._give_up()
        return compiled

    def _give_up(self) -> None:
        """Of what is kept that which was used longest ago, down to the bounds; what runs on it goes on."""
        sizes = {spec: _num_bytes(spec, kept.compiled) for spec, kept in self._kept.items()}
        num_bytes = sum(sizes.values())
        for spec in sorted(self._kept, key=lambda one: self._kept[one].last_use):
            if len(self._kept) <= _MAX_CACHED and num_bytes <= _MAX_CACHED_BYTES:
                return
            del self._kept[spec]
            num_bytes -= sizes[spec]

    def _matcher(self, spec: GrammarSpec, compiled: _Compiled, stop_ids: frozenset[int]) -> Matcher:
        ending_ids = [one for one in stop_ids if one < self._vocab_size]
        if isinstance(compiled, TokenAutomaton):
            return self._automata.matcher(compiled, ending_ids)
        ending = _mask(ending_ids, self._num_words)
        if self._prepares:
            compiled.guide.prepare(self._worker)
        return GuidanceMatcher(compiled.guide, self._unending & ~ending, ending, compiled.watch.fork())

    def _compile(self, spec: GrammarSpec) -> _Compiled:
        automaton = self._automata.compile(spec) if spec.kind in ("regex", "choice") else None
        return self._guided(spec) if automaton is None else automaton

    def _guided(self, spec: GrammarSpec) -> _Guided:
        lark = lark_of(spec, self._specials)
        guide = Guide(partial(self._new_root, lark))
        name = _NAMES[spec.kind]
        if guide.root.is_error():
            raise GrammarError(f"the {name} cannot be used: {reason(guide.root)}")
        try:
            self._try(GuidanceMatcher(guide, self._unending, ~self._unending, NoWatch()))
        except GrammarError as error:
            raise GrammarError(f"the {name} cannot be used, it fails within its first tokens: {error}") from None
        return _Guided(guide, NumberWatch(self._numbers) if has_json(lark) else NoWatch())

    def _new_root(self, lark: str) -> llguidance.LLMatcher:
        grammar = llguidance.LLMatcher.grammar_from_lark(lark + _OPTIONS)
        return llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)

    def _try(self, matcher: GuidanceMatcher) -> None:
        """Walk a few tokens, always the same ones. One must be possible at the start, so the empty text alone is no grammar."""
        row = np.zeros(self._num_words, np.uint32)
        for step in range(_TRIAL_TOKENS):
            matcher.fill_mask(row)
            ids = np.flatnonzero(np.unpackbits((row & self._unending).view(np.uint8), bitorder="little"))
            if not len(ids):
                raise GrammarError("no token can come next")
            matcher.accept(int(ids[step * _STRIDE % len(ids)]))
            if matcher.is_finished:
                return


_Compiled: TypeAlias = TokenAutomaton | _Guided


def _num_bytes(spec: GrammarSpec, compiled: _Compiled) -> int:
    """At most; of what llguidance makes there are two, one of which waits."""
    return compiled.num_bytes if isinstance(compiled, TokenAutomaton) else LEXER_BYTES + 2 * _GUIDE_BYTES * len(spec.text)


_NAMES = {
    "json": "JSON schema",
    "json_object": "JSON object",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
    "structural_tag": "structural tag",
}


def lark_of(spec: GrammarSpec, specials: Mapping[str, int]) -> str:
    """The constraint as a Lark grammar within bounds. ``specials`` are ids by their text. Raises ``GrammarError``."""
    match spec.kind:
        case "json" | "json_object":
            schema = spec.text if spec.kind == "json" else '{"type":"object"}'
            return "start: %json " + checked_schema(schema, spec.whitespace, is_closed=spec.is_closed)
        case "structural_tag":
            return lark_of_tags(spec, specials)
        case "regex":
            RegexBudget().check(spec.text)
            return f"start: /{quoted(spec.text)}/"
        case "choice":
            return "start: TEXT\nTEXT: " + " | ".join(json.dumps(one, ensure_ascii=False) for one in json.loads(spec.text))
        case "grammar":
            if is_ebnf(spec.text):
                return lark_of_ebnf(spec.text)
            return checked_lark(spec.text, spec.whitespace, is_closed=spec.is_closed, specials=specials)


class _Vocabulary:
    """The face of a tokenizer that llguidance takes. It needs no ``__call__`` to work, because no text is forced."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, table: TokenTable) -> None:
        padding = [b""] * table.vocab_size
        self.tokens = [*table.pieces, *padding][: table.vocab_size]
        eos_ids = sorted(one for one in table.eos_ids if one < table.vocab_size)
        if not eos_ids:  # there must be one: an id that the model does not have
            eos_ids = [len(self.tokens)]
            self.tokens.append(b"<eos>")
        self.eos_token_id = eos_ids[0]
        special = {one for one in table.special_ids if one < table.vocab_size} | set(eos_ids)
        self.special_token_ids = sorted(special)
        texts = {one: self.tokens[one].decode(errors="replace") for one in special.difference(eos_ids)}
        self.specials = {text: one for one, text in texts.items() if text}

    def __call__(self, text: str) -> list[int]:
        raise NotImplementedError(f"no text is tokenized for a grammar, but {len(text)} characters were to be")


def _mask(ids: Iterable[int], num_words: int) -> UInt32:
    """uint32[num_words] with the bits of ``ids``."""
    bits = np.zeros(num_words * 32, np.uint8)
    bits[[one for one in ids if one < len(bits)]] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)
