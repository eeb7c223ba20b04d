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
from ramet.core.ports import Draft
from ramet.core.request import Namespace, Sequence
from ramet.errors import InvalidRequest
from ramet.schedule.drafts import Drafters
from ramet.structured.habits import Habits, Trust
from ramet.structured.jump import NO_GUESS, JumpForward, Place, Speller


def greedy(chars: bytes) -> list[int]:
    """The longest piece at each place."""
    token_ids = []
    while chars:
        token_id = max((i for i, piece in enumerate(PIECES) if i > 2 and chars.startswith(piece)), key=lambda i: len(PIECES[i]))
        token_ids.append(token_id)
        chars = chars[len(PIECES[token_id]) :]
    return token_ids


def place_of(*tokens: int, forced: bytes = b"", whose: Namespace = Namespace()) -> Place:  # noqa: B008
    """Behind these tokens of a text that has just begun."""
    return Place(whose, Habits(9), tokens[-2:], tokens, forced)


def jumping(**changes: Any) -> Bench:
    speller = Speller(greedy, PIECES.__getitem__)
    drafters = Drafters(lambda seq: JumpForward(seq, seq.matcher, speller) if seq.matcher else None, speller.forget)
    return bench(drafters=drafters, **changes)


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


def test_nothing_is_learnt_of_places_that_never_were() -> None:
    """Another drafter's guesses held where its own went wrong: behind its wrong one nothing came."""
    request = SimpleNamespace(namespace=Namespace(), stop_ids=frozenset())
    nothing_forced = SimpleNamespace(forced_bytes=lambda: b"", validate=len)
    seq: Any = SimpleNamespace(tokens=IntBuffer([1, 2, 3, 4, 5, 6]), request=request, matcher=nothing_forced)
    speller = Speller(lambda _: [], lambda _: b"x")

    for before, token_id in [((1, 2, 3, 4, 5, 6), 10), ((2, 3, 4, 5, 6, 10), 11), ((3, 4, 5, 6, 10, 11), 12)]:
        for _ in range(20):
            speller.learn(place_of(*before), False, token_id)
    jump = JumpForward(seq, seq.matcher, speller)
    assert [draft.token_id for draft in jump.propose(8, 0.2)] == [10, 11, 12]
    jump.learn(0, [10, 50, 51])
    assert speller.guess(place_of(3, 4, 5, 6, 10, 11), False)[0] == 12
    assert speller.guess(place_of(2, 3, 4, 5, 6, 10), False)[0] == 50


def test_after_a_flush_guesses_are_those_of_a_new_engine() -> None:
    """And answers are what they were."""

    def ask(one: Bench) -> tuple[list[object], tuple[int, ...]]:
        before = one.engine.stats().scheduler
        ids = [one.submit([5, 6, 7, 8, 9, 10 + i], **probe) for i, probe in enumerate(PROBES)]
        one.run()
        now = one.engine.stats().scheduler
        names = ("num_steps", "num_draft_tokens", "num_accepted_draft_tokens")
        answers = [one.answers[i, k].result for i in ids for k in range(one.requests[i].sampling.n)]
        return answers, tuple(getattr(now, name) - getattr(before, name) for name in names)

    one = jumping()
    answers, first = ask(one)
    assert ask(one)[1] != first, "what it has learnt shows"
    one.submit([5, 6], seed=1, max_tokens=9, structured_outputs=JSON)
    one.step()
    with pytest.raises(InvalidRequest, match="open"):
        one.engine.flush_cache()
    one.run()
    assert ask(one)[1] != first, "a flush that is refused forgets nothing"
    one.engine.flush_cache()
    assert ask(one) == (answers, first)


def test_forced_text_takes_few_steps() -> None:
    one, plain = jumping(), bench()
    schema = {"const": {"a": "useful", "b": [True, False, True], "e": "yes no yes no"}}
    for bench_ in (one, plain):
        request_id = bench_.submit([5, 6], seed=1, max_tokens=120, structured_outputs={"json": schema})
        bench_.run()
        assert json.loads(text(bench_.answers[request_id, 0].token_ids)) == schema["const"]
    assert one.engine.stats().scheduler.num_steps < plain.engine.stats().scheduler.num_steps / 2


OURS = Namespace(tenant="ours")


def sequence(tokens: list[int], namespace: Namespace) -> Sequence:
    request = SimpleNamespace(stop_ids=EOS_IDS, namespace=namespace)
    return SimpleNamespace(tokens=IntBuffer(tokens), request=request)  # type: ignore[return-value]


def text_of(drafts: list[Draft]) -> bytes:
    return bytes(draft.token_id for draft in drafts)


def go_on(jump: JumpForward, one: Any, chars: bytes) -> None:
    """These come, one after another."""
    for char in chars:
        one.accept(char)
        jump._seq.tokens.append(char)
        jump.learn(0, [char])


def drafter(constraint: object, so_far: str = "", whose: Namespace = OURS) -> tuple[JumpForward, Any]:
    one = matcher(constraint)
    assert walk(one, so_far)
    speller = Speller(list, lambda token_id: bytes([token_id]))
    return JumpForward(sequence([1, 2, *so_far.encode()], whose), one, speller), one


def test_what_is_forced_is_proposed_up_to_where_it_is_not() -> None:
    constraint = {"choice": ["abcdefgh", "abcdexyz"]}
    assert text_of(drafter(constraint)[0].propose(48, 0.01)) == b"abcde"
    assert text_of(drafter(constraint)[0].propose(3, 0.01)) == b"abc"
    assert drafter(constraint)[0].propose(48, 0.4) == [(ord("a"), 0.7), (ord("b"), pytest.approx(0.49))], "each is trusted to 0.7"
    jump, one = drafter(constraint)
    jump.propose(48, 0.01)
    assert walk(one, "abcde"), "the matcher is where it was"
    assert drafter(constraint, "abcde")[0].propose(48, 0.01) == []


def test_the_last_token_of_all_is_proposed_and_no_end() -> None:
    jump, one = drafter({"choice": ["ab"]})
    assert text_of(jump.propose(48, 0.01)) == b"ab"
    one.accept(ord("a"))
    one.accept(ord("b"))
    jump.learn(2, list(b"ab"))
    assert jump.propose(48, 0.01) == []
    for _ in range(3):  # ends are learnt, and are no guess
        again, _ = drafter({"regex": "ab(c*)"}, "ab")
        again._speller = jump._speller
        assert again.propose(48, 0.01) == []
        again.learn(0, [EOS])


def test_a_model_that_cuts_a_text_its_own_way_is_followed() -> None:
    pieces = [b"a", b"b", b"ab", b"abc", b"c"]
    speller = Speller(lambda chars: [3] if chars == b"abc" else [0], pieces.__getitem__)
    place = place_of(8, 9, forced=b"abc", whose=OURS)
    assert speller.guess(place, False) == (3, 0.7)
    for _ in range(3):
        speller.learn(place, False, 2)
    assert speller.guess(place_of(5, forced=b"abc", whose=OURS), False)[0] == 2
    assert speller.guess(place_of(5, forced=b"abcabc", whose=OURS), False)[0] == 0, "another text is another place"
    speller.learn(place_of(8, 9, whose=OURS), False, 4)
    assert speller.guess(place, False)[0] == 2, "what came in another text, and is not the beginning of this one, is no guess"


def test_guesses_that_hold_are_not_made_twice() -> None:
    jump, one = drafter({"choice": ["abcdefgh"]})
    assert text_of(jump.propose(4, 0.01)) == b"abcd"
    go_on(jump, one, b"abc")
    jump._speller._encode = lambda chars: [ord("x")]  # type: ignore[method-assign]
    assert jump.propose(1, 0.01) == [(ord("d"), pytest.approx(0.7))], "how likely it is counts from here"
    assert text_of(jump.propose(48, 0.01)) == b"d", "what is behind it is guessed anew, and is none"


@pytest.mark.parametrize("num_prompt_tokens", [1, 2, 3])
def test_a_prompt_may_have_one_token(num_prompt_tokens: int) -> None:
    one = jumping()
    request_id = one.submit([5] * num_prompt_tokens, seed=1, max_tokens=9, structured_outputs={"regex": "[abe]{3}true"})
    one.run()
    assert text(one.answers[request_id, 0].token_ids)[3:] == "true"


def test_a_step_that_gives_nothing_changes_nothing() -> None:
    jump = drafter({"choice": ["abcd"]})[0]
    jump._is_behind_miss = True
    drafts = jump.propose(48, 0.01)
    jump.learn(len(drafts), [])
    assert jump._is_behind_miss
    jump._speller._encode = lambda chars: []
    assert jump.propose(48, 0.01) == drafts != []


def test_what_comes_unasked_teaches_nothing() -> None:
    jump, one = drafter({"choice": ["abcd"]})
    assert text_of(jump.propose(1, 0.01)) == b"a"
    go_on(jump, one, b"a")
    go_on(jump, one, b"b")  # the place behind the guess was looked at
    go_on(jump, one, b"c")  # and this one was not
    assert list(jump._speller._hands[OURS]._far._habits) == [(1, 2), (1, 2, ord("a"))]


def test_long_text_is_spelt_a_part_at_a_time() -> None:
    jump, _ = drafter({"json": {"const": "x" * 16_000}})
    spelt: list[bytes] = []
    jump._speller._encode = lambda text: spelt.append(text) or list(text)  # type: ignore[method-assign, func-returns-value]
    assert text_of(jump.propose(48, 1e-9)) == b'"' + b"x" * 47
    assert max(map(len, spelt)) <= 64


def test_what_is_not_forced_goes_on_as_it_did() -> None:
    """The white space of a document, and what was free in those before it."""
    schema = {"type": "object", "properties": {name: {"type": "boolean"} for name in "pqrs"}, "required": list("pqrs")}
    document = b'{\n "p": true,\n "q": true,\n "r": true,\n "s": true'
    jump, one = drafter({"json": schema})
    for char in document:
        jump.propose(48, 0.3)
        go_on(jump, one, bytes([char]))
    again, other = drafter({"json": schema})
    again._speller = jump._speller
    assert document.startswith(text_of(again.propose(48, 0.001)))
    assert len(again.propose(48, 0.001)) > 10
    assert walk(other, document.decode()), "the matcher is where it was"


def test_nothing_is_guessed_of_what_another_namespace_wrote() -> None:
    for constraint in ({"choice": ["secret", "public"]}, {"choice": ["secret"]}):  # free, and forced
        jump, one = drafter(constraint)
        jump._speller._encode = lambda chars: []
        for char in b"secret":
            jump.propose(48, 0.01)
            go_on(jump, one, bytes([char]))
        for whose in (OURS, *(OURS._replace(**change) for change in ({"salt": "x"}, {"tenant": "theirs"}, {"adapter": "a"}))):
            again, _ = drafter(constraint, whose=whose)
            again._speller = jump._speller
            assert text_of(again.propose(48, 0.01)) == (b"secret" if whose == OURS else b"")


def learnt_by(speller: Speller, whose: Namespace) -> tuple[int, float]:
    return speller.guess(place_of(1, 2, whose=whose), False)


def write(speller: Speller, whose: Namespace, count: int) -> None:
    for token_id in range(count):
        speller.learn(place_of(1, 2 + token_id, forced=b"x", whose=whose), False, 7)


def test_namespaces_push_out_no_habits_of_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one writes changes no guess for another, and no trust in one; room is found in the tenant that has most."""
    monkeypatch.setattr("ramet.structured.jump._MAX_PLACES", 5)
    monkeypatch.setattr("ramet.structured.jump._MAX_NAMESPACES", 3)
    speller = Speller(list, lambda token_id: bytes([token_id]))
    write(speller, OURS, 3)
    known = learnt_by(speller, OURS)
    assert known[0] == 7
    for salt in "abcd":
        theirs = Namespace(salt=salt, tenant="theirs")
        for count in (1, 1, 1, 9):
            write(speller, theirs, count)
        assert learnt_by(speller, theirs) is NO_GUESS, "its own first place is given up for its later ones"
        assert learnt_by(speller, OURS) == known
    assert [whose.salt for whose in speller._hands if whose != OURS] == ["c", "d"], "the ones that wrote last"
    write(speller, OURS._replace(salt="more"), 3)
    write(speller, OURS._replace(salt="still more"), 3)
    assert [whose.salt for whose in speller._hands] == ["d", "more", "still more"]


def habit(*token_ids: int) -> Any:
    """Of a place where these came, one after another."""
    habits: Habits[str] = Habits(1)
    for token_id in token_ids:
        habits.learn("a", token_id)
    return habits.at("a")


def test_habits_are_of_what_came_last() -> None:
    assert habit() is None
    assert [habit(*came)[0] for came in ((7,), (7, 8), (7, 8, 7))] == [7, 8, 7]
    states = [habit(*came)[1] for came in ((7,), (7, 7), (8, 7), (8, 7, 7), (7, 8, 7), (7, 8, 7, 7))]
    assert len(set(states)) == 6, "how often in a row, and how often another one came before"
    assert habit(*[7] * 5) == habit(*[7] * 50), "many times are many times"
    assert habit(9, 8, 7) == habit(7, 8, 9, 8, 7), "and changes are changes"
    habits: Habits[str] = Habits(2)
    for place in "abac":
        habits.learn(place, 1)
    assert habits.at("a") is not None
    assert habits.at("b") is None, "the place seen longest ago is given up"


def test_trust_is_by_what_all_habits_say() -> None:
    trust = Trust(3)
    once, often, other = habit(7), habit(7, 7, 7, 7), habit(8)

    def of(*habits: Any, is_behind_miss: bool = False) -> float:
        return trust.of(7, [*habits, *[None] * (3 - len(habits))], is_behind_miss)

    assert 0.5 < of(once) < of(once, once) < of(once, once, once) < 1
    assert of(once) < of(often)
    assert of(once, once, other) < of(once, once)
    assert of(habit(8, 7)) < of(habit(8, 7, 7)) < of(habit(7, 7)), "where another one has come before"
    assert of(once, is_behind_miss=True) < of(once)


def test_trust_follows_what_comes() -> None:
    """What one kind of habit says turns out to be right, and what the other one says to be wrong."""
    trust = Trust(2)
    good, bad, unsteady = habit(7), habit(8), habit(9, 7)
    before = [trust.of(7, [unsteady, None], False), trust.of(8, [None, bad], True)]
    for _ in range(200):
        trust.learn(7, [good, bad], False)
    assert trust.of(7, [good, bad], False) > 0.9
    assert trust.of(7, [good, None], False) > 0.75
    assert trust.of(8, [None, bad], False) < 0.5
    trust = Trust(2)
    for _ in range(200):
        trust.learn(8, [good, bad], True)
    assert trust.of(8, [good, bad], True) > 0.9, "none of that is fixed"
    assert trust.of(7, [unsteady, None], False) == before[0], "places of another kind, behind another guess, are another matter"
    assert trust.of(8, [None, bad], True) > before[1]


def test_a_text_goes_on_in_its_own_ways() -> None:
    """Two texts of one namespace that break lines in two ways, behind values that nobody has seen."""
    speller = Speller(list, lambda token_id: bytes([token_id]))
    ways = {}
    for way in (100, 200):
        own: Habits[int] = Habits(9)
        ways[way] = own
    for value in range(20, 28):
        for way, own in ways.items():
            speller.learn(Place(OURS, own, (value, 3), (way, value, 3), b""), False, way)
    for way, own in ways.items():
        token_id, trust = speller.guess(Place(OURS, own, (60, 3), (way, 60, 3), b""), False)
        assert token_id == way
        assert trust > 0.6
        assert speller.guess(Place(OURS, Habits(9), (60, 3), (way, 60, 3), b""), False) is NO_GUESS


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
