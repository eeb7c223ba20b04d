"""A sequence whose lexer is full, and the next one not made yet: it waits, and the steps of others do not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pytest
from support.engines import EOS_IDS, Bench
from test_engine import PIECE_TABLE
from test_jump import jumping

from ramet.core.grammar import GrammarSpec
from ramet.core.ports import NotReady
from ramet.structured import guides
from ramet.structured.compiler import GrammarCompiler
from ramet.structured.guides import Guide

T = TypeVar("T")
HUNGRY = "start: /[abef]*a[abef]{12}/"  # a state for what each of the last 13 characters was


class _Late:
    """``Pending`` that is there once it has been asked for so often."""

    def __init__(self, work: Callable[[], Any], num_asked: int) -> None:
        self._work, self._left = work, num_asked

    def done(self) -> bool:
        self._left -= 1
        return self._left < 0

    def wait(self, seconds: float) -> None:
        pass

    def result(self) -> Any:
        return self._work()


class _Slow:
    def __init__(self, num_asked: int) -> None:
        self._num_asked = num_asked

    def start(self, work: Callable[[], T]) -> _Late:
        return _Late(work, self._num_asked)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[Guide]:
    """Few states, and each time that a successor was not ready."""
    monkeypatch.setattr("ramet.structured.compiler.LIMITS", {**guides.LIMITS, "max_lexer_states": 400})
    found: list[Guide] = []
    successor = Guide.successor

    def counting(guide: Guide) -> Any:
        try:
            return successor(guide)
        except NotReady:
            found.append(guide)
            raise

    monkeypatch.setattr(Guide, "successor", counting)
    return found


HELD: dict[str, Any] = {"max_tokens": 60, "ignore_eos": True, "structured_outputs": {"grammar": HUNGRY}}


def answers(one: Bench) -> list[object]:
    ids = [one.submit([5, 6, i], seed=i, logprobs=2, n=1 + i % 2, **HELD) for i in range(7)]
    one.run()
    one.check_idle()
    return [one.answers[i, k].result for i in ids for k in range(one.requests[i].sampling.n)]


def slow(num_asked: int, grammar: str = HUNGRY) -> GrammarCompiler:
    """It has the grammar, and is slow with all else."""
    compiler = GrammarCompiler(PIECE_TABLE)
    compiler.check(GrammarSpec("grammar", grammar))
    compiler._worker, compiler._prepares = _Slow(num_asked), True
    return compiler


def test_what_waits_for_a_lexer_has_the_same_bits(waits: list[Guide]) -> None:
    at_once = answers(jumping(grammars=GrammarCompiler(PIECE_TABLE)))
    assert not waits
    assert answers(jumping(grammars=slow(4))) == at_once
    assert len(waits) > 10


def test_no_step_waits_for_a_lexer(waits: list[Guide]) -> None:
    one = Bench(grammars=slow(10**6))
    plain = one.submit([5, 9], seed=1, max_tokens=100, ignore_eos=True)
    hungry = [one.submit([5, 6, i], seed=i, **HELD) for i in range(7)]
    for _ in range(101):
        one.step()
    assert len(one.answers[plain, 0].token_ids) == 100
    assert waits
    assert any(one.answers[i, 0].finish_reason is None for i in hungry), "it waits still"
    for i in hungry:
        one.engine.abort(i)
    one.run()
    one.check_idle()


def test_the_engine_pauses_where_nobody_else_has_work(waits: list[Guide]) -> None:
    pauses: list[float] = []
    one = Bench(grammars=slow(10**6))
    one.clock.pause = pauses.append  # type: ignore[method-assign]
    plain = one.submit([5, 9], seed=1, max_tokens=100, ignore_eos=True)
    hungry = [one.submit([5, 6, i], seed=i, **HELD) for i in range(7)]
    while one.answers[plain, 0].finish_reason is None:
        one.step()
    assert waits
    assert not pauses
    while not pauses:  # until all that can go on have ended
        one.step()
    assert 0 < pauses[0] < 0.01, "what comes meanwhile is not to wait for long"
    for i in hungry:
        one.engine.abort(i)
    one.run()
    one.check_idle()
    assert len(pauses) == 1


def test_what_comes_while_one_waits_is_not_lost(waits: list[Guide]) -> None:
    """Tokens, copies and steps back; the mask that comes in the end is that of one that never waited."""
    ends = frozenset(EOS_IDS)
    spec = GrammarSpec("grammar", HUNGRY)
    late, prompt = slow(2), GrammarCompiler(PIECE_TABLE)
    rng = np.random.default_rng(0)
    letters = [PIECE_TABLE.pieces.index(one) for one in (b"a", b"b", b"e", b"f")]
    for _ in range(30):
        one, other = (compiler.matcher(spec, ends).result() for compiler in (late, prompt))
        row, wanted = (np.zeros(one.num_words, np.uint32) for _ in range(2))
        for token_id in rng.choice(letters, 40).tolist():
            one.accept(token_id)
            other.accept(token_id)
            other.fill_mask(wanted)
            if not _is_ready(partial(one.fill_mask, row)):
                one = one.fork()
                one.rollback(1)
                one.accept(token_id)
        while not _is_ready(partial(one.fill_mask, row)):
            assert not one.is_finished
        assert row.tolist() == wanted.tolist()
    assert waits


def test_the_last_token_is_known_as_the_last_one(waits: list[Guide]) -> None:
    """Where a lexer is full at the very token that completes an answer, the token waits, and no other one comes behind it."""
    ends = frozenset(EOS_IDS)
    spec = GrammarSpec("grammar", "start: /[abef]*a[abef]{12} /")
    late, prompt = slow(1, spec.text), GrammarCompiler(PIECE_TABLE)
    rng = np.random.default_rng(24)  # its 24th text fills the lexer at its last token
    a, space = (PIECE_TABLE.pieces.index(one) for one in (b"a", b" "))
    letters = [PIECE_TABLE.pieces.index(one) for one in (b"a", b"b", b"e", b"f")]
    for _ in range(24):
        one, other = (compiler.matcher(spec, ends).result() for compiler in (late, prompt))
        text = rng.choice(letters, rng.integers(13, 40)).tolist()
        text[-13] = a
        for token_id in [*text, space]:
            other.accept(token_id)
            while not _is_ready(partial(one.accept, token_id)):
                pass
            assert one.is_finished == other.is_finished
    assert waits


def _is_ready(do: Callable[[], None]) -> bool:
    try:
        do()
    except NotReady:
        return False
    return True
