"""Logprobs in words: what JSON cannot say, ties, and tokens that are no text."""

from __future__ import annotations

import math

import msgspec
import pytest

from ramet.engine.assemble import Logprob
from ramet.server.openai_logprobs import TextPlaces, chat_logprobs, prompt_logprobs, text_logprobs

NOT_FINITE = (math.nan, -math.inf, -1e30)


@pytest.mark.parametrize("value", NOT_FINITE)
def test_what_is_not_finite_is_openais_least(value: float) -> None:
    found = [{7: Logprob(value, 9, "g"), 8: Logprob(-0.5, 1, "h")}]
    told = [chat_logprobs(found, 2, None), text_logprobs([7], found, [0], 1, None), prompt_logprobs([None, *found])]
    for one in told:
        text = msgspec.json.encode(one).decode()
        assert "-9999.0" in text
        assert not {"NaN", "Infinity"} & set(text.replace(":", " ").replace(",", " ").split())
    assert told[0].content[0].logprob == told[1].token_logprobs[0] == -9999.0
    assert told[2][1][7].logprob == -9999.0


def test_ties_leave_as_many_as_were_asked_for() -> None:
    """A chosen token that ties with the last of the best is not one more."""
    found = {5: Logprob(-1.0, 2, "e"), 3: Logprob(-0.5, 1, "c"), 4: Logprob(-1.0, 2, "d")}
    [content] = chat_logprobs([found], 2, None).content
    assert content.token == "e"
    assert [one.token for one in content.top_logprobs] == ["c", "e"]
    assert chat_logprobs([found], 0, None).content[0].top_logprobs == []


def test_a_model_without_a_tokenizer_has_ids_for_names() -> None:
    found = {5: Logprob(-1.0, 2, ""), 3: Logprob(-0.5, 1, "")}
    told = text_logprobs([5], [found], TextPlaces(None).take([5]), 1, None)
    assert (told.tokens, told.text_offset) == (["token_id:5"], [0])
    assert told.top_logprobs == [{"token_id:3": -0.5, "token_id:5": -1.0}]
