"""/tokenize and /detokenize as vLLM has them, /generate as SGLang has it, over a tiny model whose tokens are bytes."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import httpx
import pytest
from support.http import Served, events

HI = "hello, world"
GREEDY: dict[str, Any] = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}


def ok(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(answer: httpx.Response, words: str) -> None:
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["error"]["message"]


def stream(server: Served, body: Any) -> list[Any]:
    answer = server.post("/generate", {**body, "stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    data = [data for _, data in events(answer.text)]
    assert data[-1] == "[DONE]"
    return [json.loads(one) for one in data[:-1]]


# ---- tokens and text


def test_tokenize_and_back(server: Served) -> None:
    told = ok(server.post("/tokenize", {"prompt": HI + " ü", "return_token_strs": True, "model": "tiny"}))
    assert told["tokens"] == list((HI + " ü").encode())
    assert told["count"] == len(told["tokens"])
    assert told["max_model_len"] == 2048
    assert told["token_strs"][:5] == list("hello")
    assert ok(server.post("/detokenize", {"tokens": told["tokens"], "model": "tiny"})) == {"prompt": HI + " ü"}
    assert ok(server.post("/tokenize", {"prompt": ""}))["tokens"] == []


def test_tokenize_a_conversation_is_what_the_chat_endpoint_counts(server: Served) -> None:
    messages = [{"role": "user", "content": "hi"}]
    told = ok(server.post("/tokenize", {"messages": messages}))
    assert told["token_strs"] is None
    chat = ok(server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1}))
    assert chat["usage"]["prompt_tokens"] == told["count"]
    text = ok(server.post("/detokenize", {"tokens": told["tokens"]}))["prompt"]
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert ok(server.post("/tokenize", {"messages": messages, "add_special_tokens": True})) == told
    bare = ok(server.post("/tokenize", {"messages": messages, "add_generation_prompt": False}))
    assert ok(server.post("/detokenize", {"tokens": bare["tokens"]}))["prompt"] == "<|im_start|>user\nhi<|im_end|>\n"


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/tokenize", {}, "either a prompt or messages"),
        ("/tokenize", {"prompt": "a", "messages": []}, "either a prompt or messages"),
        ("/tokenize", {"prompt": 5}, "expected str"),
        ("/tokenize", {"messages": [{"role": "user", "content": "a"}], "chat_template": "{{ 1 }}"}, "chat template"),
        (
            "/tokenize",
            {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"chat_template": "x"}},
            "may not",
        ),
        ("/detokenize", {}, "tokens is missing"),
        ("/detokenize", {"tokens": [-1]}, "tokens has -1"),
        ("/detokenize", {"tokens": [304]}, "tokens has 304"),
        ("/detokenize", {"tokens": [2**70]}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens"),
    ],
)
def test_what_cannot_be_tokenized_is_refused(server: Served, path: str, body: Any, words: str) -> None:
    refused(server.post(path, body), words)


def test_another_model_is_not_found(server: Served) -> None:
    for path, body in [("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})]:
        assert server.post(path, {**body, "model": "other"}).status_code == 404


def test_unknown_fields_are_named_in_a_header(server: Served) -> None:
    for path, body in [("/tokenize", {"prompt": "a"}), ("/generate", {"text": "a", "sampling_params": GREEDY})]:
        answer = server.post(path, {**body, "novel": 1})
        assert answer.status_code == 200
        assert answer.headers["x-ramet-ignored"] == "novel"


# ---- /generate


def test_one_prompt_as_text_or_as_tokens(server: Served) -> None:
    told = ok(server.post("/generate", {"text": HI, "sampling_params": GREEDY, "rid": "mine"}))
    meta = told["meta_info"]
    assert len(told["output_ids"]) == meta["completion_tokens"] == 8
    assert (meta["id"], meta["prompt_tokens"]) == ("mine", len(HI))
    assert meta["finish_reason"] == {"type": "length", "length": 8}
    assert 0 < meta["e2e_latency"] < 60
    assert isinstance(meta["cached_tokens"], int)
    again = ok(server.post("/generate", {"input_ids": list(HI.encode()), "sampling_params": GREEDY}))
    assert (again["text"], again["output_ids"]) == (told["text"], told["output_ids"])
    assert again["meta_info"]["cached_tokens"] == len(HI) - 1
    assert again["meta_info"]["id"].startswith("gen-")
    completion = ok(
        server.post("/v1/completions", {"prompt": HI, "temperature": 0, "max_tokens": 8, "ignore_eos": True, "model": "tiny"})
    )
    assert completion["choices"][0]["text"] == told["text"]


def test_several_prompts_and_answers_come_as_a_list_in_order(server: Served) -> None:
    texts = ["ab", "cd", "ef"]
    alone = [ok(server.post("/generate", {"text": text, "sampling_params": GREEDY}))["output_ids"] for text in texts]
    told = ok(server.post("/generate", {"text": texts, "sampling_params": GREEDY, "rid": ["x", "y", "z"]}))
    assert [one["output_ids"] for one in told] == alone
    assert [one["meta_info"]["id"] for one in told] == ["x", "y", "z"]
    each = [{**GREEDY, "max_new_tokens": 1 + i} for i in range(3)]
    told = ok(server.post("/generate", {"input_ids": [list(text.encode()) for text in texts], "sampling_params": each}))
    assert [one["output_ids"] for one in told] == [ids[: 1 + i] for i, ids in enumerate(alone)]
    assert isinstance(ok(server.post("/generate", {"text": ["ab"], "sampling_params": GREEDY})), list)
    several = ok(server.post("/generate", {"text": "ab", "sampling_params": {**GREEDY, "n": 2}}))
    assert [one["output_ids"] for one in several] == [alone[0]] * 2
    assert [one["meta_info"]["completion_tokens"] for one in several] == [8, 8]


def test_a_stop_string_is_told_and_trimmed(server: Served) -> None:
    text = ok(server.post("/generate", {"text": HI, "sampling_params": {**GREEDY, "max_new_tokens": 32}}))["text"]
    stop = next(text[i : i + 2] for i in range(4, len(text) - 2) if "\ufffd" not in text[i : i + 2])
    told = ok(server.post("/generate", {"text": HI, "sampling_params": {**GREEDY, "max_new_tokens": 32, "stop": [stop]}}))
    assert told["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert told["text"] == text[: text.index(stop)]
    kept = {**GREEDY, "max_new_tokens": 32, "stop": stop, "no_stop_trim": True}
    assert ok(server.post("/generate", {"text": HI, "sampling_params": kept}))["text"] == told["text"] + stop


def test_a_stop_token_is_told(server: Served) -> None:
    first = ok(server.post("/generate", {"text": HI, "sampling_params": GREEDY}))["output_ids"]
    told = ok(server.post("/generate", {"text": HI, "sampling_params": {**GREEDY, "stop_token_ids": [first[0]]}}))
    assert told["meta_info"]["finish_reason"] == {"type": "stop", "matched": first[0]}


def test_logprobs(server: Served) -> None:
    body = {"text": "abcd", "sampling_params": GREEDY, "return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 1}
    told = ok(server.post("/generate", {**body, "return_text_in_logprobs": True}))
    meta = told["meta_info"]
    assert [token_id for _, token_id, _ in meta["output_token_logprobs"]] == told["output_ids"]
    assert all(logprob <= 0 for logprob, _, _ in meta["output_token_logprobs"])
    for chosen, best in zip(meta["output_token_logprobs"], meta["output_top_logprobs"], strict=True):
        assert len(best) == 2
        assert best[0] == chosen, "greedy takes the best"
        assert best[0][0] >= best[1][0]
    assert [(token_id, text) for _, token_id, text in meta["input_token_logprobs"]] == [(98, "b"), (99, "c"), (100, "d")]
    whole = ok(server.post("/generate", {**body, "logprob_start_len": 0, "top_logprobs_num": 0}))["meta_info"]
    assert whole["input_token_logprobs"][0] == [None, 97, None]
    assert [one[0] for one in whole["input_token_logprobs"][1:]] == [one[0] for one in meta["input_token_logprobs"]]
    assert "output_top_logprobs" not in whole
    plain = ok(server.post("/generate", {"text": "abcd", "sampling_params": GREEDY}))["meta_info"]
    assert "output_token_logprobs" not in plain


def test_a_stream_says_all_so_far_each_time(server: Served) -> None:
    body = {"text": HI, "sampling_params": {**GREEDY, "max_new_tokens": 40}}
    whole = ok(server.post("/generate", body))
    told = stream(server, body)
    for before, after in pairwise(told):
        assert after["text"].startswith(before["text"])
        assert after["output_ids"][: len(before["output_ids"])] == before["output_ids"]
        assert before["meta_info"]["finish_reason"] is None
        assert "e2e_latency" not in before["meta_info"]
    assert (told[-1]["text"], told[-1]["output_ids"]) == (whole["text"], whole["output_ids"])
    assert told[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 40}
    assert "index" not in told[-1]
    last = stream(server, {**body, "return_logprob": True})
    assert [one[1] for one in last[-1]["meta_info"]["output_token_logprobs"]] == whole["output_ids"]
    assert all("output_token_logprobs" not in one["meta_info"] for one in last[:-1])


def test_a_stream_of_several_answers_says_which(server: Served) -> None:
    body = {"text": ["ab", "cd"], "sampling_params": {**GREEDY, "n": 2}}
    whole = ok(server.post("/generate", body))
    last = {one["index"]: one for one in stream(server, body)}
    assert [last[i]["text"] for i in range(4)] == [one["text"] for one in whole]
    assert all(last[i]["meta_info"]["finish_reason"] for i in range(4))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "either text or input_ids"),
        ({"text": "a", "input_ids": [1]}, "either text or input_ids"),
        ({"text": []}, "0 answers"),
        ({"text": ["a"] * 1025}, "1,025 answers"),
        ({"text": ["a"] * 9, "sampling_params": {"n": 128}}, "1,152 answers"),
        ({"input_ids": []}, "empty"),
        ({"input_ids": [1, [2]]}, "a list of such lists"),
        ({"input_ids": [[]]}, "empty"),
        ({"input_ids": [304]}, "304"),
        ({"input_ids": [-1]}, "-1"),
        ({"input_ids": [1.5]}, "input_ids"),
        ({"text": "a", "rid": ["a", "b"]}, "rid has 2 ids for 1 prompts"),
        ({"text": "a", "rid": ""}, "rid is a text of 1 to 256"),
        ({"text": "a", "rid": "x" * 257}, "rid is a text of 1 to 256"),
        ({"text": ["a", "b"], "sampling_params": [{}]}, "sampling_params has 1 entries for 2 prompts"),
        ({"text": "a", "sampling_params": {"max_tokens": 1}}, "unknown field max_tokens"),
        ({"text": "a", "sampling_params": {"max_new_tokens": -1}}, "max_tokens"),
        ({"text": "a", "sampling_params": {"temperature": "hot"}}, "temperature"),
        ({"text": "a", "sampling_params": {"structural_tag": "a"}}, "structural_tag is not JSON"),
        ({"text": "a", "sampling_params": {"regex": "a("}}, "regex"),
        ({"text": "a", "sampling_params": {"regex": "a+", "ebnf": "b"}}, "regex, ebnf each say"),
        ({"text": "a", "image_data": "http://127.0.0.1/x.png"}, "image_data is not supported"),
        ({"text": "a", "return_logprob": True, "top_logprobs_num": 21}, "logprobs"),
        ({"text": "a", "return_logprob": True, "top_logprobs_num": 10**18}, "logprobs"),
        ({"text": "a" * 3000}, "3,000 tokens"),
        ({"text": "a", "priority": 2**40}, "priority"),
        ({"text": "a", "cache_salt": ""}, "cache_salt"),
        (
            {"text": ["a"] * 1000, "return_logprob": True, "top_logprobs_num": 20, "sampling_params": {"max_new_tokens": 2000}},
            "42,000,000 logprobs",
        ),
    ],
)
def test_what_cannot_be_generated_is_refused(server: Served, body: Any, words: str) -> None:
    refused(server.post("/generate", body), words)
    refused(server.post("/generate", {**body, "stream": True}), words)


def test_ids_of_two_requests_may_be_the_same(server: Served) -> None:
    body = {"text": ["ab", "cd"], "sampling_params": GREEDY, "rid": ["same", "same"]}
    told = ok(server.post("/generate", body, x_request_id="same"))
    assert [one["meta_info"]["id"] for one in told] == ["same", "same"]


def test_who_leaves_aborts(server: Served) -> None:
    endless = {"text": "ab", "sampling_params": {"max_new_tokens": 2000, "ignore_eos": True, "n": 2}}
    for stream_it in (True, False):
        options = {"leave_after": 1} if stream_it else {}
        if stream_it:
            server.call("/generate", {**endless, "stream": True}, **options)
        else:
            with pytest.raises(httpx.ReadTimeout), httpx.Client(base_url=server.url, timeout=0.2) as client:
                client.post("/generate", json=endless)
        server.until_idle()
