"""The fuzzers themselves, for a moment each; ``make fuzz`` takes longer."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from fuzz.harness import Failed, Target, fuzz
from fuzz.targets import TARGETS


@pytest.mark.parametrize("target", TARGETS, ids=[f"{one.number} {one.name}" for one in TARGETS])
def test_a_moment_of_each(target: Target, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    report = fuzz(target, tmp_path, seconds=0.4)
    capfd.readouterr()  # what native code of others says of its panics
    assert report.num_tried > len(target.corpus())
    assert len(report.outcomes) > 5, "all inputs end alike: the corpus is too poor, or the outcomes are too coarse"
    assert list(tmp_path.iterdir()) == []


def test_what_fails_is_kept(tmp_path: Path) -> None:
    def attempt(data: bytes) -> int:
        assert b"(((" not in data
        return len(data)

    known = next(one for one in TARGETS if one.name == "regex")
    planted = Target("F0", "regex", lambda _: attempt, known.mutate)
    with pytest.raises(Failed, match="F0 regex, seed 3") as failed:
        fuzz(planted, tmp_path, seconds=60, seed=3)
    [kept] = [path for path in tmp_path.iterdir() if path.suffix != ".last"]
    assert b"(((" in kept.read_bytes()
    assert str(kept) in str(failed.value)


def test_one_seed_is_one_run() -> None:
    for target in TARGETS:
        pool = target.corpus()
        drawn = [[target.mutate(Random(seed), pool[0], pool) for _ in range(3)] for seed in (1, 1, 2)]
        assert drawn[0] == drawn[1] != drawn[2]
