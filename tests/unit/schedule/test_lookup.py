"""Guesses from text that is there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support.engines import CACHES, Bench

from ramet.core.ids import IntBuffer
from ramet.core.ports import Draft
from ramet.core.request import Sequence
from ramet.schedule.drafts import Drafters
from ramet.schedule.lookup import BestGuess, PromptLookup


def sequence(tokens: list[int]) -> Sequence:
    return SimpleNamespace(tokens=IntBuffer(tokens), matcher=None)  # type: ignore[return-value]


def ids(drafts: list[Draft]) -> list[int]:
    return [draft.token_id for draft in drafts]


def nothing(seq: Sequence, num_tokens: int) -> list[int]:
    return []


def test_what_stood_behind_the_last_tokens_before_is_guessed() -> None:
    lookup = PromptLookup(sequence([1, 2, 3, 4, 5, 6, 1, 2, 3]), 8, nothing)
    assert ids(lookup.propose(3, 0.01)) == [4, 5, 6]
    assert ids(lookup.propose(1, 0.01)) == [4]
    assert PromptLookup(sequence([1, 2, 3, 4, 5, 6, 2, 3, 9]), 8, nothing).propose(3, 0.01) == []
    assert PromptLookup(sequence([1]), 8, nothing).propose(3, 0.01) == []


def test_the_newest_of_several_counts_and_new_tokens_are_seen() -> None:
    seq = sequence([1, 2, 3, 4, 1, 2, 3, 5, 7])
    lookup = PromptLookup(seq, 8, nothing)
    assert ids(lookup.propose(2, 0.01)) == []
    for token_id in (1, 2, 3):
        seq.tokens.append(token_id)
        lookup.propose(2, 0.01)
    assert ids(lookup.propose(2, 0.01)) == [5, 7]


def test_the_cache_is_followed_while_it_is_right() -> None:
    seq = sequence([1, 2])
    asked = []

    def continuation(seq: Sequence, num_tokens: int) -> list[int]:
        asked.append(len(seq.tokens))
        return [3, 4, 5, 6] if len(asked) == 1 else []

    lookup = PromptLookup(seq, 8, continuation)
    assert ids(lookup.propose(2, 0.01)) == [3, 4]
    for token_id in (3, 4):
        seq.tokens.append(token_id)
    assert ids(lookup.propose(9, 0.01)) == [5, 6]
    assert asked == [2], "it is not asked again for what it has told"
    seq.tokens.append(9)
    assert ids(lookup.propose(2, 0.01)) == []
    for _ in range(20):
        seq.tokens.append(9)
        lookup.propose(2, 0.01)
    assert asked == [2, 5, 21], "and seldom where it knows nothing"


def test_bad_guesses_become_few_and_come_back() -> None:
    lookup = PromptLookup(sequence([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]), 8, nothing)
    first = len(lookup.propose(8, 0.2))
    rests = []
    for _ in range(7):
        lookup.learn(1, [99])
        rests.append(0)
        while not (found := lookup.propose(8, 0.2)):
            rests[-1] += 1
    assert rests == [1, 3, 7, 15, 31, 31, 31]
    assert len(found) < first
    for _ in range(20):
        lookup.propose(8, 0.2)
        lookup.learn(4, [4, 5, 6, 7, 8])
    assert len(lookup.propose(8, 0.2)) > first


def test_a_guess_that_was_not_worth_its_row_teaches_too() -> None:
    lookup = PromptLookup(sequence([1, 2, 3, 4, 5, 1, 2, 3]), 8, nothing)
    trusts = [lookup.trusts[3]]
    for came in [4, 4, 9]:
        assert lookup.propose(8, 0.5)[0] == (4, lookup.trusts[3])
        lookup.learn(0, [came])
        trusts.append(lookup.trusts[3])
    assert trusts[0] < trusts[1] < trusts[2] > trusts[3]
    lookup.trusts[3] = 0.3
    assert lookup.propose(8, 0.5) == [], "too unlikely to be told"
    lookup.learn(0, [4])
    assert (taught := lookup.trusts[3]) > 0.3
    lookup.learn(0, [9])
    assert lookup.trusts[3] == taught, "and only once: in this step it was not asked"


def test_guesses_that_held_in_a_step_cut_short_have_held() -> None:
    lookup = PromptLookup(sequence([1, 2, 3, 4, 5, 1, 2, 3]), 8, nothing)
    before = lookup.trusts[3]
    assert ids(lookup.propose(2, 0.01)) == [4, 5]
    lookup.learn(2, [4])  # behind it the lexer was not ready
    assert lookup.trusts[3] > before
    assert lookup.propose(2, 0.01), "and there is no rest for it"


def test_two_tokens_that_agree_are_enough_and_three_are_better() -> None:
    lookup = PromptLookup(sequence([7, 2, 3, 5, 1, 2, 3, 4, 6, 9, 2, 3]), 8, nothing)
    lookup.trusts = {2: 0.5, 3: 0.8}
    assert lookup.propose(3, 0.01) == [(4, 0.5), (6, pytest.approx(0.4)), (9, pytest.approx(0.32))], (
        "behind a guess that holds three agree"
    )
    lookup.learn(3, [4, 8])
    assert lookup.trusts == {2: pytest.approx(0.55), 3: pytest.approx(0.72)}, "each is told of its own"
    again = PromptLookup(sequence([7, 2, 3, 5, 1, 2, 3, 4, 6, 7, 2, 3]), 8, nothing)
    assert ids(again.propose(1, 0.01)) == [5]
    again.learn(1, [4])
    assert again.trusts[3] < again.trusts[2] == 0.6


def test_a_step_that_gives_nothing_teaches_nothing() -> None:
    lookup = PromptLookup(sequence([1, 2, 3, 4, 1, 2, 3]), 8, nothing)
    drafts = lookup.propose(2, 0.01)
    lookup.learn(2, [])
    assert lookup.propose(2, 0.01) == drafts != []


def test_of_two_the_likelier_guesses_are_taken() -> None:
    first = PromptLookup(sequence([1]), 8, nothing)
    second = PromptLookup(sequence([1, 2, 3, 4, 1, 2, 3]), 8, nothing)
    both = BestGuess(first, second)
    assert ids(both.propose(1, 0.01)) == [4]
    before = first.trusts[3], second.trusts[3]
    both.learn(1, [9])
    assert (first.trusts[3], second.trusts[3] < before[1]) == (before[0], True)
    first, second = (PromptLookup(sequence([1, 2, 3, token_id, 5, 1, 2, 3]), 8, nothing) for token_id in (6, 7))
    both = BestGuess(first, second)
    assert ids(both.propose(2, 0.01)) == [6, 5], "of as many the first one's"
    second.trusts[3] = 0.7
    assert ids(both.propose(2, 0.01)) == [7, 5]
    both.learn(2, [7, 5, 1])
    assert second.trusts[3] > 0.7
    assert first.trusts[3] < 0.6, "its guess was wrong, though nobody took it"


@pytest.mark.parametrize("cache", CACHES)
def test_a_repeated_request_is_answered_from_the_cache_in_fewer_steps(cache: str) -> None:
    bench = Bench(cache=cache, num_pages=200)
    bench.scheduler.drafters = Drafters(lambda seq: PromptLookup(seq, 8, bench.kv.continuation))
    steps = []
    for _ in range(2):
        before = bench.engine.stats().scheduler.num_steps
        bench.submit([5, 6, 7, 8, 9], temperature=0.8, seed=3, max_tokens=60, ignore_eos=True)
        bench.run()
        steps.append(bench.engine.stats().scheduler.num_steps - before)
    bench.check_against_cold()
    if cache == "null":
        assert steps[1] == steps[0]
    else:
        assert steps[1] < steps[0] / 2


def test_a_long_prompt_is_looked_through_bit_by_bit() -> None:
    seq = sequence([7, 8, 9, 4, *range(100, 9_100), 7, 8, 9])
    lookup = PromptLookup(seq, 8, nothing)
    assert ids(lookup.propose(1, 0.01)) == [4]
    seq = sequence([*range(100, 9_100), 7, 8, 9, 4, 7, 8, 9])
    late = PromptLookup(seq, 8, nothing)
    assert [ids(late.propose(1, 0.01)) for _ in range(4)] == [[], [], [4], [4]]
