"""The fake runner must notice what the engine's tests rely on it to notice."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from support.engines import VOCAB_SIZE, built

from ramet.core.batch import Batch, PageCopies
from ramet.core.ids import IntBuffer
from ramet.core.request import Request, Sequence
from ramet.core.sampling import SamplingParams
from ramet.errors import EngineDead
from ramet.runner.fake import FakeRunner, StepCost, VirtualClock
from ramet.schedule.build import Chunk

TOKENS = [10, 11, 12, 13, 14, 15, 16]
NO_COPIES = PageCopies(*(np.empty(0, np.int32),) * 3)


def sequence(seq_id: int, tokens: list[int], pages: list[int]) -> Sequence:
    params = SamplingParams(temperature=0.0, logprobs=3)
    request = Request(f"r{seq_id}", np.array(tokens, np.int32), params, seed=1, max_tokens=4)
    return Sequence(seq_id, request, tokens=IntBuffer(tokens), num_prompt_tokens=len(tokens), pages=IntBuffer(pages))


def runner() -> FakeRunner:
    return FakeRunner(VOCAB_SIZE, page_size=4, num_pages=8, clock=VirtualClock())


def logprobs_of(one: FakeRunner, batch: Batch) -> tuple[float, ...]:
    one.launch(batch)
    (found,) = one.collect().logprobs
    assert found is not None
    return found.logprob, *found.top_logprobs.tolist()


def whole(tokens: list[int], pages: list[int]) -> Batch:
    return built(1, 4, [Chunk(sequence(1, tokens, pages), 0, len(tokens), True)], NO_COPIES)


def tail(start: int, pages: list[int], copies: PageCopies = NO_COPIES) -> Batch:
    return built(2, 4, [Chunk(sequence(2, TOKENS, pages), start, len(TOKENS) - start, True)], copies)


def copies(*rows: tuple[int, int, int]) -> PageCopies:
    src, dst, num_tokens = np.array(rows, np.int32).T
    return PageCopies(src, dst, num_tokens)


COLD = logprobs_of(runner(), whole(TOKENS, [0, 1]))


def test_neither_pages_nor_chunks_change_the_answer() -> None:
    assert logprobs_of(runner(), whole(TOKENS, [6, 2])) == COLD
    for cut in range(1, len(TOKENS)):
        one = runner()
        one.launch(built(1, 4, [Chunk(sequence(1, TOKENS, [3, 5]), 0, cut, False)], NO_COPIES))
        one.collect()
        assert logprobs_of(one, tail(cut, [3, 5])) == COLD


@pytest.mark.parametrize("place", range(len(TOKENS)))
def test_every_token_of_the_history_counts(place: int) -> None:
    other = [*TOKENS[:place], 40, *TOKENS[place + 1 :]]
    assert logprobs_of(runner(), whole(other, [0, 1])) != COLD


def test_a_page_of_other_tokens_or_never_filled_changes_the_answer() -> None:
    for first_page in ([40, 41, 42, 43], [10, 40, 12, 13], []):
        one = runner()
        if first_page:
            logprobs_of(one, whole(first_page, [0]))
        assert logprobs_of(one, tail(4, [0, 1])) != COLD


def test_copies_are_done_in_order_before_the_step() -> None:
    one = runner()
    logprobs_of(one, whole(TOKENS, [0, 1]))
    assert logprobs_of(one, tail(6, [0, 2])) != COLD, "the copy is missing"
    assert logprobs_of(one, tail(6, [0, 3], copies((1, 3, 2)))) == COLD
    assert logprobs_of(one, tail(6, [0, 5], copies((1, 4, 2), (4, 5, 2)))) == COLD
    assert logprobs_of(one, tail(6, [0, 7], copies((4, 7, 1)))) != COLD, "a token short"


def test_broken_batches_are_refused() -> None:
    good = tail(0, [0, 1])
    shared = built(
        1, 4, [Chunk(sequence(1, TOKENS, [0, 1]), 0, 7, True), Chunk(sequence(2, TOKENS, [0, 2]), 4, 3, True)], NO_COPIES
    )
    for bad, why in (
        (msgspec.structs.replace(good, slots=good.slots[::-1].copy()), "a slot is not"),
        (msgspec.structs.replace(good, positions=good.positions + np.int32(1)), "positions"),
        (shared, "page 0 is written while sequence 2 sees it"),
    ):
        one = runner()
        one.launch(bad)
        with pytest.raises(EngineDead, match=why):
            one.collect()


def test_time_is_virtual_and_follows_the_cost() -> None:
    clock = VirtualClock()
    one = FakeRunner(VOCAB_SIZE, 4, 8, clock, StepCost(step_s=1.0, token_s=0.5, context_token_s=0.25))
    one.launch(whole(TOKENS, [0, 1]))
    assert clock.now() == 0.0
    one.collect()
    assert clock.now() == 1.0 + 7 * 0.5 + 7 * 0.25
