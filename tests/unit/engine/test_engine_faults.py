"""What breaks in the engine, and how far it reaches: one row, one sequence's pages, a step, the runner."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from support.engines import Bench

from ramet.core.batch import Batch
from ramet.core.request import Sequence
from ramet.errors import EngineDead
from ramet.schedule import scheduler

GREEDY = {"temperature": 0.0, "ignore_eos": True}
PROMPT = list(range(10, 30))


def test_n_survives_the_failure_of_the_first() -> None:
    failed = []

    def fail_first(batch: Batch) -> Mapping[int, str]:
        failed.append(len(batch.sample_rows))
        return {0: "logits are not finite"} if failed == [1] else {}

    bench = Bench(faults=fail_first)
    request_id = bench.submit(PROMPT, n=3, max_tokens=4, **GREEDY)
    bench.run()
    reasons = [bench.answers[request_id, index].finish_reason for index in range(3)]
    assert reasons == ["error", "length", "length"]
    bench.check_idle()
    bench.check_against_cold()


@pytest.mark.parametrize("row", [0, 3, 7])
def test_b190_a_fault_of_one_row_ends_that_sequence_alone(row: int) -> None:
    def fail_one(batch: Batch) -> Mapping[int, str]:
        return {row: "its mask is empty"} if batch.step == 4 else {}

    bench = Bench(faults=fail_one)
    names = [bench.submit([*PROMPT, 30 + i], max_tokens=6, **GREEDY) for i in range(8)]
    bench.run()
    broken = bench.answers[names[row], 0]
    assert (broken.finish_reason, broken.error, len(broken.token_ids)) == ("error", "its mask is empty", 3)
    bench.check_idle()
    bench.check_against_cold()


@pytest.mark.parametrize("half", ["launch", "collect"])
def test_a_dead_runner_ends_every_request_and_leaves_the_books_right(half: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(max_running_seqs=2)
    names = [bench.submit([*PROMPT, i], n=2, max_tokens=6, **GREEDY) for i in range(3)]
    bench.step()
    bench.engine.begin_step()
    bench.engine.abort(names[0])

    def break_down(*args: object) -> None:
        bench.runner.launched.clear()
        raise RuntimeError("device lost")

    monkeypatch.setattr(bench.runner, half, break_down)
    if half == "launch":
        bench.finish_step()
    bench.step() if half == "launch" else bench.finish_step()
    assert {answer.finish_reason for answer in bench.answers.values()} == {"abort", "error"}
    assert len(bench.answers) == 6
    assert "device lost" in str(bench.answers[names[2], 1].error)
    bench.check_idle()
    for call in (bench.step, lambda: bench.submit(PROMPT), lambda: bench.fork(0)):
        with pytest.raises(EngineDead, match="device lost"):
            call()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
@pytest.mark.parametrize("place", ["launch", "collect", "schedule", "update", "build_batch", "take_page_copies", "commit"])
def test_a_step_that_breaks_off_half_way_is_the_end(
    place: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was half done is not built on; what is no fault of the engine goes on to the caller."""
    bench = Bench(num_pages=32)
    for i in range(3):
        bench.submit([5 + i] * 9, n=2, max_tokens=6, **GREEDY)
    bench.step()
    bench.submit([20] * 9, max_tokens=6, **GREEDY)
    parts = {"launch": bench.runner, "collect": bench.runner, "build_batch": scheduler, "commit": bench.kv}
    parts["take_page_copies"] = bench.kv

    def break_off(*args: object, **options: object) -> None:
        bench.runner.launched.clear()
        raise error("half-way")

    def steps() -> None:
        for _ in range(4):
            bench.step()

    with monkeypatch.context() as patch:
        patch.setattr(parts.get(place, bench.scheduler), place, break_off)
        with pytest.raises(EngineDead if issubclass(error, Exception) else error):
            steps()
    bench.finish_step()
    assert {answer.finish_reason for answer in bench.answers.values()} == {"error"}
    bench.check_idle()
    with pytest.raises(EngineDead, match="half-way"):
        bench.engine.step()


@pytest.mark.parametrize("call", ["admit", "grow"])
@pytest.mark.parametrize("is_half_done", [False, True])
def test_t11_h5_a_fault_at_one_sequences_pages_is_its_own_unless_the_books_have_changed(
    call: str, is_half_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(num_pages=64)
    names = [bench.submit([5 + i] * 9, n=1, max_tokens=20, seed=i, temperature=0.8, ignore_eos=True) for i in range(8)]
    bench.step()
    names.append(bench.submit([20] * 9, max_tokens=6, **GREEDY))
    bad = names[8 if call == "admit" else 3]
    whole = getattr(bench.kv, call)

    def broken(seq: Sequence, *args: int, **options: int) -> bool:
        if seq.request.request_id == bad and seq.num_output_tokens in (0, 4):  # admitted; in need of a page
            if is_half_done:
                bench.kv.pool.allocate(1)
            raise MemoryError("no more")
        return whole(seq, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(bench.kv, call, broken)
        if is_half_done:
            for _ in range(8):
                bench.engine.step()
                if bench.engine.stats().num_open_requests == 0:
                    break
            with pytest.raises(EngineDead, match="no more"):
                bench.engine.step()
            return
        bench.run()
    bench.check_idle()
    assert [name for name in names if bench.answers[name, 0].finish_reason == "error"] == [bad]
    assert "no more" in str(bench.answers[bad, 0].error)
    bench.check_against_cold()


def test_the_result_of_another_step_is_refused() -> None:
    bench = Bench()
    bench.submit(PROMPT, max_tokens=3, **GREEDY)
    batch = bench.scheduler.schedule(0.0)
    assert batch is not None
    bench.runner.launch(batch)
    output = bench.runner.collect()
    bench.scheduler.update(output)
    with pytest.raises(EngineDead, match="step 1"):
        bench.scheduler.update(output)
