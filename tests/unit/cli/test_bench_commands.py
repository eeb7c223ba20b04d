"""``ramet bench limits``, ``engine`` and ``growth`` on a tiny model: what they print and write, not how fast anything is."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from click.testing import CliRunner
from tiny_models import TINY_MODELS, write_folder

from ramet.cli import bench_engine, bench_limits
from ramet.cli.bench import bench
from ramet.cli.measure import engine as measured
from ramet.cli.measure import grammars, growth, kernels, report
from ramet.cli.measure.books import Books, chat_waste
from ramet.cli.measure.growth import Curve, exponent
from ramet.cli.measure.limits import Limits

_SMALL = {  # sizes that fit a context of 256 tokens
    "_RUNS_S": 0.0, "_MIN_RUNS": 1, "_MAX_RUNS": 1, "_DECODED": 2, "_ROOT": 100, "_BRANCHES": 3, "_TAIL": 2, "_GROWN": 3,
    "_ALONE": 20, "_ANSWER": 2,
}  # fmt: skip
_SHORT = {
    "_PROMPT_LENS": (50, 100, 1000), "_STREAMS": (1, 2), "_DECODED": 2, "_KV_TOKENS": (40, 80), "_STEP_TOKENS": 20,
    "_QUEUES": (2, 4), "_TREES": (4000, 8000), "_RUNNING": 8, "_WARM_STEPS": 1, "_STEPS": 2, "_TRIES": 1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    """Small sizes and short windows: what is measured is of no interest here."""
    for module, constants in ((measured, _SMALL), (growth, _SHORT), (kernels, {"_SWEEPS_S": 0.0, "_MIN_SWEEPS": 1})):
        for name, value in constants.items():
            monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(bench_limits, "_WINDOW_S", 0.001)
    monkeypatch.setattr(Limits.__init__, "__kwdefaults__", {"window_s": 0.001})
    monkeypatch.setattr("ramet.cli.measure.limits._FAR_BYTES", 1 << 20)
    monkeypatch.setitem(chat_waste.__kwdefaults__, "num_chats", 3)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_folder(TINY_MODELS["llama"], tmp_path_factory.mktemp("tiny")))


def ran(*args, code=0):
    done = CliRunner().invoke(bench, args)
    assert done.exit_code == code, done.output
    return done.stdout


def test_limits_are_told_for_one_thread_and_for_all(model):
    told = json.loads(ran("limits", model, "--json", "--threads", "2"))
    kinds = [limit["kind"] for limit in told["limits"]]
    assert kinds[:2] == ["read", "read"]
    assert "fp32" in kinds
    for limit in told["limits"]:
        assert limit["unit"] == ("B/s" if limit["kind"] == "read" else "OP/s")
        assert set(limit["rates"]) == {"1", "2"}
        assert all(
            len(rates) == 3 and sorted(rates, reverse=True) == rates and rates[-1] > 0 for rates in limit["rates"].values()
        )
    lines = ran("limits", model, "--threads", "1").splitlines()
    assert len(lines) == 3 + len(kinds)
    assert "1 thread" in lines[2]
    assert all(re.search(r"[\d.,]+ / [\d.,]+ [GMTk](B|OP)/s$", line) for line in lines[3:])


def test_the_kinds_of_figures_are_those_that_can_be_asked_for():
    assert set(measured.CASES) == {*bench_engine._ENGINE, *bench_engine._KERNELS}


def test_every_figure_of_an_engine_has_a_unit_and_is_held_against_a_limit(model):
    told = json.loads(ran("engine", model, "--json", "--threads", "1"))
    figures = {figure["name"]: figure for figure in told["figures"]}
    assert [name.split(",")[0] for name in figures][:4] == ["decode"] * 4
    assert set(told["left_out"]) == {"prefill, 512 tokens", "prefill, 2,000 tokens", "prefill, 8,000 tokens"}
    assert "has 256" in told["left_out"]["prefill, 512 tokens"]
    assert {figure["unit"] for figure in figures.values()} == {"tok/s", "s", "ms", "x", "%"}
    for figure in figures.values():
        assert figure["value"] > 0
        held = figure["unit"] in ("tok/s", "s", "ms")
        assert (figure["limit"] is not None and figure["fraction"] > 0 and figure["bound"] in ("read", "ops")) == held
    assert told["limits"]["readings"]
    for name, (low, high) in told["limits"]["spread"].items():
        assert 0 < low <= high, name
    assert (told["threads"], told["interrupted"]) == (1, False)


def test_kernels_alone_as_a_table_and_as_a_file(model, tmp_path):
    lines = ran("engine", model, "--kernels", "--save", str(tmp_path / "new" / "kernels.json")).splitlines()
    assert max(map(len, lines[1:])) <= 80
    told = json.loads((tmp_path / "new" / "kernels.json").read_text())
    names = [figure["name"] for figure in told["figures"]]
    assert names[:6] == ["qkv, 1 row", "out, 1 row", "gate_up, 1 row", "down, 1 row", "head, 1 row", "all 9, 1 row"]
    assert names[-3:] == list(kernels.attention_cases(512))
    shown = [line for line in lines if line.startswith(tuple(names))]
    assert [line[:33].strip() for line in shown] == names


def test_only_what_is_asked_for(model):
    told = json.loads(ran("engine", model, "--only", "memory", "--json"))
    assert [figure["name"] for figure in told["figures"]] == ["waste, pages of 16 tokens"]
    assert "--kernels is --only" in CliRunner().invoke(bench, ["engine", "--kernels", "--only", "decode"]).output


def test_ctrl_c_prints_what_there_is(model, monkeypatch):
    def interrupted(subject):
        raise KeyboardInterrupt

    monkeypatch.setitem(measured.CASES, "prefill", {"prefill": interrupted})
    told = json.loads(ran("engine", model, "--json", "--only", "decode", "--only", "prefill", code=130))
    assert len(told["figures"]) == 4
    assert told["interrupted"] is True


def test_curves_have_points_and_exponents(model):
    told = json.loads(ran("growth", model, "--json"))
    assert [curve["name"] for curve in told["curves"]] == [
        "resident memory", "prefill", "decode step", "books of a step, fcfs", "books of a step, longest-prefix", "submit, fcfs",
        "books of a step, full pool",
    ]  # fmt: skip
    assert all(len(curve["points"]) == 2 and curve["y_unit"] and curve["expected"] for curve in told["curves"])
    text = ran("growth", model, "--books")
    assert text.count("exponent") == 4
    assert "prefill" not in text


def test_a_curve_that_cannot_be_measured_is_named(model):
    told = json.loads(ran("growth", model, "--json", "--max-total-tokens", "48"))
    assert "at least two points" in told["left_out"]["memory"]


def test_the_exponent_is_that_of_the_power_law():
    xs = np.array([1, 2, 4, 8])
    assert exponent(xs, 3 * xs**2) == pytest.approx(2)
    curve = Curve("c", "x", "s", (1, 2, 4), (5, 5, 10), "0")
    assert curve.last_exponent == pytest.approx(1)
    assert curve.as_json()["points"] == [[1, 5], [2, 5], [4, 10]]


def test_larger_pages_waste_more():
    waste = {page_size: chat_waste(page_size) for page_size in (1, 16, 128)}
    assert all(0 <= share < 1 for shares in waste.values() for share in shares)
    assert sum(waste[1]) < sum(waste[16]) < sum(waste[128])
    num_steps = [len(shares) for shares in waste.values()]
    assert max(num_steps) < 1.05 * min(num_steps), "the traffic is the same, but for what the cache spares"


def test_the_waste_of_one_answer_is_known():
    """9 prompt tokens on pages of 8: two pages of which the second holds 1, then 2 ... tokens."""
    from ramet.cli.measure.books import _waste

    books = Books(8, 8)
    books.submit(list(range(9)), 4)
    shares = []
    while books.engine.has_work:
        assert books.step() > 0
        shares += _waste(books)
    assert shares == [1 - num / 16 for num in (9, 10, 11)]


def test_a_step_of_the_books_does_not_count_the_runner(monkeypatch):
    from time import sleep

    books = Books(8, 8)
    books.submit([1, 2, 3], 2)
    launch = books._runner._runner.launch
    monkeypatch.setattr(books._runner._runner, "launch", lambda batch: (sleep(0.2), launch(batch)))
    assert books.step() < 0.2


def test_numbers_are_shown_with_their_units():
    assert report.scaled("B/s", 54.2e9, 9.81e9) == "54.2 / 9.81 GB/s"
    assert report.scaled("OP/s", 0.5) == "0.5 OP/s"


def test_constraints_are_timed_both_ways_on_two_vocabularies(model, monkeypatch):
    small = {name: grammars._CONSTRAINTS[name] for name in ("date and words", "choice of 4")}
    monkeypatch.setattr(grammars, "_CONSTRAINTS", small | {"schema": {"json": {"type": "integer"}}})
    monkeypatch.setattr(grammars, "_LARGE_VOCAB", 600)
    told = json.loads(ran("grammar", model, "--json", "--walks", "2"))
    assert [(one["constraint"], one["by"]) for one in told["costs"]] == 2 * [
        ("date and words", "automaton"), ("date and words", "llguidance"), ("choice of 4", "automaton"),
        ("choice of 4", "llguidance"), ("schema", "llguidance"),
    ]  # fmt: skip
    assert len({one["vocab_size"] for one in told["costs"]}) == 2
    for one in told["costs"]:
        assert one["compile_ms"] > 0
        assert 0 < one["mask_us"][0] <= one["mask_us"][1]
    assert "mask, warm" in ran("grammar", model, "--walks", "1")
