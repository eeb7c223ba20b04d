"""Adapters as the engine knows them: names, and the load that each name stands for just now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ramet.core.ports import Pending
from ramet.core.request import Namespace
from ramet.errors import UnknownAdapter

__all__ = ["NO_ADAPTER_STORE", "AdapterInfo", "AdapterStore", "Fetched"]


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """An adapter that requests may name. ``generation`` counts loads, from 1: no two loads of an engine have one number, whatever
    their names. ``rank`` is its largest; ``num_bytes`` what it holds of memory.
    """

    name: str
    generation: int
    rank: int
    num_bytes: int


class Fetched(Protocol):
    """An adapter that has been read, and has no name yet that requests could use."""

    @property
    def name(self) -> str: ...


class AdapterStore(Protocol):
    """The adapters of an engine. One thread calls all of it.

    A load is known by its generation, which is a request's from its admission to its end: what is unloaded, or loaded anew under
    the same name, goes on to serve those that run, and is let go with the last of them.
    """

    def fetch(self, name: str, path: str) -> Pending[Fetched]:
        """Begin to read an adapter; serving goes on meanwhile. Its result raises ``InvalidRequest`` (``UnknownAdapter`` where
        there is none that may be read) and ``ModelError``.
        """
        ...

    def add(self, fetched: Fetched, *, replaces: bool = False) -> AdapterInfo:
        """Let requests name it. ``replaces``: instead of the one that has its name. Raises ``InvalidRequest``."""
        ...

    def remove(self, name: str) -> None:
        """No new request may name it. Raises ``UnknownAdapter``."""
        ...

    def listed(self) -> tuple[AdapterInfo, ...]:
        """Those that requests may name, in the order of their loads."""
        ...

    def resolve(self, namespace: Namespace) -> Namespace:
        """The namespace with the generation that its adapter has now. Raises ``UnknownAdapter``."""
        ...

    def hold(self, namespace: Namespace) -> None:
        """Keep the load of a resolved namespace until ``release`` has been called as often."""
        ...

    def release(self, namespace: Namespace) -> None: ...


class _NoStore:
    """``AdapterStore`` of an engine without a model to adapt: it takes namespaces as they are."""

    def fetch(self, name: str, path: str) -> Pending[Fetched]:
        raise UnknownAdapter("this engine has no model that an adapter could be for", "lora_path")

    def add(self, fetched: Fetched, *, replaces: bool = False) -> AdapterInfo:
        raise UnknownAdapter("this engine has no model that an adapter could be for", "lora_name")

    def remove(self, name: str) -> None:
        raise UnknownAdapter("this engine has no adapters", "lora_name")

    def listed(self) -> tuple[AdapterInfo, ...]:
        return ()

    def resolve(self, namespace: Namespace) -> Namespace:
        return namespace

    def hold(self, namespace: Namespace) -> None:
        pass

    def release(self, namespace: Namespace) -> None:
        pass


NO_ADAPTER_STORE = _NoStore()
