"""The engine at the end of a wire: commands in, steps, events out.

It has no thread, socket or clock of its own: whoever runs it (a process, a thread, a test) gives commands and takes events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from ramet.core.adapters import Fetched
from ramet.core.output import SequenceUpdate
from ramet.core.ports import Pending
from ramet.core.sampling import SamplingParams
from ramet.engine.engine import Engine
from ramet.engine.wire import (
    Abort,
    AbortSequence,
    AdapterChange,
    Command,
    Event,
    Flush,
    Flushed,
    LoadAdapter,
    Refused,
    Start,
    Step,
    Submit,
    UnloadAdapter,
)
from ramet.errors import EngineDead, InvalidRequest, RametError, UnknownAdapter, shown

__all__ = ["EngineLoop"]

_PATIENCE_S = 0.01


class EngineLoop:
    """``emit`` takes the events, in order. One thread calls all of it."""

    def __init__(self, engine: Engine, emit: Callable[[Event], None]) -> None:
        self._engine = engine
        self._emit = emit
        self._loading: list[tuple[LoadAdapter, Pending[Fetched]]] = []

    @property
    def has_work(self) -> bool:
        return self._engine.has_work or bool(self._loading)

    def turn(self, commands: Iterable[Command]) -> None:
        """Obey the commands, then do one step where there is something to do; flush after it, when what was aborted has ended.

        What goes wrong with one command is told of that one. Raises ``EngineDead`` where the step failed; nobody is told then but
        the caller, whose end is the end of all requests.
        """
        flushes: list[Flush] = []
        for command in commands:
            if isinstance(command, Flush):
                flushes.append(command)
            else:
                self._obey(command)
        updates: list[SequenceUpdate] = []
        if self._engine.has_work:
            updates = self._engine.step()
            self._engine.check_alive()
        elif self._loading:  # nothing else to do; yet commands are not to wait for long
            self._loading[0][1].wait(_PATIENCE_S)
        self._add_loaded()
        for flush in flushes:
            self._flush(flush)
        self._emit(Step(updates, self._engine.stats()))

    def _obey(self, command: Command) -> None:
        match command:
            case Submit():
                self._submit(command)
            case Abort(request_id):
                self._engine.abort(request_id)
            case AbortSequence(seq_id):
                self._engine.abort_sequence(seq_id)
            case LoadAdapter():
                self._load(command)
            case UnloadAdapter(number, name):
                self._change(number, partial(self._engine.adapters.remove, name))
            case Start():
                raise EngineDead("the engine was told to start a second time")

    def _submit(self, command: Submit) -> None:
        try:
            self._engine.submit(
                np.frombuffer(command.prompt, np.int32),
                SamplingParams(**command.sampling),
                request_id=command.request_id,
                namespace=command.namespace,
                priority=command.priority,
                arrival_s=command.arrival_s,
            )
        except EngineDead:
            raise
        except RametError as error:
            self._emit(Refused(command.request_id, str(error), isinstance(error, InvalidRequest)))
        except Exception as error:  # whatever it is, it is this request's alone
            self._emit(Refused(command.request_id, f"the engine could not take the request: {shown(error, 200)}"))

    def _flush(self, flush: Flush) -> None:
        try:
            self._emit(Flushed(flush.number, self._engine.flush_cache(force=flush.force)))
        except InvalidRequest as error:
            self._emit(Flushed(flush.number, 0, str(error)))

    def _load(self, load: LoadAdapter) -> None:
        def fetch() -> None:
            self._loading.append((load, self._engine.adapters.fetch(load.name, load.path)))

        if error := _fault(fetch):
            self._tell(load.number, error)

    def _add_loaded(self) -> None:
        """Let requests name the adapters that have been read by now."""
        done = [entry for entry in self._loading if entry[1].done()]
        self._loading = [entry for entry in self._loading if entry not in done]
        for load, fetched in done:
            self._change(load.number, partial(self._add, load, fetched))

    def _add(self, load: LoadAdapter, fetched: Pending[Fetched]) -> None:
        self._engine.adapters.add(fetched.result(), replaces=load.replaces)

    def _change(self, number: int, change: Callable[[], object]) -> None:
        self._tell(number, _fault(change))

    def _tell(self, number: int, error: Exception | None) -> None:
        text = None if error is None else str(error) if isinstance(error, RametError) else f"a defect: {shown(error, 200)}"
        self._emit(AdapterChange(number, self._engine.adapters.listed(), text, isinstance(error, UnknownAdapter)))


def _fault(work: Callable[[], object]) -> Exception | None:
    """What goes wrong with ``work``, whatever it is: it is that command's alone."""
    try:
        work()
    except Exception as error:
        return error
    return None
