"""Looks at a served process and its engine while they run: memory, files, threads, pages, and how late the event loop is."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from support.serve_process import ServeProcess, children

_LAG_BUCKET = re.compile(r'ramet:event_loop_lag_seconds_bucket\{le="(.*)"\}')


@dataclass(frozen=True)
class Process:
    """What a process holds."""

    pid: int
    rss_bytes: int
    num_fds: int
    num_threads: int

    @classmethod
    def of(cls, pid: int) -> Process:
        """Raises ``OSError`` where it is gone."""
        status = Path(f"/proc/{pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        if "VmRSS" not in fields:
            raise ProcessLookupError(pid)
        num_fds = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
        return cls(pid, int(fields["VmRSS"].split()[0]) << 10, num_fds, int(fields["Threads"]))


@dataclass(frozen=True)
class Sample:
    """One look. ``engine`` is None while there is none."""

    at_s: float
    server: Process
    engine: Process | None


def check_pages(metrics: Mapping[str, float], num_pages: int) -> str | None:
    """What is wrong with the account of pages, if anything: each belongs to exactly one owner."""
    by_owner = {name: count for name, count in metrics.items() if name.startswith("ramet:kv_pages{")}
    if len(by_owner) != 4 or sum(by_owner.values()) != num_pages or min(by_owner.values()) < 0:
        return f"of {num_pages} pages the owners are {by_owner}"
    return None


class Watch:
    """Takes a sample each second, until it is left. ``faults`` are accounts that did not hold, ``unanswered`` failed looks."""

    def __init__(self, server: ServeProcess, *, every_s: float = 1.0) -> None:
        self.samples: list[Sample] = []
        self.faults: list[str] = []
        self.unanswered: list[str] = []
        self.most_waiting = 0  # requests in the queue
        self._server = server
        self._every_s = every_s
        self._num_pages = int(json.loads(server.ask("/server_info")[2])["engine"]["num_pages"])
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch")
        self.before = self.after = server.metrics()

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._is_over.set()
        self._thread.join()
        if error is None:
            self.after = self._server.metrics()

    def _run(self) -> None:
        while not self._is_over.wait(self._every_s):
            self.look()

    def look(self) -> None:
        """Take one sample."""
        try:
            if fault := check_pages(self._server.metrics(), self._num_pages):
                self.faults.append(fault)
            self.most_waiting = max(self.most_waiting, self._server.info()["num_waiting_requests"])
            engine = None
            for pid in children(self._server.pid):
                engine = _process_if_there(pid)
            self.samples.append(Sample(time.monotonic(), Process.of(self._server.pid), engine))
        except OSError as error:
            self.unanswered.append(repr(error))

    # ---- what was seen

    def lag_ms(self, share: float) -> float:
        """The event loop's lag below which ``share`` of the looks at it were: the upper bound of a histogram's bucket."""
        found = [(float(match[1]), name) for name in self.after if (match := _LAG_BUCKET.fullmatch(name))]
        buckets = sorted((bound, self.after[name] - self.before[name]) for bound, name in found)
        total = buckets[-1][1]
        return 1000 * next(bound for bound, count in buckets if count >= share * total)

    def rss_slope(self, *, of_engine: bool, skipping: float = 0.25) -> float:
        """Growth in MB (1e6 bytes) an hour: least squares over the samples after the first share; of the longest-lived engine."""
        kept = self.samples[int(len(self.samples) * skipping) :]
        return slope_mb_per_hour([(at_s, process.rss_bytes) for at_s, process in _of(kept, of_engine)])

    def grown_mb(self, *, of_engine: bool) -> float:
        """From the second quarter of the samples to the last, medians of each."""
        first, last = (_median([one.rss_bytes for one in some]) for some in _ends([p for _, p in _of(self.samples, of_engine)]))
        return (last - first) / 1e6

    def report(self) -> str:
        """All of it in a few lines."""
        p50, p99, p999 = (f"{self.lag_ms(share):g}" for share in (0.5, 0.99, 0.999))
        most = 1000 * self.after["ramet:event_loop_lag_max_seconds"]
        lines = [f"event loop lag: p50 <= {p50} ms, p99 <= {p99} ms, p99.9 <= {p999} ms, max lately {most:.0f} ms"]
        for name, of_engine in (("server", False), ("engine", True)):
            seen = [process for _, process in _of(self.samples, of_engine)]
            if len(seen) >= 8:
                first, last = (_median([one.rss_bytes for one in some]) / 1e6 for some in _ends(seen))
                slope = self.rss_slope(of_engine=of_engine)
                lines.append(
                    f"{name}: RSS {first:.1f} MB early, {last:.1f} MB late, slope {slope:+.1f} MB/h ({_course(seen)}); "
                    f"fds at most {max(one.num_fds for one in seen)}, threads at most {max(one.num_threads for one in seen)}"
                )
        return "\n".join(lines)


def _of(samples: Sequence[Sample], of_engine: bool) -> Sequence[tuple[float, Process]]:
    """The samples of the server, or of that engine which lived longest."""
    if not of_engine:
        return [(sample.at_s, sample.server) for sample in samples]
    pids = [sample.engine.pid for sample in samples if sample.engine]
    longest = max(set(pids), key=pids.count) if pids else 0
    return [(sample.at_s, sample.engine) for sample in samples if sample.engine and sample.engine.pid == longest]


def _ends(seen: Sequence[Process]) -> Iterator[Sequence[Process]]:
    quarter = len(seen) // 4
    yield seen[quarter : 2 * quarter]
    yield seen[-quarter:]


def _course(seen: Sequence[Process]) -> str:
    """Its memory in MB, eight times."""
    return " ".join(f"{seen[(len(seen) - 1) * i // 7].rss_bytes / 1e6:.1f}" for i in range(8))


def slope_mb_per_hour(points: Sequence[tuple[float, float]]) -> float:
    """Of bytes over seconds, by least squares."""
    if len(points) < 2:
        return 0.0
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    top = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return top / sum((x - mean_x) ** 2 for x, _ in points) * 3600 / 1e6


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _process_if_there(pid: int) -> Process | None:
    try:
        return Process.of(pid)
    except OSError:
        return None


def held_when_idle(server: ServeProcess, limit_s: float = 90) -> tuple[int, int, int, int]:
    """Files and threads of server and engine once nothing runs and no client is there; no page may be anyone's then.

    What clients sent before they left may lie unread in the server's sockets, and the engine's numbers are those of its last
    step: so it is to be idle at each of several looks. What it holds is the least that was seen, for the connections of these
    looks are being closed as well; what has leaked is there each time.
    """
    began = time.monotonic()
    looks: list[tuple[int, int, int, int]] = []
    while len(looks) < 5:
        busy = _busy(server)
        time.sleep(0.1)
        if any(busy.values()):
            assert time.monotonic() - began < limit_s, busy
            looks.clear()
        else:
            looks.append(_held(server))
    server_fds, server_threads, engine_fds, engine_threads = zip(*looks, strict=True)
    return min(server_fds), min(server_threads), min(engine_fds), min(engine_threads)


def _busy(server: ServeProcess) -> dict[str, float]:
    """Whatever is 0 in a server that has nothing to do."""
    metrics, info = server.metrics(), server.info()
    sequences = {name: metrics[f"ramet:{name}_sequences"] for name in ("running", "waiting")}
    pages = {f"{owner} pages": metrics[f'ramet:kv_pages{{state="{owner}"}}'] for owner in ("private", "locked")}
    return sequences | pages | {name: info[name] for name in ("num_open_requests", "num_waiting_requests")}


def _held(server: ServeProcess) -> tuple[int, int, int, int]:
    one, other = Process.of(server.pid), Process.of(server.engine_pid)
    return one.num_fds, one.num_threads, other.num_fds, other.num_threads
