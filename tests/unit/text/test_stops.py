"""Stop strings against a plain search that looks at every prefix of the text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.errors import InvalidRequest
from ramet.text.stops import StopStrings

TEXT = st.text("abc한", max_size=40)
STOPS = st.lists(st.text("abc한", min_size=1, max_size=5), max_size=5)


def longest_begun(text: str, stops: list[str]) -> int:
    return max((n for stop in stops for n in range(len(stop) + 1) if text.endswith(stop[:n])), default=0)


@given(TEXT, STOPS)
def test_first_end_wins_then_the_longest_and_no_more_is_held_than_needed(text: str, stops: list[str]) -> None:
    automaton = StopStrings(stops)
    state = StopStrings.START
    for end, char in enumerate(text, 1):
        state = automaton.step(state, char)
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        assert automaton.match(state) == (max(ended, key=len) if ended else None)
        assert automaton.depth(state) == longest_begun(text[:end], stops)
        if ended:
            break


def test_long_stops_of_one_letter_take_linear_time() -> None:
    automaton = StopStrings(["a" * 4096 + "b", "a" * 4000 + "c"])
    state, steps = StopStrings.START, 0
    for _ in range(20):
        for char in "a" * 4096 + "x":
            state = automaton.step(state, char)
            steps += 1
    assert automaton.match(state) is None
    assert (steps, automaton.depth(state)) == (20 * 4097, 0)


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="empty"):
        StopStrings(["a", ""])
