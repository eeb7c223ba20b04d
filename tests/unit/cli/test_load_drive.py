"""Runs in virtual time: a loop whose clock jumps to the next thing to do, so every time is exact."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import pytest

from ramet.cli.load.drive import Run
from ramet.cli.load.figures import Bounds, Record, figures
from ramet.cli.load.workloads import Message, Shape, Turn, programs

SHAPE = Shape(shared_tokens=5, prompt_tokens=5, turns=3)
TREE = Shape(shared_tokens=5, prompt_tokens=5, turns=3, branches=2)


class _Jumping(selectors.SelectSelector):
    """Waits by moving ``now_s`` on."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "nothing will ever happen"
        self.now_s += max(timeout, 0)
        return super().select(0)


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


class _Server:
    """Answers each request in ``service_s``, ``capacity`` at a time, but for what ``faults`` says of the nth asked."""

    def __init__(self, service_s: float = 1.0, capacity: int = 1000, faults: dict[int, str] | None = None) -> None:
        self.asked: list[list[Message]] = []
        self.num_running = self.most_running = 0
        self._service_s = service_s
        self._free = asyncio.Semaphore(capacity)
        self._faults = faults or {}

    async def answer(self, messages: Sequence[Message], record: Record) -> str:
        number = len(self.asked)
        self.asked.append(list(messages))
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        record.sent_s = now()
        async with self._free:
            await asyncio.sleep(self._service_s)
        self.num_running -= 1
        record.chunk_s.append(now())
        record.end_s = now()
        record.error = self._faults.get(number)
        return f"answer {number}"


def now() -> float:
    return asyncio.get_running_loop().time()


def virtual(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        runner.run(test())


def test_closed_loop_keeps_as_many_programs_going_as_it_may() -> None:
    async def test() -> None:
        server = _Server()
        run = Run(server, now)
        await run.closed(programs("no-share", 7, 0, SHAPE), 3)
        assert [record.due_s for record in run.records] == [0, 0, 0, 1, 1, 1, 2]
        assert server.most_running == 3
        assert now() == 3

    virtual(test)


def test_a_turn_follows_its_answer_and_sees_it() -> None:
    async def test() -> None:
        server = _Server()
        run = Run(server, now)
        await run.closed(programs("chat", 3, 0, SHAPE), 1)
        assert [(record.due_s, record.end_s) for record in run.records] == [(0, 1), (1, 2), (2, 3)]
        told = [[message["content"] for message in asked if message["role"] == "assistant"] for asked in server.asked]
        assert told == [[], ["answer 0"], ["answer 0", "answer 1"]]

    virtual(test)


def test_branches_start_at_once_and_a_program_counts_as_one_however_wide_it_is() -> None:
    async def test() -> None:
        server = _Server()
        run = Run(server, now)
        await run.closed(programs("tree-search", 14, 0, TREE), 1)
        assert [record.due_s for record in run.records] == [0, 1, 1, 2, 2, 2, 2, 3, 4, 4, 5, 5, 5, 5]
        assert server.most_running == 4
        grandchildren = [
            [message["content"] for message in asked if message["role"] == "assistant"] for asked in server.asked[3:7]
        ]
        assert grandchildren == [["answer 0", "answer 1"]] * 2 + [["answer 0", "answer 2"]] * 2

    virtual(test)


def test_open_loop_does_not_wait_for_the_server() -> None:
    """The server takes 10 s for what comes each second: each request waits 9 s longer than the one before, and the figures say
    so. A client that waited for answers would have seen 10 s each time.
    """

    async def test() -> None:
        server = _Server(service_s=10.0, capacity=1)
        run = Run(server, now)
        await run.open(programs("no-share", 5, 0, SHAPE), [1.0, 2.0, 3.0, 4.0, 5.0])
        assert [record.sent_s for record in run.records] == [1, 2, 3, 4, 5]
        assert server.most_running == 5
        found = figures(run.records, num_planned=5, duration_s=now(), bounds=Bounds())
        assert found.e2e_ms is not None
        assert (found.e2e_ms.p50, found.e2e_ms.max) == (28_000, 46_000)

    virtual(test)


def test_a_stall_of_the_client_itself_is_in_the_latency() -> None:
    """Requests are due at their arrivals, also when this process came round to them later."""

    async def test() -> None:
        stalled_s = 0.0
        run = Run(_Server(), lambda: now() + stalled_s)

        async def stall() -> None:
            nonlocal stalled_s
            await asyncio.sleep(1.5)
            stalled_s = 5.0  # the clock went on by 5 s while nothing ran

        stalling = asyncio.create_task(stall())
        await run.open(programs("no-share", 3, 0, SHAPE), [1.0, 2.0, 3.0])
        await stalling
        assert [record.due_s for record in run.records] == [1, 2, 3]
        assert [record.sent_s for record in run.records] == [1, 2, 2], (
            "by the loop's own clock: the third was late and not held back"
        )

    virtual(test)


def test_open_loop_lets_programs_overlap() -> None:
    async def test() -> None:
        run = Run(_Server(), now)
        await run.open(programs("chat", 6, 0, SHAPE), [0.5, 0.75])
        assert sorted(record.due_s for record in run.records) == [0.5, 0.75, 1.5, 1.75, 2.5, 2.75]

    virtual(test)


@pytest.mark.parametrize(
    ("name", "shape", "faults", "num_sent"),
    [
        ("chat", SHAPE, {0: "HTTP 429"}, 1 + 3),  # the first conversation ends, the second goes on
        ("chat", SHAPE, {1: "timeout"}, 2 + 3),
        ("tree-search", TREE, {0: "timeout"}, 1 + 7),
        ("tree-search", TREE, {1: "timeout"}, 5 + 7),  # one branch ends with all below it, its neighbour goes on
    ],
)
def test_what_follows_a_failed_request_is_not_sent(name: str, shape: Shape, faults: dict[int, str], num_sent: int) -> None:
    async def test() -> None:
        run = Run(_Server(faults=faults), now)
        planned = 2 * (3 if name == "chat" else 7)
        await run.closed(programs(name, planned, 0, shape), 1)
        found = figures(run.records, num_planned=planned, duration_s=1.0, bounds=Bounds())
        assert (found.num_answered, found.num_failed, found.num_unsent) == (num_sent - 1, 1, planned - num_sent)

    virtual(test)


def test_what_was_seen_is_kept_when_the_run_is_cut_short() -> None:
    async def test() -> None:
        seen: list[int] = []
        run = Run(_Server(), now, lambda: seen.append(run.num_running))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5):
                await run.closed(programs("no-share", 9, 0, SHAPE), 2)
        found = figures(run.records, num_planned=9, duration_s=2.5, bounds=Bounds())
        assert (found.num_answered, found.num_unfinished, found.num_unsent) == (4, 2, 3)
        assert (max(seen), run.num_running) == (2, 0)

    virtual(test)


def test_a_long_conversation_is_no_deep_recursion() -> None:
    async def test() -> None:
        program = Turn(({"role": "user", "content": "last"},))
        for _ in range(5000):
            program = Turn((), (program,))
        run = Run(_NoHistory(), now)
        await run.closed([program], 1)
        assert len(run.records) == 5001

    virtual(test)


class _NoHistory:
    def answer(self, messages: Sequence[Message], record: Record) -> Awaitable[str]:
        record.end_s = now()
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        done.set_result("")
        return done
