"""Random moves on engines with tiny pools: whatever happens, the books agree after each move and each answer is a cold run's."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from support.engines import CACHES, EOS_IDS, VOCAB_SIZE, Bench, ColdAnswers
from support.oracle import oracles

from ramet.errors import ContextTooLong
from ramet.schedule.drafts import NO_DRAFTS

POOL_TOKENS = 64
STEPS = 55
EXAMPLES = 5  # x 9 machines x up to 55 moves

# Prompts agree for a while and then part, inside pages and at their ends.
TRUNKS = ([7, 8, 9, 10] * 6, list(range(10, 34)), [7, 8, 9, 10, 11, 12] * 4)
prompts = st.builds(
    lambda trunk, cut, tail: trunk[:cut] + tail,
    st.sampled_from(TRUNKS),
    st.integers(0, 20),
    st.lists(st.integers(5, 9), min_size=1, max_size=5),
)
samplings = st.fixed_dictionaries(
    {
        "n": st.sampled_from([1, 1, 1, 2, 3]),
        "temperature": st.sampled_from([0.0, 0.9]),
        "seed": st.sampled_from([None, 5, 2**64 - 1]),
        "max_tokens": st.integers(0, 30),
        "ignore_eos": st.sampled_from([True, True, False]),
    },
    optional={
        "frequency_penalty": st.just(1.5),
        "repetition_penalty": st.just(1.3),
        "logprobs": st.integers(0, 2),
        "prompt_logprobs": st.integers(0, 2),
        "stop_token_ids": st.just([9, 12, 30]),
        "logit_bias": st.just({3: 4.0}),
    },
)


class EngineMachine(RuleBasedStateMachine):
    cache = "radix"
    page_size = 4
    num_moves = 0

    @initialize(
        policy=st.sampled_from(["fcfs", "longest-prefix"]),
        chunk=st.sampled_from([3, 16, None]),
        max_running=st.sampled_from([2, 5]),
        guesses=st.booleans(),
    )
    def build(self, policy: str, chunk: int | None, max_running: int, guesses: bool) -> None:
        self.bench = Bench(
            cache=self.cache,
            page_size=self.page_size,
            num_pages=POOL_TOKENS // self.page_size,
            policy=policy,
            chunked_prefill_size=chunk,
            max_running_seqs=max_running,
            max_batch_tokens=20,
            drafters=oracles(ColdAnswers(), VOCAB_SIZE) if guesses else NO_DRAFTS,
        )

    @rule(prompt=prompts, sampling=samplings, priority=st.sampled_from([0, 0, 0, 1]))
    def submit(self, prompt: list[int], sampling: dict, priority: int) -> None:
        self.bench.submit(prompt, priority=priority, **sampling)

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.bench.step()

    @rule()
    def begin(self) -> None:
        self.bench.engine.begin_step()

    @rule()
    def finish(self) -> None:
        self.bench.finish_step()

    @rule(data=st.data(), sampling=st.none() | samplings)
    def fork(self, data: st.DataObject, sampling: dict | None) -> None:
        live = [seq for seq in self.bench.scheduler.sequences if not seq.is_finished]
        if not live:
            return
        parent = data.draw(st.sampled_from(live))
        wanted = (sampling or {"max_tokens": parent.request.max_tokens})["max_tokens"]
        if len(parent.tokens) + wanted > POOL_TOKENS:
            with pytest.raises(ContextTooLong, match=f"holds {POOL_TOKENS}"):
                self.bench.fork(parent.seq_id, **(sampling or {}))
        else:
            self.bench.fork(parent.seq_id, **(sampling or {}))

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if self.bench.requests:
            self.bench.engine.abort(data.draw(st.sampled_from(sorted(self.bench.requests))))

    @rule(data=st.data())
    def abort_sequence(self, data: st.DataObject) -> None:
        live = [seq.seq_id for seq in self.bench.scheduler.sequences]
        if live:
            self.bench.engine.abort_sequence(data.draw(st.sampled_from(live)))

    @rule()
    def flush(self) -> None:
        self.bench.engine.flush_cache(force=True)

    @invariant()
    def books_agree(self) -> None:
        type(self).num_moves += 1
        if hasattr(self, "bench"):
            self.bench.audit()

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        bench = self.bench
        bench.run()
        bench.check_idle()
        bench.check_against_cold()
        assert bench.kv.flush() + bench.kv.pool.num_free >= bench.kv.pool.num_pages
        for request_id, request in bench.requests.items():
            for index in range(request.sampling.n):
                answer = bench.answers[request_id, index]
                assert answer.finish_reason in ("stop", "length", "abort"), answer
                if answer.finish_reason == "stop":
                    assert answer.stop_token_id in EOS_IDS | set(request.sampling.stop_token_ids or ())


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("cache", CACHES)
def test_random_moves(cache: str, page_size: int) -> None:
    machine = type(f"Machine_{cache}_{page_size}", (EngineMachine,), {"cache": cache, "page_size": page_size})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=True,
            phases=[Phase.generate],  # add Phase.shrink to work on a failure; it takes minutes
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert machine.num_moves >= 250, "the walks hardly moved: all machines together make well over 2,000 moves"
