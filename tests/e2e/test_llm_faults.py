"""The Python API when it is interrupted, left, shared between threads, misused, and when a part of it fails."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import pytest
from tiny_models import TINY_MODELS, write_folder

from ramet import LLM, EngineDead, InvalidRequest, SamplingParams
from ramet.kv.audit import audit
from ramet.text.detokenizer import Detokenizer

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = [f"prompt {i}" for i in range(6)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(TINY_MODELS["llama"], tmp_path_factory.mktemp("llama"))


@pytest.fixture
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, threads=1, max_total_tokens=2048) as one:
        yield one


def check_idle(llm: LLM) -> None:
    llm.cache_stats()
    assert llm._engine.stats().num_open_requests == 0
    audit(llm._engine._kv, [])


def ids_of(llm: LLM) -> list[list[int]]:
    return [out.outputs[0].token_ids for out in llm.generate(PROMPTS, GREEDY)]


def generate_for_ever(llm: LLM) -> None:
    while True:
        llm.generate(PROMPTS, GREEDY)


def call_with_ctrl_c(call: Any, llm: LLM, delay_s: float) -> None:
    Timer(delay_s, os.kill, (os.getpid(), signal.SIGINT)).start()
    call(llm)


def stream_for_ever(llm: LLM) -> None:
    while True:
        for _ in llm.stream(PROMPTS[0], GREEDY):
            pass


@pytest.mark.parametrize("call", [generate_for_ever, stream_for_ever])
def test_ctrl_c_at_any_moment_leaves_the_llm_whole(llm: LLM, call: Any) -> None:
    whole = ids_of(llm)
    for i in range(1, 41):
        with pytest.raises(KeyboardInterrupt):
            call_with_ctrl_c(call, llm, 0.0005 * i)
        check_idle(llm)
    assert ids_of(llm) == whole


def test_a_step_that_is_broken_off_all_the_same_is_the_end(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(batch: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(llm._engine._runner, "launch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS, GREEDY)
    monkeypatch.undo()
    check_idle(llm)
    with pytest.raises(EngineDead, match="KeyboardInterrupt"):
        llm.generate(PROMPTS, GREEDY)


@pytest.mark.parametrize("part", ["launch", "collect"])
def test_a_forgotten_stream_may_be_collected_within_a_step(llm: LLM, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ids_of(llm)
    original = getattr(llm._engine._runner, part)

    def collecting(*args: Any) -> Any:
        gc.collect()
        return original(*args)

    gc.disable()
    box: list[Any] = [llm.stream("forgotten", GREEDY)]
    next(box[0])
    box.append(box)  # a cycle, which only the collector finds
    del box
    gc.enable()
    monkeypatch.setattr(llm._engine._runner, part, collecting)
    assert ids_of(llm) == whole
    check_idle(llm)


def test_a_text_that_fails_ends_its_answer_alone(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ids_of(llm)
    original = Detokenizer.push
    num_calls = 0

    def push(self: Detokenizer, token_ids: Iterable[int]) -> str:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 15:
            raise RuntimeError("no such word")
        return original(self, token_ids)

    monkeypatch.setattr(Detokenizer, "push", push)
    answers = [out.outputs[0] for out in llm.generate(PROMPTS, GREEDY)]
    failed = [answer for answer in answers if answer.finish_reason == "error"]
    assert len(failed) == 1
    assert "no such word" in str(failed[0].error)
    assert [a.token_ids for a in answers if a.error is None] == [
        ids for a, ids in zip(answers, whole, strict=True) if a.error is None
    ]
    check_idle(llm)


def test_streams_and_calls_of_many_threads(llm: LLM) -> None:
    whole = [out.outputs[0].text for out in llm.generate(PROMPTS, GREEDY)]

    def work(k: int) -> bool:
        if k % 2:
            return [out.outputs[0].text for out in llm.generate(PROMPTS, GREEDY)] == whole
        return "".join(out.outputs[0].delta for out in llm.stream(PROMPTS[k % 6], GREEDY)) == whole[k % 6]

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(24)))
    check_idle(llm)


@pytest.mark.parametrize(
    "bad",
    [5, True, 1.5, {"a": 1}, {1}, object(), np.array([1, 2]), np.array(1), np.int64(3), 10**5000],
    ids=lambda bad: type(bad).__name__,
)
def test_whatever_is_no_prompt_is_refused(llm: LLM, bad: Any) -> None:
    messages = [{"role": "user", "content": "x"}]
    for refused in (
        lambda: llm.generate(bad),
        lambda: llm.chat(bad),
        lambda: llm.generate("x", bad),
        lambda: list(llm.stream("x", bad)),
        lambda: llm.generate(["x"], [bad]),
        lambda: llm.chat(messages, GREEDY, tools=bad),
    ):
        with pytest.raises(InvalidRequest):
            refused()
    check_idle(llm)
