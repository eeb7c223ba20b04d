"""Guesses that a step verifies: they change how soon an answer is there, and nothing else."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from support.engines import VOCAB_SIZE, Bench, ColdAnswers
from support.oracle import Oracle, oracles

from ramet.core.ports import Draft
from ramet.core.request import Sequence
from ramet.schedule.drafts import NO_DRAFTS, Drafters

PROBES: list[dict[str, Any]] = [
    {"temperature": 0, "max_tokens": 20, "logprobs": 2, "ignore_eos": True},
    {"temperature": 0.9, "seed": 3, "max_tokens": 25, "n": 3},
    {"temperature": 0.8, "seed": 4, "max_tokens": 20, "frequency_penalty": 1.5, "repetition_penalty": 1.3, "ignore_eos": True},
    {"temperature": 1.0, "seed": 5, "max_tokens": 30, "min_tokens": 12, "stop_token_ids": [7, 8, 9, 10, 11]},
    {"temperature": 0, "max_tokens": 1, "prompt_logprobs": 1},
    {"temperature": 0, "max_tokens": 2, "ignore_eos": True},
    {"temperature": 0, "max_tokens": 0},
]
PROMPTS = [[5, 6, 7, 8, 9, 10 + i, *range(20, 20 + i)] for i in range(len(PROBES))]


def guessing(**changes: Any) -> Bench:
    return Bench(**{"drafters": oracles(ColdAnswers(), VOCAB_SIZE), "num_pages": 200} | changes)


@pytest.mark.parametrize("cell", [{}, {"cache": "null", "page_size": 1, "num_pages": 600}, {"chunked_prefill_size": 3}])
def test_answers_are_those_without_guesses(cell: dict[str, Any]) -> None:
    bench = guessing(**cell)
    for prompt, probe in zip(PROMPTS, PROBES, strict=True):
        bench.submit(prompt, **probe)
    bench.run()
    bench.check_idle()
    bench.check_against_cold()
    stats = bench.engine.stats().scheduler
    assert stats.num_steps < 30, "without guesses the longest answer alone takes more"
    assert 0 < stats.num_accepted_draft_tokens < stats.num_draft_tokens
    told = sum(len(answer.token_ids) for answer in bench.answers.values())
    assert stats.num_output_tokens == told


def test_several_tokens_come_in_one_update_with_their_logprobs() -> None:
    bench = guessing()
    request_id = bench.submit([5, 6, 7], temperature=0, max_tokens=12, logprobs=1, ignore_eos=True)
    updates = []
    while bench.engine.has_work:
        updates += [update for update in bench.step() if update.new_token_ids]
    assert max(len(update.new_token_ids) for update in updates) > 1
    assert all(len(update.logprobs) == len(update.new_token_ids) for update in updates)
    assert len(bench.answers[request_id, 0].token_ids) == 12


def test_guesses_take_only_what_is_left_of_a_step() -> None:
    bench = guessing(max_batch_tokens=8, max_running_seqs=6)
    for i in range(6):
        bench.submit([5, 6, 7, i + 20], temperature=0, max_tokens=20, ignore_eos=True)
    most = 0
    while bench.engine.has_work:
        bench.engine.begin_step()
        most = max([most, *(batch.num_tokens for batch in bench.runner.launched)])
        bench.finish_step()
    assert most == 8
    bench.check_against_cold()


def test_a_guess_is_verified_where_it_is_worth_its_row() -> None:
    """Unlikely ones beside few rows, where they cost next to nothing; beside many likely ones alone, and these fill a block."""

    answers = ColdAnswers()

    class One(Oracle):
        def __init__(self, likelihood: float, seq: Sequence) -> None:
            super().__init__(seq, answers(seq), VOCAB_SIZE)
            self._likelihood = likelihood

        def propose(self, most: int, least: float) -> list[Draft]:
            return [draft._replace(likelihood=self._likelihood) for draft in super().propose(most, least)[:1]]

    num_rows = []
    for num_seqs, likelihood in [(1, 0.1), (12, 0.3), (12, 0.97)]:
        make = partial(One, likelihood)
        bench = Bench(drafters=Drafters(make), num_pages=400, max_running_seqs=16)
        for i in range(num_seqs):
            bench.submit([5, 6, 7, i + 20], temperature=0, max_tokens=8, ignore_eos=True)
        bench.step()
        sizes = []
        while bench.engine.has_work:
            bench.engine.begin_step()
            sizes += [batch.num_tokens for batch in bench.runner.launched]
            bench.finish_step()
        num_rows.append(max(sizes))
    assert num_rows == [2, 12, 16]


def test_nobody_is_preempted_for_a_guess() -> None:
    """The pool holds exactly what two answers need; with guesses of five tokens each it would be over-full now and then."""
    bench = guessing(page_size=1, num_pages=2 * 24, cache="null")
    for i in range(2):
        bench.submit([5, 6, 7, i + 20], temperature=0, max_tokens=20, ignore_eos=True)
    bench.run()
    assert bench.engine.stats().scheduler.num_preemptions == 0
    bench.check_against_cold()


def test_guesses_that_fail_leave_no_pages_behind() -> None:
    """As many are preempted as without guesses, which in a pool so small would else find it empty a step too early."""

    class Wrong(Oracle):
        def propose(self, most: int, least: float) -> list[Draft]:
            return [Draft((token_id + 1) % VOCAB_SIZE, likelihood) for token_id, likelihood in super().propose(most, least)]

    for num_pages in range(32, 62, 10):
        counts = []
        answers = ColdAnswers()
        for drafters in (NO_DRAFTS, Drafters(lambda seq: Wrong(seq, answers(seq), VOCAB_SIZE))):  # noqa: B023
            bench = Bench(drafters=drafters, page_size=1, num_pages=num_pages, cache="null")
            for i in range(3):
                bench.submit([5, 6, 7, i + 20], temperature=0, max_tokens=18 - i, ignore_eos=True)
            while bench.engine.has_work:
                bench.step()
                for seq in bench.scheduler.sequences:
                    assert len(seq.pages) <= len(seq.tokens)
            counts.append(bench.engine.stats().scheduler.num_preemptions)
            bench.check_idle()
        assert counts[0] == counts[1], num_pages


def test_an_aborted_sequence_tells_nothing_of_a_step_with_guesses() -> None:
    bench = guessing()
    request_id = bench.submit([5, 6, 7], temperature=0, max_tokens=30, ignore_eos=True)
    for _ in range(3):
        bench.step()
    before = len(bench.answers[request_id, 0].token_ids)
    bench.engine.begin_step()
    bench.engine.abort(request_id)
    bench.finish_step()
    assert len(bench.answers[request_id, 0].token_ids) == before
    bench.check_idle()


class _Broken(Oracle):
    def __init__(self, seq: Sequence, method: str) -> None:
        super().__init__(seq, [5] * 99, VOCAB_SIZE)
        self._method = method

    def propose(self, most: int, least: float) -> list[Draft]:
        if self._method == "propose":
            raise RuntimeError("no idea")
        return super().propose(most, least)

    def learn(self, num_proposed: int, token_ids: list[int]) -> None:
        if self._method == "learn":
            raise RuntimeError("no idea")


@pytest.mark.parametrize("method", ["propose", "learn"])
def test_a_fault_of_a_drafter_is_its_own_sequences(method: str) -> None:
    bench = Bench(drafters=Drafters(lambda seq: _Broken(seq, method) if seq.request.request_id == "bad" else None))
    bad = bench.submit([5, 6, 7], request_id="bad", max_tokens=9)
    good = bench.submit([5, 6, 8], max_tokens=9, ignore_eos=True)
    bench.run()
    assert bench.answers[bad, 0].finish_reason == "error"
    assert "no idea" in str(bench.answers[bad, 0].error)
    assert bench.answers[good, 0].finish_reason == "length"
    bench.check_idle()


def test_a_row_that_fails_behind_guesses_ends_the_sequence_there() -> None:
    """The tokens before it are told; without guesses the same ones would be."""
    told = []
    for drafters in (oracles(ColdAnswers(), VOCAB_SIZE), NO_DRAFTS):
        bench = Bench(drafters=drafters, faults=lambda batch: dict.fromkeys(_rows_at(batch, 15), "boom"))
        request_id = bench.submit([5, 6, 7], temperature=0, max_tokens=30, ignore_eos=True)
        bench.run()
        answer = bench.answers[request_id, 0]
        assert (answer.finish_reason, answer.error) == ("error", "boom")
        told.append(answer.token_ids)
        bench.check_idle()
    assert told[0] == told[1]
    assert len(told[0]) == 13


def _rows_at(batch: Any, position: int) -> list[int]:
    """The sampled rows of a position."""
    return [row for row, at in enumerate(batch.positions[batch.sample_rows].tolist()) if at == position]
