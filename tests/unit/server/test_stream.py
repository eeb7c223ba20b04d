"""Pieces of growing outputs: what is new, from whichever of several requests, and an end before the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from starlette.requests import Request as HttpRequest

from ramet.core.request import Request
from ramet.core.sampling import SamplingParams
from ramet.engine.assemble import CompletionOutput, RequestOutput, Usage
from ramet.errors import InvalidRequest, RequestFailed
from ramet.server.errors import ApiError
from ramet.server.generation import Generation
from ramet.server.stream import Piece, answered, pieces, pieces_of


def growing(request_id: str = "a", n: int = 1, abort: Callable[[], None] = lambda: None) -> Generation:
    request = Request(request_id, np.arange(3, dtype=np.int32), SamplingParams(n=n), seed=0, max_tokens=9)
    outputs = [CompletionOutput(i) for i in range(n)]
    output = RequestOutput(request_id, None, [0, 1, 2], outputs, Usage(prompt_tokens=3), 0)
    return Generation(request, output, frozenset(), abort)


def say(generation: Generation, text: str, index: int = 0, reason: Any = None) -> None:
    answer = generation.output.outputs[index]
    answer.text += text
    answer.token_ids += text.encode()
    answer.finish_reason = reason
    if generation.output.finished:
        generation.end(1.0)
    else:
        generation.wake()


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 10))


def told(news: list[Piece]) -> list[tuple[int, str, str | None]]:
    return [(piece.index, piece.text, piece.finish_reason) for piece in news]


def test_who_looks_late_finds_more_at_once() -> None:
    async def test() -> None:
        generation = growing(n=2)
        reader = pieces(generation)
        say(generation, "a")
        assert told(await anext(reader)) == [(0, "a", None)]
        say(generation, "b")
        say(generation, "x", 1)
        say(generation, "c", reason="stop")
        assert told(await anext(reader)) == [(0, "bc", "stop"), (1, "x", None)]
        say(generation, "", 1, reason="length")
        assert [told(news) async for news in reader] == [[(1, "", "length")]]

    run(test())


@pytest.mark.parametrize(("reason", "error"), [("error", RequestFailed), ("abort", ApiError)])
def test_an_answer_that_failed_ends_the_stream_though_others_go_on(reason: str, error: type[Exception]) -> None:
    async def test() -> None:
        generation = growing(n=2)
        generation.output.outputs[0].error = "broken" if reason == "error" else None
        say(generation, "a", reason=reason)
        assert not generation.is_finished
        with pytest.raises(error):
            await anext(pieces(generation))

    run(test())


def test_several_requests_are_read_as_they_grow() -> None:
    async def test() -> None:
        generations = [growing("a"), growing("b"), growing("c")]
        reader = pieces_of(generations)
        say(generations[1], "b")
        assert [(i, told(news)) for i, news in [await anext(reader)]] == [(1, [(0, "b", None)])]
        for i in (2, 0, 1):
            say(generations[i], "!", reason="stop")
        rest = [(i, told(news)) async for i, news in reader]
        assert sorted(rest) == [(i, [(0, "!", "stop")]) for i in range(3)]

    run(test())


def test_whoever_waits_for_the_whole_sleeps_while_it_grows() -> None:
    async def test() -> None:
        generation = growing()
        whole = asyncio.create_task(generation.finished())
        await asyncio.sleep(0)
        asleep_on = whole.get_coro().cr_await  # type: ignore[union-attr]
        for text in ("a", "b"):
            say(generation, text)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert whole.get_coro().cr_await is asleep_on  # type: ignore[union-attr]
        say(generation, "!", reason="stop")
        assert (await whole).outputs[0].text == "ab!"

    run(test())


def test_one_that_fails_ends_the_wait_for_all() -> None:
    async def test() -> None:
        aborted: list[str] = []
        generations = [growing("a", abort=lambda: aborted.append("a")), growing("b")]
        generations[1].end(1.0, InvalidRequest("no such grammar"))
        scope = {"type": "http"}
        with pytest.raises(InvalidRequest, match="no such grammar"):
            await answered(generations, HttpRequest(scope, receive=asyncio.Event().wait))  # type: ignore[arg-type]
        assert aborted == ["a"]

    run(test())


def test_one_that_fails_ends_the_reading_of_all() -> None:
    """And leaves no task that nobody waits for."""

    async def test() -> None:
        before = asyncio.all_tasks()
        generations = [growing("a"), growing("b"), growing("c")]
        reader = pieces_of(generations)
        for generation in generations[1:]:
            generation.end(1.0, InvalidRequest("no such grammar"))
        with pytest.raises(InvalidRequest, match="no such grammar"):
            await anext(reader)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == before

    run(test())
