"""The order of admission."""

from __future__ import annotations

import numpy as np
import pytest
from support.engines import Bench

from ramet.core.ids import IntBuffer
from ramet.core.request import Request, Sequence
from ramet.core.sampling import SamplingParams
from ramet.schedule.policy import LongestPrefix, make_policy, rank


def waiting(seq_id: int, priority: int = 0, arrival_s: float = 0.0) -> Sequence:
    prompt = np.array([5], np.int32)
    request = Request(f"r{seq_id}", prompt, SamplingParams(), 0, 1, priority=priority, arrival_s=arrival_s)
    return Sequence(seq_id, request, tokens=IntBuffer(prompt), num_prompt_tokens=1)


class Peeks:
    """Counts how often it is asked."""

    def __init__(self, cached: dict[int, int]) -> None:
        self.cached = cached
        self.count = 0

    def peek(self, seq: Sequence) -> int:
        self.count += 1
        return self.cached.get(seq.seq_id, 0)

    def num_shared(self, seq: Sequence, other: Sequence) -> int:
        return 0


def ids(seqs: object) -> list[int]:
    return [seq.seq_id for seq in seqs]  # type: ignore[attr-defined]


def test_fcfs_is_priority_then_arrival() -> None:
    seqs = sorted([waiting(3, arrival_s=1.0), waiting(1, arrival_s=2.0), waiting(2, priority=1, arrival_s=9.0)], key=rank)
    assert ids(make_policy("fcfs", Peeks({})).order(seqs, [])) == [2, 3, 1]


def test_longest_prefix_takes_the_best_cached_first_within_a_priority() -> None:
    seqs = sorted([waiting(0), waiting(1), waiting(2), waiting(3, priority=-1)], key=rank)
    cache = Peeks({1: 320, 2: 640, 3: 10_000})
    assert ids(make_policy("longest-prefix", cache).order(seqs, [])) == [2, 1, 0, 3]


def test_nobody_starves_behind_cached_prompts_that_keep_coming() -> None:
    policy = LongestPrefix(Peeks(dict.fromkeys(range(1, 1000), 320)))
    queue = [waiting(0)]
    for turn in range(1, 100):
        queue.append(waiting(turn))
        first = next(iter(policy.order(queue, [])))
        queue.remove(first)
        if first.seq_id == 0:
            break
    assert turn == 20, "320 cached tokens are worth 20 arrivals"


def test_a_long_queue_costs_a_bounded_number_of_peeks() -> None:
    cache = Peeks({})
    seqs = [waiting(i) for i in range(5000)]
    assert ids(LongestPrefix(cache).order(seqs, [])) == list(range(5000))
    assert cache.count <= 64


@pytest.mark.parametrize("policy", ["fcfs", "longest-prefix"])
def test_policies_change_order_and_no_answer(policy: str) -> None:
    bench = Bench(policy=policy, max_running_seqs=1, page_size=4)
    bench.answer([7] * 40, max_tokens=1, temperature=0.0)
    names = [bench.submit([20 + i] * 8, max_tokens=2, temperature=0.0) for i in range(2)]
    names.append(bench.submit([7] * 44, max_tokens=2, temperature=0.0))
    order: list[str] = []
    while bench.engine.has_work:
        order += [update.request_id for update in bench.step() if update.finish_reason]
    assert order == (names if policy == "fcfs" else [names[2], *names[:2]])
    bench.check_against_cold()
