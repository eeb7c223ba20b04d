"""Engines over the fake runner, and what a request answers when it has one to itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ramet.config import PolicyName, SchedulerConfig
from ramet.core.batch import Batch, PageCopies
from ramet.core.output import SequenceUpdate, TokenLogprobs
from ramet.core.ports import Grammars
from ramet.core.request import Request, Sequence
from ramet.core.sampling import SamplingParams
from ramet.engine.admission import Admission, Limits
from ramet.engine.engine import NO_GRAMMARS, Engine
from ramet.kv.audit import audit
from ramet.kv.hashed import HashedCache
from ramet.kv.manager import KVManager
from ramet.kv.null import NullCache
from ramet.kv.pool import PagePool
from ramet.kv.prefix import PrefixCache
from ramet.kv.radix import RadixCache
from ramet.runner.fake import FakeRunner, VirtualClock, no_faults
from ramet.schedule.build import Chunk, build_batch
from ramet.schedule.drafts import NO_DRAFTS, Drafters
from ramet.schedule.policy import make_policy
from ramet.schedule.sampling_rows import SamplingRows
from ramet.schedule.scheduler import Scheduler

CACHES: Mapping[str, Callable[[int], PrefixCache]] = {"radix": RadixCache, "hashed": HashedCache, "null": NullCache}
VOCAB_SIZE = 50
EOS_IDS = frozenset({1, 2})

Logprob = tuple[int, float, int, tuple[int, ...], tuple[float, ...]]


@dataclass
class Answer:
    """What has been told of one sequence."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop_token_id: int | None = None
    error: str | None = None
    num_cached_tokens: int = 0

    def take(self, update: SequenceUpdate) -> None:
        assert self.finish_reason is None, "news of a sequence after its end"
        self.token_ids += update.new_token_ids
        self.logprobs += map(plain, update.logprobs)
        self.finish_reason, self.stop_token_id, self.error = update.finish_reason, update.stop_token_id, update.error
        self.num_cached_tokens = update.num_cached_tokens

    @property
    def result(self) -> tuple[object, ...]:
        """All that must not depend on what else happened."""
        return self.token_ids, self.logprobs, self.finish_reason, self.stop_token_id


def built(step: int, page_size: int, chunks: list[Chunk], copies: PageCopies) -> Batch:
    """The batch of ``chunks``, their sequences' own sampling parameters in it."""
    return build_batch(step, page_size, chunks, copies, SamplingRows().of([c for c in chunks if c.samples]))


def plain(one: TokenLogprobs) -> Logprob:
    return one.token_id, one.logprob, one.rank, tuple(one.top_ids.tolist()), tuple(one.top_logprobs.tolist())


class Bench:
    """An engine with all its parts at hand; gathers the answers and audits after every move."""

    def __init__(
        self,
        *,
        cache: str = "radix",
        page_size: int = 4,
        num_pages: int = 64,
        max_model_len: int = 256,
        faults: Callable[[Batch], Mapping[int, str]] = no_faults,
        seed: int = 0,
        policy: PolicyName = "fcfs",
        grammars: Grammars = NO_GRAMMARS,
        drafters: Drafters = NO_DRAFTS,
        **config: Any,
    ) -> None:
        self.config = SchedulerConfig(schedule_policy=policy, **config)
        self.clock = VirtualClock()
        self.kv = KVManager(PagePool(num_pages), CACHES[cache](page_size), page_size)
        self.runner = FakeRunner(VOCAB_SIZE, page_size, num_pages, self.clock, faults=faults)
        self.scheduler = Scheduler(self.config, self.kv, make_policy(policy, self.kv), drafters)
        limits = Limits.of(VOCAB_SIZE, max_model_len, self.kv.fits)
        admission = Admission(limits, EOS_IDS, self.clock, seed)
        self.engine = Engine(self.runner, self.scheduler, self.kv, self.clock, admission, grammars)
        self.answers: dict[tuple[str, int], Answer] = defaultdict(Answer)
        self.prompt_logprobs: dict[str, list[Logprob]] = defaultdict(list)  # of a request, whichever of its answers told them
        self.requests: dict[str, Request] = {}

    def submit(self, prompt: list[int], *, request_id: str | None = None, priority: int = 0, **sampling: Any) -> str:
        request_id = self.engine.submit(prompt, SamplingParams(**sampling), request_id=request_id, priority=priority)
        self.requests[request_id] = self.engine.request(request_id)
        return request_id

    def fork(self, seq_id: int, **sampling: Any) -> str:
        request_id = self.engine.fork(seq_id, sampling=SamplingParams(**sampling) if sampling else None)
        self.requests[request_id] = self.engine.request(request_id)
        return request_id

    def step(self) -> list[SequenceUpdate]:
        self.engine.begin_step()
        self.audit()
        return self.finish_step()

    def finish_step(self) -> list[SequenceUpdate]:
        updates = self.engine.finish_step()
        for update in updates:
            self.answers[update.request_id, update.index].take(update)
            self.prompt_logprobs[update.request_id] += map(plain, update.prompt_logprobs)
        self.audit()
        return updates

    def audit(self) -> None:
        """The books agree, and no page that a launched step reads or writes is free."""
        audit(self.kv, self.scheduler.sequences)
        free = set(self.kv.pool.free_list().tolist())
        for batch in self.runner.launched:
            assert not free & set(batch.page_ids.tolist()), f"step {batch.step} is in flight, and a page of it is free"

    def run(self, max_steps: int = 2000) -> None:
        for _ in range(max_steps):
            if not self.engine.has_work:
                return
            self.step()
        raise AssertionError(f"not done after {max_steps} steps: {self.engine.stats()}")

    def answer(self, prompt: list[int], **options: Any) -> Answer:
        """Submit one request with n = 1 and run until all is done."""
        request_id = self.submit(prompt, **options)
        self.run()
        return self.answers[request_id, 0]

    def check_idle(self) -> None:
        """Nothing is left of any request: no page, lock, queue entry or id."""
        assert not self.engine.has_work
        self.audit()
        stats = self.engine.stats()
        assert (stats.num_open_requests, stats.scheduler.num_running, stats.scheduler.num_waiting) == (0, 0, 0)
        assert stats.kv.num_private_pages == stats.kv.num_locked_pages == 0

    def check_against_cold(self) -> None:
        """Every answer has the bits of a run alone; one that was aborted, the beginning of them."""
        for request_id, request in self.requests.items():
            alone = cold(request)
            answers = [self.answers[request_id, index] for index in range(request.sampling.n)]
            for index, answer in enumerate(answers):
                expected = alone.answers["request-0", index]
                if answer.finish_reason in ("stop", "length"):
                    assert answer.result == expected.result, f"{request_id}, answer {index}"
                else:
                    assert answer.token_ids == expected.token_ids[: len(answer.token_ids)], f"{request_id}, answer {index}"
            told, expected_told = self.prompt_logprobs[request_id], alone.prompt_logprobs["request-0"]
            is_whole = any(answer.finish_reason in ("stop", "length") for answer in answers)
            assert told == (expected_told if is_whole else expected_told[: len(told)]), request_id


class ColdAnswers:
    """What sequences will answer, worked out once for each request: what an oracle needs to know."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Request, Bench]] = {}

    def __call__(self, seq: Sequence) -> list[int]:
        request = seq.request
        if id(request) not in self._known:
            self._known[id(request)] = (request, cold(request))
        return self._known[id(request)][1].answers["request-0", seq.index].token_ids


def cold(request: Request) -> Bench:
    """What a request gives alone in an empty engine without a cache, its prompt computed at once."""
    total = len(request.prompt) + request.max_tokens
    alone = Bench(
        cache="null",
        page_size=7,
        num_pages=request.sampling.n * -(-total // 7),
        max_model_len=total,
        chunked_prefill_size=None,
        max_batch_tokens=4096,
    )
    sampling = {f.name: getattr(request.sampling, f.name) for f in fields(request.sampling)}
    alone.submit(request.prompt.tolist(), **sampling | {"seed": request.seed, "max_tokens": request.max_tokens})
    alone.run()
    alone.check_idle()
    return alone
