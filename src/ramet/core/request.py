"""What the caller asks (``Request``) and one line of tokens that answers it (``Sequence``)."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from ramet.core.ids import Float32, Int32, IntBuffer, RequestId, SeqId
from ramet.core.sampling import SamplingParams

if TYPE_CHECKING:
    from ramet.core.ports import CacheLock, Drafter, Matcher

__all__ = ["FinishReason", "Namespace", "Request", "Sequence", "SequenceState"]

FinishReason = Literal["stop", "length", "abort", "error"]


class Namespace(NamedTuple):
    """Who may share KV with whom: typed fields, compared as a whole, never joined into a string.

    ``salt`` is what the request brings, ``adapter`` the LoRA name, ``generation`` the number of the load that it stands for,
    ``tenant`` whose key it came with. A tuple, because every lookup in a cache hashes it.
    """

    salt: str = ""
    adapter: str = ""
    generation: int = 0
    tenant: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One validated request; immutable.

    ``prompt`` is int32[n], n >= 1. ``seed`` is never None here: the engine draws one where the caller gave none. ``max_tokens``
    is resolved against the context. ``stop_ids`` end the output (EOS ids unless ignored, and the caller's) and are banned
    until ``min_tokens`` of it are there. ``allowed_ids``, ``bias_ids`` and ``bias_values`` are what ``sampling`` says, as arrays
    made once: they may be as long as the vocabulary, and each step needs them.
    """

    request_id: RequestId
    prompt: Int32
    sampling: SamplingParams
    seed: int
    max_tokens: int
    stop_ids: frozenset[int] = frozenset()
    namespace: Namespace = Namespace()
    priority: int = 0
    arrival_s: float = 0.0
    allowed_ids: Int32 = field(init=False, repr=False)
    bias_ids: Int32 = field(init=False, repr=False)
    bias_values: Float32 = field(init=False, repr=False)

    def __post_init__(self) -> None:
        bias = self.sampling.logit_bias or {}
        object.__setattr__(self, "allowed_ids", np.array(self.sampling.allowed_token_ids or (), np.int32))
        object.__setattr__(self, "bias_ids", np.array(list(bias), np.int32))
        object.__setattr__(self, "bias_values", np.array(list(bias.values()), np.float32))


class SequenceState(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """One line of tokens. Only ``Scheduler`` changes its state, only ``KVManager`` its pages and lock.

    Invariants, S being the page size (checked by ``kv.audit``):

    * I1 ``lock.num_pages * S <= num_computed_tokens <= len(tokens)``
    * I2 ``len(pages) * S >= num_computed_tokens + num_in_flight_tokens``
    * I3 ``pages[:lock.num_pages]`` belong to the cache, the rest to this sequence alone
    * I4 FINISHED and nothing in flight => no pages, no lock
    """

    seq_id: SeqId
    request: Request
    index: int = 0
    parent_id: SeqId | None = None
    tokens: IntBuffer = field(default_factory=IntBuffer)
    num_prompt_tokens: int = 0
    num_computed_tokens: int = 0
    num_in_flight_tokens: int = 0
    num_cached_tokens: int | None = None  # None until first admitted; fixed from then on
    num_prompt_logprobs: int = 0  # prompt positions whose logprobs have been given out
    num_preemptions: int = 0
    started_s: float | None = None  # when it first began to run
    pages: IntBuffer = field(default_factory=IntBuffer)
    lock: CacheLock | None = None
    matcher: Matcher | None = None  # where it stands in its grammar, all its output tokens accepted
    drafter: Drafter | None = None
    state: SequenceState = SequenceState.WAITING
    finish_reason: FinishReason | None = None
    error: str | None = None  # why it finished so, where that is "error"

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_remaining_tokens(self) -> int:
        """Tokens known but without KV, those in flight not counted."""
        return len(self.tokens) - self.num_computed_tokens - self.num_in_flight_tokens

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None
