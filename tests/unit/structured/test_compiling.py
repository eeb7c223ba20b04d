"""Grammars that take their time: whoever brings one waits alone."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from byte_grammars import EOS, TABLE
from test_engine import GRAMMARS, JSON, PIECE_TABLE, bench, text

from ramet.core.grammar import GrammarSpec
from ramet.core.ports import Matcher, Pending
from ramet.engine.worker import WorkerThread
from ramet.errors import EngineDead, GrammarError, Overloaded
from ramet.structured.compiler import GrammarCompiler

YES = {"choice": ["yes"]}


class Slow:
    """``Grammars`` whose matchers come when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[GrammarSpec, frozenset[int], Future[Matcher]]] = []

    def check(self, spec: GrammarSpec) -> None:
        GRAMMARS.check(spec)

    def matcher(self, spec: GrammarSpec, stop_ids: frozenset[int]) -> Pending[Matcher]:
        future: Future[Matcher] = Future()
        future.wait = lambda seconds: None  # type: ignore[attr-defined]
        self.asked.append((spec, stop_ids, future))
        return future  # type: ignore[return-value]

    def finish(self, number: int, error: Exception | None = None) -> None:
        spec, stop_ids, future = self.asked[number]
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(GRAMMARS.matcher(spec, stop_ids).result())


def test_others_go_on_while_a_grammar_is_compiled() -> None:
    """B046, B178: whoever waits for a grammar takes no place of those that run, and no time of theirs."""
    slow = Slow()
    one = bench(grammars=slow, max_running_seqs=2)
    one.submit([5, 8], structured_outputs=YES)
    waiting = one.submit([5, 6], seed=1, max_tokens=20, n=2, structured_outputs=YES)
    other = one.submit([5, 7], seed=1, max_tokens=20, ignore_eos=True)
    for _ in range(30):
        one.step()
    assert one.answers[other, 0].finish_reason == "length"
    assert one.answers[waiting, 0].finish_reason is None
    assert one.engine.has_work
    slow.finish(0, GrammarError("too large"))
    slow.finish(1)
    one.run()
    assert [text(one.answers[waiting, k].token_ids) for k in range(2)] == ["yes", "yes"]
    one.check_idle()


def test_a_grammar_that_fails_ends_its_request_alone() -> None:
    slow = Slow()
    one = bench(grammars=slow)
    bad = one.submit([5, 6], n=2, structured_outputs=YES)
    good = one.submit([5, 6], seed=1, max_tokens=20, structured_outputs=YES)
    slow.finish(0, GrammarError("the regex is no regex"))
    slow.finish(1)
    one.run()
    for k in range(2):
        assert one.answers[bad, k].finish_reason == "error"
        assert "no regex" in str(one.answers[bad, k].error)
    assert text(one.answers[good, 0].token_ids) == "yes"
    one.check_idle()


def test_an_abort_does_not_wait_for_the_grammar() -> None:
    """B049."""
    slow = Slow()
    one = bench(grammars=slow)
    whole = one.submit([5, 6], n=2, structured_outputs=YES)
    part = one.submit([5, 6], seed=1, n=2, max_tokens=20, structured_outputs=YES)
    one.engine.abort(whole)
    one.engine.abort_sequence(one.engine.seq_ids(part)[0])
    one.engine.abort_sequence(one.engine.seq_ids(part)[0])
    one.step()
    assert [one.answers[whole, k].finish_reason for k in range(2)] == ["abort", "abort"]
    assert one.answers[part, 0].finish_reason == "abort"
    slow.finish(0)
    slow.finish(1)
    one.run()
    assert text(one.answers[part, 1].token_ids) == "yes"
    one.check_idle()


def test_so_many_may_wait_and_no_more() -> None:
    slow = Slow()
    one = bench(grammars=slow)
    for _ in range(64):
        one.submit([5, 6], structured_outputs=YES)
    with pytest.raises(Overloaded, match="grammars"):
        one.submit([5, 6], structured_outputs=YES)
    one.submit([5, 6])  # who brings none does not wait for them
    assert one.engine.stats().num_open_requests == 65


def test_a_branch_with_a_new_grammar_keeps_nobody_waiting() -> None:
    slow = Slow()
    one = bench(grammars=slow)
    parent = one.submit([5, 6], seed=1, max_tokens=40, ignore_eos=True)
    for _ in range(4):
        one.step()
    answer = one.answers[parent, 0]
    branch = one.fork(one.engine.seq_ids(parent)[0], seed=3, max_tokens=20, structured_outputs=YES)
    for _ in range(50):
        one.step()
    assert answer.finish_reason == "length"
    slow.finish(0)
    one.run()
    assert text(one.answers[branch, 0].token_ids) == "yes"
    one.check_idle()


def test_one_that_is_done_while_others_are_looked_at_is_not_lost() -> None:
    slow = Slow()
    one = bench(grammars=slow)
    ids = [one.submit([5, 6 + i], seed=1, max_tokens=20, structured_outputs=YES) for i in range(2)]
    slow.finish(0)
    late = slow.asked[1][2]
    answers = iter([False])

    def done() -> bool:
        if next(answers, True):
            if not Future.done(late):
                slow.finish(1)
            return True
        return False

    late.done = done  # type: ignore[method-assign]
    one.run()
    assert [text(one.answers[one_id, 0].token_ids) for one_id in ids] == ["yes", "yes"]
    one.check_idle()


def test_the_end_of_the_engine_is_told_to_those_that_wait_for_a_grammar() -> None:
    def gone(batch: Any) -> dict[int, str]:
        raise RuntimeError("the device is gone")

    one = bench(grammars=Slow(), faults=gone)
    waiting = one.submit([5, 6], structured_outputs=YES)
    one.submit([5, 6], max_tokens=3)
    one.step()
    assert one.answers[waiting, 0].finish_reason == "error"
    with pytest.raises(EngineDead):
        one.engine.check_alive()


@pytest.fixture
def compiler() -> GrammarCompiler:
    return GrammarCompiler(TABLE, WorkerThread("test-grammars"))


def test_what_was_compiled_is_known_at_once_and_the_rest_comes_from_a_thread(compiler: GrammarCompiler) -> None:
    new = GrammarSpec("regex", "xyz{3}|new")
    first = compiler.matcher(new, frozenset({EOS}))
    first.wait(10)
    assert first.done()
    assert first.result().forced_bytes() == b""
    assert compiler.matcher(new, frozenset({EOS})).done()
    bad = GrammarSpec("regex", "a(")
    with pytest.raises(GrammarError):
        compiler.matcher(bad, frozenset()).result()
    with pytest.raises(GrammarError):
        compiler.check(bad)


def test_what_others_have_written_fails_nobody() -> None:
    """Of one guide all copies add states to one lexer, which holds 50,000: so none serves for ever."""
    compiler = GrammarCompiler(TABLE)
    words = [f"{i:03}" * 100 for i in range(220)]  # no two have an ending in common
    spec = GrammarSpec.of({"json": {"enum": words}})
    for word in words:
        one = compiler.matcher(spec, frozenset({EOS})).result()
        for char in f'"{word}"'.encode():
            one.accept(char)
        assert one.is_finished


def test_many_threads_may_ask_at_once(compiler: GrammarCompiler) -> None:
    specs = [GrammarSpec("regex", f"a{{{i % 9 + 1}}}") for i in range(60)]
    with ThreadPoolExecutor(6) as threads:
        assert [one.result() for one in [threads.submit(compiler.check, spec) for spec in specs]] == [None] * 60


def test_python_runs_on_while_a_large_schema_is_compiled(compiler: GrammarCompiler) -> None:
    """Compilation lets go of the interpreter: another thread is not kept from running for all of its time."""
    field = {"type": "array", "items": {"type": "string", "maxLength": 120}, "maxItems": 15}
    schema = {"type": "object", "properties": {f"p{i}": field for i in range(200)}, "additionalProperties": False}
    compiling = threading.Thread(target=compiler.check, args=(GrammarSpec.of({"json": schema}),))
    compiling.start()
    num_turns = 0
    while compiling.is_alive():
        num_turns += 1
        time.sleep(0.0002)
    compiling.join()
    assert num_turns > 3


def test_an_engine_with_a_thread_for_its_grammars() -> None:
    one = bench(grammars=GrammarCompiler(PIECE_TABLE, WorkerThread("test-grammars")))
    request_id = one.submit([5, 6], seed=2, max_tokens=60, structured_outputs=JSON)
    while not one.answers[request_id, 0].finish_reason:
        one.step()
    plain = bench()
    again = plain.submit([5, 6], seed=2, max_tokens=60, structured_outputs=JSON)
    plain.run()
    assert one.answers[request_id, 0].result == plain.answers[again, 0].result
