"""The runner of this process: batches computed one after another on the caller's thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from ramet.core.batch import Batch
from ramet.core.ids import Float32, Int32
from ramet.core.output import StepOutput, TokenLogprobs
from ramet.errors import EngineDead
from ramet.kernels.backend import Backend, KVLayer
from ramet.runner.inputs import check_batch
from ramet.runner.sampler import sample, token_logprobs

__all__ = ["LocalRunner", "Model"]

_SLAB_ROWS = 64  # rows of logits in memory at a time: 64 * V floats, 37 MiB for a vocabulary of 150,000
_NO_IDS = np.empty(0, np.int32)


class Model(Protocol):
    """What the runner needs of a decoder."""

    def forward(self, batch: Batch, kv_layers: Sequence[KVLayer], rows: Int32) -> Float32:
        """Write the batch's keys and values; give these rows as they are before the final norm, float32[len(rows), H]."""
        ...

    def logits(self, hidden: Float32) -> Float32:
        """Final norm and output projection of float32[R, H]: float32[R, V]."""
        ...


class LocalRunner:
    """``Runner`` over a decoder, a backend and KV memory.

    ``launch`` computes the whole step before it returns, so steps touch the KV memory in the order they were launched and no
    batch is read after its ``launch``; ``collect`` hands results out in the same order. To compute later would gain nothing on
    one thread; a runner that overlaps would put the body of ``launch`` on a thread of its own and keep the rest.
    """

    def __init__(self, decoder: Model, backend: Backend, kv_layers: Sequence[KVLayer], page_size: int) -> None:
        self._decoder = decoder
        self._backend = backend
        self._kv_layers = kv_layers
        self._page_size = page_size
        self._num_pages = len(kv_layers[0].keys) // page_size
        self._done: deque[StepOutput] = deque()

    def launch(self, batch: Batch) -> None:
        """Compute a step. Raises ``EngineDead`` where the batch or the computation as a whole is broken."""
        try:
            check_batch(batch, self._page_size, self._num_pages)
            self._done.append(self._compute(batch))
        except EngineDead:
            raise
        except Exception as error:
            raise EngineDead(f"step {batch.step} could not be computed: {type(error).__name__}: {error}") from error

    def collect(self) -> StepOutput:
        """The oldest launched step's result. Raises ``EngineDead`` where none is launched."""
        if not self._done:
            raise EngineDead("collect was called with no step launched")
        return self._done.popleft()

    def _compute(self, batch: Batch) -> StepOutput:
        if len(batch.page_copies):
            self._backend.copy_pages(self._kv_layers, batch.page_copies, self._page_size)
        if batch.num_tokens == 0:
            return StepOutput(batch.step, _NO_IDS, (), (), {})
        wanted = np.concatenate([batch.prompt_logprob_rows, batch.sample_rows])
        hidden = self._decoder.forward(batch, self._kv_layers, wanted)
        num_prompt_rows = len(batch.prompt_logprob_rows)
        prompt_logprobs = tuple(self._prompt_logprobs(hidden[:num_prompt_rows], batch))
        choices = [
            choice
            for logits, rows in self._logits(hidden[num_prompt_rows:])
            for choice in sample(self._backend, logits, batch.sampling, rows)
        ]
        return StepOutput(
            step=batch.step,
            token_ids=np.array([choice.token_id for choice in choices], np.int32),
            logprobs=tuple(choice.logprobs for choice in choices),
            prompt_logprobs=prompt_logprobs,
            errors={row: choice.error for row, choice in enumerate(choices) if choice.error is not None},
        )

    def _logits(self, hidden: Float32) -> Iterator[tuple[Float32, range]]:
        """Logits of hidden rows, a slab at a time, with their places among the rows."""
        for start in range(0, len(hidden), _SLAB_ROWS):
            places = range(start, min(start + _SLAB_ROWS, len(hidden)))
            yield self._decoder.logits(hidden[places.start : places.stop]), places

    def _prompt_logprobs(self, hidden: Float32, batch: Batch) -> Iterator[TokenLogprobs]:
        """A row whose logits are not finite gives NaN and no best tokens: its sequence fails when it is sampled."""
        for logits, places in self._logits(hidden):
            wanted = slice(places.start, places.stop)
            targets, num_best = batch.prompt_logprob_targets[wanted], batch.prompt_logprob_k[wanted]
            yield from token_logprobs(self._backend, logits, targets, num_best)
