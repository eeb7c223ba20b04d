"""What the grammars allow in a step: one mask for each sampled row of a sequence that has one."""

from __future__ import annotations

import numpy as np

from ramet.core.batch import NO_MASKS
from ramet.core.ids import UInt32
from ramet.core.output import NOT_HELD
from ramet.core.ports import Matcher, NotReady
from ramet.core.request import Sequence
from ramet.errors import GrammarError, shown
from ramet.schedule.build import Chunk

__all__ = ["NOT_READY", "accept_token", "fill_masks"]

NOT_READY = "the mask is not ready"


def fill_masks(chunks: list[Chunk]) -> tuple[UInt32, dict[int, str]]:
    """Ask the matchers of the sequences whose next tokens are chosen, behind each of their drafts too.

    Returns masks uint32[M, W] of the rows that have one, and what matchers failed of, by sampled row; such a row's mask is empty,
    and its sequence ends there: a fault of one matcher is its own sequence's alone. A mask that takes longer than a step may wait
    for is ``NOT_READY``: the sequence goes that far and no further. ``chunks`` are those that sample.
    """
    asked = [(chunk, chunk.sequence.matcher) for chunk in chunks if chunk.sequence.matcher is not None]
    if not asked:
        return NO_MASKS, {}
    words = np.zeros((sum(len(chunk.drafts) + 1 for chunk, _ in asked), asked[0][1].num_words), np.uint32)
    errors = {}
    row = used = 0
    for chunk in chunks:
        count = len(chunk.drafts) + 1
        if chunk.sequence.matcher is not None:
            fault = _fill(chunk.sequence.matcher, chunk.drafts, words[used : used + count])
            if fault is not None:
                errors[row + fault[0]] = fault[1]
            used += count
        row += count
    return words, errors


def _fill(matcher: Matcher, drafts: tuple[int, ...], words: UInt32) -> tuple[int, str] | None:
    """The masks before and behind each draft, for as long as the output goes on; the matcher stays where it is.

    What goes wrong is told with the row where it did: that mask is empty, as those behind it are. Behind a draft it may not
    come to that, so the matcher is taken back all the same, and the rows before it are good.
    """
    fault = None
    row = ahead = 0
    try:
        matcher.fill_mask(words[0])
        for row, token_id in enumerate(drafts, start=1):
            matcher.accept(token_id)
            ahead = row
            if matcher.is_finished:  # the last token of all was guessed: nothing is chosen behind it
                break
            matcher.fill_mask(words[row])
    except Exception as error:  # whatever it is, it must not reach the batch mates
        words[row:] = 0
        fault = row, _fault(error)
    try:
        if row:
            matcher.rollback(ahead)
    except Exception as error:
        words[:] = 0
        fault = 0, _fault(error)
    return fault


def accept_token(seq: Sequence, token_id: int) -> tuple[bool, str | None]:
    """Go on in a sequence's grammar by a token of text: whether that completes the output, and what went wrong, if anything."""
    if seq.matcher is None:
        return False, None
    try:
        seq.matcher.accept(token_id)
        return seq.matcher.is_finished, None
    except Exception as error:  # whatever it is, it must not reach the batch mates
        return False, _fault(error)


def _fault(error: Exception) -> str:
    if isinstance(error, NotReady):
        return NOT_READY
    return f"{NOT_HELD}: {error}" if isinstance(error, GrammarError) else f"a defect met its grammar: {shown(str(error), 300)}"
