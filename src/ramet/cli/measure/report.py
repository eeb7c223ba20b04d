"""Figures on a terminal as they come, and all of them as JSON in the end."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ramet.cli.measure.figures import Figure, as_json
from ramet.cli.measure.limits import Limits

__all__ = ["Reporter", "being_done", "limit_lines", "limits_json", "round_to", "scaled"]

_HEADING = f"{'figure':<33}{'measured':>8} {'':<5}{'limit':>8}{'of it':>6} {'':<4}{'GB/s':>6}{'GOP/s':>7}"
_COLOURS = ((0.7, "green"), (0.4, "yellow"), (0.0, "red"))  # from this fraction of a limit on
_PREFIXES = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


class Reporter:
    """Prints lines as they come, unless all is to be one JSON object; that is printed at the end, and written to ``save``."""

    def __init__(self, as_json: bool, save: Path | None = None) -> None:
        self._as_json = as_json
        self._save = save
        self._out = Console(highlight=False, soft_wrap=True)
        self.figures: list[Figure] = []
        self.left_out: dict[str, str] = {}

    def say(self, *lines: str | Text) -> None:
        if not self._as_json:
            for line in lines:
                self._out.print(line, markup=False)

    def heading(self, line: str) -> None:
        self.say(line, "", _HEADING)

    def take(self, figures: Iterable[Figure], doing: str) -> None:
        """Note and print each figure as soon as it is there."""
        found = iter(figures)
        while True:
            with being_done(doing):
                figure = next(found, None)
            if figure is None:
                return
            self.figures.append(figure)
            self.say(_line(figure))

    def leave_out(self, what: str, why: str) -> None:
        self.left_out[what] = why
        self.say(f"{what}: left out; {why}")

    def end(self, found: dict[str, Any], *lines: str) -> None:
        """The last ``lines``, or everything ``found``."""
        self.say(*lines)
        text = json.dumps(found, ensure_ascii=False)
        if self._as_json:
            print(text)
        if self._save is not None:
            self._save.parent.mkdir(parents=True, exist_ok=True)
            self._save.write_text(text + "\n", "utf-8")

    def figures_json(self) -> dict[str, Any]:
        return {"figures": [as_json(figure) for figure in self.figures], "left_out": self.left_out}


@contextmanager
def being_done(what: str) -> Iterator[None]:
    """A line on a terminal while something is measured. It does not move: what it took would be missing in the figure."""
    if not sys.stderr.isatty():
        yield
        return
    print(f"\r{what} ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print(f"\r{' ' * (len(what) + 4)}\r", end="", file=sys.stderr, flush=True)


def _line(figure: Figure) -> Text:
    line = Text(f"{figure.name:<33}{_shown(figure.value):>8} {figure.unit:<5}")
    if figure.limit is not None and figure.fraction is not None:
        line.append(f"{_shown(figure.limit):>8}")
        colour = next(name for least, name in _COLOURS if figure.fraction >= least)
        line.append(f"{figure.fraction:>6.2f}", colour)
        line.append(f" {figure.bound:<4}{_shown(figure.details['GB/s']):>6}{_shown(figure.details['GOP/s']):>7}")
    if figure.note:
        line.append(f"\n  {figure.note}")
    return line


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) >= 100 else f"{value:.3g}"


def scaled(unit: str, *values: float) -> str:
    """``54.2 / 9.81 GB/s`` of ``B/s``, 5.42e10 and 9.81e9."""
    prefix, factor = next(((p, f) for p, f in _PREFIXES if max(values) >= f), ("", 1.0))
    return f"{' / '.join(_shown(value / factor) for value in values)} {prefix}{unit}"


def round_to(value: float, digits: int = 5) -> float:
    return float(f"{value:.{digits}g}")


def limits_json(limits: Limits) -> dict[str, Any]:
    """Bytes and operations a second."""
    return {
        "instructions": limits.instructions,
        "spread": {name: [round_to(low), round_to(high)] for name, (low, high) in limits.spread().items()},
        "readings": [{name: round_to(rate) for name, rate in asdict(reading).items()} for reading in limits.readings],
    }


def limit_lines(limits: Limits) -> list[str]:
    """What the figures were held against, and how much that moved."""
    if not limits.readings:
        return []
    names = {"read": "a read as long as the weights of a step", **limits.instructions}
    lines = ["", f"limits, lowest / highest of {len(limits.readings)} readings right before and after the figures:"]
    for name, (low, high) in limits.spread().items():
        unit = "B/s" if name == "read" else "OP/s"
        lines.append(f"  {name:<10}{scaled(unit, low, high):>20}  {names[name]}")
    return lines
