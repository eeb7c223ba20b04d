"""``ramet bench limits``: what this machine can do at most, whatever the program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ramet.cli.help import GroupedCommand, GroupedOption
from ramet.cli.options import with_engine_options, with_named_model
from ramet.config import EngineConfig

if TYPE_CHECKING:
    from ramet.cli.measure.report import Reporter

__all__ = ["limits"]

_WINDOWS, _WINDOW_S = 3, 0.2


@click.command("limits", cls=GroupedCommand)
@click.argument("name", metavar="[MODEL]", required=False)
@click.option("--json", "as_json", is_flag=True, cls=GroupedOption, group="output", help="one JSON object instead of a table")
@click.option(
    "--save", type=click.Path(path_type=Path, dir_okay=False), cls=GroupedOption, group="output", help="also write JSON to a file"
)
@with_engine_options
@click.pass_context
def limits(context: click.Context, /, *, name: str | None, config: EngineConfig, as_json: bool, save: Path | None) -> None:
    """Measure the machine: streaming reads, and each kind of arithmetic that it has, with one thread and with all.

    Reads are of as many bytes as a step of the model reads, which caches may hold, and of far more. Shown are the best and the
    worst of three windows of 0.2 s.
    """
    from ramet.cli.measure.report import Reporter

    if _measure(with_named_model(config, name), Reporter(as_json, save)):
        context.exit(130)


def _measure(config: EngineConfig, report: Reporter) -> bool:
    """All limits; also whether Ctrl-C cut it short."""
    from ramet.cli.measure.report import being_done, round_to, scaled
    from ramet.cli.progress import loading_progress
    from ramet.engine.build import build_engine

    with loading_progress() as progress:
        parts = build_engine(config, progress)
    step_bytes = sum(weight.nbytes for weight in parts.products.values())
    threads = sorted({1, parts.backend.threads})
    model = parts.text.description
    del parts  # its memory is wanted
    heads = [f"{n} thread{'s' * (n > 1)}" for n in threads]
    report.say(f"the first read is as large as a step's of {model}", "", " " * 36 + "".join(f"{head:>20}" for head in heads))
    found: list[dict[str, Any]] = []
    is_interrupted = False
    try:
        for isa, kind, what, unit, rates_of in _kinds(step_bytes):
            with being_done(what):
                rates = {n: sorted(rates_of(n), reverse=True) for n in threads}
            shown = "".join(f"{scaled(unit, of_n[0], of_n[-1]):>20}" for of_n in rates.values())
            report.say(f"{isa:<9}{kind:<8}{what:<19}{shown}")
            told = {str(n): [round_to(rate) for rate in of_n] for n, of_n in rates.items()}
            found.append({"isa": isa, "kind": kind, "what": what, "unit": unit, "rates": told})
    except KeyboardInterrupt:
        is_interrupted = True
    report.end({"model": model, "limits": found, "interrupted": is_interrupted})
    return is_interrupted


def _kinds(step_bytes: int) -> Iterator[tuple[str, str, str, str, Callable[[int], list[float]]]]:
    """Instruction set, kind, what exactly, unit, and the rates of so many threads in several windows."""
    from ramet import _native
    from ramet.cli.measure.limits import far_bytes

    for num_bytes in (step_bytes, far_bytes()):
        yield "", "read", f"{num_bytes / 1e6:,.1f} MB", "B/s", partial(_read_rates, num_bytes)
    for isa, numbers, instruction in _native.peaks():
        yield isa, numbers, instruction, "OP/s", partial(_peak_rates, isa, numbers)


def _read_rates(num_bytes: int, threads: int) -> list[float]:
    from ramet import _native

    stream = _native.Stream(num_bytes, threads)
    return [stream.rate(_WINDOW_S) for _ in range(_WINDOWS)]


def _peak_rates(isa: str, numbers: str, threads: int) -> list[float]:
    from ramet import _native

    return [_native.measure_peak(isa, numbers, threads, _WINDOW_S) for _ in range(_WINDOWS)]
