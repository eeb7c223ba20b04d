"""Progress of fetching and loading: bars on a terminal, one line with seconds in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["loading_progress"]

_WORTH_A_LINE_S = 1.0

Report = Callable[[str, int, int], None]


@contextmanager
def loading_progress() -> Iterator[Report]:
    """On a terminal a bar on stderr for each thing being done, gone when all is loaded.

    Elsewhere one line in the end, with the seconds of each; none where all of it took less than one. A thing whose end is not
    known has 0 for its total.
    """
    with _bars() if sys.stderr.isatty() else _line() as report:
        yield report


@contextmanager
def _line() -> Iterator[Report]:
    started: dict[str, float] = {}

    def report(what: str, done: int, total: int) -> None:
        if what not in started:
            started[what] = time.monotonic()

    yield report
    now = time.monotonic()
    if started and now - min(started.values()) >= _WORTH_A_LINE_S:
        ends = [*list(started.values())[1:], now]
        spans = (f"{what} {end - start:.1f} s" for (what, start), end in zip(started.items(), ends, strict=True))
        print(f"loaded: {', '.join(spans)}", file=sys.stderr, flush=True)


@contextmanager
def _bars() -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total or None)
            bars.update(tasks[what], completed=done, total=total or None)

        yield report
