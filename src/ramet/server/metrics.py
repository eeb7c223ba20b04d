"""What is counted, for Prometheus and for the status line.

Requests are counted as they go (``Metrics`` is the client's ``Observer``). What the engine counts is read off its last numbers,
and goes on over a restart, where an engine's own numbers begin again. Labels are from short closed lists: no text of a request,
no id, key or path is ever one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import Counter, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from ramet.core.ports import Clock
from ramet.engine.assemble import CompletionOutput
from ramet.engine.clock import MonotonicClock
from ramet.engine.engine import EngineStats
from ramet.server.client import EngineClient, EngineState
from ramet.server.generation import Generation
from ramet.server.histogram import Histogram

__all__ = ["Metrics", "Reading", "Recent", "recent"]

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TICK_S = 0.05
_READING_EVERY_S = 1.0
_RECENT_S = 15  # readings kept, of one a second: what "recent" means in a metric; scrapes are commonly as far apart
_MAX_LAG_KEPT_S = 30.0  # a peak is told for this long, and at most twice as long

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 10, 20, 40, 80, 160)
_LAG_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_TOKENS = tuple(1 << i for i in range(18))
_FINISH_REASONS = ("stop", "length", "abort", "error")
_STATUS_CLASSES = ("2xx", "3xx", "4xx", "5xx")


class _Totals:
    """The engines' own counts, summed over their lives: the last numbers of an engine that died stay in the sum."""

    def __init__(self) -> None:
        self._num_starts = 0
        self._before: dict[str, int] = {}
        self._present: dict[str, int] = {}

    def take(self, num_starts: int, stats: EngineStats | None) -> None:
        """``stats`` are those of the engine of that start; None where it has told none yet."""
        if num_starts != self._num_starts:
            self._num_starts = num_starts
            self._before = {name: self._before.get(name, 0) + count for name, count in self._present.items()}
            self._present = {}
        if stats is not None:
            self._present = {
                "query_tokens": stats.kv.num_query_tokens,
                "hit_tokens": stats.kv.num_hit_tokens,
                "evicted_pages": stats.kv.num_evicted_pages,
                "preemptions": stats.scheduler.num_preemptions,
                "steps": stats.scheduler.num_steps,
                "computed_tokens": stats.scheduler.num_computed_tokens,
                "draft_tokens": stats.scheduler.num_draft_tokens,
                "accepted_draft_tokens": stats.scheduler.num_accepted_draft_tokens,
            }

    def __getitem__(self, name: str) -> int:
        return self._before.get(name, 0) + self._present.get(name, 0)


@dataclass(frozen=True, slots=True)
class Reading:
    """The numbers of a moment; all but the sequences and ``pages_used`` (a share, cached ones included) only grow."""

    at_s: float
    num_running: int
    num_waiting: int
    prompt_tokens: int
    hit_tokens: int
    output_tokens: int
    num_first_tokens: int
    first_token_s: float
    pages_used: float


@dataclass(frozen=True, slots=True)
class Recent:
    """What happened between two readings: tokens a second, the share of prompt tokens reused, the mean time to a first token.

    None where there was nothing to take a share or a mean of.
    """

    prompt_rate: float
    reused: float | None
    output_rate: float
    first_token_s: float | None


def recent(before: Reading, now: Reading) -> Recent:
    """``before`` is the earlier one; of two of the same moment nothing comes."""
    seconds = now.at_s - before.at_s
    prompt_tokens = now.prompt_tokens - before.prompt_tokens
    num_first = now.num_first_tokens - before.num_first_tokens
    return Recent(
        prompt_rate=prompt_tokens / seconds if seconds > 0 else 0.0,
        reused=(now.hit_tokens - before.hit_tokens) / prompt_tokens if prompt_tokens else None,
        output_rate=(now.output_tokens - before.output_tokens) / seconds if seconds > 0 else 0.0,
        first_token_s=(now.first_token_s - before.first_token_s) / num_first if num_first else None,
    )


class _RecentMax:
    """The largest value of the last ``_MAX_LAG_KEPT_S`` to twice that."""

    def __init__(self) -> None:
        self._turn_s = 0.0
        self._last = self._present = 0.0

    def take(self, value: float, now_s: float) -> None:
        if now_s >= self._turn_s:
            self._turn_s = now_s + _MAX_LAG_KEPT_S
            self._last, self._present = self._present, 0.0
        self._present = max(self._present, value)

    @property
    def value(self) -> float:
        return max(self._last, self._present)


class Metrics:
    """Everything that is counted. ``compat`` names engines (``vllm``, ``sglang``) under whose names it is told as well.

    All calls are on the event loop's thread. ``model_name`` is a label of the borrowed names alone, where dashboards ask for it.
    """

    def __init__(self, compat: Sequence[str] = (), *, model_name: str = "", clock: Clock | None = None) -> None:
        self._compat = tuple(compat)
        self._model_name = model_name
        self._clock = clock or MonotonicClock()
        self._totals = _Totals()
        self._readings: deque[Reading] = deque(maxlen=_RECENT_S + 1)
        self._max_lag = _RecentMax()
        self._num_output_tokens = 0
        self._num_first_tokens = 0
        self._first_token_s = 0.0
        self._first_token = _histogram("time_to_first_token_seconds", "From a request's arrival to its first token", _SECONDS)
        self._inter_token = _histogram("inter_token_latency_seconds", "From one token of a request to its next", _SECONDS)
        self._per_token = _histogram("time_per_output_token_seconds", "Mean time from token to token of a whole answer", _SECONDS)
        self._whole = _histogram("e2e_request_latency_seconds", "From arrival to end, of requests that were answered", _SECONDS)
        self._queued = _histogram("queue_time_seconds", "From a request's arrival until the engine began it", _SECONDS)
        self._prompt_sizes = _histogram("request_prompt_tokens", "Prompt tokens of requests that were begun", _TOKENS)
        self._output_sizes = _histogram("request_output_tokens", "Output tokens of requests that were answered", _TOKENS)
        self._lag = _histogram("event_loop_lag_seconds", "How late the event loop was, each 50 ms", _LAG_SECONDS)
        finished = _counter("requests_total", "Requests that ended, by how", "finish_reason")
        self._finished = {reason: finished.labels(reason) for reason in _FINISH_REASONS}
        responses = _counter("http_responses_total", "HTTP responses, by the first digit of their status", "status")
        self._responses = {name: responses.labels(name) for name in _STATUS_CLASSES}
        self._own: tuple[Counter | Histogram, ...] = (
            finished,
            responses,
            self._first_token,
            self._inter_token,
            self._per_token,
            self._whole,
            self._queued,
            self._prompt_sizes,
            self._output_sizes,
            self._lag,
        )

    # ---- what happens to requests: the client's Observer

    def started(self, generation: Generation) -> None:
        """The engine began it."""
        request = generation.request
        self._prompt_sizes.observe(len(request.prompt))
        if generation.started_s is not None:
            self._queued.observe(max(0.0, generation.started_s - request.arrival_s))

    def told(self, generation: Generation, num_tokens: int, gap_s: float | None) -> None:
        """Tokens came. A gap of 0 is between two answers of one request, whose tokens one step made: no latency."""
        self._num_output_tokens += num_tokens
        if gap_s:
            self._inter_token.observe(gap_s)
        elif gap_s is None and generation.first_token_s is not None:
            waited_s = max(0.0, generation.first_token_s - generation.request.arrival_s)
            self._first_token.observe(waited_s)
            self._num_first_tokens += 1
            self._first_token_s += waited_s

    def finished(self, generation: Generation) -> None:
        """It ended. Sizes and times are of answers that are whole: what was aborted has none of its own."""
        outputs = generation.output.outputs
        reason = "error" if generation.failure is not None else _finish_reason(outputs)
        self._finished[reason].inc()
        if reason in ("abort", "error") or generation.finished_s is None:
            return
        self._whole.observe(max(0.0, generation.finished_s - generation.request.arrival_s))
        self._output_sizes.observe(generation.output.usage.completion_tokens)
        longest = max(len(answer.token_ids) for answer in outputs)
        if longest > 1 and generation.first_token_s is not None and generation.last_token_s is not None:
            self._per_token.observe((generation.last_token_s - generation.first_token_s) / (longest - 1))

    # ---- what happens around them

    def responded(self, status: int) -> None:
        """An HTTP response began, with this status."""
        self._responses[f"{min(max(status // 100, 2), 5)}xx"].inc()

    async def watch_loop(self, client: EngineClient) -> None:
        """Measure how late the event loop is, and read the engine's numbers; until cancelled."""
        loop = asyncio.get_running_loop()
        next_reading_s = loop.time()
        while True:
            asleep_s = loop.time()
            await asyncio.sleep(_TICK_S)
            now_s = loop.time()
            lag_s = max(0.0, now_s - asleep_s - _TICK_S)
            self._lag.observe(lag_s)
            self._max_lag.take(lag_s, now_s)
            self._totals.take(client.num_starts, client.stats)
            if now_s >= next_reading_s:
                next_reading_s = now_s + _READING_EVERY_S
                self._readings.append(self.reading(client))

    def reading(self, client: EngineClient) -> Reading:
        """The numbers of this moment."""
        stats, totals = client.stats, self._totals
        totals.take(client.num_starts, stats)
        return Reading(
            at_s=self._clock.now(),
            num_running=stats.scheduler.num_running if stats else 0,
            num_waiting=stats.scheduler.num_waiting if stats else client.num_waiting,
            prompt_tokens=totals["query_tokens"],
            hit_tokens=totals["hit_tokens"],
            output_tokens=self._num_output_tokens,
            num_first_tokens=self._num_first_tokens,
            first_token_s=self._first_token_s,
            pages_used=1 - stats.kv.num_free_pages / stats.kv.num_pages if stats else 0.0,
        )

    # ---- what is told

    def exposition(self, client: EngineClient) -> tuple[bytes, str]:
        """All metrics in Prometheus's text format, and its content type."""
        now = self.reading(client)
        families = [*self._told_of_requests(), *self._told_of_engine(client, now)]
        if "vllm" in self._compat:
            families += self._as_vllm(client, now)
        if "sglang" in self._compat:
            families += self._as_sglang(client, now)
        return generate_latest(_Families(families)), _CONTENT_TYPE

    def _told_of_requests(self) -> Iterator[Metric]:
        for metric in self._own:
            for family in metric.collect():
                # When a counter began is nothing that Prometheus needs, and as many lines again.
                family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
                yield family

    def _told_of_engine(self, client: EngineClient, now: Reading) -> Iterator[Metric]:
        totals = self._totals
        sources = {"device": now.hit_tokens, "computed": now.prompt_tokens - now.hit_tokens}
        yield _count("ramet:prompt_tokens_total", "Prompt tokens, each once, by where their KV is from", sources, "source")
        yield _count("ramet:generation_tokens_total", "Output tokens", now.output_tokens)
        yield _count("ramet:computed_tokens_total", "Tokens computed, again after a preemption too", totals["computed_tokens"])
        yield _count("ramet:steps_total", "Steps of the engine", totals["steps"])
        held = totals["accepted_draft_tokens"]
        drafts = {"accepted": held, "rejected": totals["draft_tokens"] - held}
        yield _count("ramet:draft_tokens_total", "Guesses that were verified: forced text, n-grams", drafts, "outcome")
        yield _count("ramet:preemptions_total", "Sequences put back to wait for want of pages", totals["preemptions"])
        yield _count("ramet:evicted_pages_total", "Cached pages given up for others", totals["evicted_pages"])
        yield _count("ramet:engine_starts_total", "Starts of the engine; over 1, it has died", client.num_starts)
        states = {state.value: float(client.state is state) for state in EngineState}
        yield _gauge("ramet:engine_state", "1 for the state that the engine is in", states, "state")
        yield _gauge("ramet:running_sequences", "Sequences that run", now.num_running)
        yield _gauge("ramet:waiting_sequences", "Sequences that wait, put back ones among them", now.num_waiting)
        yield _gauge("ramet:kv_pages", "Pages by owner; locked ones are cached and in use", _pages(client), "state")
        yield _gauge("ramet:kv_usage_ratio", "Share of the pages that running sequences hold", _kv_usage(client.stats))
        yield _gauge("ramet:adapters", "Adapters that requests may name", len(client.adapters.listed()))
        yield _gauge("ramet:cache_nodes", "Nodes of the prefix tree", client.stats.kv.num_nodes if client.stats else 0)
        yield _gauge("ramet:cache_hit_ratio", "Share of prompt tokens reused since the start", _share(now))
        yield _gauge("ramet:event_loop_lag_max_seconds", "How late the event loop was at most, lately", self._max_lag.value)

    def _recently(self, now: Reading) -> Recent:
        return recent(self._readings[0] if self._readings else now, now)

    def _as_vllm(self, client: EngineClient, now: Reading) -> Iterator[Metric]:
        """vLLM's counters are in tokens, and end in ``_total`` on the wire though its pages leave that out."""
        labels = {"engine": "0", "model_name": self._model_name}
        counts = {
            "prefix_cache_queries": ("Prompt tokens looked up in the prefix cache", now.prompt_tokens),
            "prefix_cache_hits": ("Prompt tokens found in the prefix cache", now.hit_tokens),
            "num_preemptions": ("Preemptions", self._totals["preemptions"]),
            "spec_decode_num_draft_tokens": ("Guesses that were verified", self._totals["draft_tokens"]),
            "spec_decode_num_accepted_tokens": ("Guesses that held", self._totals["accepted_draft_tokens"]),
            "prompt_tokens": ("Prompt tokens", now.prompt_tokens),
            "generation_tokens": ("Output tokens", now.output_tokens),
        }
        for name, (text, count) in counts.items():
            yield _labelled(CounterMetricFamily(f"vllm:{name}", text, count), labels)
        gauges = {
            "num_requests_running": ("Requests that run", now.num_running),
            "num_requests_waiting": ("Requests that wait", now.num_waiting),
            "kv_cache_usage_perc": ("Share of the KV cache in use, 0 to 1", _kv_usage(client.stats)),
        }
        for name, (text, value) in gauges.items():
            yield _labelled(GaugeMetricFamily(f"vllm:{name}", text, value), labels)
        for histogram in (self._first_token, self._inter_token, self._whole):
            yield from (_labelled(_renamed(family, "vllm:"), labels) for family in histogram.collect())

    def _as_sglang(self, client: EngineClient, now: Reading) -> Iterator[Metric]:
        lately = self._recently(now)
        gauges = {
            "cache_hit_rate": ("Share of prompt tokens reused, lately", lately.reused or 0.0),
            "token_usage": ("Share of the KV cache in use, 0 to 1", _kv_usage(client.stats)),
            "num_running_reqs": ("Requests that run", now.num_running),
            "num_queue_reqs": ("Requests that wait", now.num_waiting),
            "gen_throughput": ("Output tokens a second, lately", lately.output_rate),
        }
        for name, (text, value) in gauges.items():
            yield _labelled(GaugeMetricFamily(f"sglang:{name}", text, value), {"model_name": self._model_name})


class _Families(Collector):
    """Families of metrics as something to be told."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _histogram(name: str, text: str, bounds: Sequence[float]) -> Histogram:
    return Histogram(f"ramet:{name}", text, bounds)


def _counter(name: str, text: str, label: str) -> Counter:
    return Counter(f"ramet:{name}", text, [label], registry=None)


def _count(name: str, text: str, value: Mapping[str, float] | float, label: str = "") -> Metric:
    return _filled(CounterMetricFamily(name, text, labels=[label] if label else []), value)


def _gauge(name: str, text: str, value: Mapping[str, float] | float, label: str = "") -> Metric:
    return _filled(GaugeMetricFamily(name, text, labels=[label] if label else []), value)


def _filled(family: CounterMetricFamily | GaugeMetricFamily, value: Mapping[str, float] | float) -> Metric:
    if isinstance(value, Mapping):
        for label, one in value.items():
            family.add_metric([label], one)
    else:
        family.add_metric([], value)
    return family


def _labelled(family: Metric, labels: Mapping[str, str]) -> Metric:
    family.samples = [sample._replace(labels={**sample.labels, **labels}) for sample in family.samples]
    return family


def _renamed(family: Metric, prefix: str) -> Metric:
    """A family of ours under a name with another prefix."""
    renamed = Metric(prefix + family.name.removeprefix("ramet:"), family.documentation, family.type)
    for sample in family.samples:
        if not sample.name.endswith("_created"):
            renamed.samples.append(Sample(prefix + sample.name.removeprefix("ramet:"), sample.labels, sample.value))
    return renamed


def _finish_reason(outputs: Sequence[CompletionOutput]) -> str:
    """Of a request of several answers: that it was aborted, or how the first one ended."""
    reasons = [answer.finish_reason for answer in outputs]
    return "abort" if "abort" in reasons else reasons[0] or "abort"


def _pages(client: EngineClient) -> dict[str, float]:
    """All are free before an engine's first step, which is what its numbers come with."""
    if client.stats is None:
        return {"free": client.ready.num_pages if client.ready else 0, "private": 0, "cached": 0, "locked": 0}
    kv = client.stats.kv
    return {
        "free": kv.num_free_pages,
        "private": kv.num_private_pages,
        "cached": kv.num_evictable_pages,
        "locked": kv.num_locked_pages,
    }


def _kv_usage(stats: EngineStats | None) -> float:
    """Pages that nobody runs on are as good as free: they are given up when they are needed."""
    return 0.0 if stats is None else (stats.kv.num_private_pages + stats.kv.num_locked_pages) / stats.kv.num_pages


def _share(now: Reading) -> float:
    return now.hit_tokens / now.prompt_tokens if now.prompt_tokens else 0.0
