"""The engine: requests in, tokens out, one step at a time. It knows token ids alone; text begins at its edge.

``step()`` is schedule, launch, collect, update. Its two halves can be called apart, and requests may come, branch and go
between them: whatever is in flight is left alone until its step is done. One thread calls all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from ramet.core.adapters import NO_ADAPTER_STORE, AdapterStore
from ramet.core.grammar import GrammarSpec
from ramet.core.ids import IntBuffer, RequestId, SeqId
from ramet.core.output import SequenceUpdate
from ramet.core.ports import Grammars, Matcher, Pending, Runner, Timer
from ramet.core.request import FinishReason, Namespace, Request, Sequence, SequenceState
from ramet.core.sampling import SamplingParams
from ramet.engine.admission import Admission, Limits, PromptIds
from ramet.errors import EngineDead, GrammarError, InvalidRequest, Overloaded, shown
from ramet.kv.manager import KVManager, KVStats
from ramet.schedule.scheduler import Scheduler, SchedulerStats

__all__ = ["NO_GRAMMARS", "Engine", "EngineStats"]

_NO_TENANT = Namespace()
_MOST_COMPILING = 64
_PATIENCE_S = 0.01
_PAUSE_S = 0.002


class EngineStats(msgspec.Struct, frozen=True):
    """``num_open_requests`` have not told their end yet."""

    num_open_requests: int
    scheduler: SchedulerStats
    kv: KVStats


@dataclass(slots=True)
class _Open:
    """A request and those of its sequences that have not told their end."""

    request: Request
    seq_ids: set[SeqId]


@dataclass(slots=True)
class _Compiling:
    """Sequences of one request, whose grammar is not there yet."""

    seqs: list[Sequence]
    matcher: Pending[Matcher]


class _NoGrammars:
    """``Grammars`` of a model without a tokenizer."""

    def check(self, spec: GrammarSpec) -> None:
        raise GrammarError("this model has no tokenizer, so its output cannot be constrained")

    def matcher(self, spec: GrammarSpec, stop_ids: frozenset[int]) -> Pending[Matcher]:
        raise GrammarError("this model has no tokenizer, so its output cannot be constrained")


NO_GRAMMARS = _NoGrammars()


class Engine:
    """``admission`` makes its requests, ``grammars`` and ``adapters`` are what they may name."""

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        kv: KVManager,
        clock: Timer,
        admission: Admission,
        grammars: Grammars = NO_GRAMMARS,
        adapters: AdapterStore = NO_ADAPTER_STORE,
    ) -> None:
        self.adapters = adapters
        self._runner = runner
        self._scheduler = scheduler
        self._kv = kv
        self._clock = clock
        self._admission = admission
        self._grammars = grammars
        self._open: dict[RequestId, _Open] = {}
        self._num_requests = self._num_seqs = 0
        self._num_launched = 0
        self._compiling: list[_Compiling] = []
        self._refused: list[SequenceUpdate] = []  # ends that no step told
        self._death: EngineDead | None = None

    @property
    def limits(self) -> Limits:
        """What every request is held against."""
        return self._admission.limits

    # ---- requests

    def submit(
        self,
        prompt: PromptIds,
        sampling: SamplingParams,
        *,
        request_id: RequestId | None = None,
        namespace: Namespace = _NO_TENANT,
        priority: int = 0,
        arrival_s: float | None = None,
    ) -> RequestId:
        """Queue a request; all of its ``n`` sequences, or none. One whose grammar is new waits until that is compiled, elsewhere.

        Higher ``priority`` goes first; ``arrival_s`` is when the request came, by the engine's clock, where that is not now. The
        namespace's adapter is the one that bears its name now. Raises ``InvalidRequest``, ``UnknownAdapter``, ``ContextTooLong``,
        ``Overloaded`` (the queue is full) and ``EngineDead``; nothing is changed then.
        """
        self.check_alive()
        request = self._admission.request(
            prompt,
            sampling,
            request_id=self._free_id() if request_id is None else request_id,
            namespace=self.adapters.resolve(namespace),
            priority=priority,
            arrival_s=arrival_s,
        )
        self._check_place(request)
        self._begin(request, self._scheduler.add)
        return request.request_id

    def fork(self, seq_id: SeqId, request_id: RequestId | None = None, sampling: SamplingParams | None = None) -> RequestId:
        """Branch a live sequence at its present tokens: a request whose prompt they are, which begins with their KV.

        It answers as if submitted alone with that prompt. Without ``sampling`` it has the parent's parameters and a new
        seed; ``max_tokens`` then counts from the branch. A grammar begins anew there: all tokens so far are prompt. Where it is
        new to the engine the branch waits for it, as ``submit`` says, and then begins with what the cache still has.
        Raises as ``submit`` does.
        """
        self.check_alive()
        parent = self._scheduler.sequence(seq_id)
        if parent is None:
            raise InvalidRequest(
                f"sequence {shown(seq_id)} is not live, so it cannot be forked; submit its tokens instead", "seq_id"
            )
        origin = parent.request
        if sampling is None:
            sampling = replace(origin.sampling, seed=None, prompt_logprobs=None)
        request = self._admission.request(
            parent.tokens.view(),
            sampling,
            request_id=self._free_id() if request_id is None else request_id,
            namespace=origin.namespace,
            priority=origin.priority,
        )
        self._check_place(request)
        self._begin(request, partial(self._scheduler.fork, parent))
        return request.request_id

    def abort(self, request_id: RequestId) -> None:
        """End a request early. A no-op where it has ended or never was."""
        entry = self._open.get(request_id)
        for seq_id in sorted(entry.seq_ids, reverse=True) if entry else ():
            self.abort_sequence(seq_id)

    def abort_sequence(self, seq_id: SeqId) -> None:
        """End one of a request's sequences early (a stop string has come). A no-op where it has ended or never was."""
        for entry in self._compiling:
            for seq in entry.seqs:
                if seq.seq_id == seq_id and not seq.is_finished:
                    self._refuse(seq, "abort")
        self._scheduler.abort(seq_id)

    def request(self, request_id: RequestId) -> Request:
        """An open request: its resolved ``max_tokens`` and seed among others. Raises ``KeyError``."""
        return self._open[request_id].request

    def seq_ids(self, request_id: RequestId) -> tuple[SeqId, ...]:
        """The sequences of an open request that have not told their end, by index."""
        return tuple(sorted(self._open[request_id].seq_ids))

    # ---- steps

    def check_alive(self) -> None:
        """Raise ``EngineDead`` where a step has failed."""
        if self._death is not None:
            raise EngineDead(str(self._death)) from self._death

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work or bool(self._compiling or self._refused)

    def step(self) -> list[SequenceUpdate]:
        """One turn: begin and finish. Raises ``EngineDead`` from the turn after the one whose runner failed."""
        self.begin_step()
        return self.finish_step()

    def begin_step(self) -> None:
        """Decide what is computed and launch it; nothing where there is nothing to compute.

        A step that breaks off half-way ends the engine, whatever stopped it: its KV is not there, and nobody knows how far the
        books were brought. Faults are told by ``finish_step``; what is no fault (``KeyboardInterrupt``) goes on to the caller.
        """
        self.check_alive()
        self._add_compiled()
        try:
            batch = self._scheduler.schedule(self._clock.now())
            if batch is not None:
                self._runner.launch(batch)
                self._num_launched += 1
        except BaseException as error:
            self._break_off(error)

    def finish_step(self) -> list[SequenceUpdate]:
        """Wait for the oldest launched step, and give the news since the last call.

        A step that fails ends every open request with an ``error`` update here.
        """
        updates: list[SequenceUpdate] = []
        if self._num_launched:
            self._num_launched -= 1
            try:
                masks = self._scheduler.fill_masks()  # while the step computes
                updates = self._scheduler.update(self._runner.collect(masks))
            except BaseException as error:
                self._break_off(error)
            if self._scheduler.is_stalled:  # a lexer is made: to ask again at once would only slow that down
                self._clock.pause(_PAUSE_S)
        elif self._compiling:  # nothing else to do; yet aborts and other requests are not to wait for long
            self._compiling[0].matcher.wait(_PATIENCE_S)
        updates += self._scheduler.take_news() + self._refused
        self._refused = []
        for update in updates:
            if update.finish_reason is not None:
                self._close(update)
        return updates

    # ---- the cache, and numbers

    def flush_cache(self, *, force: bool = False) -> int:
        """Forget all cached KV, and what drafters have learnt of earlier requests; returns how many pages that freed.

        Refused with ``InvalidRequest`` while requests are open, unless forced: then what they hold stays. Compiled grammars stay.
        """
        if self._open and not force:
            raise InvalidRequest(f"{len(self._open)} requests are open; wait for them, or force the flush")
        self._scheduler.drafters.forget()
        return self._kv.flush()

    def stats(self) -> EngineStats:
        return EngineStats(len(self._open), self._scheduler.stats(), self._kv.stats())

    # ---- inside

    def _check_place(self, request: Request) -> None:
        if request.request_id in self._open:
            raise InvalidRequest(f"request_id {request.request_id!r} is in use; give each request its own", "request_id")
        if self._scheduler.is_full:
            raise Overloaded("the queue of waiting requests is full (--max-queued-requests); try again later")
        if request.sampling.grammar is not None and len(self._compiling) >= _MOST_COMPILING:
            raise Overloaded(f"{_MOST_COMPILING} requests wait for their grammars to be compiled; try again later")

    def _begin(self, request: Request, add: Callable[[list[Sequence]], None]) -> None:
        """Have its sequences queued by ``add``, or later where its grammar is being compiled."""
        spec = request.sampling.grammar
        matcher = None if spec is None else self._grammars.matcher(spec, request.stop_ids)
        if matcher is None:
            add(self._sequences(request, None))
        elif matcher.done():
            add(self._sequences(request, matcher.result()))
        else:
            self._compiling.append(_Compiling(self._sequences(request, None), matcher))

    def _free_id(self) -> RequestId:
        number = self._num_requests
        while f"request-{number}" in self._open:
            number += 1
        return f"request-{number}"

    def _add_compiled(self) -> None:
        """Queue the requests whose grammars are there now."""
        if not self._compiling:
            return
        compiling, self._compiling = self._compiling, []
        for entry in compiling:
            if not entry.matcher.done():  # asked once: it may change at any time
                self._compiling.append(entry)
                continue
            seqs = [seq for seq in entry.seqs if not seq.is_finished]
            try:
                matcher = entry.matcher.result()
                for seq in seqs:
                    seq.matcher = matcher.fork()
            except Exception as error:  # whatever it is, it is this request's alone
                for seq in seqs:
                    self._refuse(seq, "error", str(error))
                continue
            if seqs:
                self._scheduler.add(seqs)

    def _refuse(self, seq: Sequence, reason: FinishReason, error: str | None = None) -> None:
        """End a sequence that the scheduler has never seen."""
        seq.finish_reason, seq.state = reason, SequenceState.FINISHED
        request_id = seq.request.request_id
        self._refused.append(SequenceUpdate(request_id, seq.seq_id, seq.index, finish_reason=reason, error=error))

    def _sequences(self, request: Request, matcher: Matcher | None) -> list[Sequence]:
        seqs = []
        for index in range(request.sampling.n):
            seqs.append(
                Sequence(
                    seq_id=self._num_seqs,
                    request=request,
                    index=index,
                    tokens=IntBuffer(request.prompt),
                    num_prompt_tokens=len(request.prompt),
                    matcher=matcher and matcher.fork(),
                )
            )
            self._num_seqs += 1
        self._open[request.request_id] = _Open(request, {seq.seq_id for seq in seqs})
        self.adapters.hold(request.namespace)
        self._num_requests += 1
        return seqs

    def _close(self, update: SequenceUpdate) -> None:
        entry = self._open[update.request_id]
        entry.seq_ids.discard(update.seq_id)
        if not entry.seq_ids:
            del self._open[update.request_id]
            self.adapters.release(entry.request.namespace)

    def _break_off(self, error: BaseException) -> None:
        """A step broke off half-way, which is the engine's end; what is no fault goes on to the caller."""
        self._die(error)
        if not isinstance(error, Exception):
            raise error

    def _die(self, error: BaseException) -> None:
        self._death = EngineDead(f"a step failed: {shown(error, 200)}")
        self._death.__cause__ = error
        self._num_launched = 0
        self._scheduler.fail_all(str(self._death))
        for seq in [seq for entry in self._compiling for seq in entry.seqs if not seq.is_finished]:
            self._refuse(seq, "error", str(self._death))
        self._compiling = []
