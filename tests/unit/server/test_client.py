"""Requests over the wire: the same answers as without it, nothing left behind, and lives that follow each other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest
from support.engines import Bench
from support.serving import fake_client, fake_engine

from ramet.core.batch import Batch
from ramet.core.output import NOT_HELD
from ramet.core.sampling import SamplingParams
from ramet.engine.clock import MonotonicClock
from ramet.engine.wire import Command
from ramet.errors import ContextTooLong, EngineDead, InvalidRequest, Overloaded, RequestFailed, Unavailable
from ramet.server.client import EngineClient, EngineState
from ramet.server.generation import Prompted
from ramet.server.links import OnEvent, OnGone, ThreadLink

LONG = {"temperature": 0.9, "ignore_eos": True}


def prompted(*token_ids: int, **sampling: object) -> Prompted:
    return Prompted(token_ids=list(token_ids), sampling=SamplingParams(**sampling))  # type: ignore[arg-type]


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 20))


async def idle(client: EngineClient) -> None:
    """Wait until the engine holds nothing of any request."""
    while client.stats is None or client.stats.num_open_requests or client.generations:
        await asyncio.sleep(0.005)
    assert client.num_waiting == 0
    assert (client.stats.scheduler.num_running, client.stats.scheduler.num_waiting) == (0, 0)
    assert client.stats.kv.num_private_pages == client.stats.kv.num_locked_pages == 0


def test_answers_are_those_of_an_engine_without_a_wire() -> None:
    async def test() -> None:
        async with fake_client() as client:
            made = [
                client.submit([prompted(5 + i, 6, 7, seed=i, n=1 + i % 3, logprobs=2, max_tokens=12, **LONG)], f"r{i}")
                for i in range(6)
            ]
            outputs = [await generation.finished() for [generation] in made]
            await idle(client)
        bench = Bench()
        for i in range(6):
            bench.submit([5 + i, 6, 7], request_id=f"r{i}", seed=i, n=1 + i % 3, logprobs=2, max_tokens=12, **LONG)
        bench.run()
        for i, output in enumerate(outputs):
            for answer in output.outputs:
                expected = bench.answers[f"r{i}", answer.index]
                assert answer.token_ids == expected.token_ids
                assert answer.finish_reason == expected.finish_reason
                told = [list(entry.items()) for entry in answer.logprobs or []]
                assert [[(i, one.logprob) for i, one in entry][:1] for entry in told] == [
                    [(lp[0], lp[1])] for lp in expected.logprobs
                ]

    run(test)


def test_times_are_in_order_and_cached_tokens_are_told() -> None:
    async def test() -> None:
        async with fake_client() as client:
            for cached in (0, 9):
                [generation] = client.submit([prompted(*range(5, 15), max_tokens=3, **LONG)], f"r{cached}")
                output = await generation.finished()
                assert output.usage.cached_tokens == cached
                times = [generation.request.arrival_s, generation.started_s, generation.first_token_s, generation.last_token_s]
                assert times == sorted(times)  # type: ignore[type-var]
                assert generation.finished_s is not None
                assert generation.finished_s >= times[-1]  # type: ignore[operator]

    run(test)


def test_a_request_without_a_seed_is_repeated_by_the_one_it_was_given() -> None:
    async def test() -> None:
        async with fake_client() as client:
            [first] = client.submit([prompted(5, 6, max_tokens=20, **LONG)], "a")
            [other] = client.submit([prompted(5, 6, max_tokens=20, **LONG)], "b")
            one, two = await first.finished(), await other.finished()
            assert one.seed != two.seed
            assert one.outputs[0].token_ids != two.outputs[0].token_ids
            [again] = client.submit([prompted(5, 6, seed=one.seed, max_tokens=20, **LONG)], "c")
            assert (await again.finished()).outputs[0].token_ids == one.outputs[0].token_ids

    run(test)


@pytest.mark.parametrize("n", [1, 4])
def test_b050_h9_aborts_leave_nothing(n: int) -> None:
    async def test() -> None:
        async with fake_client(lambda: fake_engine(max_running_seqs=3)) as client:
            made = [client.submit([prompted(5 + i, 6, n=n, max_tokens=200, **LONG)], f"r{i}") for i in range(8)]
            for i, [generation] in enumerate(made):
                for _ in range(i % 4):
                    await generation.changed()
                generation.abort()
                generation.abort()  # again is a no-op
            for [generation] in made:
                output = await generation.finished()
                assert all(answer.finish_reason == "abort" for answer in output.outputs)
                generation.abort()  # and so it is after the end
            await idle(client)

    run(test)


def test_what_cannot_run_is_refused_at_the_door_and_nothing_of_it_is_left() -> None:
    async def test() -> None:
        async with fake_client() as client:
            good = prompted(5, 6, max_tokens=2, **LONG)
            for bad, error in (
                (prompted(5, 99), InvalidRequest),
                (prompted(), InvalidRequest),
                (prompted(*[5] * 300), ContextTooLong),
                (prompted(5, max_tokens=10**6), ContextTooLong),
                (prompted(5, stop_token_ids=[50]), InvalidRequest),
            ):
                with pytest.raises(error):
                    client.submit([good, bad], "r")
            assert client.generations == []
            made = client.submit([good, good], "r")
            with pytest.raises(InvalidRequest, match="running already"):
                client.submit([good, good], "r")
            assert [g.request.request_id for g in made] == ["r-0", "r-1"]
            await asyncio.gather(*(g.finished() for g in made))
            await idle(client)

    run(test)


def test_b052_a_full_queue_takes_all_prompts_of_a_request_or_none() -> None:
    async def test() -> None:
        hold = threading.Event()

        def held(batch: Batch) -> dict[int, str]:
            hold.wait()
            return {}

        async with fake_client(lambda: fake_engine(faults=held), max_queued_requests=3) as client:
            one = prompted(5, 6, max_tokens=1, **LONG)
            made = client.submit([one, one], "a")
            with pytest.raises(Overloaded, match="2 requests wait already, and 3 may"):
                client.submit([one, one], "b")
            made += client.submit([one], "c")
            assert client.num_waiting == 3
            hold.set()
            await asyncio.gather(*(g.finished() for g in made))
            await idle(client)

    run(test)


@pytest.mark.parametrize(("fault", "error"), [("row broke", RequestFailed), (f"{NOT_HELD}: too much", InvalidRequest)])
def test_t11_a_fault_of_one_row_is_that_requests_alone(fault: str, error: type[Exception]) -> None:
    """A fault of the server's, and one of the caller's that shows only now."""

    def faults(batch: Batch) -> dict[int, str]:
        bad = [row for row, token in enumerate(batch.token_ids[batch.sample_rows]) if token == 13]
        return dict.fromkeys(bad, fault)

    async def test() -> None:
        async with fake_client(lambda: fake_engine(faults=faults)) as client:
            [bad] = client.submit([prompted(5, 13, max_tokens=4, **LONG)], "bad")
            [good] = client.submit([prompted(5, 6, max_tokens=4, allowed_token_ids=[7, 8], **LONG)], "good")
            with pytest.raises(error, match=fault):
                await bad.finished()
            assert len((await good.finished()).outputs[0].token_ids) == 4
            await idle(client)

    run(test)


def test_an_engine_that_dies_ends_its_requests_and_another_follows() -> None:
    lives = 0

    def make():  # type: ignore[no-untyped-def]
        nonlocal lives
        lives += 1

        def faults(batch: Batch) -> dict[int, str]:
            if life == 1 and batch.step == 3:
                raise MemoryError("no more")
            return {}

        life = lives
        return fake_engine(faults=faults)

    async def test() -> None:
        async with fake_client(make) as client:
            made = [client.submit([prompted(5 + i, 6, max_tokens=50, **LONG)], f"r{i}")[0] for i in range(4)]
            for generation in made:
                with pytest.raises(EngineDead, match="send the request again"):
                    await generation.finished()
                assert len(generation.output.outputs[0].token_ids) <= 3
            assert len({id(generation.failure) for generation in made}) == 4  # one alone would gather the frames of all raises
            while client.state is EngineState.READY and client.num_starts == 1:
                await asyncio.sleep(0.001)
            if client.state is EngineState.RESTARTING:
                with pytest.raises(Unavailable, match="restarting"):
                    client.submit([prompted(5, max_tokens=1)], "early")
            await client.until_ready()
            assert client.num_starts == 2
            [generation] = client.submit([prompted(5, 6, max_tokens=5, **LONG)], "r0")
            await generation.finished()
            await idle(client)

    run(test)


def test_an_engine_that_cannot_be_made_says_why() -> None:
    def make():  # type: ignore[no-untyped-def]
        raise ValueError("no such file")

    async def test() -> None:
        with pytest.raises(EngineDead, match="no such file"):
            async with fake_client(make):
                raise AssertionError("it came up")

    run(test)


def test_flush_is_refused_while_requests_run_unless_forced() -> None:
    async def test() -> None:
        async with fake_client() as client:
            [done] = client.submit([prompted(*range(5, 25), max_tokens=1, **LONG)], "a")
            await done.finished()
            [running] = client.submit([prompted(5, 6, max_tokens=200, **LONG)], "b")
            await running.changed()
            with pytest.raises(InvalidRequest, match="1 requests are open"):
                await client.flush_cache(force=False)
            assert await client.flush_cache(force=True) == 5
            running.abort()
            assert await client.flush_cache(force=False) >= 0  # what was aborted before it does not count
            while client.stats is None or client.stats.kv.num_free_pages < 64:
                await asyncio.sleep(0.005)

    run(test)


def test_while_the_engine_hangs_nothing_new_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with fake_client() as client:
            monkeypatch.setattr("ramet.server.client._HUNG_AFTER_S", -1.0)
            assert client.state is EngineState.HUNG
            with pytest.raises(Unavailable, match="hung"):
                client.submit([prompted(5)], "a")
            monkeypatch.undo()
            await client.submit([prompted(5, max_tokens=1)], "a")[0].finished()

    run(test)


class Opening:
    """A link that takes a moment to open."""

    def __init__(self, fault: OSError | None = None) -> None:
        self.fault = fault
        self.is_closed = False

    async def open(self, on_event: OnEvent, on_gone: OnGone) -> None:
        await asyncio.sleep(0.01)
        if self.fault is not None:
            raise self.fault

    def send(self, command: Command) -> None:
        raise AssertionError("it is not open")

    async def close(self) -> None:
        self.is_closed = True


def test_a_client_that_is_closed_while_an_engine_starts_starts_none() -> None:
    async def test() -> None:
        link = Opening()
        client = EngineClient(lambda: link, None, MonotonicClock(), max_queued_requests=1, seed=0)
        running = asyncio.create_task(client.run())
        await asyncio.sleep(0)
        await client.close()
        await running
        assert client.state is EngineState.CLOSED
        assert (client.num_starts, link.is_closed) == (1, True)

    run(test)


def test_a_client_that_is_closed_between_two_starts_makes_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    lives = 0

    def make():  # type: ignore[no-untyped-def]
        nonlocal lives
        lives += 1
        if lives > 1:
            raise MemoryError("not now")
        return fake_engine(faults=broken)

    def broken(batch: Batch) -> dict[int, str]:
        raise MemoryError("no more")

    async def test() -> None:
        monkeypatch.setattr("ramet.server.client._FIRST_PAUSE_S", 60.0)
        async with fake_client(make) as client:
            [generation] = client.submit([prompted(5, max_tokens=1)], "r")
            with pytest.raises(EngineDead):
                await generation.finished()
            while client.last_words is None or client.num_starts < 2:
                await asyncio.sleep(0.001)
        assert lives == 2

    run(test)


def test_an_engine_whose_process_cannot_be_made_is_one_that_did_not_start() -> None:
    async def test() -> None:
        link = Opening(OSError(24, "Too many open files"))
        client = EngineClient(lambda: link, None, MonotonicClock(), max_queued_requests=1, seed=0)
        with pytest.raises(EngineDead, match="could not be started: Too many open files"):
            await client.run()
        assert link.is_closed

    run(test)


def test_before_an_engine_is_there_nothing_is_taken() -> None:
    client = EngineClient(lambda: ThreadLink(fake_engine), None, MonotonicClock(), max_queued_requests=1, seed=0)
    assert client.state is EngineState.STARTING
    with pytest.raises(Unavailable, match="starting"):
        client.submit([prompted(5)], "a")
