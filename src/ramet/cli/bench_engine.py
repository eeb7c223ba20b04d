"""``ramet bench engine``: what one engine does, beside what the machine could do at most."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ramet.cli.help import GroupedCommand, GroupedOption
from ramet.cli.options import with_engine_options, with_named_model
from ramet.config import EngineConfig

if TYPE_CHECKING:
    from ramet.cli.measure.report import Reporter

__all__ = ["engine"]


@click.command("engine", cls=GroupedCommand)
@click.argument("name", metavar="[MODEL]", required=False)
@click.option("--kernels", is_flag=True, cls=GroupedOption, group="measure", help="each product and attention alone")
@click.option("--json", "as_json", is_flag=True, cls=GroupedOption, group="output", help="one JSON object instead of a table")
@with_engine_options
@click.pass_context
def engine(context: click.Context, /, *, name: str | None, kernels: bool, as_json: bool, config: EngineConfig) -> None:
    """Measure an engine in this process, each figure beside the machine's limit in the same run.

    Ctrl-C ends with the figures so far.
    """
    from ramet.cli.measure.report import Reporter

    if _kernels(with_named_model(config, name), Reporter(as_json)):
        context.exit(130)


def _kernels(config: EngineConfig, report: Reporter) -> bool:
    """The kernels alone; also whether Ctrl-C cut it short."""
    from ramet.cli.measure.kernels import ROWS, KVShape, attention_cases, attention_figure, product_figures
    from ramet.cli.measure.limits import Limits
    from ramet.cli.progress import loading_progress
    from ramet.engine.build import build_engine

    with loading_progress() as progress:
        parts = build_engine(config, progress)
    products, backend = parts.products, parts.backend
    step_bytes = sum(weight.nbytes for weight in products.values())
    limits = Limits(backend.isa, backend.threads, step_bytes)
    kv = KVShape(parts.kv_dtype, parts.page_bytes // parts.page_size)
    head = (
        f"{parts.text.description}: {backend.isa}, {backend.threads} threads; a step reads {step_bytes / 1e6:,.1f} MB of weights"
    )
    report.heading(head)
    is_interrupted = False
    try:
        for num_rows in ROWS:
            report.take(product_figures(backend, products, num_rows, limits), f"products, {num_rows} rows")
        for name, steps in attention_cases(config.scheduler.chunked_prefill_size or 2000).items():
            report.take((attention_figure(name, steps, backend, parts.spec, kv, limits) for _ in range(1)), name)
    except KeyboardInterrupt:
        is_interrupted = True
    facts = {"model": parts.text.description, "isa": backend.isa, "threads": backend.threads, "step_bytes": step_bytes}
    report.end(limits, facts, is_interrupted)
    return is_interrupted
