"""One request at a time against servers of every kind. The clock counts its readings, so that times are exact: one reading as a
request is sent, one for each read of its answer, one at its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from itertools import count
from typing import Any

import pytest
from scripted_server import DONE, MODELS, Asked, Step, StepKind, answers, chunk, event, json_reply, served, stream, usage

from ramet.cli.load.connection import Address
from ramet.cli.load.figures import Record
from ramet.cli.load.server import Asking, Server, open_server
from ramet.errors import ConfigError

HELLO = [{"role": "user", "content": "hello"}]
PLAIN = stream(chunk("a"), chunk("b"), chunk("", "stop"), usage(9, 2, 4), DONE)


def run(test: Callable[[], Awaitable[Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(test(), 20))


def opened(url: str, key: str | None = None, **asking: Any) -> AbstractAsyncContextManager[Server]:
    readings = count()
    told = {"model": "", "endpoint": "chat", "max_tokens": 8, "timeout_s": 10.0} | asking
    return open_server(Address.parse(url), key, Asking(**told), lambda: float(next(readings)))


def asked_once(script: list[Step], **asking: Any) -> tuple[Record, str]:
    """What comes of one request to which the server says ``script``."""

    async def test() -> tuple[Record, str]:
        async with served(answers(script)) as state, opened(state.url, **asking) as server:
            record = Record(0.0, 0.0)
            return record, await server.answer(HELLO, record)

    return run(test)


def failed(script: list[Step], **asking: Any) -> tuple[str | None, str]:
    record, _ = asked_once(script, **asking)
    assert not record.is_answered
    assert record.end_s is not None
    return record.error, record.error_text


# --- answers ---


def test_an_answer_of_two_chunks():
    record, text = asked_once(PLAIN)
    assert text == "ab"
    assert record.is_answered
    assert (record.prompt_tokens, record.output_tokens, record.cached_tokens) == (9, 2, 4)
    assert len(record.chunk_s) == 2, "chunks without text are none"
    assert record.end_s is not None
    assert [record.sent_s, *record.chunk_s, record.end_s] == sorted([record.sent_s, *record.chunk_s, record.end_s])


def test_each_chunk_has_the_time_of_the_read_that_brought_it():
    record, _ = asked_once([*stream(chunk("a") + chunk("b"))[:-1], *stream(chunk("c"), DONE)[1:]])
    first, second, third = record.chunk_s
    assert first == second < third


@pytest.mark.parametrize("size", [1, 7, 64])
def test_pieces_of_any_size_make_the_same_answer(size):
    body = (
        b": a comment\n\nevent: x\r\n" + chunk("a").replace(b"\n", b"\r\n") + chunk("é") + b"data:" + usage(3, 2, None)[6:] + DONE
    )
    record, text = asked_once(stream(*(body[start : start + size] for start in range(0, len(body), size))))
    assert (text, len(record.chunk_s), record.prompt_tokens, record.cached_tokens) == ("aé", 2, 3, None)
    assert record.is_answered


@pytest.mark.parametrize("details", [{}, {"prompt_tokens_details": None}, {"prompt_tokens_details": {"cached_tokens": None}}])
def test_cached_tokens_may_be_left_out(details):
    told = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1} | details}
    record, _ = asked_once(stream(chunk("a"), event(told), DONE))
    assert (record.prompt_tokens, record.cached_tokens) == (3, None)


def test_usage_may_be_left_out_or_come_with_each_chunk():
    record, _ = asked_once(stream(chunk("a"), chunk("b"), DONE))
    assert (record.output_tokens, record.num_output_tokens, record.is_answered) == (None, 2, True)
    running = [{"choices": [{"delta": {"content": "x"}}], "usage": {"prompt_tokens": 3, "completion_tokens": n}} for n in (1, 2)]
    record, _ = asked_once(stream(*map(event, running), DONE))
    assert record.output_tokens == 2


def test_thoughts_are_text_too_and_no_part_of_the_answer():
    thought = [event({"choices": [{"delta": {name: "hm"}}]}) for name in ("reasoning_content", "reasoning")]
    record, text = asked_once(
        stream(event({"choices": [{"delta": {"role": "assistant", "content": ""}}]}), *thought, chunk("a"), DONE)
    )
    assert (text, len(record.chunk_s)) == ("a", 3)


def test_completions():
    async def test() -> tuple[str, Asked]:
        texts = [event({"choices": [{"index": 0, "text": text, "finish_reason": None}]}) for text in ("a", "b")]
        async with (
            served(answers(stream(*texts, usage(1, 2, 0), DONE))) as state,
            opened(state.url, endpoint="completions") as server,
        ):
            return await server.answer(HELLO, Record(0, 0)), state.asked[-1]

    text, asked = run(test)
    assert (text, asked.path, asked.body["prompt"]) == ("ab", "/v1/completions", "hello")


def test_an_answer_that_ends_with_its_connection():
    head = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    record, text = asked_once([head, chunk("a"), DONE, StepKind.BREAK])
    assert (text, record.is_answered) == ("a", True)


def test_a_finish_reason_is_an_end_as_good_as_done():
    record, _ = asked_once(stream(chunk("a"), chunk("", "length")))
    assert record.is_answered


# --- faults ---


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"error": {"message": "queue is full", "type": "x"}}, "queue is full"),
        ({"error": "queue is full"}, "queue is full"),
        ({"object": "error", "message": "queue is full"}, "queue is full"),
        ({"detail": [{"msg": "queue"}]}, "[{'msg': 'queue'}]"),
        ({"error": {"message": "bell \x07\x1b[31m and\nlines"}}, "bell [31m and lines"),
        ({"error": {"message": "w" * 500}}, "w" * 197 + "..."),
        ({}, ""),
    ],
)
def test_a_refusal_is_counted_with_its_message(body, text):
    assert failed(json_reply(429, body, "retry-after: 1")) == ("HTTP 429", text)


def test_a_refusal_without_json():
    page = b"<html>\nbad gateway</html>"
    assert failed([b"HTTP/1.1 502 Bad\r\ncontent-length: %d\r\n\r\n%s" % (len(page), page)]) == (
        "HTTP 502",
        "<html> bad gateway</html>",
    )


def test_a_connection_that_breaks_in_mid_stream():
    error, text = failed([*stream(chunk("a"))[:-1], StepKind.BREAK])
    assert (error, text) == ("connection lost", "the server closed the connection")


def test_a_server_that_never_answers():
    assert failed([StepKind.HANG], timeout_s=0.2) == ("timeout", "no whole answer within 0.2 s (--timeout)")


def test_a_server_that_stops_in_mid_stream():
    record, text = asked_once([*stream(chunk("a"))[:-1], StepKind.HANG], timeout_s=0.2)
    assert (record.error, text, len(record.chunk_s)) == ("timeout", "a", 1)


def test_an_error_told_in_the_stream():
    told = event({"error": {"message": "engine died", "code": 500}})
    assert failed(stream(chunk("a"), told, DONE)) == ("error in stream", "engine died")


@pytest.mark.parametrize(
    "script",
    [
        stream(chunk("a")),
        stream(),
        stream(b"data: [DO"),
        json_reply(200, {"choices": [{"message": {"content": "not streamed"}}]}),
    ],
)
def test_a_stream_without_an_end(script):
    assert failed(script) == ("ended early", "the stream has no [DONE] and no finish_reason")


@pytest.mark.parametrize("data", [b"data: {]\n\n", b'data: {"choices": 3}\n\n', b'data: "\xff"\n\n', b"data: []\n\n"])
def test_a_malformed_event(data):
    error, text = failed(stream(chunk("a"), data, DONE))
    assert error == "malformed answer"
    assert text


def test_an_event_without_an_end_is_not_kept_for_ever():
    error, text = failed(stream(b"data: ", *[b"x" * 65536] * 17, DONE))
    assert (error, text) == ("malformed answer", "an event of more than 1048576 bytes")


def test_an_answer_that_is_no_http():
    error, text = failed([b"SSH-2.0-OpenSSH_9.6\r\n"])
    assert error == "connection lost"
    assert text.startswith("the answer is not HTTP/1.1")


# --- connections ---


def asked_often(*scripts: list[Step], times: int = 3, at_once: bool = False) -> tuple[list[str | None], int]:
    """The error of each request, and how many connections the server saw."""

    async def test() -> tuple[list[str | None], int]:
        async with served(answers(*scripts)) as state, opened(state.url) as server:
            records = [Record(0, 0) for _ in range(times)]
            if at_once:
                await asyncio.gather(*(server.answer(HELLO, record) for record in records))
            else:
                for record in records:
                    await server.answer(HELLO, record)
            return [record.error for record in records], state.num_connections

    return run(test)


def test_connections_are_used_again():
    assert asked_often(PLAIN) == ([None, None, None], 1)


def test_requests_at_once_have_connections_of_their_own():
    assert asked_often(PLAIN, at_once=True) == ([None, None, None], 3)


def test_a_connection_that_was_closed_while_idle_costs_no_request():
    assert asked_often([*PLAIN, StepKind.BREAK]) == ([None, None, None], 3)


def test_a_connection_that_closes_as_it_is_used_again_is_tried_once_more():
    assert asked_often(PLAIN, [StepKind.BREAK], PLAIN) == ([None, None, None], 2)


def test_a_fresh_connection_that_closes_is_a_fault():
    errors, _ = asked_often([StepKind.BREAK])
    assert errors == ["connection lost"] * 3


def test_a_server_that_does_not_keep_connections_is_taken_at_its_word():
    closing = [PLAIN[0].replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"), *PLAIN[1:]]  # type: ignore[union-attr]
    assert asked_often(closing) == ([None, None, None], 3)


def test_an_interim_answer_is_passed_over():
    assert asked_often([b"HTTP/1.1 100 Continue\r\n\r\n", *PLAIN]) == ([None, None, None], 1)


def test_a_refusal_keeps_the_connection():
    assert asked_often(json_reply(429, {}), PLAIN) == (["HTTP 429", None, None], 1)


def test_a_cancelled_request_closes_its_connection():
    async def test() -> None:
        async with served(answers([*stream(chunk("a"))[:-1], StepKind.HANG], PLAIN)) as state, opened(state.url) as server:
            record = Record(0, 0)
            asking = asyncio.create_task(server.answer(HELLO, record))
            while not record.chunk_s:
                await asyncio.sleep(0)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert (record.error, record.end_s) == (None, None)
            await server.answer(HELLO, again := Record(0, 0))
            assert (again.error, state.num_connections) == (None, 2)

    run(test)


# --- the start ---


def test_the_first_model_and_the_key_are_used():
    async def test() -> list[Asked]:
        async with served(answers(PLAIN)) as state, opened(state.url + "/v1/", key="secret-Key") as server:
            assert server.asking.model == "tiny"
            await server.answer(HELLO, Record(0, 0))
            return state.asked

    models, first, asked = run(test)
    assert (models.path, first.path, asked.path) == ("/v1/models", "/v1/chat/completions", "/v1/chat/completions")
    assert {request.headers["authorization"] for request in (models, first, asked)} == {"Bearer secret-Key"}
    assert (first.body["max_tokens"], asked.body["max_tokens"], asked.body["model"]) == (1, 8, "tiny")
    assert asked.body["messages"] == HELLO


NO_LIST = json_reply(404, {"detail": "Not Found"})
UNKNOWN = json_reply(404, {"error": {"message": "no such model"}})


@pytest.mark.parametrize(
    ("models", "first", "asking", "fault"),
    [
        (json_reply(401, {}), PLAIN, {}, "refuses the key, or wants one (HTTP 401); give it by --api-key"),
        (MODELS, json_reply(403, {}), {}, "refuses the key, or wants one (HTTP 403); give it by --api-key"),
        (MODELS, UNKNOWN, {"model": "gpt"}, "does not serve 'gpt'; it serves tiny, other (--model)"),
        (MODELS, UNKNOWN, {"model": "tiny"}, "has no /v1/chat/completions for this model (404: no such model)"),
        (NO_LIST, PLAIN, {}, "lists no model; name one with --model"),
        (json_reply(503, {"error": "starting"}), PLAIN, {}, "is not ready (503: starting); try again when it is"),
        (MODELS, json_reply(503, {"error": "loading"}), {}, "is not ready (503: loading); try again when it is"),
        (MODELS, json_reply(400, {"error": "no template"}), {}, "(HTTP 400: no template); try --endpoint"),
        (MODELS, stream(), {}, "(ended early: the stream has no [DONE]"),
        (MODELS, [StepKind.HANG], {"timeout_s": 0.2}, "(timeout: no whole answer within 0.2 s"),
        ([StepKind.BREAK], PLAIN, {}, "no server answers at"),
        ([b"nonsense\r\n\r\n"], PLAIN, {}, "no server answers at"),
    ],
)
def test_what_is_wrong_from_the_start_is_one_line(models, first, asking, fault):
    async def test() -> str:
        async with served(lambda request: models if request.path == "/v1/models" else first) as state:
            with pytest.raises(ConfigError) as caught:
                async with opened(state.url, **asking):
                    pass
            return str(caught.value).replace(state.url, "URL")

    told = run(test)
    assert told.startswith(("URL", "no server answers at URL"))
    assert fault in told
    assert "\n" not in told


@pytest.mark.parametrize(("models", "first"), [(NO_LIST, PLAIN), (MODELS, json_reply(429, {}))])
def test_what_is_no_reason_to_stop(models, first):
    async def test() -> str:
        def script(request: Asked) -> list[Step]:
            return models if request.path == "/v1/models" else first

        async with served(script) as state, opened(state.url, model="mine") as server:
            return server.asking.model

    assert run(test) == "mine"


@pytest.mark.parametrize(
    ("url", "shown", "path"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000", ""),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000", ""),
        ("localhost:8000/", "http://localhost:8000", ""),
        ("https://api.example.com/v1", "https://api.example.com:443", ""),
        ("http://[::1]:8000", "http://[::1]:8000", ""),
        ("http://gate.example/team/v1/", "http://gate.example:80/team", "/team"),
    ],
)
def test_addresses(url, shown, path):
    address = Address.parse(url)
    assert (address.url, address.path) == (shown, path)


_SPOILT = ["http://a b", "http://x:port", "http://x:99999", "http://u:p@x", "http://x/?a=1", "http://ü", "http://x/\r\nA: b"]


@pytest.mark.parametrize("url", ["", "http://", "ftp://x", *_SPOILT])
def test_what_is_no_address(url):
    with pytest.raises(ConfigError, match="the usual form is"):
        Address.parse(url)


@pytest.mark.parametrize("key", ["", "a b", "a\r\nx: y", "ключ"])
def test_what_is_no_key(key):
    async def test() -> None:
        with pytest.raises(ConfigError, match="API key"):
            async with opened("http://127.0.0.1:1", key=key):
                pass

    run(test)
