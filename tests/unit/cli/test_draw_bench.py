"""The pictures of ``make bench``: well-formed, with every figure in its place."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "tools" / "draw_bench.py"
SVG = "{http://www.w3.org/2000/svg}"
ENGINE = {
    "model": "a <model> & more",
    "isa": "avx2",
    "threads": 2,
    "limits": {"spread": {"read": [30e9, 50e9]}},
    "figures": [
        {"name": "decode", "unit": "tok/s", "value": 1234.0, "fraction": 0.5},
        {"name": "waste", "unit": "%", "value": 1.0, "fraction": None},
        {"name": "beyond", "unit": "ms", "value": 1.5, "fraction": 1.25},
    ],
}
CURVE = {"name": "prefill", "x_name": "tokens", "y_unit": "µs", "points": [[10, 100], [1000, 1000]], "exponent": 0.5}
GROWTH = {"curves": [CURVE, CURVE | {"name": "flat", "points": [[1, 10], [10, 10]], "exponent": 0.0}]}


@pytest.fixture(scope="module")
def draw_bench():
    spec = importlib.util.spec_from_file_location("draw_bench", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def texts(tree):
    return [element.text for element in tree.iter(f"{SVG}text")]


def test_a_bar_is_as_long_as_what_is_reached_and_never_longer_than_the_limit(draw_bench):
    tree = ElementTree.fromstring(draw_bench.engine_svg(ENGINE))
    room, bars = ([float(r.get("width")) for r in tree.iter(f"{SVG}rect") if r.get("class") == kind] for kind in ("room", "bar"))
    assert [bar / of for bar, of in zip(bars, room, strict=True)] == [0.5, 1.0]
    assert "a <model> & more" in texts(tree)
    assert "1,234 tok/s, 0.50" in texts(tree)
    assert "waste" not in texts(tree)


def test_points_of_a_curve_lie_in_their_decades(draw_bench):
    tree = ElementTree.fromstring(draw_bench.growth_svg(GROWTH))
    first, flat = ([tuple(map(float, p.split(","))) for p in line.get("points").split()] for line in tree.iter(f"{SVG}polyline"))
    (x0, y0), (x1, y1) = first
    assert x0 < x1, "larger to the right"
    assert y0 > y1, "more is higher"
    assert flat[0][1] == flat[1][1]
    assert {"prefill", "flat", "10", "100", "1k"} <= set(texts(tree))


def test_the_script_draws_both_files(tmp_path):
    for name, found in (("engine", ENGINE), ("growth", GROWTH)):
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    done = subprocess.run([sys.executable, SCRIPT, tmp_path, tmp_path / "out"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(tmp_path / "out" / "engine.svg"), str(tmp_path / "out" / "growth.svg")]
    for path in (tmp_path / "out").iterdir():
        ElementTree.parse(path)
    assert subprocess.run([sys.executable, SCRIPT], capture_output=True, check=False).returncode == 1
