"""A server's side of the wire: requests on their way, and the engine that answers them, started again when it dies.

Everything here is on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from ramet.core.ids import RequestId, SeqId
from ramet.core.output import SequenceUpdate
from ramet.core.ports import Clock
from ramet.core.request import Request
from ramet.engine.admission import Admission, Limits
from ramet.engine.assemble import OutputAssembler
from ramet.engine.engine import EngineStats
from ramet.engine.wire import (
    Abort,
    AbortSequence,
    AdapterChange,
    Beat,
    Command,
    Event,
    Failed,
    Flush,
    Flushed,
    Loading,
    Ready,
    Refused,
    Step,
    Submit,
)
from ramet.errors import EngineDead, InvalidRequest, Overloaded, RametError, RequestFailed, Unavailable
from ramet.model.spec import Progress, silent
from ramet.server.adapters import ServedAdapters
from ramet.server.generation import NO_OBSERVER, Generation, Observer, Prompted
from ramet.server.links import Link
from ramet.text.tokenizer import Tokenizer

__all__ = ["EngineClient", "EngineState"]

_log = logging.getLogger("ramet.server")

_HUNG_AFTER_S = 5.0  # without a beat, of which there is one a second
_MAX_FAILED_STARTS = 5
_FIRST_PAUSE_S = 0.5  # before a start that follows a failed one; doubled each time


class EngineState(enum.StrEnum):
    STARTING = "starting"
    READY = "ready"
    HUNG = "hung"  # its process is there and says nothing
    RESTARTING = "restarting"
    FAILED = "failed"  # and will not be started again
    CLOSED = "closed"


class EngineClient:
    """Requests to an engine that may die. ``make_link`` gives a way to a new engine at each start.

    ``max_queued_requests`` bounds those that the engine has not begun; ``seed`` is where seeds come from for requests without.
    """

    def __init__(
        self,
        make_link: Callable[[], Link],
        tokenizer: Tokenizer | None,
        clock: Clock,
        *,
        max_queued_requests: int,
        seed: int,
        observer: Observer = NO_OBSERVER,
        progress: Progress = silent,
    ) -> None:
        self._make_link = make_link
        self._clock = clock
        self._max_queued_requests = max_queued_requests
        self._seed = seed
        self._observer = observer
        self._progress = progress
        self._assembler = OutputAssembler(tokenizer, self._abort_sequence)
        self._state = EngineState.STARTING
        self._link: Link | None = None
        self._admission: Admission | None = None
        self._open: dict[RequestId, Generation] = {}
        self._num_waiting = 0
        self._flushes: dict[int, asyncio.Future[int]] = {}
        self._num_flushes = 0
        self.adapters = ServedAdapters(self._send, self._admitting)
        self._heard_s = 0.0
        self._came_up = asyncio.Event()
        self._closing = asyncio.Event()
        self.ready: Ready | None = None  # of the engine that runs, or ran last
        self.stats: EngineStats | None = None  # None before the first step of an engine
        self.last_words: str | None = None  # of an engine that failed, for the log: never for a client
        self.num_starts = 0

    # ---- the engine

    @property
    def state(self) -> EngineState:
        if self._is_closed:
            return EngineState.CLOSED
        if self._state is EngineState.READY and self._clock.now() - self._heard_s > _HUNG_AFTER_S:
            return EngineState.HUNG
        return self._state

    @property
    def _is_closed(self) -> bool:
        return self._closing.is_set()

    @property
    def generations(self) -> list[Generation]:
        """Those that are not finished."""
        return list(self._open.values())

    @property
    def num_waiting(self) -> int:
        """Requests that the engine has not begun."""
        return self._num_waiting

    async def run(self) -> None:
        """Keep an engine up until ``close``. Raises ``EngineDead`` where none can be had: the first, or several in a row."""
        failed_starts = 0
        while True:
            was_ready = await self._one_life()
            if self._is_closed:
                return
            failed_starts = 0 if was_ready else failed_starts + 1
            if (self.num_starts == 1 and not was_ready) or failed_starts >= _MAX_FAILED_STARTS:
                self._state = EngineState.FAILED
                raise EngineDead(self.last_words or "the engine's process ended before it was ready")
            if failed_starts:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), _FIRST_PAUSE_S * 2 ** (failed_starts - 1))
                    return

    async def _one_life(self) -> bool:
        """Start an engine, and wait for its end. True where it became ready."""
        gone = asyncio.Event()
        self.num_starts += 1
        self.last_words = self.stats = None
        self._link = self._make_link()
        try:
            await self._link.open(self._on_event, gone.set)
            if not self._is_closed:
                await gone.wait()
        except OSError as error:  # no process, no descriptor: it may be another's fault, and pass
            self.last_words = f"the engine's process could not be started: {error.strerror or error}"
        finally:
            was_ready = self._state is EngineState.READY
            self._state = EngineState.RESTARTING
            self._came_up.clear()
            self._lose_all()
            await self._link.close()
        return was_ready

    async def until_ready(self) -> None:
        """Wait for an engine; for ever where there is none, so wait for ``run`` beside it."""
        await self._came_up.wait()

    async def close(self) -> None:
        """End the engine, and with it what runs."""
        self._closing.set()
        if self._link is not None:
            await self._link.close()

    @property
    def limits(self) -> Limits:
        """What requests are held against. Raises ``Unavailable`` before an engine was ready."""
        return self._admitting().limits

    def _admitting(self) -> Admission:
        if self._admission is None or self.state is not EngineState.READY:
            raise Unavailable(f"the engine is not ready ({self.state}); try again in a moment")
        return self._admission

    # ---- requests

    def check_room(self, num_requests: int = 1) -> None:
        """Raise ``Overloaded`` or ``Unavailable`` where no further request can be taken: asked before work is put into one, since
        in an overload most come in vain (a prompt of 8,000 tokens takes 14 ms to encode).
        """
        self._admitting()
        if self._num_waiting + num_requests > self._max_queued_requests:
            raise Overloaded(
                f"{self._num_waiting} requests wait already, and {self._max_queued_requests} may (--max-queued-requests); "
                "try again in a moment"
            )

    def submit(self, prompts: Sequence[Prompted], request_id: str) -> list[Generation]:
        """Send one request, of one or more prompts: all of them, or none.

        Raises ``InvalidRequest``, ``ContextTooLong``, ``Overloaded`` and ``Unavailable``; nothing is changed then.
        """
        admission = self._admitting()
        requests = [
            admission.request(
                prompted.token_ids,
                prompted.sampling,
                request_id=request_id if len(prompts) == 1 else f"{request_id}-{i}",
                namespace=prompted.namespace,
                priority=prompted.priority,
            )
            for i, prompted in enumerate(prompts)
        ]
        self.check_room(len(requests))
        for request in requests:
            if request.request_id in self._open:
                raise InvalidRequest(f"request {request.request_id!r} is running already", "request_id")
        generations = [self._begun(request, prompted) for request, prompted in zip(requests, prompts, strict=True)]
        for generation in generations:
            self._open[generation.request.request_id] = generation
            self._num_waiting += 1
            self._send(Submit.of(generation.request))
        return generations

    def _begun(self, request: Request, prompted: Prompted) -> Generation:
        seeded = replace(request, sampling=replace(request.sampling, seed=request.seed))
        output = self._assembler.open(seeded, prompted.text)
        return Generation(seeded, output, prompted.names, lambda: self._send(Abort(request.request_id)), prompted.owner)

    def _abort_sequence(self, seq_id: SeqId) -> None:
        self._send(AbortSequence(seq_id))

    def _send(self, command: Command) -> None:
        if self._link is not None:
            self._link.send(command)

    async def flush_cache(self, *, force: bool) -> int:
        """Forget cached KV and habits; how many pages that freed. Raises ``InvalidRequest`` while requests run, unless forced."""
        self._admitting()
        number = self._num_flushes = self._num_flushes + 1
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._flushes[number] = future
        self._send(Flush(number, force))
        try:
            return await future
        finally:
            self._flushes.pop(number, None)

    # ---- what the engine says

    def _on_event(self, event: Event) -> None:
        self._heard_s = self._clock.now()
        match event:
            case Step():
                self.stats = event.stats
                self._take(event.updates)
            case Beat():
                pass
            case Loading(what, done, total):
                self._progress(what, done, total)
            case Ready():
                self._on_ready(event)
            case Refused(request_id, message, is_callers_fault):
                self._end(request_id, InvalidRequest(message) if is_callers_fault else RequestFailed(message))
            case Flushed(number, num_pages, error):
                self._on_flushed(number, num_pages, error)
            case AdapterChange():
                self.adapters.on_change(event)
            case Failed(message, trace):
                self.last_words = message
                if trace:
                    _log.error("%s\n%s", message, trace)

    def _on_ready(self, ready: Ready) -> None:
        if self._admission is None:
            self._admission = Admission(ready.limits, ready.eos_ids, self._clock, self._seed)
        self._admission.limits = ready.limits  # seeds go on where they were
        self.ready = ready
        self.adapters.on_ready(ready.adapters)
        self._state = EngineState.READY
        self._came_up.set()

    def _on_flushed(self, number: int, num_pages: int, error: str | None) -> None:
        future = self._flushes.get(number)
        if future is None or future.done():
            return
        if error is None:
            future.set_result(num_pages)
        else:
            future.set_exception(InvalidRequest(error))

    def _take(self, updates: Sequence[SequenceUpdate]) -> None:
        for update in updates:
            if (generation := self._open.get(update.request_id)) is not None:
                self._note(generation, update)
        for output in self._assembler.apply(updates):
            if output.finished:
                self._end(output.request_id)
            else:
                self._open[output.request_id].wake()

    def _note(self, generation: Generation, update: SequenceUpdate) -> None:
        """Times and counts, before the update is put into words."""
        if generation.started_s is None and update.started_s is not None:
            generation.started_s = update.started_s
            self._num_waiting -= 1
            self._observe(self._observer.started, generation)
        if update.new_token_ids:
            last_s, generation.last_token_s = generation.last_token_s, self._heard_s
            if generation.first_token_s is None:
                generation.first_token_s = self._heard_s
            gap_s = None if last_s is None else self._heard_s - last_s
            self._observe(self._observer.told, generation, len(update.new_token_ids), gap_s)

    def _observe(self, tell: Callable[..., None], generation: Generation, *news: object) -> None:
        """Counting may fail; the request that is counted goes on, and so do all others."""
        try:
            tell(generation, *news)
        except Exception as error:
            _log.error("request %s could not be counted: %s", generation.request.request_id, type(error).__name__)

    def _end(self, request_id: RequestId, failure: RametError | None = None) -> None:
        generation = self._open.pop(request_id, None)
        if generation is None:
            return
        if generation.started_s is None:
            self._num_waiting -= 1
        self._assembler.close(request_id)
        generation.end(self._clock.now(), failure)
        self._observe(self._observer.finished, generation)

    def _lose_all(self) -> None:
        """The engine is gone, and with it all that ran. Each is told by an error of its own: one that is raised again and again
        keeps the frames of every time.
        """
        for request_id in list(self._open):
            self._end(request_id, self._loss())
        for future in self._flushes.values():
            if not future.done():
                future.set_exception(self._loss())
        self.adapters.lose(self._loss)

    def _loss(self) -> RametError:
        if self._is_closed:
            return Unavailable(
                "the server is stopping, and this answer is not whole; send the request to another, or again later"
            )
        return EngineDead("the engine ended while it computed this answer, and is started again; send the request again")
