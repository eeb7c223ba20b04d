"""The KV memory: how much there may be, and the arrays."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from ramet.config import CacheConfig
from ramet.errors import ConfigError
from ramet.kernels.backend import KV_SCALE_BYTES, KVFormat, KVLayer

__all__ = ["allocate_kv", "default_kv_bytes", "free_bytes", "kv_bytes_per_token", "memory_limit", "num_pages_for"]

_ITEM_TYPES: Mapping[KVFormat, np.dtype[np.generic]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(np.uint16),
    "int8": np.dtype(np.int8),
}
_MAX_DEFAULT_BYTES = 4 << 30
_MAX_SLOTS = 2**31 - 1  # slots are int32
_NO_LIMIT = 1 << 60  # cgroup v1 writes "none" as a number near 2**63


def allocate_kv(num_layers: int, num_slots: int, num_kv_heads: int, head_dim: int, dtype: KVFormat) -> list[KVLayer]:
    """Keys and values of each layer, as ``KVLayer`` says.

    The contents are undefined and large arrays cost memory only page by page, as slots are first written. Raises ``ConfigError``
    where the system refuses.
    """
    shape = (num_slots, num_kv_heads, _row_items(head_dim, dtype))
    item_type = _ITEM_TYPES[dtype]
    try:
        return [KVLayer(np.empty(shape, item_type), np.empty(shape, item_type)) for _ in range(num_layers)]
    except MemoryError as error:
        num_bytes = num_slots * kv_bytes_per_token(num_layers, num_kv_heads, head_dim, dtype)
        raise ConfigError(f"the system refused {_shown(num_bytes)} of KV memory; ask for less (--kv-cache-memory)") from error


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, dtype: KVFormat) -> int:
    """Bytes that one token's keys and values take, all layers together."""
    return 2 * num_layers * num_kv_heads * _row_items(head_dim, dtype) * _ITEM_TYPES[dtype].itemsize


def _row_items(head_dim: int, dtype: KVFormat) -> int:
    return head_dim + KV_SCALE_BYTES if dtype == "int8" else head_dim


def num_pages_for(config: CacheConfig, bytes_per_token: int, max_model_len: int) -> int:
    """Pages of the pool: what ``kv_cache_memory``, ``mem_fraction`` or the default hold, at most ``max_total_tokens``.

    A pool smaller than the context is fine: requests are held against it. Raises ``ConfigError``, with the numbers, for
    more memory than is free and for less than one page.
    """
    num_bytes = _pool_bytes(config)
    page_bytes = bytes_per_token * config.page_size
    num_pages = min(num_bytes // page_bytes, _MAX_SLOTS // config.page_size)
    if num_pages < 1:
        raise ConfigError(
            f"{_shown(num_bytes)} of KV memory hold no page: one of {config.page_size} tokens takes {_shown(page_bytes)}, "
            f"a whole context of {max_model_len} tokens {_shown(bytes_per_token * max_model_len)} "
            "(--kv-cache-memory, --mem-fraction, --page-size)"
        )
    if config.max_total_tokens is None:
        return num_pages
    if config.max_total_tokens < config.page_size:
        raise ConfigError(
            f"max_total_tokens {config.max_total_tokens} is less than one page of {config.page_size} tokens "
            "(--max-total-tokens, --page-size)"
        )
    return min(num_pages, config.max_total_tokens // config.page_size)


def default_kv_bytes() -> int:
    """A quarter of the memory free for this process, at most 4 GiB."""
    return min(free_bytes() // 4, _MAX_DEFAULT_BYTES)


def _pool_bytes(config: CacheConfig) -> int:
    if config.mem_fraction is not None:
        return int(free_bytes() * config.mem_fraction)
    return default_kv_bytes() if config.kv_cache_memory is None else _granted(int(config.kv_cache_memory))


def _granted(num_bytes: int) -> int:
    free = free_bytes()
    if num_bytes > free:
        raise ConfigError(
            f"kv_cache_memory {_shown(num_bytes)} is more than the {_shown(free)} that are free for this process "
            "(--kv-cache-memory)"
        )
    return num_bytes


def free_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that this process may still take: MemAvailable, or what is left under the tightest cgroup limit (v1 or v2).

    Elsewhere than on Linux, half of the physical memory. The two paths are parameters for tests alone.
    """
    try:
        available = _fields(proc / "meminfo", ":")["MemAvailable"] * 1024
    except (OSError, KeyError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return max(0, min([available, *_left_in_cgroups(proc, cgroups)]))


def memory_limit(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes of the tightest cgroup limit over this process; None where there is none. The paths are parameters for tests."""
    limits = (_limit_in(folder, names[0]) for folder, names in _memory_cgroups(proc, cgroups))
    return min((limit for limit in limits if limit is not None), default=None)


def _left_in_cgroups(proc: Path, cgroups: Path) -> Iterator[int]:
    """Limit minus usage of each memory cgroup, reclaimable file pages not counted."""
    for folder, names in _memory_cgroups(proc, cgroups):
        left = _left_in(folder, *names)
        if left is not None:
            yield left


def _memory_cgroups(proc: Path, cgroups: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """Folders of the memory cgroups from this process's own up to the root; with each, the names of its files."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            names, root = ("memory.max", "memory.current", "inactive_file"), cgroups
        elif "memory" in controllers.split(","):
            names, root = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"), cgroups / "memory"
        else:
            continue
        own = root / path.lstrip("/")  # in a container the path may be the host's: then only the root exists
        for folder in (own, *own.parents):
            yield folder, names
            if folder == root:
                break


def _left_in(folder: Path, limit_name: str, usage_name: str, reclaimable_name: str) -> int | None:
    try:
        limit = _limit_in(folder, limit_name)
        if limit is None:
            return None
        usage = int((folder / usage_name).read_text())
        return limit - usage + _fields(folder / "memory.stat", " ").get(reclaimable_name, 0)
    except (OSError, ValueError):
        return None


def _limit_in(folder: Path, limit_name: str) -> int | None:
    try:
        limit = (folder / limit_name).read_text().strip()
        return None if limit == "max" or int(limit) >= _NO_LIMIT else int(limit)
    except (OSError, ValueError):
        return None


def _fields(path: Path, separator: str) -> dict[str, int]:
    """``name<separator> number`` lines of a file of the kernel's."""
    pairs = (line.split(separator, 1) for line in path.read_text().splitlines())
    return {name: int(rest.split()[0]) for name, rest in pairs}


def _shown(num_bytes: int) -> str:
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if num_bytes >= 1 << shift:
            return f"{num_bytes / (1 << shift):.4g} {unit}"
    return f"{num_bytes} bytes"
