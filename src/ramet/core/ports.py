"""The two ports of the engine, time and device, and the faces of what a sequence carries: a cache lock, a matcher, a drafter."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

from ramet.core.batch import NO_MASKS, Batch
from ramet.core.grammar import GrammarSpec
from ramet.core.ids import UInt32
from ramet.core.output import StepOutput

__all__ = [
    "MAX_FORCED_BYTES",
    "CacheLock",
    "Clock",
    "Draft",
    "Drafter",
    "Grammars",
    "Matcher",
    "NotReady",
    "Pending",
    "Runner",
    "Timer",
    "Worker",
]

MAX_FORCED_BYTES = 512
"""So far ahead do matchers look: more than a step's drafts hold."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Clock(Protocol):
    """Where time comes from: monotonic seconds."""

    def now(self) -> float: ...


class Timer(Clock, Protocol):
    """A clock that one can wait by."""

    def pause(self, seconds: float) -> None: ...


class CacheLock(Protocol):
    """A hold on cached pages; ``num_pages`` of the sequence's page table belong to the cache."""

    @property
    def num_pages(self) -> int: ...


class NotReady(Exception):
    """A mask or a token needs more than a step may wait for. Nothing is wrong or changed: ask again in a later step."""


class Matcher(Protocol):
    """Where one sequence stands in its grammar: a function of the grammar and of the tokens it has accepted, and of nothing else.

    ``fill_mask`` and ``accept`` may raise, ``GrammarError`` where the grammar is too much for what has come; the matcher is of no
    use then, until ``rollback`` takes it back to where it was good. Both may raise ``NotReady`` as well, which changes
    nothing. To look ahead changes nothing of what comes after.
    """

    @property
    def num_words(self) -> int:
        """Length of a mask in words of 32 tokens."""
        ...

    @property
    def is_accepting(self) -> bool:
        """Whether the output may end here."""
        ...

    @property
    def is_finished(self) -> bool:
        """Whether the output must end here: the grammar accepts it and nothing can follow."""
        ...

    def fill_mask(self, row: UInt32) -> None:
        """Set bit i % 32 of word i // 32 of ``row``, uint32[num_words], where token i may come next, and clear the others.

        An id that ends the output may come exactly where the grammar accepts; one that names no token never may.
        """
        ...

    def accept(self, token_id: int) -> None:
        """Go on by a token that the mask allowed and that does not end the output."""
        ...

    def validate(self, token_ids: list[int]) -> int:
        """How many of these tokens, from the first on, could be accepted one after another. Changes nothing."""
        ...

    def forced_bytes(self) -> bytes:
        """What every text that can come from here begins with, up to ``MAX_FORCED_BYTES``; empty where there is more than one
        way on, or it is not looked for. Changes nothing.

        It may stop short of all that is forced, and may be cut inside a character.
        """
        ...

    def rollback(self, num_tokens: int) -> None:
        """Take the last ``num_tokens`` back."""
        ...

    def fork(self) -> Matcher:
        """Another one at the same place."""
        ...


class Draft(NamedTuple):
    """A guess. ``likelihood``, between 0 and 1: how likely it is that it comes, and all those before it."""

    token_id: int
    likelihood: float


class Drafter(Protocol):
    """Guesses how one sequence goes on, for the model to verify. A good guess saves steps; a bad one costs rows, and no more."""

    def propose(self, most: int, least: float) -> list[Draft]:
        """Up to ``most`` tokens that may come next, as far as they are as likely as ``least`` to come all.

        Those of a sequence with a grammar can be accepted one after another. Not all of them may be verified.
        """
        ...

    def learn(self, num_proposed: int, token_ids: list[int]) -> None:
        """What came: a step verified that many proposed tokens, and the sequence went on by these, which it has by now."""
        ...


class Pending(Protocol[T_co]):
    """Something that is being made, perhaps on another thread."""

    def done(self) -> bool: ...

    def wait(self, seconds: float) -> None:
        """Until it is done, or for so long."""
        ...

    def result(self) -> T_co:
        """It, once it is done, or what its making raised."""
        ...


class Worker(Protocol):
    """Does what it is given, one after another."""

    def start(self, work: Callable[[], T]) -> Pending[T]: ...


class Grammars(Protocol):
    """Makes matchers, elsewhere where that takes long."""

    def check(self, spec: GrammarSpec) -> None:
        """Raise ``GrammarError`` where an output cannot be held to ``spec``; else it is known from now on."""
        ...

    def matcher(self, spec: GrammarSpec, stop_ids: frozenset[int]) -> Pending[Matcher]:
        """One at the start of ``spec``, done at once where that is known; ``stop_ids`` end the output.

        ``GrammarError`` is raised, or set, where the constraint cannot be kept to.
        """
        ...


class Runner(Protocol):
    """Computes batches. ``launch`` starts a step, ``collect`` waits for the oldest launched one and gives its result.

    ``masks`` uint32[M, W] are those of the rows that the batch's ``mask_indptr`` names: they can be made between the two. Until
    then nothing that the batch reads or writes may be given to anyone else. ``launch`` does the batch's page copies first. Raises
    ``EngineDead`` only; a fault of one row is reported in ``StepOutput.errors``.
    """

    def launch(self, batch: Batch) -> None: ...

    def collect(self, masks: UInt32 = NO_MASKS) -> StepOutput: ...
