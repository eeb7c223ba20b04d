"""``ramet bench``: what the machine, the parts, an engine and a server do, measured."""

from __future__ import annotations

import click

from ramet.cli.bench_engine import engine
from ramet.cli.bench_grammar import grammar
from ramet.cli.bench_growth import growth
from ramet.cli.bench_limits import limits
from ramet.cli.bench_serve import serve

__all__ = ["bench"]


@click.group()
def bench() -> None:
    """Measure the machine, the parts, an engine or a server."""


bench.add_command(serve)
bench.add_command(engine)
bench.add_command(limits)
bench.add_command(growth)
bench.add_command(grammar)


@bench.command("cache")
@click.option("--num-prompts", type=click.IntRange(min=1), default=2000, show_default=True, help="prompts sent through the cache")
@click.option("--json", "as_json", is_flag=True, help="one JSON object instead of a table")
def _cache(num_prompts: int, as_json: bool) -> None:
    """Time match, insert and evict of the radix tree, page sizes 1 and 16."""
    from ramet.cli.bench_cache import run

    run(num_prompts=num_prompts, json=as_json)
