"""``ramet bench serve``: load on any server that speaks OpenAI's API, and what it made of it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ramet.cli.help import GroupedCommand, GroupedOption
from ramet.errors import ConfigError

if TYPE_CHECKING:
    from ramet.cli.load.connection import Address
    from ramet.cli.load.drive import Run
    from ramet.cli.load.figures import Bounds, Figures
    from ramet.cli.load.workloads import Turn

__all__ = ["Options", "serve"]

_SIZES = {"shared_tokens", "prompt_tokens", "turns"}
_USES = {  # the options that mean something to a workload
    "chat": _SIZES,
    "react": _SIZES,
    "tree-search": _SIZES | {"branches"},
    "few-shot": {"file", "shots"},
    "no-share": {"prompt_tokens"},
}
_DEFAULT_SHOTS = 5
_DEFAULT_CONCURRENCY = 8
_POSITIVE = click.FloatRange(min=0, min_open=True)
_BARS_PER_S = 4  # a bar drawn more often would take time from a server on the same machine


@dataclass(frozen=True, kw_only=True)
class Options:
    """What was asked for. ``rate`` is None in a closed loop; sizes are None where the workload's own stand."""

    url: str
    model: str
    api_key: str | None
    endpoint: str
    workload: str
    num_requests: int
    concurrency: int | None
    rate: float | None
    max_tokens: int
    ignore_eos: bool
    shared_tokens: int | None
    prompt_tokens: int | None
    turns: int | None
    branches: int | None
    file: Path | None
    shots: int | None
    seed: int
    timeout: float
    slo_ttft: float | None
    slo_tpot: float | None
    as_json: bool

    def __post_init__(self) -> None:
        if self.rate is not None and self.concurrency is not None:
            raise ConfigError("--rate is an open loop and --concurrency a closed one; give one of the two")
        for name in sorted(set.union(*_USES.values()) - _USES[self.workload]):
            if getattr(self, name) is not None:
                users = " and ".join(workload for workload, used in _USES.items() if name in used)
                raise ConfigError(f"--{name.replace('_', '-')} has no meaning for --workload {self.workload}; it is for {users}")
        if self.workload == "few-shot" and self.file is None:
            raise ConfigError("--workload few-shot needs examples; name a .jsonl or text file with --file")


def _option(group: str, *names: str, **settings: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(*names, cls=GroupedOption, group=group, **settings)


@click.command("serve", cls=GroupedCommand)
@_option("server", "--url", default="http://127.0.0.1:8000", help="where it listens")
@_option("server", "--model", default="", help="one that it serves", unset="its first")
@_option("server", "--api-key", help="its key, if it wants one", unset="RAMET_API_KEY, OPENAI_API_KEY")
@_option("server", "--endpoint", type=click.Choice(["chat", "completions"]), default="chat", help="chat or completions")
@_option("server", "--timeout", type=_POSITIVE, default=600.0, help="seconds for a whole answer")
@_option("load", "--workload", type=click.Choice(list(_USES)), default="chat", help=", ".join(_USES))
@_option("load", "--num-requests", type=click.IntRange(min=1), default=64, help="requests in all")
@_option("load", "--concurrency", type=click.IntRange(min=1), help="closed loop: sessions at a time", unset="8")
@_option("load", "--rate", type=_POSITIVE, help="open loop: sessions a second, Poisson arrivals")
@_option("load", "--seed", type=int, default=0, help="the same seed gives the same texts, arrivals")
@_option("size", "--max-tokens", type=click.IntRange(min=1), default=64, help="tokens of an answer at most")
@_option("size", "--ignore-eos", is_flag=True, help="answers of full length, where it can")
@_option("size", "--prompt-tokens", type=click.IntRange(min=1), help="each request adds about", unset="by workload")
@_option("size", "--shared-tokens", type=click.IntRange(min=1), help="system prompt or root", unset="by workload")
@_option("size", "--turns", type=click.IntRange(1, 200), help="of a conversation, levels of a tree", unset="by workload")
@_option("size", "--branches", type=click.IntRange(1, 64), help="after each answer in a tree", unset="3")
@_option("size", "--file", type=click.Path(path_type=Path), help="few-shot: examples, .jsonl or text")
@_option("size", "--shots", type=click.IntRange(min=0), help="few-shot: examples before a question", unset="5")
@_option("output", "--slo-ttft", type=_POSITIVE, help="goodput: longest time to first token, ms")
@_option("output", "--slo-tpot", type=_POSITIVE, help="goodput: longest time per output token, ms")
@_option("output", "--json", "as_json", is_flag=True, help="one JSON object instead of a table")
@click.pass_context
def serve(context: click.Context, /, **values: Any) -> None:
    """Load a server and measure it: any server that speaks OpenAI's API.

    A session is one conversation (chat), one agent (react), one search (tree-search) or one prompt (few-shot, no-share). Its
    requests wait for each other; --concurrency and --rate count sessions. A second run with the same seed finds the first
    one's texts in the server's cache. Ctrl-C ends with the figures so far.
    """
    options = Options(**values)
    figures, is_interrupted = _measure(options)
    if is_interrupted:
        context.exit(130)
    if not figures.num_answered:
        context.exit(1)


def _measure(options: Options) -> tuple[Figures, bool]:
    """Run the load and print what came of it; also whether Ctrl-C cut it short."""
    import asyncio

    from ramet.cli.load.connection import Address
    from ramet.cli.load.figures import Bounds, figures

    address = Address.parse(options.url)
    programs = _programs(options)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        run, model, duration_s, is_interrupted = runner.run(_load(options, address, programs))
    bounds = Bounds(options.slo_ttft, options.slo_tpot)
    found = figures(run.records, num_planned=options.num_requests, duration_s=duration_s, bounds=bounds)
    _print(options, found, bounds, (address.url, model), len(programs))
    return found, is_interrupted


def _programs(options: Options) -> list[Turn]:
    from ramet.cli.load.examples import read_examples
    from ramet.cli.load.workloads import SHAPES, programs

    sizes = {name: getattr(options, name) for name in ("shared_tokens", "prompt_tokens", "turns", "branches")}
    shape = replace(SHAPES[options.workload], **{name: size for name, size in sizes.items() if size is not None})
    examples = read_examples(options.file) if options.file is not None else []
    num_shots = _DEFAULT_SHOTS if options.shots is None else options.shots
    return programs(options.workload, options.num_requests, options.seed, shape, examples, num_shots)


def _loop_factory() -> Callable[[], Any] | None:
    """uvloop where there is one: it halves the cost of a chunk."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop


async def _load(options: Options, address: Address, programs: list[Turn]) -> tuple[Run, str, float, bool]:
    """The run, the model's name, how long it took in seconds, and whether it was cancelled."""
    import asyncio

    from ramet.cli.load.drive import Run
    from ramet.cli.load.server import Asking, open_server
    from ramet.cli.load.workloads import poisson_arrivals

    clock = time.perf_counter
    asking = Asking(options.model, options.endpoint, options.max_tokens, options.timeout, options.ignore_eos)
    key = options.api_key or _key_of_environment()
    async with open_server(address, key, asking, clock) as server:
        with _bar(options.num_requests) as show:
            run = Run(server, clock, lambda: show(run))
            start_s = clock()
            is_interrupted = False
            try:
                if options.rate is None:
                    await run.closed(programs, options.concurrency or _DEFAULT_CONCURRENCY)
                else:
                    await run.open(programs, poisson_arrivals(len(programs), options.rate, options.seed))
            except asyncio.CancelledError:  # Ctrl-C: asyncio cancels the main task
                is_interrupted = True
            duration_s = clock() - start_s
        return run, server.asking.model, duration_s, is_interrupted


def _key_of_environment() -> str | None:
    """The server's own variable may hold several keys; each of them will do."""
    keys = f"{os.environ.get('RAMET_API_KEY', '')} {os.environ.get('OPENAI_API_KEY', '')}".split()
    return keys[0] if keys else None


@contextmanager
def _bar(total: int) -> Iterator[Callable[[Run], None]]:
    """A bar on stderr while the load runs; silent where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield lambda run: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=_BARS_PER_S) as bars:
        task = bars.add_task("", total=total)

        def show(run: Run) -> None:
            bars.update(task, completed=len(run.records) - run.num_running, description=f"{run.num_running} running")

        yield show


def _print(options: Options, figures: Figures, bounds: Bounds, where: tuple[str, str], num_sessions: int) -> None:
    from ramet.cli.load.report import as_json, table

    url, model = where
    if options.as_json:
        import json

        asked = {name: value for name, value in asdict(options).items() if name not in ("url", "model", "api_key", "as_json")}
        print(json.dumps({"url": url, "model": model, "sessions": num_sessions} | asked | as_json(figures, bounds), default=str))
        return
    at_once = min(options.concurrency or _DEFAULT_CONCURRENCY, num_sessions)
    loop = f"{at_once} at a time" if options.rate is None else f"{options.rate:g} a second, Poisson"
    print(f"{model} at {url}, {options.endpoint}\n{options.workload}: {num_sessions} sessions, {loop}; seed {options.seed}\n")
    print(table(figures, bounds))
