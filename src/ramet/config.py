"""Start-up options: frozen, validated, and the one home of their help texts (the command line is made from them)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from ramet.errors import ConfigError, shown

__all__ = [
    "CacheConfig",
    "EngineConfig",
    "ModelConfig",
    "RunnerConfig",
    "SchedulerConfig",
    "parse_size",
]

Dtype = Literal["auto", "float32", "float16", "bfloat16"]
Quantization = Literal["int8", "int4"]
PrefixCacheKind = Literal["radix", "hash", "none"]
PolicyName = Literal["fcfs", "longest-prefix"]
KVDtype = Literal["auto", "float32", "bfloat16"]


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    model: str | None = _option(
        None, "a .gguf file, a folder with config.json and safetensors, or a Hugging Face id; the demo model when left out"
    )
    revision: str | None = _option(None, "commit, tag or branch of a Hugging Face model")
    dtype: Dtype = _option("auto", "type of the weights in memory: auto (as stored), float32, float16, bfloat16")
    quantization: Quantization | None = _option(None, "quantise the weights while loading: int8 or int4")
    max_model_len: int | None = _option(None, "context length in tokens; the model's own when left out")

    def __post_init__(self) -> None:
        _text("model", self.model)
        _text("revision", self.revision)
        _one_of("dtype", self.dtype, get_args(Dtype))
        _one_of("quantization", self.quantization, (None, *get_args(Quantization)))
        _at_least("max_model_len", self.max_model_len, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    page_size: int = _option(16, "tokens in a page of KV memory, 1 to 128")
    prefix_cache: PrefixCacheKind = _option("radix", "what finds reusable KV: radix (a tree), hash (chained hashes) or none")
    kv_cache_memory: int | str | None = _option(
        None, "size of the KV pool, such as 2GiB; a quarter of the free memory, at most 4 GiB, when left out"
    )
    max_total_tokens: int | None = _option(None, "hard limit on tokens in the KV pool")
    kv_cache_dtype: KVDtype = _option(
        "auto", "type of keys and values: bfloat16, or float32; auto is float32 for float32 weights"
    )

    def __post_init__(self) -> None:
        if not _is_whole(self.page_size) or not 1 <= self.page_size <= 128:
            raise ConfigError(f"page_size is a whole number from 1 to 128, not {shown(self.page_size)} (--page-size)")
        _one_of("prefix_cache", self.prefix_cache, get_args(PrefixCacheKind))
        _one_of("kv_cache_dtype", self.kv_cache_dtype, get_args(KVDtype))
        _at_least("max_total_tokens", self.max_total_tokens, 1)
        if self.kv_cache_memory is not None:
            object.__setattr__(self, "kv_cache_memory", parse_size(self.kv_cache_memory, "kv_cache_memory"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    schedule_policy: PolicyName = _option("fcfs", "order of waiting requests: fcfs, or longest-prefix (most cached tokens first)")
    max_running_seqs: int = _option(64, "sequences computed at the same time")
    max_batch_tokens: int = _option(2048, "tokens computed in one step")
    chunked_prefill_size: int | None = _option(
        512, "tokens of one prompt computed in one step; no limit but the batch's when None"
    )
    max_queued_requests: int = _option(1024, "requests waiting before new ones are refused")

    def __post_init__(self) -> None:
        _one_of("schedule_policy", self.schedule_policy, get_args(PolicyName))
        _at_least("chunked_prefill_size", self.chunked_prefill_size, 1)
        for name in ("max_running_seqs", "max_batch_tokens", "max_queued_requests"):
            _at_least(name, getattr(self, name), 1, optional=False)
        if self.max_batch_tokens < self.max_running_seqs:
            raise ConfigError(
                f"max_batch_tokens {self.max_batch_tokens} is under max_running_seqs {self.max_running_seqs}: "
                "each running sequence needs a token a step (--max-batch-tokens, --max-running-seqs)"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerConfig:
    threads: int | None = _option(None, "kernel threads; the cores this process may use when left out")
    isa: str | None = _option(None, "instruction set of the kernels: avx512, avx2, neon, generic; the best one when left out")

    def __post_init__(self) -> None:
        _at_least("threads", self.threads, 1)
        _text("isa", self.isa)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All start-up options of one engine."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    runner: RunnerConfig = field(default_factory=RunnerConfig)
    seed: int = _option(0, "where seeds come from for requests that give none")

    def __post_init__(self) -> None:
        if not _is_whole(self.seed) or not 0 <= self.seed < 2**64:
            raise ConfigError(f"seed is a whole number from 0 to 2**64 - 1, not {shown(self.seed)} (--seed)")


_MAX_COUNT = 2**31  # of anything; token counts are int32 further down
_UNITS = {"": 1, "K": 10, "M": 20, "G": 30, "T": 40}
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([KMGT]?)(?:I?B)?", re.IGNORECASE)


def parse_size(text: int | str, name: str) -> int:
    """Bytes of ``2GiB``, ``512m``, ``32K`` or a plain number; every unit is a power of 1024. Raises ``ConfigError``."""
    if _is_whole(text):
        size = int(text)
    else:
        found = _SIZE.fullmatch(text.strip()) if isinstance(text, str) else None
        if found is None:
            raise ConfigError(f"{name} is a size such as 2GiB, 512m or 32K, not {shown(text)} ({_flag(name)})")
        unit = found[2].upper()
        size = int(float(found[1]) * (1 if not unit else 1 << _UNITS[unit]))
    if not 0 < size < 2**80:
        raise ConfigError(f"{name} is over 0 and under 2**80 bytes, not {shown(text)} ({_flag(name)})")
    return size


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _one_of(name: str, value: object, known: tuple[object, ...]) -> None:
    if not isinstance(value, str | None) or value not in known:
        names = ", ".join(str(k) for k in known if k is not None)
        raise ConfigError(f"{name} is one of {names}, not {shown(value)} ({_flag(name)})")


def _text(name: str, value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{name} is a text, not {shown(value)} ({_flag(name)})")


def _at_least(name: str, value: object, low: int, *, optional: bool = True) -> None:
    if value is None and optional:
        return
    if not _is_whole(value) or not low <= value <= _MAX_COUNT:  # type: ignore[operator]
        raise ConfigError(f"{name} is a whole number from {low} to {_MAX_COUNT}, not {shown(value)} ({_flag(name)})")
