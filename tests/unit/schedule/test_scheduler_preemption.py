"""What happens when the pool is short: who gives way, how often, and that nobody notices it in the answers."""

from __future__ import annotations

import numpy as np
import pytest
from support.engines import CACHES, Bench

from ramet.core.ids import IntBuffer
from ramet.core.request import Request, Sequence
from ramet.core.sampling import SamplingParams

LONG = {"ignore_eos": True, "temperature": 0.9}


def prompt(seed: int, length: int) -> list[int]:
    return [5 + (seed * 7 + i * (seed + 3)) % 40 for i in range(length)]


@pytest.mark.parametrize("cache", CACHES)
def test_b016_cached_tokens_are_fixed_at_first_admission(cache: str) -> None:
    bench = Bench(cache=cache, page_size=4, num_pages=20)
    for seed in range(2):
        bench.submit(prompt(seed, 20), max_tokens=30, **LONG)
    bench.run()
    assert bench.engine.stats().scheduler.num_preemptions >= 1
    for answer in bench.answers.values():
        assert answer.num_cached_tokens == 0
    bench.check_against_cold()


def test_b017_work_done_again_is_no_hit() -> None:
    bench = Bench(page_size=4, num_pages=24)
    for seed in range(40):
        bench.submit([5 + seed, *prompt(seed, 11)], max_tokens=20, **LONG)
    bench.run()
    stats = bench.engine.stats()
    assert stats.scheduler.num_preemptions > 0
    assert (stats.kv.num_query_tokens, stats.kv.num_hit_tokens) == (40 * 12, 0)
    bench.check_against_cold()


def test_b032_a_resumed_sequence_reads_what_it_left_in_the_cache() -> None:
    bench = Bench(page_size=16, num_pages=8)
    for seed in range(2):
        bench.submit(prompt(seed, 34), max_tokens=35, **LONG)
    cached_at_resume = []
    while bench.engine.has_work:
        waiting = [seq for seq in bench.scheduler.sequences if seq.num_preemptions and not len(seq.pages)]
        bench.engine.begin_step()
        cached_at_resume += [seq.num_computed_tokens for seq in waiting if len(seq.pages)]
        bench.finish_step()
    assert cached_at_resume
    assert min(cached_at_resume) >= 32, "what was not evicted is found again"
    bench.check_against_cold()


def test_b035_resume_matches_afresh_under_chunked_prefill() -> None:
    bench = Bench(page_size=4, num_pages=20, chunked_prefill_size=3)
    for seed in range(3):
        bench.submit(prompt(seed, 20), max_tokens=30, **LONG)
    bench.run()
    assert bench.engine.stats().scheduler.num_preemptions >= 1
    bench.check_idle()
    bench.check_against_cold()


def test_b055_each_running_sequence_is_visited_once_when_one_is_preempted() -> None:
    bench = Bench(page_size=1, num_pages=30)
    names = [bench.submit(prompt(seed, 4), max_tokens=20, **LONG) for seed in range(4)]
    while not bench.engine.stats().scheduler.num_preemptions:
        before = {seq.request.request_id: seq for seq in bench.scheduler.sequences}
        bench.engine.begin_step()
        in_flight = {name for name, seq in before.items() if seq.num_in_flight_tokens}
        preempted = {name for name, seq in before.items() if seq.num_preemptions}
        assert in_flight == set(names) - preempted
        assert all(before[name].num_in_flight_tokens == 1 for name in in_flight) or len(before[names[0]].tokens) == 4
        bench.finish_step()
    assert preempted == {names[-1]}
    bench.run()
    bench.check_against_cold()


def test_b056_a_preempted_sequence_stands_before_all_that_arrived_after_it() -> None:
    bench = Bench(page_size=4, num_pages=14)
    first = {bench.submit(prompt(seed, 8), max_tokens=30, **LONG) for seed in range(3)}
    resumed: set[str] = set()
    num_overtakable = 0
    for step in range(100):
        bench.clock.advance(0.001)
        bench.submit(prompt(step + 50, 4), max_tokens=2, **LONG)
        waiting = [seq for seq in bench.scheduler.sequences if not len(seq.pages)]
        bench.engine.begin_step()
        admitted = [seq for seq in waiting if len(seq.pages)]
        victims = [seq for seq in waiting if seq.num_preemptions and seq not in admitted]
        num_overtakable += len(victims)
        for victim in victims:
            assert all(seq.request.arrival_s <= victim.request.arrival_s for seq in admitted)
        resumed |= {seq.request.request_id for seq in admitted if seq.num_preemptions}
        bench.finish_step()
    assert num_overtakable > 10, "victims waited while later ones queued"
    assert resumed & first
    bench.run()
    bench.check_against_cold()


def test_b058_a_seeded_sequence_draws_the_same_after_preemption() -> None:
    bench = Bench(page_size=4, num_pages=22)
    for seed in range(2):
        bench.submit(prompt(seed, 10), max_tokens=60, seed=5, temperature=0.9, ignore_eos=True)
    bench.run()
    assert bench.engine.stats().scheduler.num_preemptions >= 1
    bench.check_against_cold()


def test_b059_output_stays_output_after_preemption() -> None:
    bench = Bench(page_size=4, num_pages=20)
    options = {"frequency_penalty": 1.5, "repetition_penalty": 1.3, "presence_penalty": 0.5, "max_tokens": 40}
    for seed in range(3):
        bench.submit(prompt(seed, 12), temperature=0, ignore_eos=True, **options)
    bench.run()
    assert bench.engine.stats().scheduler.num_preemptions >= 1
    assert [len(answer.token_ids) for answer in bench.answers.values()] == [40] * 3
    bench.check_against_cold()


def test_b061_preemptions_are_few_and_speed_comes_back() -> None:
    bench = Bench(page_size=4, num_pages=6 * 17)  # room for 6 of the 8 at full length
    for seed in range(8):
        bench.submit(prompt(seed, 8), max_tokens=60, **LONG)
    bench.run()
    stats = bench.engine.stats().scheduler
    assert 1 <= stats.num_preemptions <= 8
    assert stats.num_output_tokens == 8 * 60
    assert stats.num_steps <= 140  # 60 for the first ones and as much again for those that gave way
    bench.check_against_cold()


def test_victim_is_the_lowest_priority_then_the_latest() -> None:
    bench = Bench(page_size=1, num_pages=40)
    low = bench.submit(prompt(1, 6), max_tokens=30, priority=-1, **LONG)
    bench.submit(prompt(2, 6), max_tokens=30, **LONG)
    bench.submit(prompt(3, 6), max_tokens=30, priority=2, **LONG)
    while not bench.engine.stats().scheduler.num_preemptions:
        bench.step()
    (victim,) = [seq for seq in bench.scheduler.sequences if seq.num_preemptions]
    assert victim.request.request_id == low


def test_admission_leaves_a_spare_page_for_each_running_sequence() -> None:
    bench = Bench(page_size=4, num_pages=6)
    bench.submit(prompt(1, 8), max_tokens=4, **LONG)
    bench.submit(prompt(2, 8), max_tokens=4, **LONG)
    bench.submit(prompt(3, 8), max_tokens=4, **LONG)
    bench.step()
    # 2 pages each: the second leaves 2 >= 1 spare; the third would leave 0, and two run.
    assert bench.engine.stats().scheduler.num_running == 2
    bench.run()
    assert bench.engine.stats().scheduler.num_preemptions == 0


def test_a_lone_sequence_may_fill_the_pool() -> None:
    bench = Bench(page_size=4, num_pages=6)
    answer = bench.answer(prompt(1, 20), max_tokens=4, **LONG)
    assert len(answer.token_ids) == 4
    bench.check_against_cold()


def test_a_sequence_that_can_never_run_ends_with_an_error_and_blocks_nobody() -> None:
    bench = Bench(page_size=4, num_pages=6)
    too_long = np.array(prompt(1, 25), np.int32)
    request = Request("too long", too_long, SamplingParams(), seed=0, max_tokens=1)
    # The edge refuses it; this one comes past the edge.
    bench.scheduler.add([Sequence(99, request, tokens=IntBuffer(too_long), num_prompt_tokens=25)])
    bench.clock.advance(1.0)
    bench.submit(prompt(2, 8), max_tokens=2, **LONG)
    batch = bench.scheduler.schedule(0.0)
    assert batch is not None
    assert batch.seq_ids.tolist() == [0]
    started, news = bench.scheduler.take_news()
    assert (started.request_id, started.finish_reason) == ("request-0", None)
    assert (news.request_id, news.finish_reason) == ("too long", "error")
    assert "25 tokens do not fit" in str(news.error)
