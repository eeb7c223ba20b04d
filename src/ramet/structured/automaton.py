"""Patterns and choices as automata over the vocabulary's tokens: a step's mask is a row that is already there.

The native part (csrc/automaton*.h) makes the minimal automaton, finds the mask of a state when a sequence first stands there, and
keeps it for all sequences, within bounds. A mask is the same whether it was kept or not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import numpy as np

from ramet._native import TokenAutomaton, TooLarge, Vocabulary, Walk
from ramet.core.grammar import GrammarSpec
from ramet.core.ids import UInt32
from ramet.core.ports import MAX_FORCED_BYTES
from ramet.errors import GrammarError
from ramet.structured.regex import RegexBudget
from ramet.structured.regex_syntax import UnknownSyntax, program_of_choices, program_of_regex

__all__ = ["Automata", "AutomatonMatcher"]

_MAX_ROW_BYTES = 64 * 1024 * 1024  # 10,000 states of 49,000 tokens, 3,000 of 150,000


class Automata:
    """Makes automata over one vocabulary. Any thread may make them, and any thread walk them, each matcher one at a time."""

    def __init__(self, pieces: Sequence[bytes], num_words: int) -> None:
        """``pieces[id]`` is a token's text, empty where it may not be in an output as text. A mask has ``num_words`` words of 32
        ids.
        """
        self._vocabulary = Vocabulary(list(pieces), num_words, _MAX_ROW_BYTES)
        self._num_words = num_words

    def compile(self, spec: GrammarSpec) -> TokenAutomaton | None:
        """The automaton of a ``regex`` or a ``choice``; None where it would be too large, or the syntax is not ours.

        Takes up to a second and 100 MB, counted in work, so that a constraint has one fate on every machine. Lets other threads
        run. Raises ``GrammarError`` where no text can match, or the pattern is none.
        """
        program = _program(spec)
        if program is None:
            return None
        try:
            automaton = TokenAutomaton(self._vocabulary, np.array(program, np.int32))
        except TooLarge:
            return None
        if not automaton.num_states:
            raise GrammarError(f"the {spec.kind} cannot be used: no text can match it")
        first = AutomatonMatcher(Walk(automaton, []), self._num_words)
        if first.is_finished:
            raise GrammarError(f"the {spec.kind} cannot be used: the empty text alone matches it, so no token can come next")
        try:
            first.fill_mask(np.zeros(self._num_words, np.uint32))
        except GrammarError as error:
            raise GrammarError(f"the {spec.kind} cannot be used: {error}") from None
        return automaton

    def matcher(self, automaton: TokenAutomaton, ending_ids: Iterable[int]) -> AutomatonMatcher:
        """At the start; ``ending_ids`` end the output and are never text."""
        return AutomatonMatcher(Walk(automaton, list(ending_ids)), self._num_words)


def _program(spec: GrammarSpec) -> list[int] | None:
    if spec.kind == "choice":
        return program_of_choices(json.loads(spec.text))
    RegexBudget().check(spec.text)
    try:
        return program_of_regex(spec.text)
    except UnknownSyntax:
        return None


class AutomatonMatcher:
    """``Matcher`` over a ``Walk``, which it owns."""

    __slots__ = ("_num_words", "_walk")

    def __init__(self, walk: Walk, num_words: int) -> None:
        self._walk = walk
        self._num_words = num_words

    @property
    def num_words(self) -> int:
        return self._num_words

    @property
    def is_accepting(self) -> bool:
        return self._walk.is_accepting

    @property
    def is_finished(self) -> bool:
        return self._walk.is_finished

    def fill_mask(self, row: UInt32) -> None:
        if not self._walk.fill_row(row):
            raise GrammarError("no token can come next: the vocabulary lacks it, or one that was not allowed came before")

    def accept(self, token_id: int) -> None:
        if not self._walk.accept(token_id):
            raise GrammarError(f"the token {token_id} doesn't satisfy the grammar here")

    def rollback(self, num_tokens: int) -> None:
        if not self._walk.rollback(num_tokens):
            raise GrammarError(f"fewer than {num_tokens} tokens have been accepted")

    def fork(self) -> AutomatonMatcher:
        return AutomatonMatcher(Walk(self._walk), self._num_words)

    def validate(self, token_ids: list[int]) -> int:
        return self._walk.count_allowed(token_ids)

    def forced_bytes(self) -> bytes:
        return self._walk.forced(MAX_FORCED_BYTES)
