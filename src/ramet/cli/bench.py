"""``ramet bench``: what the parts cost, measured."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["app"]

app = typer.Typer(help="Measure the parts.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _root() -> None:
    pass


@app.command("cache")
def _cache(
    num_prompts: Annotated[int, typer.Option("--num-prompts", min=1, help="prompts sent through the cache")] = 2000,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Time match, insert and evict of the radix tree, page sizes 1 and 16."""
    from ramet.cli.bench_cache import run

    run(num_prompts=num_prompts, json=as_json)
