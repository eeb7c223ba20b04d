"""A small fuzzer: known inputs, changed at random, with those kept whose outcome was not seen before.

What is fuzzed is in part native code of others, which tells nothing of the ways it went; so an outcome (a kind of error, or how
far it came) stands for them. Before an input is tried it is written down: where the process itself ends, it is still there.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

__all__ = ["CORPUS", "Failed", "Report", "Target", "fuzz", "kind_of"]

CORPUS = Path(__file__).parent / "corpus"
_MAX_KEPT = 2_000

Attempt = Callable[[bytes], Hashable]
Mutate = Callable[[Random, bytes, Sequence[bytes]], bytes]


@dataclass(frozen=True)
class Target:
    """``start`` makes, with a folder to write in, what tries one input after the other and returns its outcome; whatever that
    raises is a defect. Inputs are
    the files of ``CORPUS / name``, and what ``mutate`` makes of one of them, with the others to take pieces from. ``number`` is
    its own in the list of what is fuzzed.
    """

    number: str
    name: str
    start: Callable[[Path], Attempt]
    mutate: Mutate

    def corpus(self) -> list[bytes]:
        return [path.read_bytes() for path in sorted((CORPUS / self.name).iterdir())]


class Failed(AssertionError):
    """An input that a target did not survive."""


@dataclass
class Report:
    num_tried: int = 0
    outcomes: dict[Hashable, int] = field(default_factory=dict)


def fuzz(target: Target, folder: Path, *, seconds: float, seed: int = 0) -> Report:
    """Try all known inputs, and then others for so long of CPU. Raises ``Failed``, with the input left in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as scratch:
        return _tried(target, target.start(Path(scratch)), folder, seconds, seed)


def _tried(target: Target, attempt: Attempt, folder: Path, seconds: float, seed: int) -> Report:
    last = folder / f"{target.name}.last"
    rng = Random(seed)
    pool = target.corpus()
    report = Report()
    num_known, ends_s = len(pool), 0.0
    with last.open("wb", buffering=0) as written:
        while (is_known := report.num_tried < num_known) or time.process_time() < ends_s:
            data = pool[report.num_tried] if is_known else target.mutate(rng, rng.choice(pool), pool)
            written.seek(0)
            written.write(data)
            written.truncate()
            try:
                outcome = attempt(data)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a panic of native code is no Exception
                kept = folder / f"{target.name}-{hashlib.sha256(data).hexdigest()[:12]}"
                kept.write_bytes(data)
                place = f"{target.number} {target.name}, seed {seed}, input {report.num_tried}"
                raise Failed(f"{place}: {data[:200]!r} ({kept})") from error
            report.num_tried += 1
            if report.num_tried == num_known:
                ends_s = time.process_time() + seconds
            if outcome not in report.outcomes and not is_known and len(pool) < _MAX_KEPT:
                pool.append(data)
            report.outcomes[outcome] = report.outcomes.get(outcome, 0) + 1
    last.unlink()
    return report


def kind_of(error: Exception) -> str:
    """The kind of an error: the plain words of its message, without what it shows of the input."""
    shown = re.sub(r"'.*'|\".*\"|`.*`|/.*/|#\S*", "", str(error), flags=re.DOTALL)
    return " ".join(re.findall(r"[A-Za-z]{2,}", shown)[:9])
