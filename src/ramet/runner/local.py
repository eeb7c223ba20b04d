"""The runner of this process: batches computed one after another."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from ramet.core.batch import NO_MASKS, Batch, RowSampling
from ramet.core.ids import Float32, Int32, UInt32
from ramet.core.output import StepOutput, TokenLogprobs
from ramet.core.ports import Pending, Worker
from ramet.core.worker import InPlace
from ramet.errors import EngineDead
from ramet.kernels.backend import Backend, KVLayer
from ramet.kernels.program import NO_ADAPTERS, Adapter, Adapters
from ramet.runner.inputs import check_batch
from ramet.runner.sampler import sample, token_logprobs

__all__ = ["LocalRunner", "Model"]

_SLAB_ROWS = 64  # rows of logits in memory at a time: 64 * V floats, 37 MiB for a vocabulary of 150,000
_FEW_TOKENS = 512  # whose logits are sooner done one by one than all together
_NO_ROWS = np.empty((0, 0), np.float32)
_NONE_LOADED: Mapping[int, Adapter] = MappingProxyType({})


class Model(Protocol):
    """What the runner needs of a decoder."""

    def forward(self, batch: Batch, kv_layers: Sequence[KVLayer], rows: Int32, adapters: Adapters = NO_ADAPTERS) -> Float32:
        """Write the batch's keys and values; give these rows as they are before the final norm, float32[len(rows), H]."""
        ...

    def next_logits(self, batch: Batch, kv_layers: Sequence[KVLayer], adapters: Adapters) -> Float32:
        """``logits`` of ``forward`` of a small batch's sampled rows, in one go."""
        ...

    def logits(self, hidden: Float32, wanted: UInt32 | None = None) -> Float32:
        """Final norm and output projection of float32[R, H]: float32[R, V].

        ``wanted`` uint32[R, W] are bits of the tokens that are wanted of each row, where not all are.
        """
        ...


class LocalRunner:
    """``Runner`` over a decoder, a backend and KV memory.

    Where there are masks to be made ``worker`` computes the layers, on a thread of its own if the kernels leave a core free, so
    that the caller can make them meanwhile; ``collect`` then chooses. Any other batch is computed in ``launch``: to do it
    later would gain nothing. Steps touch the KV memory in the order of their launch either way.
    """

    def __init__(
        self,
        decoder: Model,
        backend: Backend,
        kv_layers: Sequence[KVLayer],
        page_size: int,
        worker: Worker | None = None,
        adapters: Mapping[int, Adapter] = _NONE_LOADED,
    ) -> None:
        self._decoder = decoder
        self._backend = backend
        self._kv_layers = kv_layers
        self._page_size = page_size
        self._num_pages = len(kv_layers[0].keys) // page_size
        self._worker = worker or InPlace()
        self._adapters = adapters
        self._launched: deque[tuple[Batch, Pending[Float32]]] = deque()

    def launch(self, batch: Batch) -> None:
        """Start a step. Raises ``EngineDead`` where the batch or the computation as a whole is broken."""
        check_batch(batch, self._page_size, self._num_pages)
        is_behind = bool(self._launched) and not self._launched[-1][1].done()
        worker = self._worker if is_behind or batch.sampling.mask_indptr[-1] else InPlace()
        try:
            adapters = self._adapters_of(batch)  # held from now on: those of sequences that run are all there
        except Exception as error:
            raise _dead(batch, error) from error
        self._launched.append((batch, worker.start(partial(self._computed, batch, adapters))))

    def collect(self, masks: UInt32 = NO_MASKS) -> StepOutput:
        """The oldest launched step's result. Raises ``EngineDead`` where none is launched or its computation is broken."""
        if not self._launched:
            raise EngineDead("collect was called with no step launched")
        batch, computed = self._launched.popleft()
        try:
            return self._choose(batch, computed.result(), masks)
        except EngineDead:
            raise
        except Exception as error:
            raise _dead(batch, error) from error

    def _adapters_of(self, batch: Batch) -> Adapters:
        if not len(batch.adapters) or not batch.adapters.any():
            return NO_ADAPTERS
        generations, of_seqs = np.unique(np.append(batch.adapters, np.int32(0)), return_inverse=True)
        loaded = tuple(self._adapters[int(generation)] for generation in generations[1:])
        return Adapters(loaded, np.repeat(of_seqs[:-1].astype(np.int32), np.diff(batch.query_indptr)))

    def _computed(self, batch: Batch, adapters: Adapters) -> Float32:
        """The logits of a small batch where tokens are chosen and no more. Of any other the wanted rows before the final norm:
        those of prompt logprobs, then those where a token is chosen.
        """
        try:
            if len(batch.page_copies):
                self._backend.copy_pages(self._kv_layers, batch.page_copies, self._page_size)
            if _is_plain(batch):
                return self._decoder.next_logits(batch, self._kv_layers, adapters)
            wanted = batch.sample_rows
            if len(batch.prompt_logprob_rows):
                wanted = np.concatenate([batch.prompt_logprob_rows, wanted])
            return self._decoder.forward(batch, self._kv_layers, wanted, adapters) if batch.num_tokens else _NO_ROWS
        except EngineDead:
            raise
        except Exception as error:
            raise _dead(batch, error) from error

    def _choose(self, batch: Batch, computed: Float32, masks: UInt32) -> StepOutput:
        prompt_logprobs: tuple[TokenLogprobs, ...] = ()
        if _is_plain(batch):
            choices = sample(self._backend, computed, batch.sampling, range(len(computed)))
        else:
            num_prompt_rows = len(batch.prompt_logprob_rows)
            prompt_logprobs = tuple(self._prompt_logprobs(computed[:num_prompt_rows], batch))
            sampling = msgspec.structs.replace(batch.sampling, masks=masks)
            choices = [
                choice
                for logits, rows in self._choice_logits(computed[num_prompt_rows:], sampling)
                for choice in sample(self._backend, logits, sampling, rows)
            ]
        return StepOutput(
            step=batch.step,
            token_ids=tuple([choice.token_id for choice in choices]),
            logprobs=tuple([choice.logprobs for choice in choices]),
            prompt_logprobs=prompt_logprobs,
            errors={row: choice.error for row, choice in enumerate(choices) if choice.error is not None},
        )

    def _choice_logits(self, hidden: Float32, sampling: RowSampling) -> Iterator[tuple[Float32, range]]:
        """Logits of the rows where a token is chosen, a slab at a time. Where a mask leaves few tokens only theirs are computed:
        forced text leaves the ways to cut it, and the output projection is a fifth of a small model.
        """
        is_sparse, masks = _sparse_rows(sampling)
        for start in range(0, len(hidden), _SLAB_ROWS):
            places = range(start, min(start + _SLAB_ROWS, len(hidden)))
            rows, sparse = hidden[places.start : places.stop], is_sparse[places.start : places.stop]
            if not sparse.any():
                yield self._decoder.logits(rows), places
                continue
            wanted = masks[sampling.mask_indptr[places.start : places.stop][sparse]]
            few = self._decoder.logits(rows[sparse], wanted)
            if not sparse.all():
                some, few = few, np.empty((len(rows), few.shape[1]), np.float32)
                few[sparse], few[~sparse] = some, self._decoder.logits(rows[~sparse])
            yield few, places

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


def _is_plain(batch: Batch) -> bool:
    """Whether all that is wanted of it is a token for each sampled row, of few tokens, without masks: most steps by far.

    Each time Python has its turn between two runs of the kernels it finds the caches full of weights: so there is one run.
    """
    has_masks = batch.sampling.mask_indptr[-1] > 0
    return 0 < len(batch.sample_rows) <= batch.num_tokens <= _SLAB_ROWS and not (has_masks or len(batch.prompt_logprob_rows))


def _sparse_rows(sampling: RowSampling) -> tuple[npt.NDArray[np.bool_], UInt32]:
    """Which rows have a mask of few tokens, and are not asked for logprobs, which are of all; and the masks."""
    has_mask = np.diff(sampling.mask_indptr) == 1
    if not has_mask.any():
        return has_mask, sampling.masks
    counts = np.bitwise_count(sampling.masks).sum(axis=1, dtype=np.int64)
    is_sparse = has_mask & (sampling.num_logprobs < 0)
    is_sparse[has_mask] &= counts <= _FEW_TOKENS
    return is_sparse, sampling.masks


def _dead(batch: Batch, error: Exception) -> EngineDead:
    """What to raise of whatever failed in a step: it is the engine's end."""
    return EngineDead(f"step {batch.step} could not be computed: {type(error).__name__}: {error}")
