"""The engine's books alone, scheduler, tree and pages, over a runner that computes no model."""

from __future__ import annotations

import time
from collections.abc import Sequence as Row

import numpy as np

from ramet.config import PolicyName, SchedulerConfig
from ramet.core.batch import NO_MASKS, Batch
from ramet.core.ids import Int32, RequestId, UInt32
from ramet.core.output import SequenceUpdate, StepOutput
from ramet.core.ports import Runner
from ramet.core.sampling import SamplingParams
from ramet.engine.admission import Admission, Limits
from ramet.engine.clock import MonotonicClock
from ramet.engine.engine import Engine
from ramet.kv.manager import KVManager
from ramet.kv.pool import PagePool
from ramet.kv.radix import RadixCache
from ramet.runner.fake import FakeRunner, VirtualClock
from ramet.schedule.policy import make_policy
from ramet.schedule.scheduler import Scheduler

__all__ = ["VOCAB_SIZE", "Books", "chat_waste"]

VOCAB_SIZE = 64
_MAX_LEN = 1 << 20


class Books:
    """An engine with a radix tree and its parts at hand. ``step`` tells what a step took, the runner not counted."""

    def __init__(self, num_pages: int, page_size: int, *, max_running_seqs: int = 64, policy: PolicyName = "fcfs") -> None:
        config = SchedulerConfig(max_running_seqs=max_running_seqs, schedule_policy=policy, max_queued_requests=1 << 30)
        self.kv = KVManager(PagePool(num_pages), RadixCache(page_size), page_size)
        self.scheduler = Scheduler(config, self.kv, make_policy(policy, self.kv))
        self._runner = _Timed(FakeRunner(VOCAB_SIZE, page_size, num_pages, VirtualClock()))
        clock, limits = MonotonicClock(), Limits.of(VOCAB_SIZE, _MAX_LEN, self.kv.fits)
        self.engine = Engine(self._runner, self.scheduler, self.kv, clock, Admission(limits, (), clock, seed=0))
        self.updates: list[SequenceUpdate] = []  # of the last step

    def submit(self, prompt: Row[int] | Int32, num_tokens: int) -> RequestId:
        """A request for an answer of exactly so many tokens."""
        return self.engine.submit(prompt, SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True))

    def step(self) -> float:
        """Seconds that the books took."""
        self._runner.seconds = 0.0
        start = time.perf_counter()
        self.updates = self.engine.step()
        return time.perf_counter() - start - self._runner.seconds


class _Timed:
    """A runner, and the seconds spent in it."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.seconds = 0.0

    def launch(self, batch: Batch) -> None:
        start = time.perf_counter()
        self._runner.launch(batch)
        self.seconds += time.perf_counter() - start

    def collect(self, masks: UInt32 = NO_MASKS) -> StepOutput:
        start = time.perf_counter()
        output = self._runner.collect(masks)
        self.seconds += time.perf_counter() - start
        return output


def chat_waste(page_size: int, *, num_chats: int = 64, at_once: int = 16, seed: int = 0) -> list[float]:
    """After each step, the share of the slots in pages that running sequences hold which have no KV in them.

    Mixed chats, so many at a time: one of four system prompts of 50 to 800 tokens, 1 to 6 turns of 10 to 300 tokens, answers
    of 10 to 300. A turn goes on from all before it.
    """
    rng = np.random.default_rng(seed)
    systems = [_tokens(rng, int(size)) for size in rng.integers(50, 801, 4)]
    books = Books((1 << 19) // page_size, page_size)
    turns_left: dict[RequestId, int] = {}

    def say(history: list[int], num_turns: int) -> None:
        prompt = history + _tokens(rng, int(rng.integers(10, 301)))
        turns_left[books.submit(prompt, int(rng.integers(10, 301)))] = num_turns - 1

    num_begun, shares = 0, []
    while num_begun < num_chats or turns_left:
        while num_begun < num_chats and len(turns_left) < at_once:
            say(systems[num_begun % len(systems)], int(rng.integers(1, 7)))
            num_begun += 1
        running = {seq.seq_id: seq for seq in books.scheduler.sequences}
        books.step()
        for update in books.updates:
            if update.finish_reason is not None and (left := turns_left.pop(update.request_id)):
                say(running[update.seq_id].tokens.view().tolist(), left)
        shares += _waste(books)
    return shares


def _waste(books: Books) -> list[float]:
    """Of this moment; nothing where nothing is held. Locked pages are full; one counts once, however many sequences are on it."""
    stats, page_size = books.kv.stats(), books.kv.page_size
    num_slots = (stats.num_locked_pages + stats.num_private_pages) * page_size
    num_own = sum(s.num_computed_tokens - s.lock.num_pages * page_size for s in books.scheduler.sequences if s.lock is not None)
    return [1 - (stats.num_locked_pages * page_size + num_own) / num_slots] if num_slots else []


def _tokens(rng: np.random.Generator, size: int) -> list[int]:
    row: list[int] = rng.integers(0, VOCAB_SIZE, size).tolist()
    return row
