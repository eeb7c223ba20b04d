"""Plays programs against a server: a fixed number at a time, or each when it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol

from ramet.cli.load.figures import Record
from ramet.cli.load.workloads import Message, Turn

__all__ = ["Answerer", "Run"]


class Answerer(Protocol):
    """What a run asks."""

    def answer(self, messages: Sequence[Message], record: Record) -> Awaitable[str]:
        """The answer's text; fills ``record`` from ``sent_s`` to ``end_s``, an error included."""


class Run:
    """One run: ``records`` grow as requests are sent, and stay when it is cancelled. ``on_change`` is called when a request
    starts or ends.
    """

    def __init__(self, server: Answerer, clock: Callable[[], float], on_change: Callable[[], None] = lambda: None) -> None:
        self.records: list[Record] = []
        self.num_running = 0
        self._server = server
        self._clock = clock
        self._on_change = on_change

    async def closed(self, programs: Sequence[Turn], concurrency: int) -> None:
        """Closed loop: ``concurrency`` programs at a time; the next starts when one has ended. A slow server is asked less."""
        rest = iter(programs)
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(self._play_in_turn(rest))

    async def open(self, programs: Sequence[Turn], arrivals_s: Sequence[float]) -> None:
        """Open loop: each program starts at its arrival, seconds from now, whatever became of the others.

        Its first request is due at the arrival itself, not when this loop came round to sending it, so a stall, here or in the
        server, is in the latency of every request that it kept waiting (no coordinated omission).
        """
        start_s = self._clock()
        async with asyncio.TaskGroup() as group:
            for program, arrival_s in zip(programs, arrivals_s, strict=True):
                due_s = start_s + arrival_s
                await asyncio.sleep(due_s - self._clock())
                group.create_task(self._play(program, due_s))

    async def _play_in_turn(self, programs: Iterator[Turn]) -> None:
        for program in programs:
            await self._play(program, self._clock())

    async def _play(self, turn: Turn, due_s: float, history: Sequence[Message] = ()) -> None:
        """``turn`` and all that follows it. What follows a request that failed is not sent: there is no answer to go on from."""
        while True:
            said = [*history, *turn.messages]
            record = Record(due_s, due_s)
            answer = await self._ask(said, record)
            if record.error is not None or record.end_s is None or not turn.then:
                return
            history, due_s = [*said, {"role": "assistant", "content": answer}], record.end_s
            if len(turn.then) > 1:
                break
            (turn,) = turn.then
        async with asyncio.TaskGroup() as group:
            for branch in turn.then:
                group.create_task(self._play(branch, due_s, history))

    async def _ask(self, messages: Sequence[Message], record: Record) -> str:
        self.records.append(record)
        self.num_running += 1
        self._on_change()
        try:
            return await self._server.answer(messages, record)
        finally:
            self.num_running -= 1
            self._on_change()
