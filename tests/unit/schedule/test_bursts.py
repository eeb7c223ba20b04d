"""Requests that come together and begin alike: what they share is computed once, and nobody waits for less than that."""

from __future__ import annotations

import pytest
from support.engines import CACHES, Bench

ROOT = [7 + i % 40 for i in range(120)]
LONG = {"temperature": 0.9, "ignore_eos": True}


def burst(bench: Bench, count: int, **options: object) -> list[str]:
    return [bench.submit([*ROOT, 5 + i, 6, 7], max_tokens=4, seed=i, **LONG, **options) for i in range(count)]  # type: ignore[arg-type]


def computed(bench: Bench) -> int:
    return bench.engine.stats().scheduler.num_computed_tokens


def room(**options: object) -> Bench:
    return Bench(num_pages=800, page_size=4, chunked_prefill_size=16, max_batch_tokens=128, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("policy", ["fcfs", "longest-prefix"])
def test_the_common_part_of_a_burst_is_computed_once(cache: str, policy: str) -> None:
    bench = room(cache=cache, policy=policy)
    names = burst(bench, 16)
    bench.run()
    bench.check_idle()
    bench.check_against_cold()
    own = 16 * (3 + 3)  # the tails, and all output tokens but the last
    if cache == "null":
        assert computed(bench) == 16 * len(ROOT) + own
    else:
        assert computed(bench) == len(ROOT) + own
        assert [bench.answers[name, 0].num_cached_tokens for name in names] == [0] + [len(ROOT)] * 15


def test_whoever_shares_nothing_is_admitted_meanwhile() -> None:
    bench = room()
    burst(bench, 3)
    other = bench.submit([50 - 1 - i % 40 for i in range(100)], max_tokens=1, **LONG)
    bench.step()
    assert sum(seq.num_computed_tokens > 0 for seq in bench.scheduler.sequences) == 2
    while not bench.answers[other, 0].finish_reason:
        bench.step()
    assert computed(bench) < 2 * 128
    bench.run()
    bench.check_against_cold()


def test_little_in_common_is_not_waited_for() -> None:
    bench = room()
    for i in range(4):
        bench.submit([*ROOT[:60], *[10 + i] * 60], max_tokens=1, **LONG)
    bench.step()
    assert all(seq.num_computed_tokens == 16 for seq in bench.scheduler.sequences)
    bench.run()


def test_nobody_waits_for_one_that_ranks_behind() -> None:
    bench = room(max_running_seqs=2)
    low = bench.submit([*ROOT, 5], max_tokens=1, priority=-1, **LONG)
    bench.step()
    high = bench.submit([*ROOT, 6], max_tokens=1, priority=1, **LONG)
    bench.step()
    assert {seq.request.request_id for seq in bench.scheduler.sequences if seq.num_computed_tokens} == {low, high}
    bench.run()
    bench.check_against_cold()


def test_other_tenants_share_nothing_and_wait_for_nobody() -> None:
    from ramet.core.request import Namespace
    from ramet.core.sampling import SamplingParams

    bench = room()
    for salt in ("a", "b", "c"):
        bench.engine.submit([*ROOT, 5], SamplingParams(max_tokens=1), namespace=Namespace(salt=salt))
    bench.step()
    assert all(seq.num_computed_tokens == 16 for seq in bench.scheduler.sequences)
    bench.run()


@pytest.mark.parametrize("end", ["abort", "preempt"])
def test_when_the_first_is_gone_the_next_goes_ahead(end: str) -> None:
    bench = Bench(num_pages=36 if end == "preempt" else 800, page_size=4, chunked_prefill_size=16, max_batch_tokens=128)
    if end == "preempt":
        bench.submit([45] * 20, max_tokens=60, priority=1, **LONG)
        bench.step()
    first, *others = burst(bench, 5)
    for _ in range(3):
        bench.step()
    if end == "abort":
        bench.engine.abort(first)
    bench.run()
    bench.check_idle()
    bench.check_against_cold()
    assert all(bench.answers[name, 0].finish_reason == "length" for name in others)
    if end == "abort":
        assert computed(bench) <= len(ROOT) + 5 * 6 + 16


def test_prompt_logprobs_have_to_be_computed_and_are_not_held_back() -> None:
    bench = room()
    burst(bench, 3, prompt_logprobs=1)
    bench.step()
    assert all(seq.num_computed_tokens == 16 for seq in bench.scheduler.sequences)
    bench.run()
    bench.check_against_cold()


def test_a_burst_on_what_is_cached_waits_for_nobody() -> None:
    bench = room()
    bench.answer([*ROOT, 4], max_tokens=1, **LONG)
    before = computed(bench)
    burst(bench, 8)
    bench.step()
    assert computed(bench) == before + 8 * 3
    bench.run()


def test_a_chain_of_longer_and_longer_prompts_ends() -> None:
    bench = Bench(num_pages=800, page_size=4, chunked_prefill_size=16, max_batch_tokens=64, max_model_len=2000)
    long = [7 + (i * i) % 40 for i in range(1000)]
    names = [bench.submit(long[: 100 + 80 * i], max_tokens=2, seed=i, **LONG) for i in range(8)]
    bench.run()
    assert all(bench.answers[name, 0].finish_reason for name in names)
    bench.check_against_cold()
    assert computed(bench) < 1000, "each adds only what is new"
