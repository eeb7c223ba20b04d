"""Who computes what in the next step, and what a step's result means for its sequences.

There is no prefill phase and no decode phase: each sequence has ``num_computed_tokens`` chasing ``len(tokens)`` (the view of
vLLM's V1 scheduler). A chunk of a prompt, a decode, the tail behind a prefix hit and the work again after a preemption are
one and the same. docs/design/scheduling.md has a worked example.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from ramet.config import SchedulerConfig
from ramet.core.batch import NO_MASKS, Batch
from ramet.core.ids import SeqId, UInt32
from ramet.core.output import SequenceUpdate, StepOutput, TokenLogprobs
from ramet.core.request import Sequence
from ramet.errors import EngineDead
from ramet.kv.manager import KVManager
from ramet.schedule.build import Chunk, build_batch
from ramet.schedule.drafts import NO_DRAFTS, Drafters, plan_drafts
from ramet.schedule.masks import fill_masks
from ramet.schedule.news import News
from ramet.schedule.outcome import Outcome, own_fault, take_tokens
from ramet.schedule.policy import Policy
from ramet.schedule.queues import Queues
from ramet.schedule.sampling_rows import SamplingRows

__all__ = ["Scheduler", "SchedulerStats"]


class SchedulerStats(msgspec.Struct, frozen=True):
    """Sequences now, and counts since the start.

    ``num_computed_tokens`` is all the work done, that done again after a preemption and drafts that failed included.
    """

    num_running: int
    num_waiting: int
    num_steps: int
    num_preemptions: int
    num_computed_tokens: int
    num_output_tokens: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int


@dataclass(slots=True)
class _Launched:
    """A step in flight. ``mask_errors`` are of grammars, by sampled row."""

    batch: Batch
    chunks: list[Chunk]
    mask_errors: Mapping[int, str] = field(default_factory=dict)


class Scheduler:
    """The only one who changes sequence state.

    ``schedule`` launches, ``update`` takes the result of the oldest launched step. Several steps may be in flight: a
    sequence's ``num_in_flight_tokens`` say so, and while they are over 0 it is not preempted, published or freed. ``abort``
    then only marks; ``update`` frees.
    """

    def __init__(self, config: SchedulerConfig, kv: KVManager, policy: Policy, drafters: Drafters = NO_DRAFTS) -> None:
        self._config = config
        self.drafters = drafters
        self._kv = kv
        self._policy = policy
        self._queues = Queues()
        self._rows = SamplingRows()
        self._launched: deque[_Launched] = deque()
        self._news = News()
        self._now_s = 0.0
        self.is_stalled = False  # whether all of the last step waited for their grammars
        self._num_steps = self._num_preemptions = self._num_computed_tokens = self._num_output_tokens = 0
        self._num_draft_tokens = self._num_accepted_draft_tokens = 0

    @property
    def sequences(self) -> list[Sequence]:
        """All that are not finished, for the audit."""
        return self._queues.all()

    @property
    def has_work(self) -> bool:
        return bool(self._queues or self._news)

    @property
    def is_full(self) -> bool:
        """As many requests wait to begin as may wait. Those preempted, and more answers to one that runs, do not count."""
        limit = self._config.max_queued_requests
        if len(self._queues.waiting) < limit:
            return False  # asked at every submit: counted only where it can matter
        return sum(1 for seq in self._queues.waiting if seq.index == 0 and not seq.num_preemptions) >= limit

    def sequence(self, seq_id: SeqId) -> Sequence | None:
        """The sequence, while it is not finished."""
        seq = self._queues.get(seq_id)
        return None if seq is None or seq.is_finished else seq

    def stats(self) -> SchedulerStats:
        return SchedulerStats(
            num_running=len(self._queues.running),
            num_waiting=len(self._queues) - len(self._queues.running),
            num_steps=self._num_steps,
            num_preemptions=self._num_preemptions,
            num_computed_tokens=self._num_computed_tokens,
            num_output_tokens=self._num_output_tokens,
            num_draft_tokens=self._num_draft_tokens,
            num_accepted_draft_tokens=self._num_accepted_draft_tokens,
        )

    # ---- what comes in

    def add(self, seqs: list[Sequence]) -> None:
        """Queue the sequences of one request. The first goes ahead; the others are forked from it once its prompt is computed."""
        leader, *siblings = seqs
        self._know(leader)
        self._queues.wait(leader)
        for seq in siblings:
            self._know(seq)
            self._queues.follow(seq, leader)

    def fork(self, parent: Sequence, seqs: list[Sequence]) -> None:
        """Queue one request's sequences, whose tokens are ``parent``'s now; they take over its KV where there is room."""
        if seqs[0].request.sampling.prompt_logprobs is not None:
            self.add(seqs)  # the first has to compute its whole prompt, which a fork would skip
            return
        for seq in seqs:
            self._know(seq)
            if parent.num_in_flight_tokens or parent.num_computed_tokens < parent.num_prompt_tokens:
                self._queues.follow(seq, parent)
            else:
                self._branch(seq, parent)

    def abort(self, seq_id: SeqId) -> None:
        """End a sequence early; a no-op where it has ended. Its tokens in flight will not be told."""
        seq = self.sequence(seq_id)
        if seq is not None:
            seq.finish_reason = "abort"
            self._end_if_idle(seq)

    def fail_all(self, message: str) -> None:
        """The device is gone, and the launched steps with it: end every sequence, publish nothing more.

        It may have gone in the middle of a move, so what list a sequence should be in is not asked.
        """
        self._launched.clear()
        ended = self._queues.forget_all()
        for seq in ended:
            seq.num_in_flight_tokens = 0
            error = None if seq.is_finished else message
            seq.finish_reason = seq.finish_reason or "error"
            self._news.add(seq, error=error)
        for seq in ended:
            self._free(seq)

    # ---- deciding

    def schedule(self, now_s: float) -> Batch | None:
        """The next step's batch, now in flight; None where there is nothing to compute. ``now_s`` is the time, for the news."""
        self._now_s = now_s
        budget = self._step_tokens()
        chunks = self._plan_running(budget)
        self._plan_waiting(chunks, budget - sum(chunk.num_tokens for chunk in chunks))
        if not chunks:
            return None
        chunks, failed = plan_drafts(chunks, self._config.max_batch_tokens - sum(chunk.num_tokens for chunk in chunks), self._kv)
        for seq, fault in failed:
            self._fail(seq, fault)
        self._num_steps += 1
        sampling = self._rows.of([chunk for chunk in chunks if chunk.samples])
        batch = build_batch(self._num_steps, self._kv.page_size, chunks, self._kv.take_page_copies(), sampling)
        self._launched.append(_Launched(batch, chunks))
        return batch

    def fill_masks(self) -> UInt32:
        """What the grammars allow in the oldest launched step, which may compute meanwhile; uint32[M, W], for ``collect``."""
        if not self._launched:
            return NO_MASKS
        oldest = self._launched[0]
        masks, oldest.mask_errors = fill_masks([chunk for chunk in oldest.chunks if chunk.samples])
        return masks

    def _step_tokens(self) -> int:
        """Tokens that the next step may have: while answers are written, one chunk of prompts, which they all wait for."""
        most, chunk = self._config.max_batch_tokens, self._config.chunked_prefill_size
        num_writing = sum(1 for seq in self._queues.running if seq.num_remaining_tokens == 1)
        if chunk is None or num_writing == 0:
            return most
        return min(most, max(num_writing + chunk, len(self._queues.running)))

    def _plan_running(self, budget: int) -> list[Chunk]:
        """Each running sequence once, best rank first. Victims come from the end of the list, which is not visited yet."""
        chunks: list[Chunk] = []
        running = self._queues.running
        visited = 0
        while visited < len(running):
            seq = running[visited]
            visited += 1
            num_behind = len(running) - visited  # a token is kept for each, so that no prompt starves a decode
            num_tokens = self._chunk_size(seq, budget - num_behind)
            if num_tokens <= 0:
                continue
            if not self._kv.covers(seq, num_tokens):
                books = self._kv.books(seq)
                try:
                    if not self._make_room(seq, num_tokens):
                        continue
                except Exception as error:
                    if self._kv.books(seq) != books:
                        raise
                    visited -= not seq.num_in_flight_tokens  # it leaves the list
                    self._fail(seq, own_fault(error))
                    continue
            chunks.append(self._launch(seq, num_tokens))
            budget -= num_tokens
        return chunks

    def _plan_waiting(self, chunks: list[Chunk], budget: int) -> None:
        """Admit in the policy's order until one does not fit."""
        queues = self._queues
        if not queues.waiting:
            return
        admitted: list[Sequence] = []
        failed: list[tuple[Sequence, str]] = []
        # A policy may ask the cache about many sequences, so it is not asked in vain.
        for seq in self._policy.order(queues.waiting, queues.running) if self._has_place(budget) else ():
            if not self._has_place(budget):
                break
            # One spare page for each running sequence: they can all grow for a page's worth of steps before any is preempted.
            books = self._kv.books(seq)
            try:
                has_room = self._kv.admit(seq, reserve_pages=len(queues.running))
            except Exception as error:
                if self._kv.books(seq) != books:
                    raise
                failed.append((seq, own_fault(error)))
                continue
            if not has_room:
                if queues.running or self._launched:
                    break  # their pages will come back
                failed.append((seq, f"{len(seq.tokens)} tokens do not fit the KV pool even when nothing else runs"))
                continue
            admitted.append(seq)
            self._start(seq)
            num_tokens = self._chunk_size(seq, budget)
            chunks.append(self._launch(seq, num_tokens))
            budget -= num_tokens
        queues.no_longer_wait(admitted)
        for seq, fault in failed:
            self._fail(seq, fault)

    def _has_place(self, budget: int) -> bool:
        """Whether one more sequence may begin to run in a step with ``budget`` tokens left."""
        return budget > 0 and len(self._queues.running) < self._config.max_running_seqs

    def _chunk_size(self, seq: Sequence, budget: int) -> int:
        if seq.is_finished:
            return 0
        limit = self._config.chunked_prefill_size
        return min(seq.num_remaining_tokens, budget if limit is None else min(limit, budget))

    def _launch(self, seq: Sequence, num_tokens: int) -> Chunk:
        """``num_tokens`` of a sequence are in flight from now on."""
        start = seq.num_computed_tokens + seq.num_in_flight_tokens
        seq.num_in_flight_tokens += num_tokens
        end = start + num_tokens
        samples = end == len(seq.tokens) and seq.num_output_tokens < seq.request.max_tokens
        if seq.request.sampling.prompt_logprobs is None:
            return Chunk(seq, start, num_tokens, samples)
        # Position 0 has no logprob; those at or before num_prompt_logprobs have been given out.
        first = max(start, seq.num_prompt_logprobs) + 1
        return Chunk(seq, start, num_tokens, samples, first, max(0, min(end + 1, seq.num_prompt_tokens) - first))

    def _make_room(self, seq: Sequence, num_tokens: int) -> bool:
        """Pages for ``num_tokens`` more, preempting from the end of the running list. False: not in this step."""
        while not self._kv.grow(seq, num_tokens):
            victim = next((s for s in reversed(self._queues.running) if s is seq or not s.num_in_flight_tokens), seq)
            if victim.num_in_flight_tokens:
                return False  # only launched steps hold the room, and they will give it back
            self._preempt(victim)
            if victim is seq:
                return False
        return True

    def _preempt(self, seq: Sequence) -> None:
        """Take a sequence's pages. What was published stays in the cache while there is room, so the way back may be short."""
        self._kv.release(seq)
        seq.num_preemptions += 1
        self._num_preemptions += 1
        self._queues.put_back(seq)

    # ---- what comes out

    def update(self, output: StepOutput) -> list[SequenceUpdate]:
        """Take in the result of the oldest launched step. Raises ``EngineDead``, changing nothing, where it is another's."""
        oldest = self._launched[0] if self._launched else None
        if oldest is None or output.step != oldest.batch.step or len(output.token_ids) != len(oldest.batch.sample_rows):
            raise EngineDead(f"the runner gave a result of step {output.step} that does not fit the oldest one launched")
        self._launched.popleft()
        if oldest.mask_errors:
            output = msgspec.structs.replace(output, errors={**output.errors, **oldest.mask_errors})
        row = given = 0
        for chunk in oldest.chunks:
            prompt_logprobs = output.prompt_logprobs[given : given + chunk.num_prompt_logprobs]
            self._settle(chunk, output, row, prompt_logprobs)
            given += chunk.num_prompt_logprobs
            row += chunk.samples + len(chunk.drafts)
        news = self.take_news()
        self.is_stalled = not news and all(chunk.samples for chunk in oldest.chunks)
        return news

    def take_news(self) -> list[SequenceUpdate]:
        """Updates not told yet. Only ends of sequences that were not in flight come outside ``update``."""
        return self._news.take()

    def _settle(self, chunk: Chunk, output: StepOutput, row: int, prompt_logprobs: tuple[TokenLogprobs, ...]) -> None:
        """What one chunk's step means for its sequence; its sampled rows, where it has some, begin at ``row``."""
        seq = chunk.sequence
        seq.num_in_flight_tokens -= chunk.num_rows
        seq.num_computed_tokens += chunk.num_tokens
        self._num_computed_tokens += chunk.num_rows
        self._num_draft_tokens += len(chunk.drafts)
        if seq.is_finished:  # nothing of this step is told
            if not (chunk.samples and row in output.errors):
                self._publish(seq)
            self._end_if_idle(seq)
            return
        seq.num_prompt_logprobs += len(prompt_logprobs)
        new = take_tokens(chunk, output, row) if chunk.samples else Outcome()
        seq.num_computed_tokens += len(new.token_ids) - chunk.samples  # the drafts that held; with nothing chosen, one step back
        self._num_output_tokens += len(new.token_ids)
        self._num_accepted_draft_tokens += max(0, len(new.token_ids) - 1)
        if new.error is None:
            self._publish(seq)
            seq.finish_reason = new.finish_reason
            if not chunk.samples and chunk.end == len(seq.tokens):  # max_tokens 0: the prompt is all that was wanted
                seq.finish_reason = "length"
            if not (new.token_ids or prompt_logprobs or seq.is_finished):
                return
        else:
            seq.finish_reason, seq.error = "error", new.error
        self._news.add(seq, tuple(new.token_ids), tuple(new.logprobs), prompt_logprobs, new.stop_token_id)
        if seq.finish_reason is not None:
            self._let_go(seq)

    def _publish(self, seq: Sequence) -> None:
        """The steps that filled its pages are done: others may use them. So what is idle is published, always.

        While one is in flight nothing is: publishing frees pages that turn out to be duplicates, and that step may read them.
        """
        if seq.num_in_flight_tokens:
            return
        self._kv.commit(seq)
        if seq.num_computed_tokens >= seq.num_prompt_tokens and not seq.is_finished:
            for follower in self._queues.take_followers(seq):
                self._branch(follower, seq)

    def _fail(self, seq: Sequence, error: str) -> None:
        """End a sequence for a fault that is its own. Of one that is in flight it is told when its step is done."""
        seq.finish_reason, seq.error = "error", error
        if not seq.num_in_flight_tokens:
            self._end(seq)

    # ---- beginnings and ends

    def _know(self, seq: Sequence) -> None:
        self._queues.know(seq)
        seq.drafter = self.drafters.make(seq)

    def _start(self, seq: Sequence) -> None:
        if seq.started_s is None:
            seq.started_s = self._now_s
            self._news.add(seq)
        self._queues.run(seq)

    def _branch(self, seq: Sequence, parent: Sequence) -> None:
        """Run on the parent's KV; where there is no room, be admitted as anyone is, later."""
        seq.parent_id = parent.seq_id
        if len(self._queues.running) < self._config.max_running_seqs and self._kv.fork(parent, seq):
            self._start(seq)
        else:
            self._queues.wait(seq)

    def _end_if_idle(self, seq: Sequence) -> None:
        if not seq.num_in_flight_tokens:
            self._end(seq)

    def _end(self, seq: Sequence) -> None:
        """The last news of a finished sequence, which lets it go."""
        self._news.add(seq)
        self._let_go(seq)

    def _let_go(self, seq: Sequence) -> None:
        self._queues.forget(seq)
        self._free(seq)

    def _free(self, seq: Sequence) -> None:
        """Nothing is left of a finished sequence but what it published."""
        self._kv.release(seq)
        seq.matcher = seq.drafter = None
