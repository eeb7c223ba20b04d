"""What has become of the sequences since the engine last asked."""

from __future__ import annotations

from ramet.core.output import SequenceUpdate, TokenLogprobs
from ramet.core.request import Sequence

__all__ = ["News"]


class News:
    """Updates in the order in which they happened."""

    def __init__(self) -> None:
        self._updates: list[SequenceUpdate] = []

    def __len__(self) -> int:
        return len(self._updates)

    def add(
        self,
        seq: Sequence,
        new_token_ids: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprobs, ...] = (),
        prompt_logprobs: tuple[TokenLogprobs, ...] = (),
        stop_token_id: int | None = None,
        error: str | None = None,
    ) -> None:
        """How ``seq`` stands now, and what is new of it."""
        request = seq.request
        self._updates.append(
            SequenceUpdate(
                request.request_id,
                seq.seq_id,
                seq.index,
                new_token_ids,
                logprobs,
                prompt_logprobs,
                seq.num_cached_tokens or 0,
                seq.started_s,
                seq.finish_reason,
                stop_token_id,
                error or seq.error,
            )
        )

    def take(self) -> list[SequenceUpdate]:
        """All of them; none is left."""
        updates, self._updates = self._updates, []
        return updates
