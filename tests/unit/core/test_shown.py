"""How an error shows what it complains of, be that megabytes."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from ramet.errors import shown


@pytest.mark.parametrize(
    "value", [5, None, "a'b", ["a", 1, {"b": [True, None]}], {"a": 1.5, "b": "c\nd"}, [], {}, (1, 2), b"a"], ids=repr
)
def test_a_small_value_is_shown_whole(value: Any) -> None:
    assert shown(value) == repr(value)


@pytest.mark.parametrize(
    "value", ["x" * 99, ["x"] * 99, [["x" * 9] * 9] * 9, {"a" * 50: 1}, {str(i): [i] for i in range(99)}], ids=str
)
def test_a_large_one_by_its_beginning(value: Any) -> None:
    assert shown(value) == repr(value)[:37] + "..."


def test_on_one_line() -> None:
    assert shown(" a   b ") == "' a b '"


def work_of(call: Callable[[], object]) -> tuple[int, int]:
    """How many calls and returns it takes, and the most bytes that it has at a time: the same on any machine."""
    num_events = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal num_events
        num_events += 1

    before = sys.getprofile()
    tracemalloc.start()
    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(before)
        _, num_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return num_events, num_bytes


def test_the_work_of_a_call_is_counted() -> None:
    many = ["x"] * 1_000_000
    assert work_of(lambda: [len(one) for one in many])[0] > 1_000_000
    assert work_of(lambda: repr(many))[1] > 1_000_000


def test_t13_no_more_is_looked_at_than_is_shown() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    for value in ("x" * 10_000_000, ["x"] * 1_000_000, {str(i): i for i in range(300_000)}, deep):
        assert len(shown(value)) == 40
        num_events, num_bytes = work_of(partial(shown, value))
        assert num_events < 100_000  # each piece is passed up through all the levels that it is in
        assert num_bytes < 1_000_000


def test_what_cannot_be_shown_is_named() -> None:
    assert shown(10**5000) == "a int that cannot be shown"
