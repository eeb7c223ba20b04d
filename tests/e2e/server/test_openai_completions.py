"""``/v1/completions`` over a tiny model, whole and streamed."""

from __future__ import annotations

from typing import Any

import pytest
from support.http import Served, texts
from support.openai_api import EOS_ID, LETTERS, TEXT, OpenAIClient

SEEDED = {"seed": 5, "max_tokens": 8, "allowed_token_ids": LETTERS}
EURO = [0xE2, 0x82, 0xAC]


@pytest.fixture
def client(server: Served) -> OpenAIClient:
    return OpenAIClient(server)


def test_an_answer(client: OpenAIClient) -> None:
    answer = client.text("Hello", **SEEDED)
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    [choice] = answer["choices"]
    assert (len(choice["text"]), choice["finish_reason"], choice["logprobs"]) == (8, "length", None)
    assert answer["usage"] | {"prompt_tokens_details": 0} == {
        "prompt_tokens": 5,
        "completion_tokens": 8,
        "total_tokens": 13,
        "prompt_tokens_details": 0,
    }
    assert client.text(list(b"Hello"), **SEEDED)["choices"] == [choice]  # the same prompt, as ids


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"n": 2, "logprobs": 2},
        {"prompt": ["one", "two", "three"], "n": 2, "temperature": 1.5},
        {"prompt": [[1, 2], [3]], "echo": True, "logprobs": 0},
        {"prompt": "echo, please", "echo": True, "n": 2},
        {"echo": True, "logprobs": 3, "allowed_token_ids": [*EURO, 97], "max_tokens": 20},
        {"allowed_token_ids": [*EURO, EOS_ID, 97], "max_tokens": 40, "logprobs": 0, "skip_special_tokens": False},
        {"echo": True, "max_tokens": 0, "logprobs": 1},
        {"echo": True, "max_tokens": 0},
    ],
    ids=str,
)
def test_streams_say_what_whole_answers_do(client: OpenAIClient, body: dict[str, Any]) -> None:
    client.both_ways(TEXT, **{"prompt": "the same", **SEEDED, **body})


def test_sixteen_tokens_by_default(client: OpenAIClient) -> None:
    assert client.text("a", ignore_eos=True)["usage"]["completion_tokens"] == 16
    assert client.text("a", ignore_eos=True, max_tokens=None)["usage"]["completion_tokens"] == 16


def test_places_of_tokens_in_the_text(client: OpenAIClient) -> None:
    """Each token begins where the text of those before it ends; the parts of a character, where it begins."""
    choice = client.text("né", **(SEEDED | {"allowed_token_ids": [*EURO, 97], "max_tokens": 60}), logprobs=1, echo=True)[
        "choices"
    ][0]
    logprobs, text = choice["logprobs"], choice["text"]
    assert logprobs["text_offset"][:4] == [0, 1, 1, 2]
    assert logprobs["tokens"][:3] == ["n", "bytes:\\xc3", "bytes:\\xa9"]
    assert text.startswith("né")
    assert "a" in logprobs["tokens"]
    for token, place in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        if token == "a":
            assert text[place] == "a" or text[place] == "\ufffd"  # a character before it that it has shown to be broken
    lengths = {len(logprobs[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}
    assert lengths == {3 + 60}


def test_logprobs_of_a_prompt_do_not_depend_on_who_asks(client: OpenAIClient) -> None:
    """What is said of a token as output and as a part of the prompt is one number."""
    wrote = client.text("The", seed=1, max_tokens=12, temperature=0, ignore_eos=True, logprobs=0, return_token_ids=True)[
        "choices"
    ][0]
    prompt = [*b"The", *wrote["token_ids"]]
    read = client.text(prompt, max_tokens=0, echo=True, logprobs=0)["choices"][0]
    assert read["logprobs"]["token_logprobs"][3:] == wrote["logprobs"]["token_logprobs"]
    assert read["logprobs"]["token_logprobs"][0] is None


def test_the_chosen_token_is_among_the_top_ones(client: OpenAIClient) -> None:
    for echo in (False, True):
        logprobs = client.text("abc", **SEEDED, logprobs=2, echo=echo)["choices"][0]["logprobs"]
        for token, own, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
            if own is not None:
                assert top[token] == own
                assert 2 <= len(top) <= 3
                assert max(top.values()) == next(iter(top.values()))


def test_special_tokens_in_an_echo(client: OpenAIClient) -> None:
    """As text they are shown as written; as ids, where special tokens are shown at all."""
    written = client.text("<|im_start|>ab", **SEEDED, echo=True, logprobs=0)["choices"][0]
    assert written["text"].startswith("<|im_start|>ab")
    assert written["logprobs"]["text_offset"][:4] == [0, 12, 13, 14]
    hidden = client.text([257, 97, 98], **SEEDED, echo=True, logprobs=0)["choices"][0]
    assert hidden["text"][:2] == "ab"
    assert hidden["logprobs"]["text_offset"][:4] == [0, 0, 1, 2]
    shown = client.text([257, 97, 98], **SEEDED, echo=True, logprobs=0, skip_special_tokens=False)["choices"][0]
    assert shown["text"] == written["text"]
    assert shown["logprobs"] == written["logprobs"]


def test_token_ids_of_prompt_and_answer(client: OpenAIClient) -> None:
    choice = client.text("ab", **SEEDED, return_token_ids=True)["choices"][0]
    assert choice["prompt_token_ids"] == [97, 98]
    assert bytes(choice["token_ids"]).decode() == choice["text"]
    first, *others, _ = client.stream(TEXT, prompt="ab", **SEEDED, return_token_ids=True)
    assert first["choices"][0]["prompt_token_ids"] == [97, 98]
    assert not any("prompt_token_ids" in chunk["choices"][0] for chunk in others)


def test_cached_tokens_of_several_prompts_are_summed(client: OpenAIClient) -> None:
    assert client.server.post("/flush_cache", {}).status_code == 200
    prompts = ["x" * 40 + "1", "y" * 40 + "2"]
    for number, expected in ((0, 0), (1, 80)):
        usage = client.text(prompts, max_tokens=1)["usage"]
        assert usage["prompt_tokens"] == 82
        assert usage["prompt_tokens_details"]["cached_tokens"] == expected, number


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [["a"]]}, "prompt[0][0]"),
        ({"prompt": [[1], "a"]}, "prompt"),
        ({"prompt": {"text": "a"}}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"prompt": [304]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [2**63]}, "prompt"),
        ({"prompt": "a" * 2100}, "prompt"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"echo": "yes"}, "echo"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
        ({"cache_salt": ""}, "cache_salt"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_refused_and_by_which_name(client: OpenAIClient, fields: dict[str, Any], param: str) -> None:
    assert client.refused(TEXT, {"prompt": "a", **fields})["param"] == param


def test_what_is_allowed_after_all(client: OpenAIClient) -> None:
    assert len(client.text("a", max_tokens=1, best_of=2, n=2, suffix="")["choices"]) == 2
    assert client.text("a", max_tokens=1, best_of=1)["choices"]


def test_a_stream_of_several_prompts_tells_each(client: OpenAIClient) -> None:
    prompts = ["long " * 30, "s", "middle " * 9]
    found = client.stream(TEXT, prompt=prompts, **SEEDED, n=2)
    whole = client.text(prompts, **SEEDED, n=2)["choices"]
    assert [texts(found, i) for i in range(6)] == [choice["text"] for choice in whole]
    alone = client.text(prompts[1], **SEEDED, n=2)["choices"]
    assert [choice["text"] for choice in whole[2:4]] == [choice["text"] for choice in alone]
