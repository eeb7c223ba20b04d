"""Faults met in the field (B) and attacks (T), by their numbers in the project's lists: each keeps a test that holds it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from source_tree import ROOT

HELD = {
    # reuse of KV
    "B001", "B002", "B004", "B005", "B007", "B008", "B010", "B011", "B013", "B014", "B016", "B017", "B019", "B020", "B022",
    "B023", "B025", "B026", "B028", "B029", "B031", "B032", "B034", "B035", "B037", "B038",
    # scheduling
    "B040", "B041", "B043", "B044", "B046", "B047", "B049", "B050", "B052", "B053", "B055", "B056", "B058", "B059", "B061",
    "B062", "B064",
    # structured output
    "B065", "B067", "B068", "B070", "B071", "B073", "B074", "B076", "B077", "B079", "B080", "B082", "B083", "B085", "B086",
    "B088", "B089", "B091", "B092", "B094", "B095", "B097", "B098", "B100", "B101", "B103", "B104", "B106", "B107", "B109",
    "B110", "B112", "B113", "B178", "B181", "B182", "T16", "T17", "T18",
    # stops and limits, as far as they are met below a server
    "B115", "B116", "B118", "B119", "B128", "B131", "B133", "B136", "B137", "B140",
    # OpenAI's endpoints
    "B121", "B122", "B124", "B125", "B127", "B130", "B134", "B139", "B142", "B143", "B145",
    # text
    "B146", "B148", "B149", "B151", "B152", "B154", "B155", "B157", "B158",
    # model files
    "B160", "B161", "B163", "B164", "B166", "B167", "B169", "B170", "B172",
    # memory, samplers, faults of one request
    "B175", "B176", "B179", "B184", "B188", "B190",
    # attacks
    "B185", "B187", "T01", "T02", "T03", "T04", "T06", "T07", "T08", "T09", "T10", "T11", "T12", "T13", "T14", "T15", "T19",
    "T20", "T21", "T22", "T23", "T24", "T25", "T26", "T27", "T30", "T31", "T32", "T33", "T34", "T35", "T36", "T39",
}  # fmt: skip

_NUMBER = re.compile(r"(?<![A-Za-z0-9])([BbTt])(\d{2,3})(?![A-Za-z0-9])")


def numbers(text: str) -> Iterator[str]:
    for letter, digits in _NUMBER.findall(text.replace("_", " ")):
        yield letter.upper() + digits


def held_by(path: Path) -> Iterator[str]:
    """Numbers in the name, the docstring or beside the ``def`` of each test."""
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            beside = lines[node.lineno - 1].partition("#")[2]
            yield from numbers(f"{node.name} {ast.get_docstring(node) or ''} {beside}")


def test_every_fault_has_its_test() -> None:
    found = {number for path in (ROOT / "tests").rglob("test_*.py") for number in held_by(path)}
    assert HELD - found == set(), "their tests are gone"


def test_numbers_are_read_where_they_stand(tmp_path: Path) -> None:
    test = tmp_path / "test_x.py"
    test.write_text('def test_b001_b002():  # B003, T04\n    """B005."""\n    b006 = "B007"  # B008\ndef b009(): "B010"\n')
    assert set(held_by(test)) == {"B001", "B002", "B003", "T04", "B005"}
