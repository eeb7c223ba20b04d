"""What a matcher promises: masks, ends, copies, and going back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from byte_grammars import COMPILER, EOS, EXTRA_EOS, SPECIAL, TABLE, VOCAB_SIZE, allowed, mask, matcher, walk

from ramet.core.grammar import GrammarSpec
from ramet.errors import GrammarError
from ramet.schedule.masks import fill_masks
from ramet.structured.compiler import GrammarCompiler, TokenTable

ANYTHING = {"regex": r"(?s).*"}


def test_special_tokens_and_padding_are_never_allowed() -> None:
    one = matcher(ANYTHING)
    assert one.num_words == -(-VOCAB_SIZE // 32)
    assert not allowed(one) & {SPECIAL, *range(SPECIAL + 1, one.num_words * 32)}
    assert {ord("a"), 0xF0, EOS} <= allowed(one)


def test_ids_that_name_no_token_are_never_allowed() -> None:
    holes = GrammarCompiler(TokenTable([b"a", b"", b"b", b"", b"<e>"], frozenset(), (4,), 40))
    assert allowed(holes.matcher(GrammarSpec("regex", "[ab]*"), frozenset({4})).result()) == {0, 2, 4}


def test_ids_of_the_tokenizer_beyond_the_model_are_never_allowed() -> None:
    short = GrammarCompiler(TokenTable([b"a", b"b", b"c", b"<e>"], frozenset({3}), (3,), 2))
    assert allowed(short.matcher(GrammarSpec("regex", "[abc]*"), frozenset({3})).result()) == {0, 1}


def test_every_id_of_the_same_bytes_is_allowed() -> None:
    twice = GrammarCompiler(TokenTable([b"a", b"b", b"a", b"<e>"], frozenset(), (3,), 4))
    one = twice.matcher(GrammarSpec("regex", "aa"), frozenset({3})).result()
    assert allowed(one) == {0, 2}
    one.accept(2)
    one.accept(0)
    assert one.is_finished


def test_ids_that_end_the_output_wait_for_the_grammar() -> None:
    stop = ord("}")
    one = matcher({"json_object": True}, frozenset({EOS, EXTRA_EOS, stop, 300}))
    assert walk(one, '{"a": 1')
    assert not allowed(one) & {EOS, EXTRA_EOS, stop, 300}, "also a stop token that is text"
    other = matcher({"regex": "[0-9]{1,3}"}, frozenset({EOS, 300}))
    assert not allowed(other) & {EOS, 300}
    other.accept(ord("7"))
    assert allowed(other) == {*b"0123456789", EOS, 300}
    assert EXTRA_EOS not in allowed(other), "an EOS that ends nothing is no text either"


def test_an_output_that_eos_does_not_end_has_no_eos() -> None:
    one = matcher({"regex": "[0-9]{1,3}"}, frozenset())
    one.accept(ord("7"))
    assert one.is_accepting
    assert not one.is_finished
    assert allowed(one) == set(b"0123456789")


def test_a_matcher_is_finished_where_nothing_can_follow() -> None:  # B103
    one = matcher({"choice": ["yes", "yesterday"]})
    assert walk(one, "yes")
    assert (one.is_accepting, one.is_finished) == (True, False)
    assert allowed(one) == {ord("t"), EOS, EXTRA_EOS}
    assert walk(one, "terday")
    assert (one.is_accepting, one.is_finished) == (True, True)
    assert allowed(one) == {EOS, EXTRA_EOS}


def test_a_fork_goes_its_own_way() -> None:
    one = matcher({"choice": ["ab", "ac"]})
    one.accept(ord("a"))
    other = one.fork()
    other.accept(ord("b"))
    assert other.is_finished
    assert allowed(one) == set(b"bc")
    one.accept(ord("c"))
    assert one.is_finished


def test_going_back_is_as_if_it_had_not_been() -> None:
    one = matcher({"json_object": True})
    masks = []
    for byte in b'{"a": [1, "x"]}':
        masks.append(mask(one))
        one.accept(byte)
    assert one.is_finished
    one.rollback(15)
    for before, byte in zip(masks, b'{"a": [1, "x"]}', strict=True):
        assert np.array_equal(mask(one), before)
        one.accept(byte)
    assert one.is_finished


def test_a_guess_that_failed_leaves_later_masks_as_they_are() -> None:
    """A token taken behind a rollback, with no mask between, left llguidance 1.9.1 without ``",`` and ``"}`` later on."""
    pieces = [b'{"', b"name", b'":', b' "', b"John", b'",', b'"}']
    special = frozenset({EOS, EXTRA_EOS, SPECIAL})
    table = TokenTable([*TABLE.pieces, *pieces], special, frozenset({EOS, EXTRA_EOS}), VOCAB_SIZE)
    compiler, spec = GrammarCompiler(table), GrammarSpec.of({"json_object": True})
    begin, name, colon, quote, john = range(SPECIAL + 1, SPECIAL + 6)

    def masks(guess: tuple[int, ...]) -> list[bytes]:
        one = compiler.matcher(spec, frozenset({EOS})).result()
        found = []
        for token_id in (begin, name, colon, quote, john):
            chunk: Any = SimpleNamespace(sequence=SimpleNamespace(matcher=one), drafts=guess if token_id == quote else ())
            found.append(fill_masks([chunk])[0][0].tobytes())
            one.accept(token_id)
        return [*found, mask(one).tobytes()]

    assert masks((begin, name)) == masks(())


class FullLexer:
    """A copy whose lexer has no room for another mask."""

    def __init__(self, inner: Any) -> None:
        self._inner, self._is_full = inner, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def compute_bitmask(self) -> bytes:
        self._is_full = True
        return b""

    def is_error(self) -> bool:
        return self._is_full


def test_a_lexer_that_is_full_behind_a_rollback_is_replaced() -> None:
    one: Any = matcher({"json_object": True})
    for byte in b'{"a"':
        one.accept(byte)
    before = mask(one)
    one.accept(ord(":"))
    one._copy = FullLexer(one._copy)
    one.rollback(1)
    assert np.array_equal(mask(one), before)
    assert walk(one, ": 1}")
    assert one.is_finished


def test_a_mask_is_a_function_of_the_tokens_accepted() -> None:
    def masks(warm: int) -> list[bytes]:
        for _ in range(warm):
            walk(matcher({"json": {}}), '{"x": [null, 1.5e3, "\\n"]}')
        one = matcher({"json": {}})
        found = []
        for byte in '{"k": [1, "xé", {}]}'.encode():
            found.append(mask(one).tobytes())
            one.accept(byte)
        return found

    assert masks(0) == masks(3)


def test_a_token_that_was_masked_is_a_fault_from_then_on() -> None:
    one = matcher({"regex": "ab"})
    with pytest.raises(GrammarError, match="doesn't satisfy the grammar"):
        one.accept(ord("x"))
    with pytest.raises(GrammarError):
        mask(one)


def test_a_row_of_another_size_is_refused() -> None:
    one = matcher({"regex": "ab"})
    with pytest.raises(ValueError, match="buffer size"):
        one.fill_mask(np.zeros(one.num_words - 1, np.uint32))


def test_no_text_is_tokenized_and_nothing_is_forced() -> None:
    """Where one text alone can follow, each way to cut it into tokens is left to the model."""
    cuts = GrammarCompiler(TokenTable([b"a", b"b", b"ab", b"abc", b"c", b"<e>"], frozenset(), (5,), 6))
    one = cuts.matcher(GrammarSpec("regex", "abc"), frozenset({5})).result()
    assert allowed(one) == {0, 2, 3}
    one.accept(2)
    assert allowed(one) == {4}


def test_check_and_matcher_agree() -> None:
    COMPILER.check(GrammarSpec("regex", "a+"))
    with pytest.raises(GrammarError):
        COMPILER.check(GrammarSpec("regex", "a("))


def test_a_string_has_tokens_for_as_many_characters_as_it_has_room_for() -> None:
    """Characters of one, two and four bytes, tokens of up to 45 of them, and some that go on behind the string's end."""
    texts = [("x\u00e9 \U0001f600" * 12)[start : start + length] for start in range(4) for length in range(1, 46)]
    of_strings = [(text, end) for text in (*texts, "}", "") for end in ("", '"', '"}') if text + end]
    pieces = [*(text + end for text, end in of_strings), '{"a":"', '"]', "x\n"]
    eos = len(pieces)
    table = TokenTable([*(piece.encode() for piece in pieces), b"<eos>"], frozenset({eos}), {eos}, eos + 1)
    schema = {"properties": {"a": {"type": "string", "maxLength": 40}}, "required": ["a"], "additionalProperties": False}
    spec = GrammarSpec.of({"json": {"type": "object", **schema}, "disable_any_whitespace": True})
    one = GrammarCompiler(table).matcher(spec, frozenset({eos})).result()
    one.accept(pieces.index('{"a":"'))
    for room in range(40, -1, -1):
        assert allowed(one) == {i for i, (text, _) in enumerate(of_strings) if len(text) <= room}
        if room:
            one.accept(pieces.index(texts[45 * (room % 4)]))
