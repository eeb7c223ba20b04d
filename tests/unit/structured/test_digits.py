"""Numbers end, whatever the model likes: a model that would always write a digit."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from byte_grammars import COMPILER, EOS, accepts, allowed, matcher, walk

from ramet.core.grammar import GrammarSpec
from ramet.core.ports import Matcher
from ramet.structured.compiler import GrammarCompiler, TokenTable
from ramet.structured.digits import MAX_DIGITS, MAX_EXPONENT

_PIECES = [*(bytes([b]) for b in range(256)), b"<eos>", b"99", b"999", b"9" * 90, b"9.", b".9", b'"9', b'9"', b"9,9", b'\\"']
_LARGE = GrammarCompiler(TokenTable(_PIECES, frozenset({EOS}), frozenset({EOS}), len(_PIECES)))
_LIKED = [b"9" * 90, b"999", b"99", b"9", b".9", b"9.", b".", b"e", b"-"]
_RANKS = [*(_PIECES.index(one) for one in _LIKED), *b'},]":', EOS]


def _fond_of_nines(one: Matcher, most: int = 2_000) -> bytes:
    """What a model writes that takes the first of its likings which the mask allows, and else whatever is first."""
    text = b""
    row = np.zeros(one.num_words, np.uint32)
    for _ in range(most):
        if one.is_finished:
            return text
        one.fill_mask(row)
        ids = set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())
        token_id = next((rank for rank in _RANKS if rank in ids), min(ids))
        if token_id == EOS:
            return text
        one.accept(token_id)
        text += _PIECES[token_id]
    raise AssertionError(f"no end: {text[-50:]!r}")


_CLOSED: dict[str, Any] = {"type": "object", "required": ["n"], "additionalProperties": False}
_NUMBER = {"type": "number"}


def _tag(schema: dict[str, Any]) -> dict[str, Any]:
    """One tag, and nothing else."""
    tag = {"begin": "<f>", "content": {"type": "json_schema", "json_schema": schema}, "end": "</f>"}
    form = {"type": "triggered_tags", "triggers": ["<f>"], "tags": [tag], "at_least_one": True, "stop_after_first": True}
    return {"structural_tag": {"type": "structural_tag", "format": form}}


@pytest.mark.parametrize(
    "constraint",
    [
        {"json": {"type": "integer"}},
        {"json": _NUMBER},
        {"json": {"type": "number", "minimum": 0.5}},
        {"json": _CLOSED | {"properties": {"n": {"type": "number"}}}},
        {"json": {"type": "array", "items": {"type": "integer"}, "maxItems": 3}},
        {"grammar": 'start: "<call>" %json {"type": "integer"} "</call>"'},
        {"grammar": 'start: /[xyz]*/ "f(n=" %json {"type": "number"} ", m=" %json {"type": "integer"} ")"'},
        {"grammar": 'start: "a" inside %json {"type": "number"}\ninside[lazy]: /(.|\\n)*<\\/think>/'},
        _tag({"type": "integer"}),
        _tag(_CLOSED | {"properties": {"n": _NUMBER}}),
    ],
    ids=lambda one: next(iter(one)),
)
def test_a_model_that_likes_nines_comes_to_an_end(constraint: dict[str, Any]) -> None:
    one = _LARGE.matcher(GrammarSpec.of(constraint), frozenset({EOS})).result()
    begun = "a9</think>" if "think" in str(constraint) else ""
    for byte in begun.encode():
        one.accept(byte)
    text = _fond_of_nines(one).decode()
    assert all(len(run) == MAX_EXPONENT for run in re.findall("e-?(9+)", text)), text
    runs = [len(run) for run in re.findall("9+", text)]
    assert max(runs) == MAX_DIGITS
    assert len(text) < 5 * MAX_DIGITS
    if "json" in constraint:
        json.loads(text)


def test_digits_that_have_to_come_do() -> None:
    many = "7" * 2 * MAX_DIGITS
    one = matcher({"grammar": f'start: %json {{"type": "boolean"}} ({json.dumps(many)} | "x")'})
    assert walk(one, "true" + many)
    assert one.is_finished


def test_texts_and_patterns_may_have_any_number_of_digits() -> None:
    many = "7" * 300
    assert walk(matcher({"json": {"type": "string"}}), f'"{many}')
    assert walk(matcher({"regex": "[0-9]+"}), many)
    assert walk(matcher({"grammar": "start: /[0-9]+/"}), many)
    assert walk(matcher({"grammar": 'start: /(.|\\n)*/ "<c>" %json {"type": "integer"}'}), many)
    assert walk(matcher({"json": {"type": "object"}}), '{"a\\"' + many + '": "\\\\", "b": "' + many)
    assert not walk(matcher({"json": {"type": "object"}}), '{"a\\"": ' + many)
    assert walk(matcher({"json": {"type": "string", "pattern": "^[0-9]*$"}}), f'"{many}"')
    assert walk(matcher({"json": {"type": "object"}}), '{"1e' + many + '": "the' + many)
    assert walk(matcher(_tag({"type": "string"})), f'<f>"{many}"</f>')


def test_a_number_is_one_that_readers_of_doubles_take() -> None:
    for number in ("1.7976931348623157e308", "-5E-324", "1e+22", "1e9"):
        assert accepts({"json": {}}, number)
    for number in ("1e1000", "1E-0001"):
        assert not walk(matcher({"json": {}}), number)


def test_going_back_and_copies_count_anew() -> None:
    one = matcher({"json": {"type": "integer"}})
    assert walk(one, "9" * MAX_DIGITS)
    assert allowed(one) == {EOS, 257}
    other = one.fork()
    one.rollback(10)
    assert allowed(other) == {EOS, 257}
    assert walk(one, "9" * 10)
    assert allowed(one) == {EOS, 257}
    assert COMPILER.knows(GrammarSpec.of({"json": {"type": "integer"}}))
