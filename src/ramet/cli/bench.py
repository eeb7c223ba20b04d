"""``ramet bench``: what the parts cost, and what a server makes of a load, measured."""

from __future__ import annotations

import click

from ramet.cli.bench_engine import engine
from ramet.cli.bench_serve import serve

__all__ = ["bench"]


@click.group()
def bench() -> None:
    """Measure the parts, or a server."""


bench.add_command(serve)
bench.add_command(engine)


@bench.command("cache")
@click.option("--num-prompts", type=click.IntRange(min=1), default=2000, show_default=True, help="prompts sent through the cache")
@click.option("--json", "as_json", is_flag=True, help="one JSON object instead of a table")
def _cache(num_prompts: int, as_json: bool) -> None:
    """Time match, insert and evict of the radix tree, page sizes 1 and 16."""
    from ramet.cli.bench_cache import run

    run(num_prompts=num_prompts, json=as_json)
