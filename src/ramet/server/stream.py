"""From a growing output to what a client is told: pieces, whole answers, server-sent events. Whoever leaves aborts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import msgspec
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from ramet.core.request import FinishReason
from ramet.engine.assemble import CompletionOutput, Logprob, RequestOutput, Usage
from ramet.server.errors import ApiError, Problem, dialect_of, error_event, log_failure, problem_of
from ramet.server.gate import request_id_of
from ramet.server.generation import Generation
from ramet.server.services import generations_of
from ramet.server.usage import summed_usage

__all__ = ["DONE", "EventStream", "Piece", "answered", "pieces", "pieces_of", "prompts_of", "sse", "usage_of"]

PING_AFTER_S = 10.0  # without a word; proxies close what is silent for a minute
_PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"  # the end of a stream that is whole, but for Anthropic's and Responses
_encode = msgspec.json.Encoder().encode


class Piece(msgspec.Struct, frozen=True):
    """What is new of one answer since it was last looked at. ``logprobs`` go with ``token_ids``, where they were asked for."""

    answer: CompletionOutput
    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]]
    finish_reason: FinishReason | None

    @property
    def index(self) -> int:
        return self.answer.index

    @property
    def ended(self) -> CompletionOutput | None:
        """The whole answer, where this is its last piece: before, it grows while one looks."""
        return None if self.finish_reason is None else self.answer


async def pieces(generation: Generation) -> AsyncIterator[list[Piece]]:
    """The growth of a generation's answers, as often as somebody looks. Raises what ends it before its time.

    Nothing is queued: who looks late finds more at once. The first list may be empty: the request has begun.
    """
    given = [(0, 0)] * len(generation.output.outputs)
    ended: set[int] = set()
    while True:
        await generation.changed()
        news = []
        for answer in generation.output.outputs:
            num_chars, num_tokens = given[answer.index]
            if answer.index in ended or (
                len(answer.text) == num_chars and len(answer.token_ids) == num_tokens and answer.finish_reason is None
            ):
                continue
            given[answer.index] = (len(answer.text), len(answer.token_ids))
            if answer.finish_reason is not None:
                ended.add(answer.index)
                _check_whole(generation)
            news.append(
                Piece(
                    answer,
                    answer.text[num_chars:],
                    answer.token_ids[num_tokens:],
                    [] if answer.logprobs is None else answer.logprobs[num_tokens:],
                    answer.finish_reason,
                )
            )
        if generation.is_finished:
            _check_whole(generation)
            yield news
            return
        yield news


async def pieces_of(generations: Sequence[Generation]) -> AsyncIterator[tuple[int, list[Piece]]]:
    """The same of several generations, each list with the place of the one that has grown."""
    if len(generations) == 1:
        async for news in pieces(generations[0]):
            yield 0, news
        return
    readers = [pieces(generation) for generation in generations]
    tasks = {asyncio.ensure_future(anext(reader)): i for i, reader in enumerate(readers)}
    try:
        while tasks:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            ends = {task: task.exception() for task in done}  # all looked at, since the first that is raised ends the loop
            for task in sorted(done, key=tasks.__getitem__):
                i = tasks.pop(task)
                if isinstance(ends[task], StopAsyncIteration):
                    continue
                yield i, task.result()
                tasks[asyncio.ensure_future(anext(readers[i]))] = i
    finally:
        for task in tasks:
            task.cancel()


async def answered(generations: Sequence[Generation], request: Request) -> list[RequestOutput]:
    """Wait until all are finished; where one fails, or the client leaves, the others are aborted. Raises what failed."""
    watch = asyncio.create_task(_watch(generations, request.receive))
    try:
        return await asyncio.gather(*map(_whole, generations))
    finally:
        watch.cancel()
        _abort_all(generations)


async def _whole(generation: Generation) -> RequestOutput:
    output = await generation.finished()
    _check_whole(generation)
    return output


def sse(data: object, event: str | None = None) -> bytes:
    """One server-sent event with a JSON body."""
    name = b"" if event is None else b"event: " + event.encode() + b"\n"
    return name + b"data: " + _encode(data) + b"\n\n"


class EventStream:
    """A response of server-sent events about ``generations``, which are aborted when the client leaves or the events fail.

    The status is sent with the first event, so that what fails before it has an error status of its own; an error after it
    becomes an event in the path's dialect, or the one that ``failed`` makes of it, and the stream ends there. ``ping`` keeps a
    silent connection open.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        generations: Sequence[Generation],
        headers: Mapping[str, str],
        *,
        failed: Callable[[Problem], bytes] | None = None,
        ping: bytes = _PING,
    ) -> None:
        self._events = events
        self._generations = generations
        self._failed = failed
        self._ping = ping
        self._headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            *((name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()),
        ]
        self._has_begun = False
        self._is_quiet = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = asyncio.create_task(self._watch_and_ping(receive, send))
        try:
            async for event in self._events:
                self._is_quiet = False
                await self._begin(send)
                await send({"type": "http.response.body", "body": event, "more_body": True})
        except Exception as error:
            if not self._has_begun:
                raise
            request_id = request_id_of(scope)
            problem = problem_of(error, request_id)
            log_failure(error, problem, request_id)
            event = self._failed(problem) if self._failed else error_event(problem, dialect_of(scope["path"]), request_id)
            await send({"type": "http.response.body", "body": event, "more_body": True})
        finally:
            watch.cancel()
            _abort_all(self._generations)
        await self._begin(send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _begin(self, send: Send) -> None:
        if not self._has_begun:
            self._has_begun = True
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})

    async def _watch_and_ping(self, receive: Receive, send: Send) -> None:
        watch = asyncio.create_task(_watch(self._generations, receive))
        try:
            while not watch.done():
                self._is_quiet = True
                await asyncio.wait([watch], timeout=PING_AFTER_S)
                if self._is_quiet and not watch.done():
                    await self._begin(send)
                    await send({"type": "http.response.body", "body": self._ping, "more_body": True})
        finally:
            watch.cancel()


async def _watch(generations: Sequence[Generation], receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    _abort_all(generations)


def usage_of(scope: Scope) -> Usage | None:
    """The tokens of a request whose answer has been told, all its prompts together; None where none came to an engine."""
    generations = generations_of(scope)
    return summed_usage(generations) if generations else None


def prompts_of(scope: Scope) -> list[str]:
    """The prompts of a request as the model was given them: texts, or token ids; none where it did not come to an engine."""
    outputs = [generation.output for generation in generations_of(scope)]
    return [str(output.prompt_token_ids) if output.prompt is None else output.prompt for output in outputs]


def _abort_all(generations: Sequence[Generation]) -> None:
    for generation in generations:
        generation.abort()


def _check_whole(generation: Generation) -> None:
    """Raise where a finished generation is no whole answer."""
    if generation.failure is not None:
        raise generation.failure
    if any(answer.finish_reason == "abort" for answer in generation.output.outputs):
        raise ApiError(499, "the request was aborted", code="aborted")
