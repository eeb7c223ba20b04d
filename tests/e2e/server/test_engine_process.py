"""The engine in a process of its own: killed, stopped, told nonsense, left alone by its server."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tiny_models import TINY_MODELS, write_folder

from ramet import LLM, SamplingParams
from ramet.config import EngineConfig, ModelConfig, RunnerConfig
from ramet.engine.clock import MonotonicClock
from ramet.errors import EngineDead
from ramet.server import client as client_module
from ramet.server.client import EngineClient, EngineState
from ramet.server.generation import Generation, Prompted
from ramet.server.links import ProcessLink

SAMPLING = {"temperature": 0.9, "ignore_eos": True, "max_tokens": 200}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_folder(TINY_MODELS["llama"], folder)
    return folder


class Served:
    """A client, and the process that answers it now."""

    def __init__(self, model: str) -> None:
        config = EngineConfig(model=ModelConfig(model=model), runner=RunnerConfig(threads=1))
        self.links: list[ProcessLink] = []

        def make_link() -> ProcessLink:
            self.links.append(ProcessLink(config))
            return self.links[-1]

        self.client = EngineClient(make_link, None, MonotonicClock(), max_queued_requests=100, seed=0)

    @property
    def pid(self) -> int:
        pid = self.links[-1].pid
        assert pid is not None
        return pid

    def submit(self, *token_ids: int, request_id: str = "r", **sampling: object) -> Generation:
        params = SamplingParams(**{**SAMPLING, **sampling})
        return self.client.submit([Prompted(token_ids=token_ids, sampling=params)], request_id)[0]


@asynccontextmanager
async def served(model: Path) -> AsyncIterator[Served]:
    made = Served(str(model))
    running = asyncio.create_task(made.client.run())
    try:
        await made.client.until_ready()
        yield made
    finally:
        await made.client.close()
        await running
        for link in made.links:
            assert not is_running(link.pid)


def is_running(pid: int | None) -> bool:
    try:
        os.kill(pid or 0, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


def test_answers_have_the_bits_of_the_python_api(model: Path) -> None:
    async def test() -> None:
        async with served(model) as one:
            made = [one.submit(5 + i, 6, 7, request_id=f"r{i}", seed=i, logprobs=3, max_tokens=24) for i in range(5)]
            found = [(await generation.finished()).outputs[0] for generation in made]
        with LLM(model, threads=2) as llm:
            params = [SamplingParams(**{**SAMPLING, "seed": i, "logprobs": 3, "max_tokens": 24}) for i in range(5)]
            expected = [output.outputs[0] for output in llm.generate([[5 + i, 6, 7] for i in range(5)], params)]
        for mine, theirs in zip(found, expected, strict=True):
            assert mine.token_ids == theirs.token_ids
            ours = [{key: lp.logprob for key, lp in entry.items()} for entry in mine.logprobs or []]
            assert ours == [{key: lp.logprob for key, lp in entry.items()} for entry in theirs.logprobs or []]

    run(test)


def test_h1_killed_under_load_it_ends_its_requests_at_once_and_comes_back(model: Path) -> None:
    async def test() -> None:
        async with served(model) as one:
            for life in range(1, 4):
                made = [one.submit(5 + i, 6, request_id=f"r{i}") for i in range(16)]
                await made[0].changed()
                pid = one.pid
                os.kill(pid, signal.SIGKILL)
                killed = time.monotonic()
                results = await asyncio.gather(*(g.finished() for g in made), return_exceptions=True)
                assert time.monotonic() - killed < 8
                assert all(isinstance(result, EngineDead) for result in results)
                assert one.client.generations == []
                assert one.client.num_waiting == 0
                await one.client.until_ready()
                assert one.client.num_starts == life + 1
                assert one.pid != pid
                await one.submit(5, 6, max_tokens=3).finished()

    run(test)


def test_h2_stopped_it_is_told_as_hung_and_goes_on_with_the_same_bits(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_HUNG_AFTER_S", 1.5)

    async def test() -> None:
        async with served(model) as one:
            expected = (await one.submit(5, 6, seed=3).finished()).outputs[0].token_ids
            generation = one.submit(5, 6, seed=3, request_id="again")
            await generation.changed()
            os.kill(one.pid, signal.SIGSTOP)
            stopped = time.monotonic()
            while one.client.state is EngineState.READY:
                await asyncio.sleep(0.02)
            assert one.client.state is EngineState.HUNG
            assert 1.4 < time.monotonic() - stopped < 8
            os.kill(one.pid, signal.SIGCONT)
            assert (await generation.finished()).outputs[0].token_ids == expected
            assert one.client.state is EngineState.READY
            assert one.client.num_starts == 1

    run(test)


def test_an_engine_that_cannot_load_says_why_in_one_line(tmp_path: Path) -> None:
    async def test() -> None:
        one = Served(str(tmp_path / "nothing.gguf"))
        with pytest.raises(EngineDead, match=r"there is no file or folder .*nothing\.gguf"):
            await one.client.run()
        assert one.client.state is EngineState.FAILED
        await one.client.close()

    run(test)


def spawn_raw(*, limit_s: float = 30) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    ours.settimeout(limit_s)
    with theirs:
        command = [sys.executable, "-m", "ramet.server.engine_process", str(theirs.fileno())]
        return subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.DEVNULL), ours


@pytest.mark.parametrize("kind", ["pickle", "random", "long", "half"])
def test_t02_what_is_no_command_ends_the_process_and_does_nothing(kind: str, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    bodies = {
        "pickle": b"cos\nsystem\n(S'touch " + str(canary).encode() + b"'\ntR.",
        "random": random.Random(1).randbytes(4096),
        "half": b"\x81",
    }
    process, ours = spawn_raw()
    with ours, process:
        ours.sendall(b"\xff\xff\xff\xff" if kind == "long" else len(bodies[kind]).to_bytes(4, "little") + bodies[kind])
        assert process.wait(30) == 0
    assert not canary.exists()


def test_h3_it_ends_with_its_server(model: Path) -> None:
    code = (
        "import asyncio, sys\n"
        "from ramet.config import EngineConfig, ModelConfig\n"
        "from ramet.server.links import ProcessLink\n"
        "async def main():\n"
        "    link = ProcessLink(EngineConfig(model=ModelConfig(model=sys.argv[1])))\n"
        "    await link.open(lambda event: print(type(event).__name__, link.pid, flush=True), lambda: None)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(model)], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        for line in server.stdout:
            if line.startswith("Ready"):
                break
        pid = int(line.split()[1])
        assert is_running(pid)
        server.kill()
        killed = time.monotonic()
        while is_running(pid):
            assert time.monotonic() - killed < 8
            time.sleep(0.01)
