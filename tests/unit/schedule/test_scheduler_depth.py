"""Two launched steps in flight: what is in flight is data, and nothing of it is given away early."""

from __future__ import annotations

from collections import defaultdict

import pytest
from support.engines import CACHES, Bench

MIXED = {"temperature": 0.9, "ignore_eos": True}


def run_two_deep(bench: Bench, abort_at: dict[int, str]) -> list[int]:
    """Keep two steps launched where there is work; returns how many were in flight at each turn."""
    depths = []
    for turn in range(2000):
        if not bench.engine.has_work:
            return depths
        for _ in range(2 - len(bench.runner.launched)):
            bench.engine.begin_step()
        depths.append(len(bench.runner.launched))
        bench.audit()
        if turn in abort_at:
            bench.engine.abort(abort_at[turn])
            bench.audit()
        bench.finish_step()
    raise AssertionError("not done")


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_b043_b064_two_steps_in_flight_change_no_answer(cache: str, page_size: int) -> None:
    bench = Bench(
        cache=cache,
        page_size=page_size,
        num_pages=112 // page_size,
        chunked_prefill_size=5,
        max_batch_tokens=12,
        max_running_seqs=4,
    )
    for i in range(4):
        bench.submit([5 + i, *range(10, 22)], n=1 + i % 2, max_tokens=40, prompt_logprobs=0 if i == 2 else None, **MIXED)
    assert max(run_two_deep(bench, {})) == 2
    bench.check_idle()
    bench.check_against_cold()
    preemptions = bench.engine.stats().scheduler.num_preemptions
    assert preemptions <= 6, "a launched step's pages come back: waiting for them preempts nobody"


@pytest.mark.parametrize("cache", CACHES)
def test_b062_short_prompts_that_arrive_one_a_step(cache: str) -> None:
    bench = Bench(cache=cache, max_running_seqs=2)
    depths = []
    for i in range(20):
        if len(bench.runner.launched) < 2:
            bench.engine.begin_step()
        bench.submit([5 + i, 6, 7], max_tokens=4, temperature=0.0, ignore_eos=True)
        if len(bench.runner.launched) < 2:
            bench.engine.begin_step()  # the newcomer's prompt, while the other's token is not known yet
        depths.append(len(bench.runner.launched))
        bench.finish_step()
    depths += run_two_deep(bench, {})
    assert max(depths) == 2
    bench.check_idle()
    bench.check_against_cold()


@pytest.mark.parametrize("cache", CACHES)
def test_b064_sixteen_requests_two_deep(cache: str) -> None:
    bench = Bench(cache=cache, num_pages=200, max_batch_tokens=40, max_running_seqs=16)
    for i in range(16):
        bench.submit(list(range(10, 13 + i)), max_tokens=8, temperature=0.0, ignore_eos=True)
    assert max(run_two_deep(bench, {})) == 2
    assert [len(answer.token_ids) for answer in bench.answers.values()] == [8] * 16, "no token twice"
    bench.check_idle()
    bench.check_against_cold()


@pytest.mark.parametrize("cache", CACHES)
def test_duplicates_are_kept_while_a_step_reads_them(cache: str) -> None:
    bench = Bench(cache=cache, chunked_prefill_size=4, max_batch_tokens=8, max_running_seqs=2)
    for _ in range(2):
        bench.submit(list(range(10, 33)), max_tokens=4, **MIXED)
    run_two_deep(bench, {})
    bench.check_idle()
    bench.check_against_cold()


def test_b047_abort_with_two_chunks_in_flight_frees_at_the_second() -> None:
    bench = Bench(chunked_prefill_size=4)
    request_id = bench.submit(list(range(10, 30)), max_tokens=4, **MIXED)
    bench.engine.begin_step()
    bench.engine.begin_step()
    (seq,) = bench.scheduler.sequences
    assert seq.num_in_flight_tokens == 8
    bench.engine.abort(request_id)
    (started,) = bench.finish_step()
    assert (started.new_token_ids, started.finish_reason, started.started_s) == ((), None, 0.0)
    assert len(seq.pages) == 5
    (update,) = bench.finish_step()
    assert update.finish_reason == "abort"
    bench.check_idle()


def test_aborts_in_flight_at_any_turn() -> None:
    for turn in range(12):
        bench = Bench(page_size=4, num_pages=24, chunked_prefill_size=5, max_batch_tokens=12, max_running_seqs=4)
        for i in range(4):
            bench.submit([5 + i, *range(10, 22)], n=2, max_tokens=12, request_id=f"r{i}", **MIXED)
        run_two_deep(bench, {turn: "r0", turn + 1: "r2"})
        bench.check_idle()
        bench.check_against_cold()


def test_chunks_keep_to_their_limits_and_decodes_are_never_starved() -> None:
    bench = Bench(num_pages=400, chunked_prefill_size=16, max_batch_tokens=18, max_running_seqs=8, max_model_len=400)
    decoding = [bench.submit([5 + i, 6, 7], max_tokens=60, **MIXED) for i in range(4)]
    bench.step()
    bench.submit([9 + i % 30 for i in range(300)], max_tokens=2, priority=1, **MIXED)  # ahead of all others
    told: dict[str, int] = defaultdict(int)
    for _ in range(19):
        batch = bench.scheduler.schedule(0.0)
        assert batch is not None
        lens = batch.query_indptr[1:] - batch.query_indptr[:-1]
        assert batch.num_tokens <= 18
        assert lens.max() <= 16
        bench.runner.launch(batch)
        for update in bench.scheduler.update(bench.runner.collect()):
            told[update.request_id] += len(update.new_token_ids)
    assert [told[name] for name in decoding] == [19] * 4


def test_while_answers_are_written_prompts_share_one_chunk() -> None:
    """Every answer waits for a step's prompts; with none to wait, several chunks go into one."""
    bench = Bench(num_pages=800, chunked_prefill_size=16, max_batch_tokens=100, max_running_seqs=8, max_model_len=400)
    prompts = [[9 + (i * k) % 37 for i in range(80)] for k in (1, 2, 3)]
    for prompt in prompts:
        bench.submit(prompt, max_tokens=60, **MIXED)
    batch = bench.scheduler.schedule(0.0)
    assert batch is not None
    assert (batch.query_indptr[1:] - batch.query_indptr[:-1]).tolist() == [16, 16, 16]
    bench.runner.launch(batch)
    bench.scheduler.update(bench.runner.collect())
    bench.submit([5, 6, 7], max_tokens=60, priority=1, **MIXED)
    sizes = []
    for _ in range(16):
        batch = bench.scheduler.schedule(0.0)
        assert batch is not None
        sizes.append(sorted((batch.query_indptr[1:] - batch.query_indptr[:-1]).tolist()))
        bench.runner.launch(batch)
        bench.scheduler.update(bench.runner.collect())
    assert sizes[0] == [3, 16, 16, 16]  # nobody writes yet
    assert all(sum(size for size in step if size > 1) <= 16 for step in sizes[1:])
    assert sizes[-1] == [1, 1, 1, 1]
