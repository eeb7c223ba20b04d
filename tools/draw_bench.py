"""Draws what ``ramet bench engine`` and ``ramet bench growth`` have written: two SVG pictures, plain Python.

usage: python tools/draw_bench.py FOLDER-OF-JSON FOLDER-OF-SVG
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

__all__ = ["engine_svg", "growth_svg", "main"]

_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1f2328}.faint{fill:#59636e}.small{font-size:11px}"
    ".rule{stroke:#8c959f;stroke-width:.5}.bar{fill:#2f7d4f}.room{fill:#8c959f;opacity:.25}.line{stroke:#2f7d4f;stroke-width:2;fill:none}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.faint{fill:#9198a1}.bar{fill:#4cae74}.line{stroke:#4cae74}}"
)
_ROW, _NAME, _BAR = 26, 250, 300  # of the picture of figures: height of a row, widths of names and of a whole bar
_CELL, _GRID, _MARGIN = (270, 210), 3, (46, 44, 12, 34)  # of a curve: size, cells in a row; left, top, right, bottom


def engine_svg(found: dict[str, Any]) -> str:
    """A bar for each figure that has a limit: how much of it is reached."""
    figures = [figure for figure in found["figures"] if figure["fraction"] is not None]
    width, height = _NAME + _BAR + 190, 58 + _ROW * len(figures)
    parts = [_text(8, 20, found["model"]), _text(8, 38, _subtitle(found), "faint small")]
    for row, figure in enumerate(figures):
        y, share = 52 + _ROW * row, min(1.0, figure["fraction"])
        parts += [
            _text(8, y + 14, figure["name"].strip()),
            f'<rect class="room" x="{_NAME}" y="{y}" width="{_BAR}" height="18" rx="2"/>',
            f'<rect class="bar" x="{_NAME}" y="{y}" width="{_BAR * share:.1f}" height="18" rx="2"/>',
            _text(_NAME + _BAR + 10, y + 14, f"{_number(figure['value'])} {figure['unit']}, {figure['fraction']:.2f}"),
        ]
    return _svg(width, height, parts)


def _subtitle(found: dict[str, Any]) -> str:
    low, high = (rate / 1e9 for rate in found["limits"]["spread"]["read"])
    machine = f"{found['isa']}, {found['threads']} threads, reads {low:.0f} to {high:.0f} GB/s"
    return f"a whole bar is the machine's limit in the same run; {machine}"


def growth_svg(found: dict[str, Any]) -> str:
    """A small picture for each curve, both axes logarithmic."""
    curves = found["curves"]
    rows = -(-len(curves) // _GRID)
    parts = []
    for i, curve in enumerate(curves):
        x, y = _CELL[0] * (i % _GRID), _CELL[1] * (i // _GRID)
        parts += [f'<g transform="translate({x},{y})">', *_curve(curve), "</g>"]
    return _svg(_CELL[0] * min(_GRID, len(curves)), _CELL[1] * rows, parts)


def _curve(curve: dict[str, Any]) -> Iterator[str]:
    left, top, right, bottom = _MARGIN
    width, height = _CELL[0] - left - right, _CELL[1] - top - bottom
    xs, ys = zip(*curve["points"], strict=True)
    (x0, x1), (y0, y1) = _decades(xs), _decades(ys)

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = (math.log10(x) - x0) / (x1 - x0), (math.log10(y) - y0) / (y1 - y0)
        return left + width * across, top + height * (1 - up)

    yield _text(8, 16, curve["name"])
    yield _text(8, 32, f"{curve['y_unit']} by {curve['x_name']}; exponent {curve['exponent']:.2f}", "faint small")
    for power in range(y0, y1 + 1):
        _, y = place(10**x0, 10**power)
        yield f'<line class="rule" x1="{left}" y1="{y:.1f}" x2="{left + width}" y2="{y:.1f}"/>'
        yield _text(left - 4, y + 4, _number(10.0**power), "faint small", "end")
    for power in range(x0, x1 + 1):
        x, _ = place(10**power, 10**y0)
        yield f'<line class="rule" x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{top + height}"/>'
        yield _text(x, top + height + 16, _number(10.0**power), "faint small", "middle")
    points = [place(x, y) for x, y in curve["points"]]
    yield f'<polyline class="line" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'
    yield from (f'<circle class="bar" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in points)


def _decades(values: tuple[float, ...]) -> tuple[int, int]:
    """Powers of ten around the values, at least one apart."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def _number(value: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= 10 * size or value == size:
            return f"{value / size:.3g}{unit}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(width: int, height: int, parts: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    return "\n".join([head, f"<style>{_STYLE}</style>", *parts, "</svg>", ""])


def main(source: Path, target: Path) -> None:
    """Draw both pictures of the JSON files in ``source``."""
    target.mkdir(parents=True, exist_ok=True)
    for name, draw in (("engine", engine_svg), ("growth", growth_svg)):
        found = json.loads((source / f"{name}.json").read_text("utf-8"))
        (target / f"{name}.svg").write_text(draw(found), "utf-8")
        print(target / f"{name}.svg")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
