"""One request on its way through a server: what is asked of an engine, and the answer that grows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ramet.core.output import NO_TOKEN_LEFT, NOT_HELD
from ramet.core.request import Namespace, Request
from ramet.core.sampling import SamplingParams
from ramet.engine.admission import PromptIds
from ramet.engine.assemble import RequestOutput
from ramet.errors import InvalidRequest, RametError, RequestFailed

__all__ = ["NO_OBSERVER", "Generation", "Observer", "Prompted"]

_NO_NAMES: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompted:
    """One prompt ready for an engine. ``names`` are ids by which its ``owner`` may abort it, besides the request's own."""

    token_ids: PromptIds
    sampling: SamplingParams
    text: str | None = None
    namespace: Namespace = Namespace()
    priority: int = 0
    names: frozenset[str] = _NO_NAMES
    owner: str = ""


class Generation:
    """One request on its way: an output that grows in place, and the news that it has grown. One reader."""

    def __init__(
        self, request: Request, output: RequestOutput, names: frozenset[str], abort: Callable[[], None], owner: str = ""
    ) -> None:
        self.request = request
        self.output = output
        self.names = names
        self.owner = owner
        self.started_s: float | None = None  # times are the engine clock's, as request.arrival_s is
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.finished_s: float | None = None
        self.is_aborted = False
        self._failure: RametError | None = None
        self._abort = abort
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()

    @property
    def is_finished(self) -> bool:
        return self.finished_s is not None

    @property
    def failure(self) -> RametError | None:
        """Why it has no answer, or none to its end."""
        if self._failure is not None:
            return self._failure
        error = next((answer.error for answer in self.output.outputs if answer.error is not None), None)
        if error is None:
            return None
        return InvalidRequest(error) if error.startswith((NO_TOKEN_LEFT, NOT_HELD)) else RequestFailed(error)

    async def changed(self) -> None:
        """Wait until the output has changed since the last call; at once where it is finished."""
        if not self.is_finished:
            await self._changed.wait()
        self._changed.clear()

    async def finished(self) -> RequestOutput:
        """Wait for the end, asleep while the output grows. Raises what ``failure`` holds."""
        await self._ended.wait()
        if self.failure is not None:
            raise self.failure
        return self.output

    def abort(self) -> None:
        """End it early; a no-op where it has ended."""
        if not self.is_finished and not self.is_aborted:
            self.is_aborted = True
            self._abort()

    def wake(self) -> None:
        """The output has changed."""
        self._changed.set()

    def end(self, now_s: float, failure: RametError | None = None) -> None:
        """The last change."""
        self.finished_s, self._failure = now_s, failure
        self._changed.set()
        self._ended.set()


class Observer(Protocol):
    """Whoever counts what happens to requests."""

    def started(self, generation: Generation) -> None: ...

    def told(self, generation: Generation, num_tokens: int, gap_s: float | None) -> None:
        """Output tokens came; ``gap_s`` since the last ones of the same sequence's request, None for its first."""
        ...

    def finished(self, generation: Generation) -> None: ...


class _Nobody:
    def started(self, generation: Generation) -> None:
        pass

    def told(self, generation: Generation, num_tokens: int, gap_s: float | None) -> None:
        pass

    def finished(self, generation: Generation) -> None:
        pass


NO_OBSERVER: Observer = _Nobody()
"""It counts nothing."""
