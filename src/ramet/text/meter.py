"""What one rendering of a template may cost: time by the clock, size by count. Deterministic but for the clock."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ramet.core.ports import Clock

__all__ = ["MAX_SECONDS", "MAX_SIZE", "MAX_TOTAL", "Meter", "TooMuch"]

MAX_SECONDS = 0.75
MAX_SIZE = 8_000_000
MAX_TOTAL = 32_000_000
_TOTAL_PER_INPUT = 64
_ITEM = 8  # what an item of a list weighs beside its own size, in characters

_DIGITS = re.compile(r"\d+")
_PERCENT_FIELD = re.compile(r"%(?:\([^)]*\))?([-+ #0-9.*]*)")
_BRACE_FIELD = re.compile(r"\{[^{}]*:([^{}]*\{?)")


class TooMuch(Exception):
    """The template asked for more than one rendering may have."""


class Meter:
    """Counts one rendering. Every method raises ``TooMuch`` where a bound is passed.

    Sizes count characters, and eight for an item; nested ones each time they appear, so that a list of lists that share
    their items weighs what its text would. Templates cannot change a list or a dict, so a size once counted stays true.
    """

    def __init__(self, clock: Clock, variables: Mapping[str, object]) -> None:
        self._clock = clock
        self._deadline = clock.now() + MAX_SECONDS
        self._sizes: dict[int, tuple[object, int]] = {}
        self._output = 0
        self._total = 0
        self._max_total = MAX_TOTAL + _TOTAL_PER_INPUT * sum(map(self.size, variables.values()))

    def tick(self) -> None:
        """One look at the clock."""
        if self._clock.now() > self._deadline:
            raise TooMuch(f"it takes over {MAX_SECONDS} s")

    def put_out(self, size: int) -> None:
        """So many characters of the final text."""
        self._output += size
        self.allow(self._output)
        self.tick()

    def allow(self, size: int) -> None:
        """Whether a value may have this size; called before it is made."""
        if size > MAX_SIZE:
            raise TooMuch(f"it makes a value or a text of over {MAX_SIZE} characters")

    def made(self, value: object) -> None:
        """A value that the template made."""
        if isinstance(value, str):
            self._charge(len(value))
        elif isinstance(value, Collection) and not isinstance(value, range):
            self.allow(self.size(value))
            self._charge(_ITEM * len(value))

    def joined(self, left: object, right: object, result: object) -> None:
        """``result`` is ``left + right``: weighed by its parts, so that growing a list item by item stays linear."""
        if isinstance(result, list | tuple):
            self._sizes[id(result)] = (result, self.size(left) + self.size(right))
        self.made(result)

    def written(self, value: object) -> None:
        """A value that is about to become text."""
        size = self.size(value)
        self.allow(size)
        self._charge(size)
        self.tick()

    def size(self, value: object) -> int:
        """Weight of a value and all in it."""
        if isinstance(value, str):
            return len(value)
        if isinstance(value, int):
            return 1 + value.bit_length() // 3
        if not isinstance(value, Collection) or isinstance(value, range):
            owner = getattr(value, "__self__", None)  # the text of a bound method shows its object
            return 1 if owner is None else 1 + self.size(owner)
        known = self._sizes.get(id(value))
        if known is not None:
            return known[1]
        self.allow(_ITEM * len(value))
        items = [*value.keys(), *value.values()] if isinstance(value, Mapping) else value
        size = 1 + _ITEM * len(value) + sum(map(self.size, items))
        self._sizes[id(value)] = (value, size)  # the value itself too, lest its id be given to another
        return size

    def _charge(self, size: int) -> None:
        self._total += size
        if self._total > self._max_total:
            raise TooMuch(f"its values have over {self._max_total} characters together")

    # What an operation may give, asked before it is done

    def before_operator(self, operator: str, left: Any, right: Any) -> None:
        """``left operator right`` for operators that can make much of little."""
        if operator == "%" and isinstance(left, str):
            self._before_format(left, _PERCENT_FIELD, right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            self.allow(left.bit_length() * max(right, 0))
        elif operator == "*":
            self.allow(_product(left, right))
        elif operator == "+" and isinstance(left, str) and isinstance(right, str):
            self.allow(len(left) + len(right))

    def before_call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """A call; gives the arguments to use. Only methods of strings can make much of little."""
        method = getattr(function, "__wrapped__", function)  # the sandbox wraps str.format
        text = getattr(method, "__self__", None)
        if not isinstance(text, str):
            return args
        match method.__name__:
            case "format":
                self._before_format(text.replace("{{", "").replace("}}", ""), _BRACE_FIELD, (args, kwargs))
            case "format_map" | "translate":
                raise TooMuch(f"it calls str.{method.__name__}, which is not offered")
            case "center" | "ljust" | "rjust" | "zfill":
                self.allow(sum(arg for arg in args if isinstance(arg, int)))
            case "expandtabs":
                widths = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, int)]
                self.allow(len(text) + text.count("\t") * max(widths, default=8))
            case "replace":
                self.before_replace(text, *args[:2])
            case "join" if args:
                args = ([*args[0]],)
                self.before_join(text, args[0])
        return args

    def before_replace(self, text: str, old: Any = "", new: Any = "") -> None:
        self.allow(len(text) + text.count(str(old)) * len(str(new)))

    def before_join(self, separator: str, values: list[Any]) -> None:
        self.allow(len(separator) * len(values) + sum(map(self.size, values)))

    def _before_format(self, pattern: str, field: re.Pattern[str], values: object) -> None:
        """Bounds a formatted text: its pattern, every width, and all values as often as there are fields."""
        specs = field.findall(pattern)
        if any("*" in spec or spec.endswith("{") for spec in specs):
            raise TooMuch("it takes the width of a field from a value, which is not offered")
        widths = sum(int(digits[:9]) for spec in specs for digits in _DIGITS.findall(spec))
        num_fields = pattern.count("%" if field is _PERCENT_FIELD else "{")
        self.allow(len(pattern) + widths + num_fields * self.size(values))


def _product(left: Any, right: Any) -> int:
    """Size of ``left * right``."""
    for values, count in ((left, right), (right, left)):
        if isinstance(values, Collection) and isinstance(count, int):
            return len(values) * max(count, 0)
    if isinstance(left, int) and isinstance(right, int):
        return left.bit_length() + right.bit_length()
    return 0
