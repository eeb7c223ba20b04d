"""The adapters of one engine: found, read, laid out, and known by the number of their load until the last request has done."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

from ramet.core.adapters import AdapterInfo, Fetched
from ramet.core.ports import Pending, Worker
from ramet.core.request import Namespace
from ramet.errors import InvalidRequest, ModelError, UnknownAdapter, shown
from ramet.kernels.program import Adapter
from ramet.model.lora import read_lora
from ramet.model.spec import LoraMatrix, ModelSpec

__all__ = ["LoadedAdapters", "check_adapter_name"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
_MAX_NAME_CHARS = 128
_MAX_PATH_CHARS = 1024


def check_adapter_name(name: object) -> str:
    """Raise ``InvalidRequest`` where a text is no name for an adapter: a colon parts it from the model's, and it is no path."""
    if not isinstance(name, str) or len(name) > _MAX_NAME_CHARS or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"an adapter's name is of letters, digits and . _ - /, up to {_MAX_NAME_CHARS} of them, not {shown(name)}",
            "lora_name",
        )
    return name


@dataclass(frozen=True, slots=True, eq=False)
class _Read:
    """``Fetched``."""

    name: str
    adapter: Adapter
    rank: int


@dataclass(slots=True, eq=False)
class _Load:
    info: AdapterInfo
    adapter: Adapter
    num_holders: int = 0


class LoadedAdapters(Mapping[int, Adapter]):
    """``AdapterStore``, and as a mapping the adapters that a batch may have, by their generations.

    ``lay_out`` makes matrices the model's own (``Decoder.adapter``); ``worker`` reads beside the engine. What is fetched lies
    under one of ``roots``, links followed; ``open_anywhere`` is for who started it.
    """

    def __init__(
        self,
        spec: ModelSpec,
        lay_out: Callable[[Mapping[str, LoraMatrix]], Adapter],
        worker: Worker,
        *,
        roots: Sequence[str] = (),
        max_adapters: int,
        max_rank: int,
    ) -> None:
        self._spec = spec
        self._lay_out = lay_out
        self._worker = worker
        named = [Path(root).expanduser().absolute() for root in roots]
        self._roots = [(root, root.resolve()) for root in named]
        self._max_adapters = max_adapters
        self._max_rank = max_rank
        self._by_name: dict[str, int] = {}
        self._loads: dict[int, _Load] = {}
        self._num_loads = 0

    def __getitem__(self, generation: int) -> Adapter:
        return self._loads[generation].adapter

    def __iter__(self) -> Iterator[int]:
        return iter(self._loads)

    def __len__(self) -> int:
        return len(self._loads)

    # ---- AdapterStore

    def fetch(self, name: str, path: str) -> Pending[Fetched]:
        check_adapter_name(name)
        return self._worker.start(partial(self._fetch, name, path))

    def open_anywhere(self, name: str, path: str, *, replaces: bool = False) -> AdapterInfo:
        """Load what the owner of this process names, wherever it lies. Raises as ``fetch`` and ``add`` do."""
        check_adapter_name(name)
        where = Path(path).expanduser()
        if not where.exists():
            raise ModelError(f"there is no adapter at {shown(path, 200)}")
        return self.add(self._read(name, where, Path), replaces=replaces)

    def add(self, fetched: Fetched, *, replaces: bool = False) -> AdapterInfo:
        read = cast(_Read, fetched)
        name = read.name
        if name in self._by_name and not replaces:
            raise InvalidRequest(
                f"adapter {name} is loaded already; unload it first, or send load_inplace to put this one in its place",
                "lora_name",
            )
        if name not in self._by_name and len(self._by_name) >= self._max_adapters:
            raise InvalidRequest(
                f"{len(self._by_name)} adapters are loaded, and no more may be (--max-loras); unload one first", "lora_name"
            )
        if name in self._by_name:
            self.remove(name)
        self._num_loads += 1
        info = AdapterInfo(name, self._num_loads, read.rank, read.adapter.nbytes)
        self._by_name[name] = info.generation
        self._loads[info.generation] = _Load(info, read.adapter)
        return info

    def remove(self, name: str) -> None:
        if name not in self._by_name:
            raise _unknown(name)
        self._let_go(self._by_name.pop(name))

    def listed(self) -> tuple[AdapterInfo, ...]:
        return tuple(self._loads[generation].info for generation in sorted(self._by_name.values()))

    def resolve(self, namespace: Namespace) -> Namespace:
        if not namespace.adapter:
            return namespace
        if namespace.adapter not in self._by_name:
            raise _unknown(namespace.adapter)
        return namespace._replace(generation=self._by_name[namespace.adapter])

    def hold(self, namespace: Namespace) -> None:
        if namespace.adapter:
            self._loads[namespace.generation].num_holders += 1

    def release(self, namespace: Namespace) -> None:
        if namespace.adapter:
            self._loads[namespace.generation].num_holders -= 1
            self._let_go(namespace.generation)

    # ---- inside

    def _let_go(self, generation: int) -> None:
        """Forget a load that nobody can name and nobody holds."""
        load = self._loads[generation]
        if not load.num_holders and self._by_name.get(load.info.name) != generation:
            del self._loads[generation]

    def _fetch(self, name: str, path: str) -> _Read:
        where, root = self._find(path)
        return self._read(name, where, partial(_inside, root=root))

    def _read(self, name: str, where: Path, allow: Callable[[Path], Path]) -> _Read:
        lora = read_lora(where, self._spec, self._max_rank, allow)
        return _Read(name, self._lay_out(lora.matrices), lora.rank)

    def _find(self, path: str) -> tuple[Path, Path]:
        """Where an adapter lies, and under which root. Nothing outside the roots is opened, or as much as looked up by its own
        name (T31).
        """
        if not self._roots:
            raise UnknownAdapter("adapters are loaded from folders named at the start, and none is (--lora-root)", "lora_path")
        if 0 < len(path) <= _MAX_PATH_CHARS and path.isprintable() and not path.startswith("~") and ".." not in Path(path).parts:
            for named, root in self._roots:
                asked = named / path  # an absolute path stays itself
                if not (asked.is_relative_to(named) or asked.is_relative_to(root)):
                    continue
                where = Path(os.path.realpath(asked))
                if where.is_relative_to(root) and where != root and where.exists():
                    return where, root
        raise UnknownAdapter(f"there is no adapter {shown(path, 100)} under the folders of --lora-root", "lora_path")


def _inside(path: Path, root: Path) -> Path:
    """A file of an adapter, links followed to their end, which is under the root too."""
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(root):
        raise UnknownAdapter(f"{path.name} of the adapter leads out of the folders of --lora-root", "lora_path")
    return real


def _unknown(name: str) -> UnknownAdapter:
    return UnknownAdapter(f"no adapter {shown(name, 100)} is loaded (--lora-modules loads some at the start)", "model")
