"""How much KV memory there may be, and that unused memory costs nothing."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest

import ramet.runner.kv_tensors as kv_tensors
from ramet.config import CacheConfig
from ramet.errors import ConfigError
from ramet.runner.kv_tensors import (
    allocate_kv,
    default_kv_bytes,
    free_bytes,
    kv_bytes_per_token,
    memory_limit,
    num_pages_for,
)

GIB = 1 << 30


@pytest.fixture
def free(monkeypatch):
    """Sets the memory that is free for the process."""
    monkeypatch.setattr(kv_tensors, "free_bytes", lambda: 8 * GIB)
    return lambda num_bytes: monkeypatch.setattr(kv_tensors, "free_bytes", lambda: num_bytes)


@pytest.mark.parametrize(
    ("dtype", "item_type", "row"), [("float32", np.float32, 8), ("bfloat16", np.uint16, 8), ("int8", np.int8, 12)]
)
def test_layers_have_the_stated_shape_and_size(dtype, item_type, row):
    layers = allocate_kv(3, 32, 2, 8, dtype)
    assert len(layers) == 3
    arrays = [a for layer in layers for a in (layer.keys, layer.values)]
    assert all(a.shape == (32, 2, row) and a.dtype == item_type and a.flags.c_contiguous for a in arrays)
    assert sum(a.nbytes for a in arrays) == 32 * kv_bytes_per_token(3, 2, 8, dtype)
    assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])


def test_memory_that_is_not_touched_costs_nothing():
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    if not Path("/proc/self/statm").exists():
        pytest.skip("needs /proc")
    before = resident()
    layers = allocate_kv(4, 1 << 18, 2, 64, "float32")
    assert sum(layer.keys.nbytes + layer.values.nbytes for layer in layers) == GIB
    assert resident() - before < 16 << 20
    layers[2].keys[5] = 1
    assert resident() - before < 32 << 20


def test_the_default_is_a_quarter_of_free_memory_at_most_4_gib(free):
    assert default_kv_bytes() == 2 * GIB
    free(100 * GIB)
    assert default_kv_bytes() == 4 * GIB
    free(0)
    assert default_kv_bytes() == 0


def test_pages_by_memory_and_by_tokens(free):
    assert num_pages_for(CacheConfig(page_size=16), 1024, 512) == 2 * GIB // (16 * 1024)
    assert num_pages_for(CacheConfig(page_size=16, kv_cache_memory="1MiB"), 1024, 512) == 64
    assert num_pages_for(CacheConfig(page_size=16, mem_fraction=0.5), 1024, 512) == 4 * GIB // (16 * 1024)
    assert num_pages_for(CacheConfig(page_size=10, kv_cache_memory="1MiB"), 1024, 512) == 102
    assert num_pages_for(CacheConfig(page_size=16, kv_cache_memory="1MiB", max_total_tokens=100), 1024, 512) == 6
    assert num_pages_for(CacheConfig(page_size=16, kv_cache_memory="1MiB", max_total_tokens=10**6), 1024, 512) == 64
    assert num_pages_for(CacheConfig(page_size=1, kv_cache_memory="1KiB"), 1024, 512) == 1


def test_slots_stay_within_int32(free):
    free(1 << 50)
    assert num_pages_for(CacheConfig(page_size=16, kv_cache_memory="100T"), 4, 512) * 16 < 2**31


def test_more_memory_than_is_free_is_refused_with_the_numbers(free):  # B176
    with pytest.raises(ConfigError, match=r"80 GiB.* 8 GiB .*--kv-cache-memory"):
        num_pages_for(CacheConfig(kv_cache_memory="80GiB"), 1024, 512)
    assert num_pages_for(CacheConfig(kv_cache_memory="8GiB"), 1024, 512) == 8 * GIB // (16 * 1024)


def test_ten_times_this_machine_is_refused():  # B176
    physical = int(Path("/proc/meminfo").read_text().split()[1]) * 1024 if Path("/proc/meminfo").exists() else 1 << 44
    with pytest.raises(ConfigError, match=r"more than the .* free for this process"):
        num_pages_for(CacheConfig(kv_cache_memory=10 * physical), 1024, 512)


def test_less_than_a_page_is_refused_with_the_numbers(free):  # B044
    with pytest.raises(ConfigError, match=r"15 KiB .*16 tokens takes 16 KiB.*512 tokens 512 KiB"):
        num_pages_for(CacheConfig(kv_cache_memory="15K"), 1024, 512)
    with pytest.raises(ConfigError, match=r"max_total_tokens 15 .*16 tokens.*--max-total-tokens"):
        num_pages_for(CacheConfig(max_total_tokens=15), 1024, 512)
    free(0)
    with pytest.raises(ConfigError, match="0 bytes of KV memory hold no page"):
        num_pages_for(CacheConfig(), 1024, 512)


def test_what_the_system_refuses_is_a_config_error():
    with pytest.raises(ConfigError, match=r"refused .* of KV memory.*--kv-cache-memory"):
        allocate_kv(1, 2**31 - 1, 1 << 20, 128, "float32")


# --- what is free for this process ---------------------------------------------------------------------------------------


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def free_in(root: Path, cgroup_line: str, files: dict[str, str]) -> int:
    write(root, {"proc/meminfo": "MemTotal: 16000 kB\nMemAvailable:    8000 kB\nHugePages_Total:  0"})
    write(root, {"proc/self/cgroup": cgroup_line, **{f"cgroup/{name}": text for name, text in files.items()}})
    return free_bytes(root / "proc", root / "cgroup")


AVAILABLE = 8000 * 1024


def test_without_limits_what_the_system_has(tmp_path):
    assert free_in(tmp_path, "0::/", {}) == AVAILABLE
    assert free_in(tmp_path, "0::/a", {"a/memory.max": "max", "a/memory.current": "5"}) == AVAILABLE


def test_cgroup_v2_limit_less_usage_plus_reclaimable(tmp_path):
    files = {"a/memory.max": "5000000", "a/memory.current": "3000000", "a/memory.stat": "anon 5\ninactive_file 400000"}
    assert free_in(tmp_path, "0::/a", files) == 2_400_000


def test_cgroup_v2_tightest_of_all_levels(tmp_path):
    outer = {"a/memory.max": "5000000", "a/memory.current": "4900000", "a/memory.stat": "inactive_file 0"}
    inner = {"a/b/memory.max": "4000000", "a/b/memory.current": "1000", "a/b/memory.stat": "inactive_file 0"}
    assert free_in(tmp_path, "0::/a/b", outer | inner) == 100_000


def test_cgroup_v1(tmp_path):
    files = {
        "memory/a/memory.limit_in_bytes": "5000000",
        "memory/a/memory.usage_in_bytes": "1000000",
        "memory/a/memory.stat": "inactive_file 1\ntotal_inactive_file 500",
    }
    assert free_in(tmp_path, "4:cpu,memory:/a\n0::/", files) == 4_000_500
    assert free_in(tmp_path, "4:cpuset:/a", files) == AVAILABLE


def test_cgroup_v1_in_a_container_where_only_the_root_is_seen(tmp_path):
    files = {"memory/memory.limit_in_bytes": "5000000", "memory/memory.usage_in_bytes": "1", "memory/memory.stat": "x 0"}
    assert free_in(tmp_path, "4:memory:/docker/abc", files) == 4_999_999


def test_cgroup_v1_says_no_limit_with_a_huge_number(tmp_path):
    files = {
        "memory/memory.limit_in_bytes": "9223372036854771712",
        "memory/memory.usage_in_bytes": "1",
        "memory/memory.stat": "x 0",
    }
    assert free_in(tmp_path, "4:memory:/", files) == AVAILABLE


def test_usage_over_the_limit_leaves_nothing(tmp_path):
    files = {"a/memory.max": "5", "a/memory.current": "10", "a/memory.stat": "inactive_file 0"}
    assert free_in(tmp_path, "0::/a", files) == 0


@pytest.mark.parametrize("text", ["", "lots", "-"])
def test_unreadable_limits_are_no_limits(tmp_path, text):
    assert free_in(tmp_path, "0::/a", {"a/memory.max": text, "a/memory.current": "1"}) == AVAILABLE


def test_the_limit_is_the_tightest_of_all_levels(tmp_path):
    v1 = {"memory/memory.limit_in_bytes": "9223372036854771712", "memory/a/memory.limit_in_bytes": "7000"}
    write(tmp_path, {"proc/self/cgroup": "4:memory:/a\n0::/a/b", "cgroup/a/memory.max": "5000", "cgroup/a/b/memory.max": "max"})
    assert memory_limit(tmp_path / "proc", tmp_path / "cgroup") == 5000
    write(tmp_path, {"cgroup/a/memory.max": "max", **{f"cgroup/{name}": text for name, text in v1.items()}})
    assert memory_limit(tmp_path / "proc", tmp_path / "cgroup") == 7000
    write(tmp_path, {"cgroup/memory/a/memory.limit_in_bytes": "lots"})
    assert memory_limit(tmp_path / "proc", tmp_path / "cgroup") is None
    assert memory_limit(tmp_path / "none", tmp_path / "cgroup") is None


def test_without_proc_half_of_the_physical_memory(tmp_path):
    assert free_bytes(tmp_path / "none", tmp_path) > 0


def test_this_machine():
    assert 0 < free_bytes() < 1 << 50
