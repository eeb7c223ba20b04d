"""Faults of prefix caches seen in the field (section 1 of the fault list), replayed on the whole engine."""

from __future__ import annotations

import pytest
from support.engines import CACHES, Bench, cold

from ramet.core.request import Namespace
from ramet.core.sampling import SamplingParams

GREEDY = {"temperature": 0.0, "ignore_eos": True}


def test_b001_a_page_used_again_forgets_what_it_held() -> None:
    bench = Bench(page_size=4, num_pages=4)
    first = bench.answer(list(range(1, 9)), max_tokens=1, **GREEDY)
    bench.answer(list(range(20, 35)), max_tokens=1, **GREEDY)
    again = bench.answer(list(range(1, 9)), max_tokens=1, **GREEDY)
    assert again.num_cached_tokens == 0
    assert again.result == first.result


@pytest.mark.parametrize("cache", ["radix", "hashed"])
def test_b004_a_prompt_shorter_than_what_is_cached(cache: str) -> None:
    bench = Bench(cache=cache)
    prompt = list(range(10, 27))
    bench.answer([*prompt, 40, 40, 40, 40, 40, 40], max_tokens=4, **GREEDY)
    shorter = bench.answer(prompt, max_tokens=4, **GREEDY)
    assert shorter.num_cached_tokens == 16
    bench.check_against_cold()


@pytest.mark.parametrize("cache", ["radix", "hashed"])
def test_b005_a_full_hit_keeps_the_chain(cache: str) -> None:
    bench = Bench(cache=cache, page_size=4)
    prompt = list(range(10, 22))
    cached = [bench.answer(p, max_tokens=1, **GREEDY).num_cached_tokens for p in (prompt, prompt, prompt + list(range(30, 38)))]
    assert cached == [0, 11, 12], "all but the last token, which is always computed; then the whole of it"
    bench.check_against_cold()


@pytest.mark.parametrize("cache", ["radix", "hashed"])
def test_b007_nothing_is_matched_before_the_step_that_fills_it_is_done(cache: str) -> None:
    bench = Bench(cache=cache)
    prompt = list(range(10, 30))
    first = bench.submit(prompt, max_tokens=2, **GREEDY)
    bench.engine.begin_step()
    second = bench.submit(prompt, max_tokens=2, **GREEDY)
    assert bench.kv.peek(bench.scheduler.sequences[1]) == 0, "launched, not computed"
    bench.engine.abort(first)
    bench.finish_step()
    assert bench.kv.peek(bench.scheduler.sequences[0]) >= 16, "computed"
    bench.run()
    assert bench.answers[second, 0].num_cached_tokens >= 16
    bench.check_against_cold()


@pytest.mark.parametrize("cache", ["radix", "hashed"])
def test_b008_abort_between_chunks_leaves_no_page_with_two_owners(cache: str) -> None:
    bench = Bench(cache=cache, page_size=4, num_pages=20, chunked_prefill_size=16)
    prompt = [5 + i % 40 for i in range(48)]
    aborted = bench.submit(prompt, max_tokens=4, **GREEDY)
    bench.step()
    bench.step()
    bench.engine.abort(aborted)
    for seed in range(3):
        bench.answer([20 + seed] * 40, max_tokens=3, **GREEDY)
    bench.answer(prompt, max_tokens=4, **GREEDY)
    bench.check_idle()
    bench.check_against_cold()


@pytest.mark.parametrize("cache", CACHES)
def test_b022_what_follows_a_stop_is_the_cold_run(cache: str) -> None:
    bench = Bench(cache=cache)
    for seed in range(4):
        bench.submit([7, 8, 9, 10, 11, 12, 20 + seed], stop_token_ids=[9, 12, 30, 31, 33], max_tokens=20, temperature=0.0)
    bench.run()
    for seed in range(4):
        bench.submit([7, 8, 9, 10, 11, 12, 20 + seed, 5], max_tokens=20, **GREEDY)
    bench.run()
    assert {answer.finish_reason for answer in bench.answers.values()} == {"stop", "length"}
    bench.check_against_cold()


def test_b034_admission_pins_what_it_matched_before_it_evicts() -> None:
    bench = Bench(page_size=4, num_pages=10)
    shared = list(range(10, 26))
    bench.answer(shared, max_tokens=1, **GREEDY)
    bench.answer([30] * 23, max_tokens=1, **GREEDY)  # the pool is full, and the shared pages are the oldest
    answer = bench.answer([*shared, *range(30, 50)], max_tokens=2, **GREEDY)
    assert answer.num_cached_tokens == 16
    bench.check_against_cold()


def test_the_output_is_reused_too() -> None:
    bench = Bench(page_size=4)
    prompt = list(range(10, 22))
    first = bench.answer(prompt, max_tokens=9, **GREEDY)
    turn = bench.answer([*prompt, *first.token_ids, 40, 41], max_tokens=4, **GREEDY)
    assert turn.num_cached_tokens == 20, "12 + 8; the last token of the output has no KV"
    bench.check_against_cold()


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("chunk", [1, 7, None])
def test_b019_b020_prompt_logprobs_do_not_depend_on_what_is_cached(cache: str, chunk: int | None) -> None:
    bench = Bench(cache=cache, page_size=16, chunked_prefill_size=chunk)
    prompt = [5 + i % 40 for i in range(33)]
    for tokens in (prompt, prompt, prompt + [9] * 5, prompt):
        request_id = bench.submit(tokens, max_tokens=2, prompt_logprobs=1, **GREEDY)
        bench.run()
        told = bench.prompt_logprobs[request_id]
        assert [one[0] for one in told] == tokens[1:], "position 0 has none"
        assert told == cold(bench.requests[request_id]).prompt_logprobs["request-0"]
    bench.check_against_cold()


def test_prompt_logprobs_are_told_once_whatever_n_and_preemption() -> None:
    bench = Bench(page_size=4, num_pages=20, chunked_prefill_size=5)
    for seed in range(2):
        bench.submit([6 + seed] * 20, n=2, max_tokens=20, prompt_logprobs=0, **GREEDY)
    bench.run()
    assert bench.engine.stats().scheduler.num_preemptions
    assert [len(told) for told in bench.prompt_logprobs.values()] == [19, 19]
    bench.check_against_cold()


def test_max_tokens_0_only_computes_the_prompt() -> None:
    bench = Bench()
    answer = bench.answer(list(range(10, 30)), max_tokens=0, temperature=0.0)
    assert (answer.token_ids, answer.finish_reason) == ([], "length")
    assert bench.answer(list(range(10, 30)), max_tokens=1, temperature=0.0).num_cached_tokens == 19


@pytest.mark.parametrize("cache", CACHES)
def test_tenants_share_nothing(cache: str) -> None:
    bench = Bench(cache=cache)
    cached = []
    for salt in ("one", "two", "one", ""):
        request_id = bench.engine.submit(
            list(range(10, 30)), SamplingParams(max_tokens=1, temperature=0.0), namespace=Namespace(salt=salt)
        )
        bench.run()
        cached.append(bench.answers[request_id, 0].num_cached_tokens > 0)
    assert cached == [False, False, cache != "null", False]


@pytest.mark.parametrize("num_steps", [0, 1, 2, 3, 4])
def test_prompt_logprobs_are_told_once_when_the_first_of_n_is_aborted(num_steps: int) -> None:
    bench = Bench(chunked_prefill_size=5)
    request_id = bench.submit(list(range(10, 30)), n=3, max_tokens=3, prompt_logprobs=0, **GREEDY)
    for _ in range(num_steps):
        bench.step()
    bench.engine.begin_step()
    bench.engine.abort_sequence(0)
    bench.finish_step()
    bench.run()
    assert len(bench.prompt_logprobs[request_id]) == 19
    bench.check_idle()
    bench.check_against_cold()
