"""Where each sequence stands: it waits, it runs, or it follows another one whose prompt is its own."""

from __future__ import annotations

from bisect import bisect_left, insort

from ramet.core.ids import SeqId
from ramet.core.request import Sequence, SequenceState
from ramet.schedule.policy import rank

__all__ = ["Queues"]


class Queues:
    """All sequences that are not finished. Each is known, and in one list unless it is on its way to another.

    ``running`` and ``waiting`` are by rank, so that the last one that runs is the victim and one that was preempted stands before
    all that arrived after it. Followers wait for their leader's prompt, to be forked from it; all have its tokens.
    """

    def __init__(self) -> None:
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self._known: dict[SeqId, Sequence] = {}
        self._followers: dict[SeqId, list[Sequence]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def all(self) -> list[Sequence]:
        return list(self._known.values())

    def get(self, seq_id: SeqId) -> Sequence | None:
        return self._known.get(seq_id)

    def know(self, seq: Sequence) -> None:
        self._known[seq.seq_id] = seq

    def wait(self, seq: Sequence) -> None:
        seq.state = SequenceState.WAITING
        insort(self.waiting, seq, key=rank)

    def follow(self, seq: Sequence, leader: Sequence) -> None:
        """Wait until ``leader``'s prompt is computed and nothing of it is in flight."""
        seq.parent_id = leader.seq_id
        self._followers.setdefault(leader.seq_id, []).append(seq)

    def run(self, seq: Sequence) -> None:
        seq.state = SequenceState.RUNNING
        insort(self.running, seq, key=rank)

    def put_back(self, seq: Sequence) -> None:
        """It ran, and waits again."""
        _remove(self.running, seq)
        self.wait(seq)

    def no_longer_wait(self, seqs: list[Sequence]) -> None:
        for seq in seqs:
            _remove(self.waiting, seq)

    def forget(self, seq: Sequence) -> None:
        """It is finished. An heir takes its followers over."""
        if seq.state is SequenceState.RUNNING:
            _remove(self.running, seq)
        elif seq.parent_id is not None and seq in self._followers.get(seq.parent_id, ()):
            self._followers[seq.parent_id].remove(seq)
        else:
            _remove(self.waiting, seq)
        seq.state = SequenceState.FINISHED
        del self._known[seq.seq_id]
        if followers := self.take_followers(seq):
            heir, *others = followers
            heir.parent_id = None
            self.wait(heir)
            for other in others:
                self.follow(other, heir)

    def forget_all(self) -> list[Sequence]:
        """They end together, and it is not asked where they stood: they may have been on their way from list to list."""
        ended = self.all()
        for seqs in (self.running, self.waiting, self._followers, self._known):
            seqs.clear()
        for seq in ended:
            seq.state = SequenceState.FINISHED
        return ended

    def take_followers(self, leader: Sequence) -> list[Sequence]:
        """Those that need not wait for it any longer."""
        followers = self._followers.pop(leader.seq_id, [])
        for seq in followers:
            if seq.request is leader.request:
                seq.num_prompt_logprobs = leader.num_prompt_logprobs  # a request's are told once
        return followers


def _remove(seqs: list[Sequence], seq: Sequence) -> None:
    """Take ``seq`` out of a list that is kept by rank."""
    del seqs[bisect_left(seqs, rank(seq), key=rank)]
