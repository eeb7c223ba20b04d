"""Lexers that sequences share: whether an answer is too much for its grammar is its own affair."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from byte_grammars import EOS, TABLE

from ramet.core.grammar import GrammarSpec
from ramet.core.ports import Matcher
from ramet.engine.worker import WorkerThread
from ramet.errors import GrammarError
from ramet.structured import guides
from ramet.structured.compiler import GrammarCompiler
from ramet.structured.digits import NoWatch
from ramet.structured.guides import Guide
from ramet.structured.matcher import GuidanceMatcher

HUNGRY = GrammarSpec("grammar", "start: /(a|b)*a(a|b){12}/")  # a state for what each of the last 13 characters was
A, B = b"ab"


@pytest.fixture
def few_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramet.structured.compiler.LIMITS", {**guides.LIMITS, "max_lexer_states": 400})


def written(one: Matcher, token_ids: list[int]) -> Iterator[list[int]]:
    """The masks of an output, for as long as it goes well."""
    row = np.zeros(one.num_words, np.uint32)
    for token_id in token_ids:
        try:
            one.fill_mask(row)
            one.accept(token_id)
        except GrammarError:
            return
        yield row.tolist()


@pytest.mark.usefixtures("few_states")
def test_what_others_wrote_and_what_was_looked_at_ends_no_answer() -> None:
    """Thirty answers of 200 tokens take 400 states many times over; each has the masks that it has alone."""
    rng = np.random.default_rng(0)
    texts = [rng.choice([A, B], 200).tolist() for _ in range(30)]
    alone = [list(written(GrammarCompiler(TABLE).matcher(HUNGRY, frozenset({EOS})).result(), text)) for text in texts[:4]]
    assert [len(masks) for masks in alone] == [200] * 4
    crowd = GrammarCompiler(TABLE)
    ones = [crowd.matcher(HUNGRY, frozenset({EOS})).result() for _ in texts]
    looking = [one.fork() for one in ones[:4]]
    masks = [list(written(one, text)) for one, text in zip(ones, texts, strict=True)]
    assert masks[:4] == alone
    for one, text, wanted in zip(looking, texts, alone, strict=False):
        found = []
        for place in range(0, 200, 10):
            one.validate(rng.choice([A, B], 60).tolist())
            one.forced_bytes()
            found += written(one, text[place : place + 10])
        assert found == wanted
        one.rollback(150)
        assert list(written(one, text[50:])) == wanted[50:]


def test_what_is_too_much_for_a_lexer_of_its_own_is_an_error_wherever_it_is_met(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramet.structured.compiler.LIMITS", {**guides.LIMITS, "max_lexer_states": 60})
    spec = GrammarSpec.of({"json": {"enum": ["y" * 40, "x" * 400]}})
    lengths = set()
    for num_before in range(3):
        compiler = GrammarCompiler(TABLE)
        for _ in range(num_before):
            list(written(compiler.matcher(spec, frozenset({EOS})).result(), [ord('"'), *b"y" * 40]))
        one = compiler.matcher(spec, frozenset({EOS})).result()
        lengths.add(len(list(written(one, [ord('"'), *b"x" * 400]))))
        with pytest.raises(GrammarError, match="too many states"):
            one.fill_mask(np.zeros(one.num_words, np.uint32))
    assert len(lengths) == 1
    assert 40 < lengths.pop() < 80


def test_the_next_guide_is_made_by_the_worker_before_it_is_needed() -> None:
    compiler = GrammarCompiler(TABLE)
    threads = []

    def make() -> object:
        threads.append(threading.current_thread())
        return compiler._new_root('start: "ab"\n')

    guide = Guide(make)  # type: ignore[arg-type]
    worker = WorkerThread("test-guides")
    guide.prepare(worker)
    first = guide.root
    one = GuidanceMatcher(guide, compiler._unending, ~compiler._unending, NoWatch())
    worker.start(int).result()  # which comes behind it
    assert guide.successor() is guide.root is not first
    one.accept(A)
    assert one.fork().forced_bytes() == b"b"
    worker.start(int).result()
    assert guide.successor() is not first
    assert [thread is threading.main_thread() for thread in threads[:3]] == [True, False, False]
