"""Faults that users of other servers have met at OpenAI's endpoints, by their numbers in the project's list."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.http import Served, chunks, texts
from support.openai_api import CHAT, EOS_ID, LETTERS, TEXT, USER, OpenAIClient, rendered

SEEDED = {"seed": 5, "max_tokens": 12, "allowed_token_ids": LETTERS}
PEPPER = "\N{HOT PEPPER}".encode()


@pytest.fixture
def client(server: Served) -> OpenAIClient:
    return OpenAIClient(server)


def cached(answer: dict[str, Any]) -> int:
    count = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert type(count) is int
    return count


# --- reuse and scheduling ------------------------------------------------------------------------------------------------


def test_b025_salts_keep_caches_apart(client: OpenAIClient) -> None:
    for path, body in ((TEXT, {"prompt": "salted " * 9}), (CHAT, {"messages": [{"role": "user", "content": "salt " * 9}]})):
        counts = [
            cached(client.whole(path, **body, max_tokens=1, **salt)) for salt in ({"cache_salt": "t1"}, {"cache_salt": "t2"})
        ]
        counts.append(cached(client.whole(path, **body, max_tokens=1, cache_salt="t1")))
        counts.append(cached(client.whole(path, **body, max_tokens=1)))
        # others may have left the first tokens of a template, or of a text
        assert [count > 30 for count in counts] == [False, False, True, False]
        for salt in ("", "x" * 257, 5, ["a"]):
            assert client.refused(path, body | {"cache_salt": salt})["param"] == "cache_salt"


def test_b038_a_second_time_is_from_the_cache(client: OpenAIClient) -> None:
    prompt = list(range(64))
    counts = [cached(client.text(prompt, max_tokens=1)) for _ in range(2)]
    assert counts[0] < 8
    assert 48 <= counts[1] <= 63


def test_b050_all_answers_of_a_client_that_left_are_ended(server: Served) -> None:
    body = {"messages": USER, "n": 3, "max_tokens": 1900, "ignore_eos": True, "stream": True}
    with server.http.stream("POST", CHAT, json=body) as response:
        lines = response.iter_lines()
        for _ in range(4):
            next(lines)
    server.until_idle(5)
    called = server.call(CHAT, body, leave_after=2)  # and without a socket between
    server.until_idle(5)
    assert called.status == 200
    client = server.services.client
    assert (client.generations, client.num_waiting, client._open, client._assembler.open_ids()) == ([], 0, {}, ())
    server.call(CHAT, {"messages": USER, "max_tokens": 1})
    assert client.stats is not None
    assert client.stats.scheduler.num_waiting == 0


def test_b050_a_whole_answer_is_ended_too(server: Served) -> None:
    body = {"prompt": ["a", "b"], "n": 2, "max_tokens": 1900, "ignore_eos": True}
    before = server.services.client.stats.scheduler.num_computed_tokens
    answer = server.call(TEXT, body, leave_after=0)
    assert answer.status == 499
    server.until_idle(5)
    assert server.services.client.stats.scheduler.num_computed_tokens - before < 1000


def test_b053_n_answers_are_kept_apart(client: OpenAIClient) -> None:
    answer = client.both_ways(CHAT, messages=USER, n=3, temperature=1.5, **SEEDED)
    said = [choice["message"]["content"] for choice in answer["choices"]]
    assert len(set(said)) == 3
    assert answer["usage"]["completion_tokens"] == sum(map(len, said)) == 36


# --- stops and streams ---------------------------------------------------------------------------------------------------


def cut(text: str, stops: list[str]) -> str:
    """The text up to the stop that is complete first; the longest of those that are at the same place."""
    ends = [(text.find(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
    end, minus_length = min(ends)
    return text[: end + minus_length]


def check_stop(client: OpenAIClient, body: dict[str, Any], stops: list[str]) -> None:
    free = client.text(**body)["choices"][0]["text"]
    expected = cut(free, stops)
    choice = client.both_ways(TEXT, **body, stop=stops)["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (expected, "stop")
    assert choice["stop_reason"] in stops
    told = ""
    for chunk in client.stream(TEXT, **body, stop=stops):
        told += chunk["choices"][0]["text"]
        assert expected.startswith(told), "text that a stop takes back was told"


def written(client: OpenAIClient, wanted: str, alphabet: list[int], **body: Any) -> dict[str, Any]:
    """The first seed whose text of these tokens has what is wanted, as a request."""
    for seed in range(200):
        found = {"prompt": "go", "seed": seed, "allowed_token_ids": alphabet, "max_tokens": 60, "temperature": 2.0, **body}
        if wanted in client.text(**found)["choices"][0]["text"]:
            return found
    raise AssertionError(f"no text with {wanted!r}")


def test_b115_stops_over_several_tokens_do_not_leak(client: OpenAIClient) -> None:
    body = {"prompt": "go", **SEEDED}
    text = client.text(**body)["choices"][0]["text"]
    check_stop(client, body, [text[3:6]])
    check_stop(client, body, [text[5]])  # one token
    check_stop(client, body, [text[3:5] + "0", text[6:10]])  # one that begins and does not come
    check_stop(client, written(client, "abcd", [97, 98, 99, 100]), ["bc", "abcd"])
    check_stop(client, written(client, "abcd", [97, 98, 99, 100]), ["bcx", "abcd", "d"])


def test_b115_a_stop_whose_bytes_are_several_tokens(client: OpenAIClient) -> None:
    check_stop(client, written(client, "한", list("한".encode())), ["한"])


def test_b116_what_was_held_back_is_told_at_the_end(client: OpenAIClient) -> None:
    for seed in range(4):
        body = {"prompt": "go", "seed": seed, "max_tokens": 5, "allowed_token_ids": [122], "stop": ["zzzzzzzz", "zy"]}
        choice = client.both_ways(TEXT, **body)["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == ("zzzzz", "length")
        chat = {key: value for key, value in body.items() if key != "prompt"}
        assert client.both_ways(CHAT, messages=USER, **chat)["choices"][0]["message"]["content"] == "zzzzz"


def test_b121_usage_of_streams_is_that_of_whole_answers(client: OpenAIClient) -> None:
    for stop in (None, ["a"], ["ab", "q"]):
        for path, start in ((TEXT, {"prompt": ["a", "b"]}), (CHAT, {"messages": USER})):
            client.both_ways(path, **start, **SEEDED, n=2, stop=stop)


def test_b122_one_finish_reason_each(client: OpenAIClient, tools_server: Served) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    for who, more in ((client, {}), (OpenAIClient(tools_server), {"tools": [tool]})):
        found = who.stream(CHAT, messages=USER, max_tokens=3, ignore_eos=True, n=2, **more)
        ends = [(one["index"], one["finish_reason"]) for chunk in found for one in chunk["choices"] if one["finish_reason"]]
        assert sorted(ends) == [(0, "length"), (1, "length")]


# --- logprobs ------------------------------------------------------------------------------------------------------------


def test_b127_chat_logprobs_with_and_without_top_ones(client: OpenAIClient) -> None:
    for fields in ({"logprobs": True}, {"logprobs": True, "top_logprobs": 0}):
        content = client.chat(**SEEDED, **fields)["choices"][0]["logprobs"]["content"]
        assert len(content) == 12
        for one in content:
            assert set(one) == {"token", "logprob", "bytes", "top_logprobs"}
            assert one["top_logprobs"] == []
            assert bytes(one["bytes"]).decode() == one["token"]
            assert one["logprob"] < 0
    content = client.chat(**SEEDED, logprobs=True, top_logprobs=5)["choices"][0]["logprobs"]["content"]
    for one in content:
        assert len(one["top_logprobs"]) == 5
        best = [top["logprob"] for top in one["top_logprobs"]]
        assert best == sorted(best, reverse=True)
    for logprobs in ({}, {"logprobs": False}):
        assert client.refused(CHAT, {"messages": USER, "top_logprobs": 2, **logprobs})["param"] == "top_logprobs"


def test_b128_zero_logprobs_are_those_of_the_tokens(client: OpenAIClient) -> None:
    logprobs = client.text("a", **SEEDED, logprobs=0)["choices"][0]["logprobs"]
    assert len(logprobs["token_logprobs"]) == len(logprobs["tokens"]) == 12
    assert all(one < 0 for one in logprobs["token_logprobs"])
    assert logprobs["top_logprobs"] == []


def test_b130_echo_of_ids_with_logprobs_in_a_stream(client: OpenAIClient) -> None:
    body = {"prompt": list(b"Hello you"), "echo": True, "logprobs": 1, **SEEDED}
    first, *_ = client.stream(TEXT, **body)
    assert first["choices"][0]["text"].startswith("Hello you")
    assert first["choices"][0]["logprobs"]["tokens"][:9] == list("Hello you")
    client.both_ways(TEXT, **body)
    client.both_ways(TEXT, **body | {"prompt": [list(b"Hello"), list(b"you")], "n": 2})


def test_b131_tokens_that_are_no_text(client: OpenAIClient) -> None:
    body = {"seed": 1, "max_tokens": 40, "allowed_token_ids": list(PEPPER), "temperature": 2.0}
    content = client.chat(**body, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert {one["bytes"][0] for one in content} == set(PEPPER)
    assert all(one["token"] == "\ufffd" for one in content)
    logprobs = client.text("a", **body, logprobs=3)["choices"][0]["logprobs"]
    assert set(logprobs["tokens"]) == {f"bytes:\\x{byte:02x}" for byte in PEPPER}
    assert all(3 <= len(top) <= 4 for top in logprobs["top_logprobs"]), "two broken characters have become one key"
    client.both_ways(CHAT, messages=USER, **body, logprobs=True, top_logprobs=2)


def test_b133_special_tokens_among_the_top_ones(client: OpenAIClient) -> None:
    """Where a constrained answer ends, the end's logprob is told as any other's."""
    body = {"guided_regex": "a+", "max_tokens": 4, "seed": 1, "logit_bias": {str(EOS_ID): 100}}
    content = client.chat(**body, logprobs=True, top_logprobs=20)["choices"][0]["logprobs"]["content"]
    assert [one["token"] for one in content] == ["a", "<|endoftext|>"]
    assert bytes(content[1]["bytes"]) == b"<|endoftext|>"
    assert client.text("a", **body, logprobs=20)["choices"][0]["logprobs"]["tokens"] == ["a", "<|endoftext|>"]
    chosen = client.text("a", **(body | {"guided_regex": "(a b c d e f){2}", "max_tokens": 40, "stop": ["c d"]}))["choices"][0]
    assert (chosen["text"], chosen["finish_reason"]) == ("a b ", "stop")


# --- what is asked -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], ["a", ""], [[1], []]], ids=repr)
def test_b134_empty_prompts(client: OpenAIClient, prompt: Any) -> None:
    for stream in (False, True):
        error = client.refused(TEXT, {"prompt": prompt, "stream": stream})
        assert error["param"] == "prompt"
        assert "empty" in error["message"]
    assert client.text("up?", max_tokens=1)["choices"]


@pytest.mark.parametrize(
    "bias", [{"999999": 5}, {"-1": 5}, {"x": 1}, {"5": 1e9}, {"5": -101}, {"304": 1}, {"5": "1"}, [5]], ids=str
)
def test_b136_biases_of_tokens_that_there_are_not(client: OpenAIClient, bias: Any) -> None:
    for path, start in ((TEXT, {"prompt": "a"}), (CHAT, {"messages": USER})):
        assert client.refused(path, {**start, "logit_bias": bias})["param"].partition("[")[0] == "logit_bias"
    strong = client.text("a", max_tokens=3, logit_bias={"120": 100, "121": -100})
    assert strong["choices"][0]["text"] == "xxx"


def test_b137_max_tokens_of_every_kind(client: OpenAIClient) -> None:
    for path, start in ((TEXT, {"prompt": "a"}), (CHAT, {"messages": USER})):
        for value in (-1, 10**12, "5", 1.5, True, 5000):
            error = client.refused(path, {**start, "max_tokens": value})
            assert error["param"] in ("max_tokens", "prompt"), value
        for name in ("max_tokens", "max_completion_tokens"):
            nothing = client.whole(path, **start, **{name: 0})
            assert (nothing["usage"]["completion_tokens"], nothing["choices"][0]["finish_reason"]) == (0, "length")
        for fields in ({}, {"max_tokens": None}, {"max_tokens": None, "max_completion_tokens": None}):
            assert client.whole(path, **start, **fields, stop_token_ids=list(range(304)))["usage"]["completion_tokens"] == 1


def test_b139_max_completion_tokens_for_completions(client: OpenAIClient) -> None:
    assert client.text("a", max_completion_tokens=3, ignore_eos=True)["usage"]["completion_tokens"] == 3


def test_b140_contents_in_parts_null_and_empty(tools_server: Served) -> None:
    client = OpenAIClient(tools_server)

    def prompt(messages: list[dict[str, Any]]) -> str:
        return rendered(client.chat(messages=messages, max_tokens=1, return_token_ids=True))

    def parts(*texts: str) -> list[dict[str, str]]:
        return [{"type": "text", "text": text} for text in texts]

    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert prompt([{"role": "user", "content": parts("one", "two")}]) == prompt([{"role": "user", "content": "one\ntwo"}])
    with_call = [{"role": "assistant", "content": content, "tool_calls": [call]} for content in (None, [], "")]
    assert len({prompt([*USER, message, {"role": "tool", "content": parts("seen")}]) for message in with_call}) == 1
    assert prompt([*USER, with_call[0], {"role": "tool", "content": parts("seen")}]).count("seen") == 1
    for kind in ("image_url", "input_audio", "file", "video"):
        error = client.refused(CHAT, {"messages": [{"role": "user", "content": [{"type": kind}]}]})
        assert kind in error["message"]
    for content in (5, {"text": "a"}, [5], [{"type": "text"}], [{"type": "text", "text": 5}]):
        client.refused(CHAT, {"messages": [{"role": "user", "content": content}]})


def test_b142_prompts_and_answers_in_order(client: OpenAIClient) -> None:
    prompts = ["first", "second", "third"]
    answer = client.both_ways(TEXT, prompt=prompts, n=2, **SEEDED)
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    alone = [client.text(prompt, n=2, **SEEDED) for prompt in prompts]
    for i in range(6):
        assert answer["choices"][i]["text"] == alone[i // 2]["choices"][i % 2]["text"]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert answer["usage"][name] == sum(one["usage"][name] for one in alone)


def test_b143_the_three_ends(client: OpenAIClient) -> None:
    ends = {
        "stop": [
            {"allowed_token_ids": [EOS_ID]},
            {"allowed_token_ids": [97], "stop": "aa"},
            {"allowed_token_ids": [98], "stop": ["b"]},
        ],
        "length": [{"allowed_token_ids": [97], "max_tokens": 2}, {"max_tokens": 0}],
    }
    for reason, bodies in ends.items():
        for body in bodies:
            assert client.both_ways(TEXT, **{"prompt": "go", "max_tokens": 9, **body})["choices"][0]["finish_reason"] == reason
            assert client.both_ways(CHAT, **{"messages": USER, "max_tokens": 9, **body})["choices"][0]["finish_reason"] == reason


def test_b145_errors_have_openais_shape(client: OpenAIClient) -> None:
    for path in (CHAT, TEXT):
        start: dict[str, Any] = {"messages": USER, "prompt": "a"}
        assert client.refused(path, {"messages": "hi", "prompt": {}})["type"] == "invalid_request_error"
        unknown = client.refused(path, start | {"model": "gpt-5"}, 404)
        assert (unknown["code"], unknown["param"]) == ("model_not_found", "model")
        for body in (b"{", b"", b"[]", b'"a"', b"null", b"\x00", b"{}", b'{"a":' * 5000, b"[" * 100_000, b"NaN"):
            assert client.refused(path, body)["message"]
        assert client.refused(path, json.dumps(start | {"model": "x" * 10**5}).encode(), 404)


def test_b145_an_error_before_a_stream_has_its_status(client: OpenAIClient) -> None:
    assert client.refused(CHAT, {"messages": USER, "stream": True, "model": "nope"}, 404)
    assert client.refused(TEXT, {"prompt": "a" * 3000, "stream": True})["code"] == "context_length_exceeded"


# --- text ----------------------------------------------------------------------------------------------------------------


def test_b146_a_character_that_the_prompt_began(client: OpenAIClient) -> None:
    body = {"prompt": [*b"hey ", *PEPPER[:3]], "allowed_token_ids": [PEPPER[3]], "max_tokens": 1}
    assert client.both_ways(TEXT, **body)["choices"][0]["text"] == PEPPER.decode()
    body = {"prompt": [*b"hey ", *PEPPER[:2]], "allowed_token_ids": [PEPPER[2]], "max_tokens": 1}
    assert len(client.both_ways(TEXT, **body)["choices"][0]["text"]) <= 1
    logprobs = client.both_ways(TEXT, **body, logprobs=0)["choices"][0]["logprobs"]
    assert logprobs["text_offset"] == [0]


def test_b157_lone_surrogates(client: OpenAIClient) -> None:
    lone = b'"a\\ud83d"'
    bodies = [
        (CHAT, b'{"messages":[{"role":"user","content":%s}]}'),
        (CHAT, b'{"messages":[{"role":"user","content":"a"}],"stop":%s}'),
        (CHAT, b'{"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":%s}}]}'),
        (CHAT, b'{"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"a":%s}}'),
        (CHAT, b'{"messages":[{"role":"user","content":"a"}],"cache_salt":%s}'),
        (CHAT, b'{"messages":[{"role":"user","content":"a"}],"model":%s}'),
        (TEXT, b'{"prompt":%s}'),
        (TEXT, b'{"prompt":["b",%s],"stream":true}'),
        (TEXT, b'{"prompt":"a",%s:1}'),
    ]
    for path, body in bodies:
        assert client.refused(path, body % lone)["type"] == "invalid_request_error"


def test_b158_bytes_that_are_no_text(client: OpenAIClient) -> None:
    before = client.text("cold", **SEEDED)["choices"]
    broken = client.text([0xFF, 0xFE, 0xC3], max_tokens=2, allowed_token_ids=[0xFF], echo=True)["choices"][0]
    assert broken["text"] == "\ufffd" * 5
    for body in ('{"prompt": "한국"}'.encode("euc-kr"), b'{"prompt": "\xff"}', b"\xff\xfe{}"):
        client.refused(TEXT, body)
    assert client.text("cold", **SEEDED)["choices"] == before


def test_b184_work_is_bounded_by_what_it_takes(client: OpenAIClient) -> None:
    for value in (-1, 304, 10**9, 21):
        assert client.refused(TEXT, {"prompt": "a", "prompt_logprobs": value})["param"] == "prompt_logprobs"
        assert client.refused(CHAT, {"messages": USER, "prompt_logprobs": value})["param"] == "prompt_logprobs"
        assert client.refused(CHAT, {"messages": USER, "logprobs": True, "top_logprobs": value})["param"] == "top_logprobs"
    for path, start in ((TEXT, {"prompt": "a"}), (CHAT, {"messages": USER})):
        assert client.refused(path, {**start, "n": 10**6})["param"] == "n"
        assert client.refused(path, {**start, "stop": ["x"] * 10**5})["param"] == "stop"
    assert client.refused(TEXT, {"prompt": "a", "best_of": 10**6})["param"] == "best_of"
    assert client.refused(TEXT, {"prompt": "a", "bad_words": ["x"] * 10**5})["param"] == "bad_words"
    ignored = client.post(TEXT, {"prompt": "a", "max_tokens": 1, "dry_multiplier": 0.8})
    assert ignored.headers["x-ramet-ignored"] == "dry_multiplier"


def test_t14_prompts_times_answers_times_logprobs(client: OpenAIClient) -> None:
    assert len(client.text(["a"] * 64, n=2, max_tokens=1)["choices"]) == 128
    for prompts, n in ((65, 2), (129, 1), (2, 65)):
        error = client.refused(TEXT, {"prompt": ["a"] * prompts, "n": n})
        assert f"{prompts * n} answers" in error["message"]
    error = client.refused(TEXT, {"prompt": "a" * 2000, "n": 8, "echo": True, "logprobs": 20, "max_tokens": 1})
    assert "336,000" in error["message"]
    error = client.refused(TEXT, {"prompt": ["a" * 2000] * 7, "prompt_logprobs": 20, "max_tokens": 1})
    assert "262,144" in error["message"]
    error = client.refused(CHAT, {"messages": USER, "n": 128, "logprobs": True, "top_logprobs": 20})
    assert error["param"] == "logprobs"


def test_late_readers_get_larger_pieces(server: Served) -> None:
    """Nothing is queued for a reader: what it was late for comes at once, and none of it is lost."""
    body = {"prompt": "go", "seed": 5, "max_tokens": 200, "allowed_token_ids": LETTERS, "ignore_eos": True}
    whole = server.post(TEXT, body).json()["choices"][0]["text"]
    streamed = chunks(server.post(TEXT, body | {"stream": True}).text)
    assert texts(streamed) == whole
    assert len(streamed) <= 202
