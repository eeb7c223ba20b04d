"""A drafter that knows the answer, and is wrong now and then on purpose: every way for a guess to hold or to fail comes up."""

from __future__ import annotations

from collections.abc import Callable

from ramet.core.ports import Draft
from ramet.core.request import Sequence
from ramet.schedule.drafts import Drafters

MOST = 5


class Oracle:
    """Guesses for ``seq``, whose output will be ``expected``. Two of three proposals are right to their end."""

    def __init__(self, seq: Sequence, expected: list[int], vocab_size: int) -> None:
        self._seq = seq
        self._expected = expected
        self._vocab_size = vocab_size
        self.num_right = self.num_wrong = 0

    def propose(self, most: int, least: float) -> list[Draft]:
        assert most > 0
        assert 0 < least < 1
        done = self._seq.num_output_tokens
        drafts = self._expected[done : done + min(most, MOST)]
        if drafts and (done + self._seq.seq_id) % 3 == 0:
            drafts[done % len(drafts)] = (drafts[done % len(drafts)] + 1) % self._vocab_size
        return [Draft(token_id, 0.99) for token_id in drafts]

    def learn(self, num_proposed: int, token_ids: list[int]) -> None:
        num_held = max(0, len(token_ids) - 1)
        assert num_held <= num_proposed
        self.num_right += num_held
        self.num_wrong += num_proposed - num_held


def oracles(answers: Callable[[Sequence], list[int]], vocab_size: int) -> Drafters:
    """They look each sequence's output up."""
    return Drafters(lambda seq: Oracle(seq, answers(seq), vocab_size))
