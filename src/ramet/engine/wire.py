"""What crosses between a server and its engine: commands down, events up, as msgpack.

Every message is plain data of declared types: decoding checks them and can run no code. The engine checks a request again, by the
same rules as its server, so nothing here is trusted for its values.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeAlias, get_args

import msgspec
import numpy as np

from ramet.config import EngineConfig
from ramet.core.adapters import AdapterInfo
from ramet.core.output import SequenceUpdate
from ramet.core.request import Namespace, Request
from ramet.core.sampling import SamplingParams
from ramet.engine.admission import Limits
from ramet.engine.engine import EngineStats
from ramet.errors import EngineDead

__all__ = [
    "BEAT_S",
    "Abort",
    "AbortSequence",
    "AdapterChange",
    "Beat",
    "Command",
    "Event",
    "Failed",
    "Flush",
    "Flushed",
    "Frames",
    "LoadAdapter",
    "Loading",
    "Ready",
    "Refused",
    "Start",
    "Step",
    "Submit",
    "UnloadAdapter",
    "decode_command",
    "decode_event",
    "frame",
]

BEAT_S = 1.0
_MAX_FRAME_BYTES = 1 << 30  # either side ends the connection over it
_LENGTH_BYTES = 4


class Start(msgspec.Struct, tag=True, frozen=True):
    """The first command: build the engine."""

    config: EngineConfig


class Submit(msgspec.Struct, tag=True, frozen=True):
    """A request: ``prompt`` is int32 bytes, ``sampling`` the parameters that are not at their defaults, the seed among them."""

    request_id: str
    prompt: bytes
    sampling: dict[str, Any]
    namespace: Namespace
    priority: int
    arrival_s: float

    @classmethod
    def of(cls, request: Request) -> Submit:
        sampling = {
            f.name: getattr(request.sampling, f.name)
            for f in fields(SamplingParams)
            if getattr(request.sampling, f.name) != f.default
        }
        return cls(
            request_id=request.request_id,
            prompt=request.prompt.tobytes(),
            sampling=sampling | {"seed": request.seed},
            namespace=request.namespace,
            priority=request.priority,
            arrival_s=request.arrival_s,
        )


class Abort(msgspec.Struct, tag=True, frozen=True):
    """End a request early."""

    request_id: str


class AbortSequence(msgspec.Struct, tag=True, frozen=True):
    """End one of a request's sequences early: its stop string has come."""

    seq_id: int


class Flush(msgspec.Struct, tag=True, frozen=True):
    """Forget all cached KV and all habits; answered by ``Flushed`` of the same number."""

    number: int
    force: bool


class LoadAdapter(msgspec.Struct, tag=True, frozen=True):
    """Read an adapter, and let requests name it; answered by ``AdapterChange`` of the same number, when that has been done."""

    number: int
    name: str
    path: str
    replaces: bool = False


class UnloadAdapter(msgspec.Struct, tag=True, frozen=True):
    """Let no further request name an adapter; answered likewise."""

    number: int
    name: str


Command: TypeAlias = Start | Submit | Abort | AbortSequence | Flush | LoadAdapter | UnloadAdapter


class Loading(msgspec.Struct, tag=True, frozen=True):
    """Progress of a start."""

    what: str
    done: int
    total: int


class Ready(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """The engine takes requests, within ``limits``. The rest is for people: sizes of the pool in pages, of a page in bytes."""

    limits: Limits
    eos_ids: tuple[int, ...]
    num_pages: int
    page_size: int
    page_bytes: int
    threads: int
    isa: str
    adapters: tuple[AdapterInfo, ...] = ()


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The engine cannot be built from its configuration, or has met its end; the last event. ``trace`` is of a defect."""

    message: str
    trace: str = ""


class Refused(msgspec.Struct, tag=True, frozen=True):
    """A request that the engine did not take after all: by the caller's fault, which only the engine could see, or a defect."""

    request_id: str
    message: str
    is_callers_fault: bool = False


class Flushed(msgspec.Struct, tag=True, frozen=True):
    """How many pages a flush freed, or why there was none."""

    number: int
    num_pages: int
    error: str | None = None


class AdapterChange(msgspec.Struct, tag=True, frozen=True):
    """The adapters that requests may name now, or why nothing was changed. ``is_unknown``: what was named is not there."""

    number: int
    adapters: tuple[AdapterInfo, ...]
    error: str | None = None
    is_unknown: bool = False


class Beat(msgspec.Struct, tag=True, frozen=True):
    """The engine's process runs, whatever it computes. There is one each ``BEAT_S``."""


class Step(msgspec.Struct, tag=True, frozen=True):
    """All the news of a turn, and the engine's numbers after it."""

    updates: list[SequenceUpdate]
    stats: EngineStats


Event: TypeAlias = Loading | Ready | Failed | Refused | Flushed | AdapterChange | Beat | Step


def _array_bytes(array: object) -> bytes:
    """An array as its bytes: its type is the field's, which msgspec knows on the other side."""
    if isinstance(array, np.ndarray) and array.dtype in (np.int32, np.float32):
        return array.tobytes()
    raise NotImplementedError(f"{type(array).__name__} on the engine's wire")


def _array_of(kind: Any, data: bytes) -> np.ndarray:
    """``kind`` is ``Int32`` or ``Float32``."""
    _, dtype = get_args(kind)
    return np.frombuffer(data, get_args(dtype)[0])


_encoder = msgspec.msgpack.Encoder(enc_hook=_array_bytes)
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_event = msgspec.msgpack.Decoder(Event, dec_hook=_array_of).decode


def frame(message: Command | Event) -> bytes:
    """A message as it goes on the wire: its length, then itself."""
    body = _encoder.encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "little") + body


class Frames:
    """Takes what a stream gives, in pieces of any size, and gives whole message bodies."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that ``data`` completes. Raises ``EngineDead`` on an absurd length."""
        self._buffer += data
        found = []
        start = 0
        while len(self._buffer) - start >= _LENGTH_BYTES:
            size = int.from_bytes(self._buffer[start : start + _LENGTH_BYTES], "little")
            if size > _MAX_FRAME_BYTES:
                raise EngineDead(f"a message of {size:,} bytes on the engine's wire")
            end = start + _LENGTH_BYTES + size
            if len(self._buffer) < end:
                break
            found.append(bytes(self._buffer[start + _LENGTH_BYTES : end]))
            start = end
        del self._buffer[:start]
        return found
