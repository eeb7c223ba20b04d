"""The runner of this process: batches computed one after another."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from ramet.core.batch import NO_MASKS, Batch, RowSampling
from ramet.core.ids import Float32, Int32, UInt32
from ramet.core.output import StepOutput, TokenLogprobs
from ramet.core.ports import Pending, Worker
from ramet.core.worker import InPlace
from ramet.errors import EngineDead
from ramet.kernels.backend import Backend, Choosing, KVLayer, Picks
from ramet.kernels.program import NO_ADAPTERS, Adapter, Adapters
from ramet.runner.inputs import check_batch
from ramet.runner.sampler import Choice, choosing_of, token_logprobs, told

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

    def next_tokens(
        self, batch: Batch, kv_layers: Sequence[KVLayer], choosing: Choosing, adapters: Adapters
    ) -> tuple[Float32, Picks]:
        """``chosen`` of ``forward`` of a small batch's sampled rows, in one go."""
        ...

    def logits(self, hidden: Float32) -> Float32:
        """Final norm and output projection of float32[R, H]: float32[R, V]."""
        ...

    def chosen(self, hidden: Float32, wanted: UInt32 | None, choosing: Choosing) -> tuple[Float32, Picks]:
        """``logits``, good until the next call, and the tokens that are chosen of them.

        ``wanted`` uint32[R, W] are bits of the tokens that are wanted of each row, where not all are.
        """
        ...


class _Computed(NamedTuple):
    """What is known of a batch before its masks are: the choices where it has none, else the wanted rows before the final norm,
    those of prompt logprobs first.
    """

    hidden: Float32
    choices: list[Choice] | None = None


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
        self._launched: deque[tuple[Batch, Pending[_Computed]]] = deque()

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
            return self._output(batch, computed.result(), masks)
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

    def _computed(self, batch: Batch, adapters: Adapters) -> _Computed:
        try:
            if len(batch.page_copies):
                self._backend.copy_pages(self._kv_layers, batch.page_copies, self._page_size)
            if _is_plain(batch):
                choosing = choosing_of(batch.sampling)
                logits, picks = self._decoder.next_tokens(batch, self._kv_layers, choosing, adapters)
                return _Computed(_NO_ROWS, told(self._backend, logits, picks, choosing))
            wanted = batch.sample_rows
            if len(batch.prompt_logprob_rows):
                wanted = np.concatenate([batch.prompt_logprob_rows, wanted])
            if not batch.num_tokens:
                return _Computed(_NO_ROWS)
            return _Computed(self._decoder.forward(batch, self._kv_layers, wanted, adapters))
        except EngineDead:
            raise
        except Exception as error:
            raise _dead(batch, error) from error

    def _output(self, batch: Batch, computed: _Computed, masks: UInt32) -> StepOutput:
        prompt_logprobs: tuple[TokenLogprobs, ...] = ()
        choices = computed.choices
        if choices is None:
            num_prompt_rows = len(batch.prompt_logprob_rows)
            prompt_logprobs = tuple(self._prompt_logprobs(computed.hidden[:num_prompt_rows], batch))
            sampling = msgspec.structs.replace(batch.sampling, masks=masks)
            choices = self._choices(computed.hidden[num_prompt_rows:], sampling)
        return StepOutput(
            step=batch.step,
            token_ids=tuple([choice.token_id for choice in choices]),
            logprobs=tuple([choice.logprobs for choice in choices]),
            prompt_logprobs=prompt_logprobs,
            errors={row: choice.error for row, choice in enumerate(choices) if choice.error is not None},
        )

    def _choices(self, hidden: Float32, sampling: RowSampling) -> list[Choice]:
        """The tokens that are chosen, a slab of rows at a time. Where a mask leaves few tokens only their logits are computed:
        forced text leaves the ways to cut it, and the output projection is a fifth of a small model.
        """
        choosing = choosing_of(sampling)
        choices: dict[int, Choice] = {}
        for rows, wanted in _slabs(sampling):
            own = choosing.of(rows)
            logits, picks = self._decoder.chosen(hidden[rows], wanted, own)
            choices.update(zip(rows.tolist(), told(self._backend, logits, picks, own), strict=True))
        return [choices[row] for row in range(len(hidden))]

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


def _slabs(sampling: RowSampling) -> Iterator[tuple[Int32, UInt32 | None]]:
    """All rows: those whose mask leaves few tokens, with these masks, then the others. One that is asked for logprobs, which are
    of all tokens, is one of the others.
    """
    first_masks = sampling.mask_indptr[:-1]
    is_sparse = (np.diff(sampling.mask_indptr) == 1) & (sampling.num_logprobs < 0)
    if is_sparse.any():
        counts = np.bitwise_count(sampling.masks).sum(axis=1, dtype=np.int64)
        is_sparse[is_sparse] = counts[first_masks[is_sparse]] <= _FEW_TOKENS
    for is_in, masks in ((is_sparse, sampling.masks), (~is_sparse, None)):
        rows = np.flatnonzero(is_in).astype(np.int32)
        for start in range(0, len(rows), _SLAB_ROWS):
            own = rows[start : start + _SLAB_ROWS]
            yield own, None if masks is None else masks[first_masks[own]]


def _dead(batch: Batch, error: Exception) -> EngineDead:
    """What to raise of whatever failed in a step: it is the engine's end."""
    return EngineDead(f"step {batch.step} could not be computed: {type(error).__name__}: {error}")
