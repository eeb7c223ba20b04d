"""How an error shows what it complains of, be that megabytes."""

from __future__ import annotations

import time
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


def test_t13_no_more_is_looked_at_than_is_shown() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    for value in ("x" * 10_000_000, ["x"] * 1_000_000, {str(i): i for i in range(300_000)}, deep):
        began = time.thread_time()
        assert len(shown(value)) == 40
        assert time.thread_time() - began < 0.01


def test_what_cannot_be_shown_is_named() -> None:
    assert shown(10**5000) == "a int that cannot be shown"
