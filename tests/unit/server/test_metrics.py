"""Metrics: exact numbers, over restarts too; and the names under which other engines' dashboards look for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.serving import fake_client, fake_engine

from ramet.core.adapters import AdapterInfo
from ramet.core.sampling import SamplingParams
from ramet.engine.engine import EngineStats
from ramet.engine.wire import Ready
from ramet.kv.manager import KVStats
from ramet.runner.fake import VirtualClock
from ramet.schedule.scheduler import SchedulerStats
from ramet.server.adapters import ServedAdapters
from ramet.server.client import EngineClient, EngineState
from ramet.server.generation import Generation, Prompted
from ramet.server.metrics import Metrics, Reading, recent

Told = dict[tuple[str, ...], float]


@dataclass
class Client:
    """What metrics ask of a client."""

    stats: EngineStats | None = None
    num_starts: int = 1
    num_waiting: int = 0
    state: EngineState = EngineState.READY
    generations: list[Generation] = field(default_factory=list)
    ready: Ready | None = None
    adapters: ServedAdapters = field(default_factory=lambda: ServedAdapters(lambda command: None, lambda: None))


def stats(
    *, query: int = 0, hit: int = 0, preemptions: int = 0, evicted: int = 0, free: int = 64, private: int = 0
) -> EngineStats:
    return EngineStats(
        num_open_requests=0,
        scheduler=SchedulerStats(
            num_running=3,
            num_waiting=2,
            num_steps=7,
            num_preemptions=preemptions,
            num_computed_tokens=90,
            num_output_tokens=0,
            num_draft_tokens=20,
            num_accepted_draft_tokens=15,
        ),
        kv=KVStats(
            num_pages=100,
            num_free_pages=free,
            num_private_pages=private,
            num_locked_pages=6,
            num_evictable_pages=94 - free - private,
            num_nodes=5,
            num_query_tokens=query,
            num_hit_tokens=hit,
            num_evicted_pages=evicted,
        ),
    )


def told(metrics: Metrics, client: Any) -> Told:
    """All samples, by name and the labels' values in the order of their names."""
    body, content_type = metrics.exposition(client)
    assert content_type.startswith("text/plain; version=0.0.4")
    found: Told = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            key = (sample.name, *(sample.labels[name] for name in sorted(sample.labels)))
            assert key not in found, f"{key} is told twice"
            found[key] = sample.value
    return found


def run(test: Callable[[], Awaitable[None]]) -> None:
    faults: list[object] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
        await asyncio.wait_for(test(), 20)

    asyncio.run(watched())
    assert faults == []


def prompted(token_ids: list[int], **sampling: Any) -> Prompted:
    return Prompted(token_ids=token_ids, sampling=SamplingParams(ignore_eos=True, **sampling))


def observed(client: EngineClient, metrics: Metrics) -> None:
    client._observer = metrics


# ---- requests


def test_requests_are_counted_once_and_hits_in_tokens() -> None:
    async def test() -> None:
        metrics = Metrics()
        async with fake_client() as client:
            observed(client, metrics)
            prompt = list(range(5, 25))  # 5 pages of 4
            for name in ("a", "b"):
                await client.submit([prompted(prompt, max_tokens=6)], name)[0].finished()
            await client.submit([prompted([30, 31, 32], max_tokens=1)], "c")[0].finished()
            found = told(metrics, client)
            usages = [20, 20, 3]
        assert found["ramet:prompt_tokens_total", "device"] == 19  # all of the second prompt but its last token
        assert found["ramet:prompt_tokens_total", "computed"] == sum(usages) - 19
        assert found["ramet:generation_tokens_total",] == 13
        assert found["ramet:requests_total", "length"] == 3
        assert found["ramet:requests_total", "stop"] == found["ramet:requests_total", "error"] == 0
        assert found["ramet:cache_hit_ratio",] == pytest.approx(19 / 43)
        for name in ("time_to_first_token_seconds", "queue_time_seconds", "e2e_request_latency_seconds"):
            assert found[f"ramet:{name}_count",] == 3, name
        assert found["ramet:inter_token_latency_seconds_count",] == 5 + 5
        assert found["ramet:time_per_output_token_seconds_count",] == 2  # a single token has no next one
        assert found["ramet:request_prompt_tokens_sum",] == 43
        assert found["ramet:request_output_tokens_sum",] == 13
        assert found["ramet:request_output_tokens_bucket", "4.0"] == 1
        assert found["ramet:request_output_tokens_bucket", "8.0"] == 3
        assert found["ramet:running_sequences",] == found["ramet:waiting_sequences",] == 0

    run(test)


def test_answers_of_one_request_have_no_latency_between_each_other() -> None:
    async def test() -> None:
        metrics = Metrics()
        async with fake_client() as client:
            observed(client, metrics)
            await client.submit([prompted([5, 6, 7], max_tokens=5, n=4)], "a")[0].finished()
            found = told(metrics, client)
        assert found["ramet:generation_tokens_total",] == 20
        assert found["ramet:time_to_first_token_seconds_count",] == 1
        assert 4 <= found["ramet:inter_token_latency_seconds_count",] <= 8, "about one a step, not one an answer"
        assert found["ramet:requests_total", "length"] == 1

    run(test)


def test_work_again_after_a_preemption_is_no_hit() -> None:
    async def test() -> None:
        metrics = Metrics()
        async with fake_client(lambda: fake_engine(num_pages=16, max_model_len=64, max_running_seqs=4)) as client:
            observed(client, metrics)
            made = [client.submit([prompted([5 + i] * 9, max_tokens=24, seed=i)], f"r{i}")[0] for i in range(4)]
            outputs = [await generation.finished() for generation in made]
            found = told(metrics, client)
        assert found["ramet:preemptions_total",] >= 1
        assert found["ramet:prompt_tokens_total", "device"] == sum(output.usage.cached_tokens for output in outputs) == 0
        assert found["ramet:prompt_tokens_total", "computed"] == 36
        assert found["ramet:computed_tokens_total",] >= 36 + 4 * 23

    run(test)


def test_an_abort_is_counted_and_has_no_latency() -> None:
    async def test() -> None:
        metrics = Metrics()
        async with fake_client() as client:
            observed(client, metrics)
            [generation] = client.submit([prompted([5, 6, 7], max_tokens=200)], "a")
            await generation.changed()
            generation.abort()
            await generation.finished()
            found = told(metrics, client)
        assert found["ramet:requests_total", "abort"] == 1
        assert found["ramet:e2e_request_latency_seconds_count",] == found["ramet:request_output_tokens_count",] == 0

    run(test)


def test_a_clock_that_jumps_gives_no_negative_time() -> None:
    async def test() -> None:
        metrics = Metrics()
        async with fake_client() as client:
            [generation] = client.submit([prompted([5], max_tokens=2)], "a")
            await generation.finished()
            object.__setattr__(generation.request, "arrival_s", 1e12)
            metrics.started(generation)
            metrics.told(generation, 1, None)
            metrics.finished(generation)
            found = told(metrics, client)
        for name in ("queue_time", "time_to_first_token", "e2e_request_latency"):
            assert found[f"ramet:{name}_seconds_sum",] == 0, name

    run(test)


# ---- the engine, over its lives


def test_counters_never_go_back_when_the_engine_starts_again() -> None:
    metrics = Metrics()
    client = Client(stats(query=100, hit=40, preemptions=2, evicted=3))
    counters = {
        ("ramet:prompt_tokens_total", "device"): [40, 40, 45, 45, 46],
        ("ramet:prompt_tokens_total", "computed"): [60, 60, 65, 65, 68],
        ("ramet:preemptions_total",): [2, 2, 3, 3, 3],
        ("ramet:evicted_pages_total",): [3, 3, 3, 3, 3],
        ("ramet:steps_total",): [7, 7, 14, 14, 21],
        ("ramet:draft_tokens_total", "accepted"): [15, 15, 30, 30, 45],
        ("ramet:draft_tokens_total", "rejected"): [5, 5, 10, 10, 15],
        ("ramet:computed_tokens_total",): [90, 90, 180, 180, 270],
        ("ramet:engine_starts_total",): [1, 2, 2, 4, 4],
    }
    lives = [
        Client(stats(query=100, hit=40, preemptions=2, evicted=3)),
        Client(None, num_starts=2, state=EngineState.RESTARTING),
        Client(stats(query=10, hit=5, preemptions=1), num_starts=2),
        Client(None, num_starts=4, state=EngineState.RESTARTING),  # the third start failed
        Client(stats(query=4, hit=1), num_starts=4),
    ]
    for i, client in enumerate(lives):
        found = told(metrics, client)
        assert found == told(metrics, client), "to look changes nothing"
        assert {key: found[key] for key in counters} == {key: values[i] for key, values in counters.items()}


def test_gauges_of_the_engine() -> None:
    client = Client(stats(free=50, private=10))
    client.adapters.on_ready([AdapterInfo("a", 1, 4, 100), AdapterInfo("b", 2, 4, 100)])
    found = told(Metrics(), client)
    assert found["ramet:adapters",] == 2
    pages = {state: found["ramet:kv_pages", state] for state in ("free", "private", "cached", "locked")}
    assert pages == {"free": 50, "private": 10, "cached": 34, "locked": 6}
    assert found["ramet:kv_usage_ratio",] == pytest.approx(0.16)
    assert (found["ramet:running_sequences",], found["ramet:waiting_sequences",]) == (3, 2)
    assert found["ramet:cache_nodes",] == 5
    states = {state.value: found["ramet:engine_state", state.value] for state in EngineState}
    assert states == {state.value: float(state is EngineState.READY) for state in EngineState}


def test_before_the_first_engine_all_is_zero() -> None:
    found = told(Metrics(["vllm", "sglang"]), Client(num_starts=1, num_waiting=2, state=EngineState.STARTING))
    assert found["ramet:waiting_sequences",] == 2
    assert found["ramet:kv_usage_ratio",] == 0
    assert found["ramet:kv_pages", "free"] == 0
    assert found["vllm:kv_cache_usage_perc", "0", ""] == 0


def test_before_its_first_step_an_engine_has_free_pages() -> None:
    _, ready = fake_engine(num_pages=48)
    found = told(Metrics(), Client(ready=ready))
    assert {state: found["ramet:kv_pages", state] for state in ("free", "private", "cached", "locked")} == {
        "free": 48,
        "private": 0,
        "cached": 0,
        "locked": 0,
    }


# ---- other engines' names

VLLM = {
    "vllm:prefix_cache_queries": "counter",
    "vllm:prefix_cache_hits": "counter",
    "vllm:num_preemptions": "counter",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:time_to_first_token_seconds": "histogram",
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:e2e_request_latency_seconds": "histogram",
}
SGLANG = dict.fromkeys(
    (
        "sglang:cache_hit_rate",
        "sglang:token_usage",
        "sglang:num_running_reqs",
        "sglang:num_queue_reqs",
        "sglang:gen_throughput",
    ),
    "gauge",
)


@pytest.mark.parametrize(("compat", "expected"), [(["vllm"], VLLM), (["sglang"], SGLANG), ([], {})])
def test_borrowed_names_and_types(compat: list[str], expected: dict[str, str]) -> None:
    body, _ = Metrics(compat, model_name="m").exposition(Client(stats()))  # type: ignore[arg-type]
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    borrowed = {name: family.type for name, family in families.items() if not name.startswith("ramet:")}
    assert borrowed.items() >= expected.items()
    assert {name.partition(":")[0] for name in borrowed} == set(compat)
    for name in borrowed:
        for sample in families[name].samples:
            assert sample.labels["model_name"] == "m"
            assert sample.labels.get("engine") == ("0" if compat == ["vllm"] else None)


def test_borrowed_values() -> None:
    metrics = Metrics(["vllm", "sglang"], model_name='a "b"\n')
    found = told(metrics, Client(stats(query=100, hit=40, preemptions=2, free=50, private=10)))
    for name, value in {
        "prefix_cache_queries_total": 100,
        "prefix_cache_hits_total": 40,
        "num_preemptions_total": 2,
        "spec_decode_num_draft_tokens_total": 20,
        "spec_decode_num_accepted_tokens_total": 15,
        "num_requests_running": 3,
        "num_requests_waiting": 2,
        "kv_cache_usage_perc": 0.16,
    }.items():
        assert found[f"vllm:{name}", "0", 'a "b"\n'] == pytest.approx(value), name
    assert found["sglang:num_running_reqs", 'a "b"\n'] == 3
    assert found["sglang:token_usage", 'a "b"\n'] == pytest.approx(0.16)


def test_recent_rates_are_of_the_last_readings() -> None:
    before = Reading(10.0, 0, 0, 1000, 900, 50, 2, 1.0, 0.1)
    now = Reading(12.0, 1, 0, 1400, 1100, 250, 4, 1.5, 0.2)
    lately = recent(before, now)
    assert (lately.prompt_rate, lately.reused, lately.output_rate, lately.first_token_s) == (200, 0.5, 100, 0.25)
    nothing = recent(now, now)
    assert (nothing.prompt_rate, nothing.reused, nothing.output_rate, nothing.first_token_s) == (0, None, 0, None)


# ---- around requests


def test_responses_by_class() -> None:
    metrics = Metrics()
    for status in (200, 204, 304, 400, 404, 429, 499, 500, 503):
        metrics.responded(status)
    found = told(metrics, Client())
    assert [found["ramet:http_responses_total", f"{i}xx"] for i in (2, 3, 4, 5)] == [2, 1, 4, 2]


def test_a_blocked_loop_is_seen_and_an_idle_one_is_not() -> None:
    async def test() -> None:
        metrics = Metrics()
        client: Any = Client(stats(query=4))
        watch = asyncio.create_task(metrics.watch_loop(client))
        await asyncio.sleep(0.12)
        client.stats = stats(query=8)
        await asyncio.sleep(0.12)
        client.num_starts, client.stats = 2, None  # an engine that dies between two scrapes leaves its counts
        quiet = told(metrics, client)
        time.sleep(0.3)
        await asyncio.sleep(0.1)
        watch.cancel()
        found = told(metrics, client)
        assert quiet["ramet:event_loop_lag_seconds_count",] >= 1
        assert quiet["ramet:prompt_tokens_total", "computed"] == 8
        assert found["ramet:event_loop_lag_seconds_bucket", "0.2"] < found["ramet:event_loop_lag_seconds_count",]
        assert 0.2 < found["ramet:event_loop_lag_max_seconds",] < 5
        assert found["ramet:prompt_tokens_total", "computed"] == 8

    run(test)


def test_throughput_is_of_the_readings_that_were_kept() -> None:
    clock = VirtualClock()
    metrics = Metrics(["sglang"], clock=clock)
    client: Any = Client(stats(query=10, hit=0))
    metrics._readings.append(metrics.reading(client))
    clock.advance(4)
    client.stats = stats(query=30, hit=15)
    metrics._num_output_tokens = 100
    found = told(metrics, client)
    assert found["sglang:gen_throughput", ""] == 25
    assert found["sglang:cache_hit_rate", ""] == 0.75
