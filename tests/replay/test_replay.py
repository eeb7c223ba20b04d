"""The decisions of a short trace, step by step, against a log that is kept: a refactor changes none of them.

A change of policy may. Then make the log again and read the difference before it is committed::

    python tests/replay/test_replay.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # also when run as a script

from support.engines import Bench

GOLDEN = Path(__file__).with_name("decisions.json")
POLICIES = ("fcfs", "longest-prefix")

Decisions = list[list[list[int]]]


def decisions(policy: str) -> Decisions:
    """One list a step: [seq_id, first position, tokens, cached tokens] of each sequence in it.

    The trace has shared prefixes, n, priorities, a fork, aborts in and out of flight, and a pool so small that it preempts.
    """
    bench = Bench(policy=policy, page_size=4, num_pages=24, max_running_seqs=5, max_batch_tokens=24, chunked_prefill_size=10)
    system = [7, 8, 9, 10, 11, 12, 13, 14]
    log: Decisions = []
    for step in range(400):
        if step < 24 and step % 2 == 0:
            number = step // 2
            bench.submit(
                (system if number % 3 else [30, 31]) + [20 + number] * (3 + number),
                request_id=f"r{number}",
                n=2 if number % 5 == 1 else 1,
                max_tokens=14 + 4 * (number % 4),
                temperature=0.8,
                seed=number,
                priority=int(number == 7),
                ignore_eos=True,
            )
        if step == 9:
            bench.fork(bench.engine.seq_ids("r3")[0])
        if step == 11:
            bench.engine.abort("r4")
        if not bench.engine.has_work:
            break
        before = {seq.seq_id: seq for seq in bench.scheduler.sequences}
        bench.engine.begin_step()
        chunks = [seq for seq in before.values() if seq.num_in_flight_tokens]
        log.append(
            [[seq.seq_id, seq.num_computed_tokens, seq.num_in_flight_tokens, seq.num_cached_tokens or 0] for seq in chunks]
        )
        if step == 15:
            bench.engine.abort("r5")
        bench.finish_step()
    assert bench.engine.stats().scheduler.num_preemptions > 0
    bench.check_idle()
    return log


@pytest.mark.parametrize("policy", POLICIES)
def test_decisions_are_those_that_were_kept(policy: str) -> None:
    kept = json.loads(GOLDEN.read_text())[policy]
    for step, (now, then) in enumerate(zip(decisions(policy), kept, strict=True)):
        assert now == then, f"step {step}"


if __name__ == "__main__":
    made = {policy: decisions(policy) for policy in POLICIES}
    lines = (f'"{policy}": [\n' + ",\n".join(map(json.dumps, log)) + "\n]" for policy, log in made.items())
    GOLDEN.write_text("{" + ",\n".join(lines) + "}\n")
