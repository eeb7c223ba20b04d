"""Packed weights kept on disk, so that the next start reads instead of converting.

They are known by a hash of the weights' own bytes and shape, of what they are converted to, and of the versions of conversion and
of the kernels' layout. To hash 6 GB takes seconds, so the hash is noted under the model files' identity (device, inode, size,
times); not where one was changed in the last two seconds, as its time may not tell of the next change.

A disk that is full, or a file that is damaged, costs time and a line in the log.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import time
from importlib.metadata import version
from pathlib import Path

from ramet.config import ModelConfig
from ramet.kernels.backend import Backend, PackedWeight, PieceBackend
from ramet.model.decoder import Decoder
from ramet.model.demo import cache_folder
from ramet.model.quant import CONVERSION_VERSION
from ramet.model.spec import Checkpoint, Progress, silent
from ramet.model.weight_file import DamagedWeights, WeightReader, WeightWriter
from ramet.model.weight_folder import NewFile, OwnFolder

__all__ = ["load_decoder"]

_log = logging.getLogger("ramet.model")

_HASH = re.compile("[0-9a-f]{64}")
_SETTLED_NS = 2 * 10**9
_NOT_KEPT = "packed weights of %s are not kept: %s"


def load_decoder(config: ModelConfig, checkpoint: Checkpoint, backend: Backend, progress: Progress = silent) -> Decoder:
    """The model on the backend, its packed weights from the cache where there is one and it has them.

    Raises ``ModelError``; ``ConfigError`` where the cache's folder is not safe to use.
    """
    if config.weight_cache is None or not isinstance(backend, PieceBackend):
        return Decoder(checkpoint, backend, progress)
    path = cache_folder() / "weights" if config.weight_cache == "auto" else Path(config.weight_cache).expanduser()
    with OwnFolder(path, int(config.weight_cache_size)) as folder:
        sources = _Sources(config, checkpoint)
        key = _key(folder, sources, backend, progress)
        try:
            with folder.reading(key) as fd, WeightReader(fd, key, backend) as store:
                return Decoder(checkpoint, backend, progress, store)
        except FileNotFoundError:
            pass
        except (DamagedWeights, OSError) as error:
            _log.warning("packed weights of %s are made anew: %s", checkpoint.description, error)
            folder.delete(key)
        with contextlib.ExitStack() as stack:
            try:
                new = stack.enter_context(folder.writing(key))
            except OSError as error:
                _log.warning(_NOT_KEPT, checkpoint.description, error)
                return Decoder(checkpoint, backend, progress)
            writer = _AsFarAsItGoes(sources, WeightWriter(new.fd, key, backend, new.room))
            decoder = Decoder(checkpoint, backend, progress, writer)
            writer.finish(new)
            return decoder


class _AsFarAsItGoes:
    """A ``WeightWriter`` that gives up, saying so, where it cannot write."""

    doing = "packing weights"

    def __init__(self, sources: _Sources, writer: WeightWriter) -> None:
        self._sources = sources
        self._writer: WeightWriter | None = writer

    def get(self, name: str, shape: tuple[int, int]) -> None:
        return None

    def put(self, name: str, weight: PackedWeight) -> None:
        if self._writer is not None:
            try:
                self._writer.put(name, weight)
            except OSError as error:
                self._give_up(error)

    def finish(self, new: NewFile) -> None:
        if self._writer is None:
            return
        if not self._sources.are_unchanged():
            self._give_up("the model's files were changed while they were read")
            return
        try:
            self._writer.finish()
            new.keep()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, why: OSError | str) -> None:
        self._writer = None
        _log.warning(_NOT_KEPT, self._sources.checkpoint.description, why)


class _Sources:
    """The files that a checkpoint is read from, as they were at first."""

    def __init__(self, config: ModelConfig, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._paths = checkpoint.tensors.files()
        self._seen = [_identity(path) for path in self._paths]
        self._seen_at_ns = time.time_ns()
        what = f"{self._seen} {config.dtype} {config.quantization} {checkpoint.spec} {version('ramet')}"
        self.name = hashlib.sha256(what.encode()).hexdigest()

    def are_settled(self) -> bool:
        """Whether any change since would show."""
        return all(max(one[3:]) < self._seen_at_ns - _SETTLED_NS for one in self._seen)

    def are_unchanged(self) -> bool:
        return [_identity(path) for path in self._paths] == self._seen


def _identity(path: Path) -> tuple[int, ...]:
    """Device, inode, size, times of change of bytes and of anything; zeros where it is gone."""
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0, 0, 0, 0)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _key(folder: OwnFolder, sources: _Sources, backend: PieceBackend, progress: Progress) -> str:
    """Under what the packed weights are kept."""
    fingerprint = folder.note(sources.name)
    if fingerprint is None or not _HASH.fullmatch(
        fingerprint
    ):  # a crash leaves empty files, all alike: of no model are they a hash
        progress("hashing weights", 0, 0)
        fingerprint = sources.checkpoint.fingerprint()
        progress("hashing weights", 1, 1)
        if sources.are_settled() and sources.are_unchanged():
            try:
                folder.leave_note(sources.name, fingerprint)
            except OSError as error:
                _log.warning("the hash of %s is not kept: %s", sources.checkpoint.description, error)
    what = f"{fingerprint} {backend.layout} {CONVERSION_VERSION} {version('ramet')}"
    return hashlib.sha256(what.encode()).hexdigest()
