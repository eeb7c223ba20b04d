"""What only might have come ends nothing: not the sequence that looked ahead, nor another one of the same grammar."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from byte_grammars import EOS, allowed, matcher

from ramet.core.output import NOT_HELD
from ramet.schedule.masks import fill_masks

ENDLESS = {"grammar": 'start: "a" start'}  # what is forced has no end: llguidance meets its limit of items
LONG = {"choice": ["a" * 150_000]}  # its limit of the lexer's states, which all sequences of a grammar share
A, B = ord("a"), ord("b")


@pytest.mark.parametrize("constraint", [ENDLESS, LONG], ids=["endless", "long"])
def test_a_limit_met_in_looking_ahead_ends_no_sequence(constraint: Any) -> None:
    one = matcher(constraint)
    for _ in range(3):
        one.forced_bytes()
        one.validate([A, A, A])
        assert allowed(one) == {A}
        one.accept(A)
    one.rollback(2)
    for other in (one.fork(), matcher(constraint)):
        assert allowed(other) == {A}
        other.accept(A)
        assert other.validate([B]) == 0
        assert allowed(other) == {A}


def test_a_dead_end_behind_a_guess_leaves_the_matcher_before_it() -> None:
    """``b`` ends the output, so nothing can follow ``a``: the token before that is a good one all the same."""
    one = matcher({"regex": "abc"}, frozenset({EOS, B}))
    chunk: Any = SimpleNamespace(sequence=SimpleNamespace(matcher=one), drafts=(A, B))
    masks, errors = fill_masks([chunk])
    assert [np.flatnonzero(row).tolist() for row in masks] == [[A // 32], [], []]
    assert list(errors) == [1]
    assert errors[1].startswith(NOT_HELD)
    assert allowed(one) == {A}
