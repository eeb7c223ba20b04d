"""Requests of all kinds, and what each answers when it has the server to itself."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

Ask = Callable[[str, Any], tuple[int, bytes]]
"""Path and body to status and body."""

_WORDS = ("river", "stone", "cloud", "lantern", "garden", "winter", "copper", "violin", "harbor", "meadow", "signal", "thunder")


class Unwhole(Exception):
    """What came is no whole answer; the message says why, by the error's code where it has one."""


@dataclass(frozen=True)
class Case:
    """One request and its answer alone. The same request may be put as a stream or not: the answer is the same."""

    path: str
    body: dict[str, Any]
    answer: Any = None

    def encoded(self, *, stream: bool) -> bytes:
        return json.dumps(self.body | {"stream": stream}).encode()


def make_cases(ask: Ask, count: int, *, seed: int = 1, max_tokens: int = 96) -> list[Case]:
    """``count`` requests of all kinds, each answered alone by a server whose cache was emptied before.

    Stop strings are taken out of what the request says without them, so that they are met.
    """
    rng = random.Random(seed)
    cases = []
    for number in range(count):
        case = answered_alone(ask, _make(rng, number, max_tokens))
        if number % 3 == 0 and (stop := _stop(rng, case)):
            case = answered_alone(ask, replace(case, body=case.body | {"stop": [stop, "never said"]}))
        cases.append(case)
    return cases


def answered_alone(ask: Ask, case: Case) -> Case:
    """``case`` with its answer from a server whose cache was emptied before, and which has nothing else to do."""
    status, answer = ask("/flush_cache", {})
    assert status == 200, answer
    status, answer = ask(case.path, case.body)
    assert status == 200, answer
    return replace(case, answer=read_answer(status, answer, is_stream=False))


def _make(rng: random.Random, number: int, max_tokens: int) -> Case:
    shared = " ".join(random.Random(number % 6).choices(_WORDS, k=20 * (number % 6)))  # of six documents, one of them empty
    text = f"{shared} {' '.join(rng.choices(_WORDS, k=rng.randint(1, 20)))}"
    is_greedy = rng.random() < 0.3
    body = {
        "max_tokens": rng.randint(1, max_tokens),
        "n": rng.choice([1, 1, 4]),
        "seed": number,
        "temperature": 0 if is_greedy else rng.choice([0.7, 1.0]),
        "top_p": rng.choice([1.0, 0.9]),
        "top_k": rng.choice([0, 40]),
        "ignore_eos": rng.random() < 0.7,
        "return_token_ids": True,
    }
    has_logprobs = rng.random() < 0.4
    if number % 2:
        chat = {"logprobs": True, "top_logprobs": rng.randint(0, 4)} if has_logprobs else {}
        return Case("/v1/chat/completions", body | chat | {"messages": [{"role": "user", "content": text}]})
    return Case("/v1/completions", body | {"prompt": text} | ({"logprobs": rng.randint(0, 4)} if has_logprobs else {}))


def _stop(rng: random.Random, case: Case) -> str:
    text = case.answer[0]["text"].replace("\ufffd", "")
    start = rng.randrange(len(text)) if text else 0
    return text[start : start + rng.randint(1, 3)]


def read_answer(status: int, body: bytes, *, is_stream: bool) -> list[dict[str, Any]]:
    """The answers of a request by index: text, token ids, logprobs and reason, however they were told. Raises ``Unwhole``."""
    if status != 200:
        raise Unwhole(_code(json.loads(body), status))
    if not is_stream:
        return [_whole(choice) for choice in sorted(json.loads(body)["choices"], key=lambda choice: choice["index"])]
    found: dict[int, dict[str, Any]] = {}
    for event in _events(body):
        for choice in event["choices"]:
            _grow(found.setdefault(choice["index"], {"text": "", "token_ids": [], "logprobs": [], "reason": None}), choice)
    return [found[index] for index in sorted(found)]


def _events(body: bytes) -> Iterator[Any]:
    data = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ")]
    is_ended = bool(data) and data[-1] == b"[DONE]"
    for one in data[: -1 if is_ended else None]:
        event = json.loads(one)
        if "error" in event:
            raise Unwhole(_code(event, 200))
        yield event
    if not is_ended:
        raise Unwhole("cut off")


def _code(body: Any, status: int) -> str:
    return f"{status} {body['error']['code']}"


def _whole(choice: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {"text": "", "token_ids": [], "logprobs": [], "reason": None}
    _grow(answer, {**choice, "delta": choice.get("message")})
    return answer


def _grow(answer: dict[str, Any], choice: dict[str, Any]) -> None:
    assert answer["reason"] is None, "something came after the end"
    answer["text"] += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
    answer["token_ids"] += choice.get("token_ids") or []
    answer["logprobs"] += _logprobs(choice.get("logprobs"))
    answer["reason"] = choice["finish_reason"]


def _logprobs(told: dict[str, Any] | None) -> Sequence[object]:
    """One entry a token, in either of the two forms."""
    if told is None:
        return []
    if "content" in told:
        return told["content"] or []
    tops = told["top_logprobs"] or [None] * len(told["tokens"])
    return [list(row) for row in zip(told["tokens"], told["token_logprobs"], tops, told["text_offset"], strict=True)]
