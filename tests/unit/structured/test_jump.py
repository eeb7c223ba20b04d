"""Jump-forward: forced text comes in fewer steps, and is the text that comes without it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from byte_grammars import EOS, matcher, walk
from support.engines import EOS_IDS, Bench
from test_engine import CELLS, GRAMMARS, JSON, PIECES, bench, steps, text

from ramet.core.ids import IntBuffer
from ramet.core.request import Sequence
from ramet.structured.habits import Guess, Habits
from ramet.structured.jump import JumpForward, Speller


def greedy(chars: bytes) -> list[int]:
    """The longest piece at each place."""
    token_ids = []
    while chars:
        token_id = max((i for i, piece in enumerate(PIECES) if i > 2 and chars.startswith(piece)), key=lambda i: len(PIECES[i]))
        token_ids.append(token_id)
        chars = chars[len(PIECES[token_id]) :]
    return token_ids


def jumping(**changes: Any) -> Bench:
    speller = Speller(greedy, PIECES.__getitem__)
    return bench(drafters=lambda seq: JumpForward(seq, seq.matcher, speller) if seq.matcher else None, **changes)


PROBES: list[dict[str, Any]] = [
    {"seed": 5, "max_tokens": 40, "logprobs": 2, "structured_outputs": JSON},
    {"temperature": 0, "max_tokens": 40, "structured_outputs": JSON},
    {"seed": 6, "max_tokens": 40, "repetition_penalty": 1.3, "structured_outputs": JSON, "n": 2},
    {"seed": 7, "max_tokens": 30, "min_tokens": 12, "structured_outputs": {"regex": "(true|false)( yes){1,9}"}},
    {"seed": 8, "max_tokens": 30, "structured_outputs": {"choice": ["useful", "usefulness", "useless"]}},
    {"seed": 9, "max_tokens": 30, "stop_token_ids": [PIECES.index(b"}")], "structured_outputs": JSON},
    {"seed": 10, "max_tokens": 7, "structured_outputs": {"regex": "true"}},
    {"seed": 11, "max_tokens": 20},
]


@pytest.mark.parametrize("cell", CELLS)
def test_the_same_bits_with_and_without(cell: dict[str, Any]) -> None:
    answers = []
    for one in (bench(), jumping(max_running_seqs=6, **cell)):
        ids = []
        for again in range(3):  # cold, warm, and with all habits learnt
            ids += [one.submit([5, 6, 7, 8, 9, 10 + i], **probe) for i, probe in enumerate(PROBES)]
            one.submit([5, 6, 7, 30, *range(3, 20)], seed=again, max_tokens=25, priority=1)
            one.run()
        answers.append([one.answers[i, k].result for i in ids for k in range(one.requests[i].sampling.n)])
        one.check_idle()
    assert answers[0] == answers[1]
    stats = one.engine.stats().scheduler
    assert stats.num_accepted_draft_tokens > stats.num_draft_tokens / 2 > 100


def test_forced_text_takes_few_steps() -> None:
    one, plain = jumping(), bench()
    schema = {"const": {"a": "useful", "b": [True, False, True], "e": "yes no yes no"}}
    for bench_ in (one, plain):
        request_id = bench_.submit([5, 6], seed=1, max_tokens=120, structured_outputs={"json": schema})
        bench_.run()
        assert json.loads(text(bench_.answers[request_id, 0].token_ids)) == schema["const"]
    assert one.engine.stats().scheduler.num_steps < plain.engine.stats().scheduler.num_steps / 2


def sequence(tokens: list[int]) -> Sequence:
    return SimpleNamespace(tokens=IntBuffer(tokens))  # type: ignore[return-value]


def drafter(constraint: object, so_far: str = "", prompt: tuple[int, ...] = (1, 2)) -> tuple[JumpForward, Any]:
    one = matcher(constraint)
    assert walk(one, so_far)
    speller = Speller(list, lambda token_id: bytes([token_id]))
    return JumpForward(sequence([*prompt, *so_far.encode()]), one, speller), one


def test_what_is_forced_is_proposed_up_to_where_it_is_not() -> None:
    jump, one = drafter({"choice": ["abcdefgh", "abcdexyz"]})
    assert bytes(jump.propose(48, 0.01)) == b"abcde"
    assert bytes(jump.propose(3, 0.01)) == b"abc"
    assert bytes(jump.propose(48, 0.5)) == b"a", "each token of the tokenizer's own cut is trusted to 0.7"
    assert walk(one, "abcde"), "the matcher is where it was"
    assert jump.propose(48, 0.01) == []


def test_the_last_token_of_all_is_proposed_and_no_end() -> None:
    jump, one = drafter({"choice": ["ab"]})
    assert bytes(jump.propose(48, 0.01)) == b"ab"
    one.accept(ord("a"))
    one.accept(ord("b"))
    assert jump.propose(48, 0.01) == []
    open_end, _ = drafter({"regex": "ab(c*)"}, "ab")
    assert EOS not in open_end.propose(48, 0.01)


def test_a_model_that_cuts_a_text_its_own_way_is_followed() -> None:
    pieces = [b"a", b"b", b"ab", b"abc", b"c"]
    speller = Speller(lambda chars: [3] if chars == b"abc" else [0], pieces.__getitem__)
    assert [guess.token_id for guess, _ in speller.spell(b"abc")] == [3]
    speller.cuts.learn(b"abc", 2)
    speller.cuts.learn(b"c", 4)
    assert [(guess.token_id, place) for guess, place in speller.spell(b"abc")] == [(2, b"abc"), (4, b"c")]
    assert speller.spell(b"abcabc")[0][0].token_id == 0, "another text is another place"


@pytest.mark.parametrize("num_prompt_tokens", [1, 2, 3])
def test_a_prompt_may_have_one_token(num_prompt_tokens: int) -> None:
    one = jumping()
    request_id = one.submit([5] * num_prompt_tokens, seed=1, max_tokens=9, structured_outputs={"regex": "[abe]{3}true"})
    one.run()
    assert text(one.answers[request_id, 0].token_ids)[3:] == "true"


def test_what_comes_unasked_teaches_no_cut() -> None:
    jump, one = drafter({"choice": ["abcd"]})
    assert bytes(jump.propose(1, 0.01)) == b"a"
    for char in b"ab":  # for the second one no guess was asked
        one.accept(char)
        jump._seq.tokens.append(char)
        jump.learn(0, [char])
    assert jump._speller.cuts.guess(b"abcd") == Guess(ord("a"), 1 / 1.2)


def test_long_text_is_spelt_a_part_at_a_time() -> None:
    jump, _ = drafter({"json": {"const": "x" * 16_000}})
    spelt: list[bytes] = []
    spell = jump._speller.spell
    jump._speller.spell = lambda text: spelt.append(text) or spell(text)  # type: ignore[method-assign, func-returns-value]
    assert bytes(jump.propose(48, 1e-9)) == b'"' + b"x" * 47
    assert max(map(len, spelt)) <= 512


def test_white_space_goes_on_as_it_did() -> None:
    """After two lines of a document the third is proposed whole, as far as it is the same."""
    schema = {"type": "object", "properties": {name: {"type": "boolean"} for name in "pqrs"}, "required": list("pqrs")}
    jump, one = drafter({"json": schema})
    seq = jump._seq
    for char in b'{\n "p": true,\n "q": true,\n "r": true,':
        jump.propose(48, 0.3)
        one.accept(char)
        seq.tokens.append(char)
        jump.learn(0, [char])
    assert bytes(jump.propose(48, 0.05)).startswith(b'\n "s": ')


def test_habits_are_of_what_comes_mostly_and_change_when_that_does() -> None:
    habits: Habits[str] = Habits(2, doubt=0.2)
    assert habits.guess("a") is None
    trusts = []
    for token_id in [7, 7, 7, 7, 8, 7, 7]:
        habits.learn("a", token_id)
        guess = habits.guess("a")
        assert guess is not None
        assert guess.token_id == 7
        trusts.append(guess.trust)
    assert trusts[:4] == sorted(trusts[:4])
    assert trusts[4] < trusts[3] < 1
    assert trusts[6] > trusts[5] > trusts[4]
    for _ in range(8):
        habits.learn("a", 8)
    assert habits.guess("a").token_id == 8  # type: ignore[union-attr]
    habits.learn("b", 1)
    habits.learn("c", 1)
    assert habits.guess("a") is None, "the place seen longest ago is given up"


def test_masks_behind_guesses_are_those_of_plain_steps() -> None:
    one = jumping()
    request_id = one.submit([5, 6], seed=1, max_tokens=60, structured_outputs=JSON)
    masks = {}  # by position; a guess that failed is at the position of what came instead, and before it
    for batch, given in steps(one):
        masks.update(zip(batch.positions[batch.sample_rows].tolist(), given, strict=True))
    follower = GRAMMARS.matcher(one.requests[request_id].sampling.grammar, EOS_IDS).result()  # type: ignore[arg-type]
    for position, token_id in enumerate(one.answers[request_id, 0].token_ids, start=1):
        expected = np.zeros(follower.num_words, np.uint32)
        follower.fill_mask(expected)
        assert masks[position].tolist() == expected.tolist()
        follower.accept(token_id)
