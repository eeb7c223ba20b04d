"""What the engine takes, refuses and gives up: the edge, aborts, forks."""

from __future__ import annotations

import numpy as np
import pytest
from support.engines import CACHES, EOS_IDS, VOCAB_SIZE, Bench

from ramet.core.request import Namespace
from ramet.core.sampling import SamplingParams
from ramet.errors import ConfigError, ContextTooLong, InvalidRequest, Overloaded

GREEDY = {"temperature": 0.0, "ignore_eos": True}
PROMPT = list(range(10, 30))


@pytest.mark.parametrize(
    "prompt",
    [
        [],
        [-1],
        [VOCAB_SIZE],
        [2**31],
        [2**63],
        [-(2**70)],
        [True],
        [5, 1.0],
        ["5"],
        [None],
        [[5]],
        [[5], [6, 7]],
        "text",
        b"text",
        5,
        None,
        {5: 6},
        np.array([5.0]),
        np.array([True]),
        np.array([[5]]),
        np.array([2**63], np.uint64),
        np.array([-1]),
    ],
    ids=repr,
)
def test_t12_prompts_that_are_no_token_ids_are_refused(prompt: object) -> None:
    bench = Bench()
    with pytest.raises(InvalidRequest, match="prompt") as refused:
        bench.engine.submit(prompt, SamplingParams())  # type: ignore[arg-type]
    assert refused.value.param == "prompt"
    bench.check_idle()


@pytest.mark.parametrize(
    "prompt", [[0, VOCAB_SIZE - 1], (5, 6), np.array([5, 6]), np.array([5], np.uint64), [np.int64(5)]], ids=repr
)
def test_t12_ids_in_range_are_taken(prompt: object) -> None:
    bench = Bench()
    bench.engine.submit(prompt, SamplingParams(max_tokens=1))  # type: ignore[arg-type]
    bench.run()


@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids", "logit_bias"])
def test_t12_sampling_ids_beyond_the_vocabulary_are_refused(name: str) -> None:
    bench = Bench()
    beyond = {VOCAB_SIZE: 1.0} if name == "logit_bias" else [VOCAB_SIZE]
    with pytest.raises(InvalidRequest, match=f"{name} has {VOCAB_SIZE}"):
        bench.submit(PROMPT, **{name: beyond})
    bench.check_idle()


@pytest.mark.parametrize("name", ["max_running_seqs", "max_batch_tokens", "max_queued_requests", "chunked_prefill_size"])
def test_b044_a_limit_of_0_is_refused_at_the_start(name: str) -> None:
    with pytest.raises(ConfigError, match="--" + name.replace("_", "-")):
        Bench(**{name: 0})


def test_b040_a_need_that_is_exactly_the_pool_is_taken_and_one_more_is_refused() -> None:
    bench = Bench(page_size=4, num_pages=16)
    for length, max_tokens in ((60, 4), (61, 3), (64, 0)):
        answer = bench.answer([5 + i % 40 for i in range(length)], max_tokens=max_tokens, **GREEDY)
        assert answer.finish_reason == "length"
    for length, max_tokens in ((61, 4), (64, 1), (65, 0)):
        with pytest.raises(ContextTooLong, match=r"KV pool holds 64.*kv-cache-memory"):
            bench.submit([5] * length, max_tokens=max_tokens)
    bench.check_against_cold()


@pytest.mark.parametrize("cache", CACHES)
def test_b041_whatever_is_accepted_can_run_and_an_abort_leaves_the_queue_free(cache: str) -> None:
    bench = Bench(cache=cache, page_size=4, num_pages=8)
    for total in range(24, 36):
        try:
            request_id = bench.submit([5 + total % 40] * (total - 2), max_tokens=2, **GREEDY)
        except ContextTooLong:
            assert total > 32
            continue
        bench.step()
        assert bench.answers[request_id, 0].token_ids, "admitted at once"
        bench.engine.abort(request_id)
        assert bench.answer([7, 8, 9], max_tokens=2, **GREEDY).finish_reason == "length"
        bench.check_idle()


@pytest.mark.parametrize("num_steps", [0, 1, 3])
@pytest.mark.parametrize("total", range(24, 33))
def test_b041_an_abort_at_the_head_of_the_queue_lets_the_next_one_run(total: int, num_steps: int) -> None:
    """It may have been waiting for room, beside one that runs."""
    bench = Bench(page_size=4, num_pages=8)
    bench.submit([7] * 6, max_tokens=20, **GREEDY)
    bench.step()
    large = bench.submit([9] * (total - 2), max_tokens=2, **GREEDY)
    small = bench.submit([30, 31, 32], max_tokens=2, **GREEDY)
    for _ in range(num_steps):
        bench.step()
    assert not bench.answers[large, 0].token_ids, "it waits"
    bench.engine.abort(large)
    for _ in range(3):
        bench.step()
    assert bench.answers[small, 0].finish_reason == "length"
    bench.run()
    bench.check_idle()
    bench.check_against_cold()


def test_max_tokens_none_takes_what_context_and_pool_allow() -> None:
    by_context = Bench(max_model_len=30)
    assert len(by_context.answer(PROMPT, max_tokens=None, **GREEDY).token_ids) == 10
    by_pool = Bench(page_size=4, num_pages=7)
    assert len(by_pool.answer(PROMPT, max_tokens=None, **GREEDY).token_ids) == 8
    with pytest.raises(ContextTooLong, match=r"30 tokens, which leaves 0 .*max-model-len"):
        by_context.submit([5] * 30, max_tokens=None)
    with pytest.raises(ContextTooLong, match="Lower max_tokens to 10"):
        by_context.submit(PROMPT, max_tokens=11)


def test_a_full_queue_refuses_whole_requests() -> None:
    bench = Bench(max_running_seqs=1, max_queued_requests=2)
    for _ in range(2):
        bench.submit(PROMPT, n=3, max_tokens=2, **GREEDY)
    with pytest.raises(Overloaded, match="max-queued-requests"):
        bench.submit(PROMPT, n=2, max_tokens=2)
    assert bench.engine.stats().num_open_requests == 2
    bench.step()
    bench.submit(PROMPT, max_tokens=2, **GREEDY)
    bench.run()
    assert len(bench.answers) == 7
    bench.check_against_cold()


def test_request_ids_are_the_callers_but_never_twice() -> None:
    bench = Bench()
    bench.submit(PROMPT, request_id="request-0", max_tokens=1)
    with pytest.raises(InvalidRequest, match="in use"):
        bench.submit(PROMPT, request_id="request-0", max_tokens=1)
    assert bench.submit(PROMPT, max_tokens=1) != "request-0"
    bench.run()
    with pytest.raises(InvalidRequest, match="request_id"):
        bench.submit(PROMPT, request_id="", max_tokens=1)
    assert bench.submit(PROMPT, request_id="request-0", max_tokens=1) == "request-0"


def test_seeds_are_drawn_by_request_number_and_reported() -> None:
    seeds = []
    for engine_seed in (0, 0, 1):
        bench = Bench(seed=engine_seed)
        with pytest.raises(InvalidRequest):
            bench.submit([])
        seeds.append([bench.engine.request(bench.submit(PROMPT, max_tokens=1)).seed for _ in range(3)])
    assert seeds[0] == seeds[1]
    assert len({*seeds[0], *seeds[2]}) == 6
    assert all(0 <= seed < 2**53 for seed in seeds[0])
    assert bench.engine.request(bench.submit(PROMPT, seed=2**64 - 1, max_tokens=1)).seed == 2**64 - 1


def test_b118_no_stop_of_any_kind_before_min_tokens() -> None:
    bench = Bench()
    answer = bench.answer(PROMPT, temperature=0.0, min_tokens=5, max_tokens=20, logit_bias={2: 100.0}, stop_token_ids=[9])
    assert answer.finish_reason == "stop"
    assert answer.token_ids[5:] == [2]
    assert not {*EOS_IDS, 9} & {*answer.token_ids[:5]}
    assert answer.stop_token_id == 2


def test_b119_ignore_eos_covers_every_eos_and_no_stop_of_the_callers() -> None:
    bench = Bench()
    every_eos = dict.fromkeys(EOS_IDS, 100.0)
    ignoring = bench.answer(PROMPT, temperature=0.0, ignore_eos=True, max_tokens=30, logit_bias=every_eos)
    assert (len(ignoring.token_ids), ignoring.finish_reason) == (30, "length")
    stopping = bench.answer(PROMPT, temperature=0.0, ignore_eos=True, max_tokens=30, logit_bias={9: 100.0}, stop_token_ids=[9])
    assert (stopping.token_ids, stopping.stop_token_id) == ([9], 9)


@pytest.mark.parametrize("cache", CACHES)
def test_b047_abort_between_launch_and_result_of_the_last_chunk(cache: str) -> None:
    bench = Bench(cache=cache, chunked_prefill_size=16)
    request_id = bench.submit(PROMPT, max_tokens=5, **GREEDY)
    bench.step()
    bench.engine.begin_step()
    held = len(bench.scheduler.sequences[0].pages)
    bench.engine.abort(request_id)
    bench.audit()
    assert len(bench.scheduler.sequences[0].pages) == held, "nothing is freed while the step runs"
    (update,) = bench.finish_step()
    assert (update.new_token_ids, update.finish_reason) == ((), "abort")
    bench.check_idle()


def test_b050_abort_of_n_leaves_nothing_behind() -> None:
    bench = Bench()
    request_id = bench.submit(PROMPT, n=3, max_tokens=100, **GREEDY)
    for _ in range(3):
        bench.step()
    bench.engine.begin_step()
    bench.engine.abort(request_id)
    bench.finish_step()
    bench.check_idle()
    assert {index for _, index in bench.answers} == {0, 1, 2}


def test_b052_a_request_with_n_is_taken_whole_or_not_at_all() -> None:
    bench = Bench(max_running_seqs=3)
    first, second = (bench.submit(PROMPT, n=2, max_tokens=6, temperature=0.9) for _ in range(2))
    bench.engine.abort(second)
    bench.run()
    assert [bench.answers[second, index].finish_reason for index in (0, 1)] == ["abort", "abort"]
    assert all(bench.answers[first, index].token_ids for index in (0, 1))
    bench.check_idle()


@pytest.mark.parametrize("cache", CACHES)
def test_b053_n_answers_are_told_apart_and_forked_from_one_prompt(cache: str) -> None:
    bench = Bench(cache=cache, page_size=16)
    request_id = bench.submit(PROMPT, n=3, max_tokens=8, temperature=1.0, ignore_eos=True, seed=7)
    bench.run()
    answers = [bench.answers[request_id, index] for index in range(3)]
    assert len({tuple(answer.token_ids) for answer in answers}) == 3
    computed = bench.engine.stats().scheduler.num_computed_tokens
    assert computed == (3 * 27 if cache == "null" else 20 + 2 + 3 * 7), "the prompt once, its last token again for each fork"
    bench.check_against_cold()


def test_b188_abort_is_idempotent() -> None:
    bench = Bench()
    request_id = bench.submit(PROMPT, max_tokens=5, **GREEDY)
    bench.step()
    for _ in range(2):
        bench.engine.abort(request_id)
        bench.engine.abort_sequence(0)
    bench.run()
    for name in (request_id, "never seen"):
        bench.engine.abort(name)
    bench.engine.abort_sequence(99)
    assert bench.answers[request_id, 0].finish_reason == "abort"
    bench.check_idle()


@pytest.mark.parametrize(
    "namespace",
    [None, "tenant", Namespace(salt="\ud800"), Namespace(adapter=b"x"), Namespace(salt=["x"]), Namespace(generation=1.5)],
)
@pytest.mark.parametrize("cache", CACHES)
def test_a_namespace_that_could_be_no_key_is_refused(cache: str, namespace: object) -> None:
    bench = Bench(cache=cache)
    with pytest.raises(InvalidRequest, match="namespace"):
        bench.engine.submit(PROMPT, SamplingParams(), namespace=namespace)  # type: ignore[arg-type]
    bench.check_idle()


@pytest.mark.parametrize("sampling", [None, {}, {"temperature": 0}, SamplingParams, "greedy"])
def test_sampling_parameters_of_another_type_are_refused(sampling: object) -> None:
    bench = Bench()
    with pytest.raises(InvalidRequest, match="SamplingParams"):
        bench.engine.submit(PROMPT, sampling)  # type: ignore[arg-type]
    bench.check_idle()


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("in_flight", [False, True])
def test_a_fork_is_the_request_its_tokens_would_make(cache: str, in_flight: bool) -> None:
    bench = Bench(cache=cache)
    parent = bench.submit(PROMPT, max_tokens=12, temperature=0.9, ignore_eos=True)
    for _ in range(4):
        bench.step()
    tokens = [*PROMPT, *bench.answers[parent, 0].token_ids]
    if in_flight:
        bench.engine.begin_step()
    (seq_id,) = bench.engine.seq_ids(parent)
    branches = [bench.fork(seq_id), bench.fork(seq_id, n=2, temperature=0.0, max_tokens=5)]
    if in_flight:
        bench.finish_step()
    bench.run()
    for branch in branches:
        assert bench.requests[branch].prompt.tolist() == tokens
    assert bench.requests[branches[0]].seed != bench.requests[parent].seed
    if cache != "null":
        assert bench.answers[branches[0], 0].num_cached_tokens == len(tokens) - 1
    bench.check_idle()
    bench.check_against_cold()
    with pytest.raises(InvalidRequest, match="not live"):
        bench.fork(seq_id)


def test_flush_is_refused_while_requests_are_open_unless_forced() -> None:
    bench = Bench()
    bench.answer(PROMPT, max_tokens=2, **GREEDY)
    bench.submit(list(range(30, 45)), max_tokens=20, **GREEDY)
    bench.step()
    with pytest.raises(InvalidRequest, match="1 requests are open"):
        bench.engine.flush_cache()
    assert bench.engine.flush_cache(force=True) == 5
    bench.run()
    bench.engine.flush_cache()
    assert bench.kv.pool.num_free == bench.kv.pool.num_pages
    bench.check_against_cold()


def test_logprobs_come_one_to_one_with_tokens() -> None:
    bench = Bench()
    answer = bench.answer(PROMPT, max_tokens=6, logprobs=3, temperature=0.9, ignore_eos=True)
    assert [one[0] for one in answer.logprobs] == answer.token_ids
    assert all(len(one[3]) == 3 for one in answer.logprobs)
    assert bench.answer(PROMPT, max_tokens=6, **GREEDY).logprobs == []


def test_b064_b016_mixed_batches_answer_as_cold_runs() -> None:
    bench = Bench(page_size=4, num_pages=48, chunked_prefill_size=7, max_batch_tokens=24, max_running_seqs=6)
    for i in range(16):
        bench.submit(PROMPT[: 3 + i], max_tokens=10, temperature=0.9 * (i % 2), seed=i, ignore_eos=True)
        bench.step()
    bench.run()
    bench.check_idle()
    bench.check_against_cold()


def test_t14_the_work_of_a_request_is_bounded_as_a_whole() -> None:
    bench = Bench(max_model_len=100_000, num_pages=30_000)
    with pytest.raises(InvalidRequest, match="lower n, max_tokens or logprobs"):
        bench.submit([5, 6, 7], n=128, logprobs=20, max_tokens=2000)
    bench.submit([5, 6, 7], n=128, logprobs=0, max_tokens=2000)
