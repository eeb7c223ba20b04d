"""``ramet bench growth``: how time and memory grow with length, streams, queue and tree."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ramet.cli.help import GroupedCommand, GroupedOption
from ramet.cli.options import with_engine_options, with_named_model
from ramet.config import EngineConfig

if TYPE_CHECKING:
    from ramet.cli.measure.growth import Curve
    from ramet.cli.measure.report import Reporter

__all__ = ["growth"]


@click.command("growth", cls=GroupedCommand)
@click.argument("name", metavar="[MODEL]", required=False)
@click.option("--books", is_flag=True, cls=GroupedOption, group="measure", help="scheduler and tree alone, without a model")
@click.option("--json", "as_json", is_flag=True, cls=GroupedOption, group="output", help="one JSON object instead of a table")
@click.option(
    "--save", type=click.Path(path_type=Path, dir_okay=False), cls=GroupedOption, group="output", help="also write JSON to a file"
)
@with_engine_options
@click.pass_context
def growth(
    context: click.Context, /, *, name: str | None, config: EngineConfig, books: bool, as_json: bool, save: Path | None
) -> None:
    """Measure how costs grow, and fit each curve: y grows as x to the power of the exponent.

    Prefill against prompt length, a step against streams, memory against tokens; the books (scheduler and tree, over a runner
    that computes nothing) against the queue and the tree. Ctrl-C ends with the curves so far.
    """
    from ramet.cli.measure.report import Reporter

    config = with_named_model(config, name)
    if _measure(None if books else config, Reporter(as_json, save)):
        context.exit(130)


def _measure(config: EngineConfig | None, report: Reporter) -> bool:
    """All curves, those of an engine only with a ``config``; also whether Ctrl-C cut it short."""
    from ramet.cli.measure.engine import LeftOut
    from ramet.cli.measure.growth import BOOK_CURVES
    from ramet.cli.measure.report import being_done

    found: list[Curve] = []
    is_interrupted = False
    curves: dict[str, Callable[[], Curve]] = {}
    model = None
    if config is not None:
        model, curves = _engine_curves(config)
    for what, measure in (curves | BOOK_CURVES).items():
        try:
            with being_done(what):
                found.append(measure())
            report.say(*_lines(found[-1]))
        except LeftOut as reason:
            report.leave_out(what, str(reason))
        except KeyboardInterrupt:
            is_interrupted = True
            break
    told = {"model": model, "curves": [curve.as_json() for curve in found], "left_out": report.left_out}
    report.end(told | {"interrupted": is_interrupted})
    return is_interrupted


def _engine_curves(config: EngineConfig) -> tuple[str, dict[str, Callable[[], Curve]]]:
    """The model in words, and what can be measured of it."""
    from ramet.cli.measure.engine import Subject
    from ramet.cli.measure.growth import ENGINE_CURVES
    from ramet.cli.measure.limits import Limits
    from ramet.cli.progress import loading_progress
    from ramet.engine.build import build_engine
    from ramet.llm import LLM

    with loading_progress() as progress:
        parts = build_engine(config, progress)
    limits = Limits(parts.backend.isa, parts.backend.threads, 1)
    subject = Subject(LLM.from_parts(parts), parts, limits, config)
    return parts.text.description, {what: partial(measure, subject) for what, measure in ENGINE_CURVES.items()}


def _lines(curve: Curve) -> list[str]:
    points = "  ".join(f"{x:,g}: {y:,.4g}" for x, y in zip(curve.xs, curve.ys, strict=True))
    return [
        f"{curve.name}, {curve.y_unit} by {curve.x_name}",
        f"  {points}",
        f"  exponent {curve.exponent:.2f}, of the last two points {curve.last_exponent:.2f}; right is {curve.expected}",
    ]
