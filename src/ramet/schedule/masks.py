"""What the grammars allow in a step: one mask for each sampled sequence that has one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ramet.core.ids import Int32, UInt32
from ramet.core.request import Sequence
from ramet.errors import shown

__all__ = ["TokenMasks", "accept_token", "fill_masks"]


@dataclass(frozen=True, slots=True, eq=False)
class TokenMasks:
    """Masks of R sampled rows in CSR form: ``indptr`` int32[R + 1], ``words`` uint32[M, W].

    ``errors`` maps a sampled row to what its matcher failed of; such a row's mask is empty, and its sequence ends.
    """

    indptr: Int32
    words: UInt32
    errors: Mapping[int, str]


def fill_masks(seqs: list[Sequence]) -> TokenMasks | None:
    """Ask the matchers of the sequences whose next token is chosen; None where none has one.

    A fault of one matcher is its own sequence's alone.
    """
    rows = [(row, seq.matcher) for row, seq in enumerate(seqs) if seq.matcher is not None]
    if not rows:
        return None
    indptr = np.zeros(len(seqs) + 1, np.int32)
    words = np.zeros((len(rows), rows[0][1].num_words), np.uint32)
    errors = {}
    for (row, matcher), mask in zip(rows, words, strict=True):
        indptr[row + 1] = 1
        try:
            matcher.fill_mask(mask)
        except Exception as error:  # whatever it is, it must not reach the batch mates
            mask[:] = 0
            errors[row] = _fault(error)
    return TokenMasks(indptr.cumsum(dtype=np.int32), words, errors)


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
    return f"the output could not be held to its grammar: {shown(str(error), 300)}"
