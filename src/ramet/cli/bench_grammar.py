"""``ramet bench grammar``: what constraints cost, by an automaton of our own and by llguidance, side by side.

Each constraint is compiled, then the same random walks under its masks are timed twice: cold, where each place is met for the
first time, and warm. No model runs; the vocabulary is the model's, and one of 150,000 tokens made of pairs of its tokens.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from ramet.cli.help import GroupedCommand, GroupedOption
from ramet.cli.options import with_engine_options, with_named_model
from ramet.config import EngineConfig

__all__ = ["grammar"]

_HEADS = ("mask, cold", "mask, warm", "accept")


@click.command("grammar", cls=GroupedCommand)
@click.argument("name", metavar="[MODEL]", required=False)
@click.option(
    "--walks", type=click.IntRange(min=1), default=40, show_default=True, cls=GroupedOption, group="output",
    help="random outputs of up to 100 tokens for each constraint",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, cls=GroupedOption, group="output", help="one JSON object instead of a table")
@click.option(
    "--save", type=click.Path(path_type=Path, dir_okay=False), cls=GroupedOption, group="output", help="also write JSON to a file"
)
@with_engine_options
def grammar(*, name: str | None, config: EngineConfig, walks: int, as_json: bool, save: Path | None) -> None:
    """Time constraints: to compile one, to fill a mask, to accept a token.

    Patterns and choices are done by automata of our own and by llguidance; a schema by llguidance alone.
    """
    from ramet.cli.measure.grammars import costs_of, token_tables, ways
    from ramet.cli.measure.report import Reporter, being_done
    from ramet.structured.compiler import GrammarCompiler

    report = Reporter(as_json, save)
    tables = token_tables(with_named_model(config, name))
    report.say(f"{'tokens':>8}  {'constraint':<26}{'by':<12}{'compile ms':>11}" + "".join(f"{head:>20}" for head in _HEADS))
    found = []
    for table in tables:
        with being_done(f"reading {table.vocab_size:,} tokens"):
            compiler = GrammarCompiler(table)
        for constraint, by, variants in ways():
            with being_done(constraint):
                costs = costs_of(compiler, table, (constraint, by), variants, walks)
            pairs = "".join(f"{median:>11.2f}{p99:>9.1f}" for median, p99 in (costs.cold_mask_us, costs.mask_us, costs.accept_us))
            report.say(f"{costs.vocab_size:>8,}  {constraint:<26}{by:<12}{costs.compile_ms:>11.2f}{pairs}")
            found.append(asdict(costs))
    report.end({"walks": walks, "costs": found}, "", "µs: median and 99th percentile of one call")
