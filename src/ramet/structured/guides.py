"""What llguidance makes of a grammar, shared by its sequences, and put anew where it is full."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llguidance import LLMatcher

from ramet.core.ports import NotReady, Pending, Worker
from ramet.core.worker import InPlace

__all__ = ["LEXER_BYTES", "LIMITS", "Guide"]

_MAX_LEXER_STATES = 20_000  # a document needs 50 to 1,000
LEXER_BYTES = _MAX_LEXER_STATES * 420
"""What one lexer holds at most, as measured of grammars that fill it."""

LIMITS: Mapping[str, Any] = {
    "max_items_in_row": 4_000,  # about 4 for each property of an object that may be left out
    "initial_lexer_fuel": 500_000,
    "step_lexer_fuel": 10**12,  # none: it is spent on new states, and how many of a step's are new depends on who came before
    "step_max_items": 50_000,
    "max_lexer_states": _MAX_LEXER_STATES,
    "max_grammar_size": 200_000,
}


class Guide:
    """``LLMatcher`` s at the start of one grammar, to be copied.

    All copies of one share a lexer, whose states are added as texts need them and never go. It may have so many and no more, and
    then all its copies fail at once. So one that fails proves nothing of the sequence that met it: the sequence goes over to a
    ``successor``, and only what cannot be done on one that nobody else has used is too much. That is a function of the grammar
    and the sequence's tokens: a lexer on which something was done has all the states that it takes, so what can be done on a used
    one can be done on an unused one. A step's work has no limit beside that of states, for it is less where others were before.

    ``make`` makes one. From ``prepare`` on, ``worker`` makes the next one as soon as one is taken, so that a step finds it ready.
    Where two are wanted at once, or the worker is busy, it may not be: then the sequence waits for it, and the step does not.
    """

    def __init__(self, make: Callable[[], LLMatcher]) -> None:
        self._make = make
        self._worker: Worker = InPlace()
        self._spare: Pending[LLMatcher] | None = None
        self.root = make()

    def prepare(self, worker: Worker) -> None:
        """Have a successor made, if none is."""
        self._worker = worker
        if self._spare is None:
            self._spare = worker.start(self._make)

    def successor(self) -> LLMatcher:
        """One that nobody has used, the root from now on. Raises ``NotReady`` while it is being made."""
        spare, self._spare = self._spare, None
        if spare is not None and not spare.done():
            self._spare = spare
            raise NotReady
        self.root = self._make() if spare is None else spare.result()
        if spare is not None:
            self.prepare(self._worker)
        return self.root
