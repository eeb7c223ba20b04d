"""H5, T11, B190: a fault that meets one request at any stage of its way is that request's alone."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from support.http import Served, events, serve_tiny, write_tiny

from ramet.core.ids import Float32
from ramet.core.request import Sequence
from ramet.kernels.backend import Backend, Choosing, Picks
from ramet.kv.manager import KVManager
from ramet.runner import local
from ramet.server import openai_chat, openai_request
from ramet.server.metrics import Metrics
from ramet.server.stream import EventStream
from ramet.structured.automaton import AutomatonMatcher
from ramet.structured.compiler import GrammarCompiler
from ramet.structured.jump import JumpForward
from ramet.text.chat import ChatTemplate
from ramet.text.detokenizer import Detokenizer
from ramet.text.tokenizer import Tokenizer

BAD_SEED = 666
SECRET = "zebra-canary"
PATH = "/v1/chat/completions"


class Broken(RuntimeError):
    """What no layer expects. Its words must reach nobody."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_tiny(write_tiny(tmp_path_factory.mktemp("tiny"))) as served:
        yield served


def breaks(whole: Callable[..., Any], is_bad: Callable[..., bool]) -> Callable[..., Any]:
    """``whole``, but for the calls that are ``is_bad``."""

    def broken(*args: Any, **options: Any) -> Any:
        if is_bad(*args, **options):
            raise Broken(SECRET)
        return whole(*args, **options)

    return broken


def spoils(whole: Callable[..., Any], is_bad: Callable[..., bool]) -> Callable[..., Any]:
    """``told``, of logits that are NaN for the rows that are ``is_bad``: all of a step are one call."""

    def spoilt(backend: Backend, logits: Float32, picks: Picks, choosing: Choosing) -> Any:
        logits[[is_bad(choosing.sampling, row) for row in choosing.rows.tolist()]] = np.nan
        return whole(backend, logits, backend.sample(logits, choosing), choosing)

    return spoilt


def of_text(*args: Any, **options: Any) -> bool:
    return "BAD" in str(args) + str(options)


def of_sequence(kv: KVManager, seq: Sequence, *args: Any, **options: Any) -> bool:
    return seq.request.seed == BAD_SEED


def of_grammar(compiler: GrammarCompiler, spec: Any, *args: Any) -> bool:
    return "BAD" in spec.text


# Matchers, rows and detokenizers do not know whose they are: the bad request is the only one that has what is asked here.
STAGES: dict[str, tuple[Any, str, Callable[..., bool]]] = {
    "parse": (openai_chat, "decode_body", of_text),
    "template": (ChatTemplate, "render", of_text),
    "tokenize": (Tokenizer, "encode_chat", of_text),
    "accept request": (openai_request, "prompted_of", lambda *args, cache_salt, **options: cache_salt == "BAD"),
    "grammar": (GrammarCompiler, "matcher", of_grammar),
    "admit": (KVManager, "admit", of_sequence),
    "schedule": (KVManager, "grow", of_sequence),
    "guess": (JumpForward, "propose", lambda *args: True),
    "mask": (AutomatonMatcher, "fill_mask", lambda *args: True),
    "sampler": (local, "told", lambda sampling, row: int(sampling.seed[row]) == BAD_SEED),
    "accept token": (AutomatonMatcher, "accept", lambda *args: True),
    "detokenize": (Detokenizer, "push", lambda detokenizer, ids: detokenizer._min_tokens == 3),
    "metrics": (Metrics, "told", lambda metrics, generation, *news: generation.request.seed == BAD_SEED),
}
HARMLESS = {"metrics"}  # counting fails, the answer does not
WITH_GRAMMAR = {"grammar", "guess", "mask", "accept token"}


def ask(server: Served, seed: int, *, stream: bool, stage: str) -> tuple[int, Any]:
    is_bad = seed == BAD_SEED
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "BAD" if is_bad else f"good {seed}"}],
        "seed": seed,
        "temperature": 0.8,
        "max_tokens": 12,
        "stream": stream,
    }
    if is_bad and stage in WITH_GRAMMAR:
        body["structured_outputs"] = {"choice": ["BAD", "WORSE"]}
    if is_bad and stage == "detokenize":
        body["min_tokens"] = 3
    if is_bad and stage == "accept request":
        body["cache_salt"] = "BAD"
    response = server.post(PATH, body)
    if response.status_code != 200:
        return response.status_code, response.json()
    if not stream:
        return 200, response.json()["choices"][0]["message"]["content"]
    found = [data for _, data in events(response.text)]
    if found[-1] != "[DONE]":
        return 500, json.loads(found[-1])
    chunks = [json.loads(data) for data in found[:-1]]
    return 200, "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stage", STAGES)
def test_h5_t11_b190_only_the_request_that_was_met_fails(
    server: Served, stage: str, stream: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seeds = [1, 2, 3, BAD_SEED, 4, 5, 6, 7]
    expected = {seed: ask(server, seed, stream=stream, stage=stage) for seed in seeds if seed != BAD_SEED}
    assert {status for status, _ in expected.values()} == {200}
    place, name, is_bad = STAGES[stage]
    caplog.clear()
    with monkeypatch.context() as patch, ThreadPoolExecutor(len(seeds)) as pool, caplog.at_level(logging.ERROR):
        patch.setattr(place, name, (spoils if stage == "sampler" else breaks)(getattr(place, name), is_bad))
        asked = {seed: pool.submit(ask, server, seed, stream=stream, stage=stage) for seed in seeds}
        found = {seed: answer.result() for seed, answer in asked.items()}
    status, told = found.pop(BAD_SEED)
    assert found == expected
    if stage in HARMLESS:
        assert status == 200
    else:
        assert status == 500
        assert told["error"]["code"] in ("request_failed", "internal_error")
        assert "req-" in told["error"]["message"]
        (line,) = {record.getMessage() for record in caplog.records}
        assert told["error"]["message"].split("request ")[-1].rstrip(")") in line
    assert SECRET not in json.dumps(told) + "".join(record.getMessage() for record in caplog.records)
    server.until_idle()
    assert server.services.client.num_starts == 1
    assert ask(server, 1, stream=stream, stage=stage) == expected[1]


def test_h5_a_stream_that_breaks_between_two_events_tells_so_and_lets_go(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = EventStream.__init__

    async def one(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        yield await anext(events)
        raise Broken(SECRET)

    def broken(stream: EventStream, events: AsyncIterator[bytes], *args: Any, **options: Any) -> None:
        whole(stream, one(events), *args, **options)

    monkeypatch.setattr(EventStream, "__init__", broken)
    status, told = ask(server, BAD_SEED, stream=True, stage="stream")
    assert (status, told["error"]["code"]) == (500, "internal_error")
    server.until_idle()


def test_h5_a_fault_between_the_engine_and_the_first_word_leaves_nothing_running(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any) -> Any:
        raise Broken(SECRET)

    monkeypatch.setattr(openai_chat, "_Told", broken)
    status, told = ask(server, BAD_SEED, stream=True, stage="words")
    assert (status, told["error"]["code"]) == (500, "internal_error")
    server.until_idle(2)
