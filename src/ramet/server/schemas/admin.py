"""What the endpoints about the server itself take and give."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from ramet.core.adapters import AdapterInfo
from ramet.engine.engine import EngineStats

__all__ = [
    "AbortRequest",
    "Aborted",
    "AdapterLoaded",
    "AdapterUnloaded",
    "EngineInfo",
    "FlushRequest",
    "Flushed",
    "Health",
    "LoadAdapterRequest",
    "Model",
    "Models",
    "ServerInfo",
    "UnloadAdapterRequest",
    "Version",
    "Welcome",
]


class Welcome(msgspec.Struct, kw_only=True):
    """What this is, for whoever opens the address in a browser."""

    name: str
    about: str
    endpoints: list[str]


class Health(msgspec.Struct):
    status: str


class Version(msgspec.Struct):
    version: str


class Model(msgspec.Struct, kw_only=True):
    """``created`` is Unix time; ``parent`` the model that an adapter is for."""

    id: str
    created: int
    max_model_len: int
    parent: str | UnsetType = UNSET
    object: str = "model"
    owned_by: str = "ramet"


class Models(msgspec.Struct, kw_only=True):
    data: list[Model]
    object: str = "list"


class EngineInfo(msgspec.Struct, kw_only=True):
    """What an engine that has been ready said of itself, and its last numbers."""

    max_model_len: int
    max_total_tokens: int
    vocab_size: int
    num_pages: int
    page_size: int
    page_bytes: int
    threads: int
    isa: str
    adapters: list[AdapterInfo]
    stats: EngineStats | None


class ServerInfo(msgspec.Struct, kw_only=True):
    """``config`` has the server's options that hold no secret and no path; of keys, whether there are any."""

    version: str
    model: str
    created: int
    state: str
    num_engine_starts: int
    num_open_requests: int
    num_waiting_requests: int
    engine: EngineInfo | None
    config: dict[str, str | int | float | bool | tuple[str, ...]]


class FlushRequest(msgspec.Struct, kw_only=True):
    force: bool = False


class Flushed(msgspec.Struct, kw_only=True):
    num_pages: int
    success: bool = True


class AbortRequest(msgspec.Struct, kw_only=True, rename={"names": "rid"}):
    """``names`` or ``request_id``: ids by which requests were sent, or the server's own for them."""

    names: str | list[str] | None = None
    request_id: str | list[str] | None = None
    abort_all: bool = False


class Aborted(msgspec.Struct, kw_only=True):
    num_aborted: int


class LoadAdapterRequest(msgspec.Struct, kw_only=True):
    """vLLM's. ``lora_path`` is under a folder of --lora-root: from there, or whole."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False


class UnloadAdapterRequest(msgspec.Struct, kw_only=True):
    lora_name: str


class AdapterLoaded(msgspec.Struct, kw_only=True):
    id: str
    parent: str
    success: bool = True


class AdapterUnloaded(msgspec.Struct, kw_only=True):
    id: str
    success: bool = True
