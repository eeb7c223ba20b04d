"""``ramet bench engine``: what one engine does, beside what the machine could do at most."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ramet.cli.help import GroupedCommand, GroupedOption
from ramet.cli.options import with_engine_options, with_named_model
from ramet.config import EngineConfig

if TYPE_CHECKING:
    from ramet.cli.measure.engine import Subject
    from ramet.cli.measure.report import Reporter

__all__ = ["engine"]

_ENGINE = ("decode", "prefill", "tree-search", "shared-prefix", "no-share", "memory")
_KERNELS = ("products", "attention")


@click.command("engine", cls=GroupedCommand)
@click.argument("name", metavar="[MODEL]", required=False)
@click.option(
    "--only",
    multiple=True,
    type=click.Choice([*_ENGINE, *_KERNELS]),
    cls=GroupedOption,
    group="measure",
    help="one kind of figure; repeatable",
    more=f"One of {', '.join((*_ENGINE, *_KERNELS))}.",
)
@click.option("--kernels", is_flag=True, cls=GroupedOption, group="measure", help="each product and attention alone")
@click.option("--json", "as_json", is_flag=True, cls=GroupedOption, group="output", help="one JSON object instead of a table")
@click.option(
    "--save", type=click.Path(path_type=Path, dir_okay=False), cls=GroupedOption, group="output", help="also write JSON to a file"
)
@with_engine_options
@click.pass_context
def engine(context: click.Context, /, *, name: str | None, config: EngineConfig, **values: Any) -> None:
    """Measure an engine in this process: each figure beside the machine's limit, taken right before and after it.

    Ctrl-C ends with the figures so far.
    """
    from ramet.cli.measure.report import Reporter

    if values["only"] and values["kernels"]:
        raise click.UsageError("--kernels is --only products --only attention; give one of the two.")
    kinds = values["only"] or (_KERNELS if values["kernels"] else _ENGINE)
    if _measure(with_named_model(config, name), kinds, Reporter(values["as_json"], values["save"])):
        context.exit(130)


def _measure(config: EngineConfig, kinds: tuple[str, ...], report: Reporter) -> bool:
    """All figures of these kinds; also whether Ctrl-C cut it short."""
    from ramet.cli.measure.engine import Subject
    from ramet.cli.measure.limits import Limits
    from ramet.cli.measure.report import limit_lines, limits_json
    from ramet.cli.progress import loading_progress
    from ramet.engine.build import build_engine
    from ramet.llm import LLM

    with loading_progress() as progress:
        parts = build_engine(config, progress)
    step_bytes = sum(weight.nbytes for weight in parts.products.values())
    limits = Limits(parts.backend.isa, parts.backend.threads, step_bytes)
    facts = {
        "model": parts.text.description,
        "isa": parts.backend.isa,
        "threads": parts.backend.threads,
        "kv_cache_dtype": parts.kv_dtype,
        "weight_bytes_a_step": step_bytes,
    }
    report.heading(
        f"{parts.text.description}; {parts.backend.isa}, {parts.backend.threads} threads, {parts.kv_dtype} KV; "
        f"a step reads {step_bytes / 1e6:,.1f} MB of weights"
    )
    with LLM.from_parts(parts) as llm:
        is_interrupted = _run_cases(Subject(llm, parts, limits, config), kinds, report)
    lines = [*limit_lines(limits), *(["", "interrupted: what is missing was not measured"] if is_interrupted else [])]
    report.end(facts | {"limits": limits_json(limits), **report.figures_json(), "interrupted": is_interrupted}, *lines)
    return is_interrupted


def _run_cases(subject: Subject, kinds: tuple[str, ...], report: Reporter) -> bool:
    from ramet.cli.measure.engine import CASES, LeftOut

    for name, case in [named for kind in kinds for named in CASES[kind].items()]:
        try:
            report.take(case(subject), name)
        except LeftOut as reason:
            report.leave_out(name, str(reason))
        except KeyboardInterrupt:
            return True
    return False
