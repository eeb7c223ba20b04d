"""Figures as they come, on a terminal; and all of them as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console

from ramet.cli.measure.figures import Figure, as_json
from ramet.cli.measure.limits import Limits

__all__ = ["Reporter", "limits_json", "scaled"]

_HEADINGS = f"{'figure':<44}{'measured':>12} {'':<7}{'at limit':>10}{'reached':>9}  {'bound by':<11}{'GB/s':>7}{'GOP/s':>8}"
_PREFIXES = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


class Reporter:
    """Gathers figures, and prints each when it is there, unless all are to be one JSON object in the end."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._errors = Console(stderr=True)
        self.figures: list[Figure] = []
        self.left_out: list[str] = []

    def heading(self, *lines: str) -> None:
        self._say(*lines, "", _HEADINGS)

    def take(self, figures: Iterable[Figure], doing: str) -> None:
        """Each figure as soon as it is measured; a terminal says what is being done."""
        found: Iterator[Figure] = iter(figures)
        while True:
            with self._errors.status(doing) if self._errors.is_terminal else _Silent():
                figure = next(found, None)
            if figure is None:
                return
            self.figures.append(figure)
            self._say(_line(figure))

    def leave_out(self, what: str) -> None:
        """What was not measured, and why."""
        self.left_out.append(what)
        self._say(f"left out: {what}")

    def end(self, limits: Limits, facts: Mapping[str, Any], is_interrupted: bool) -> None:
        """What the figures were held against."""
        if self._as_json:
            figures = [as_json(figure) for figure in self.figures]
            found = {**facts, "limits": limits_json(limits), "figures": figures, "left_out": self.left_out}
            print(json.dumps(found | {"interrupted": is_interrupted}, ensure_ascii=False))
            return
        self._say("", *_limit_lines(limits), *(["interrupted: what is missing was not measured"] if is_interrupted else []))

    def _say(self, *lines: str) -> None:
        if not self._as_json:
            print(*lines, sep="\n", flush=True)


class _Silent:
    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


def _line(figure: Figure) -> str:
    limit = "" if figure.limit is None else f"{_shown(figure.limit):>10}{figure.fraction or 0:>9.2f}  {figure.bound:<11}"
    details = "".join(
        f"{_shown(figure.details[name]):>{width}}" for name, width in (("GB/s", 7), ("GOP/s", 8)) if name in figure.details
    )
    text = f"{figure.name:<44}{_shown(figure.value):>12} {figure.unit:<7}{limit}{details}".rstrip()
    return f"{text}\n    {figure.note}" if figure.note else text


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) >= 100 else f"{value:.3g}"


def scaled(value: float, unit: str) -> str:
    """``54.2 GB/s`` of 5.42e10 and ``B/s``."""
    for prefix, factor in _PREFIXES:
        if value >= factor:
            return f"{_shown(value / factor)} {prefix}{unit}"
    return f"{_shown(value)} {unit}"


def limits_json(limits: Limits) -> dict[str, Any]:
    return {
        "instructions": limits.instructions,
        "spread": {name: [float(f"{v:.5g}") for v in ends] for name, ends in limits.spread().items()},
        "readings": [{name: float(f"{v:.5g}") for name, v in asdict(reading).items()} for reading in limits.readings],
    }


def _limit_lines(limits: Limits) -> Iterator[str]:
    if not limits.readings:
        return
    yield f"limits of this run, lowest to highest of {len(limits.readings)} readings, each the best of several windows:"
    for name, (low, high) in limits.spread().items():
        unit, by = (
            ("B/s", "streaming read of a buffer as large as the weights")
            if name == "read"
            else ("OP/s", limits.instructions[name])
        )
        yield f"  {name:<10}{scaled(low, unit):>13} to {scaled(high, unit):<13} {by}"
