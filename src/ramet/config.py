"""Start-up options: frozen, validated, and the one home of their help texts (the command line is made from them)."""

from __future__ import annotations

import re
from dataclasses import MISSING, dataclass, field, fields
from ipaddress import ip_address
from typing import Any, Literal, Self, get_args

from ramet.errors import ConfigError, shown

__all__ = [
    "CacheConfig",
    "EngineConfig",
    "LoraConfig",
    "ModelConfig",
    "RunnerConfig",
    "SchedulerConfig",
    "ServerConfig",
    "is_key",
    "parse_size",
]

Dtype = Literal["auto", "float32", "float16", "bfloat16"]
Quantization = Literal["int8", "int4"]
PrefixCacheKind = Literal["radix", "hash", "none"]
PolicyName = Literal["fcfs", "longest-prefix"]
DraftKind = Literal["none", "ngram"]
Switch = Literal["on", "off"]
KVDtype = Literal["auto", "float32", "bfloat16", "int8"]
MetricNames = Literal["vllm", "sglang"]
LogLevel = Literal["error", "warning", "info", "debug"]
ToolCallParser = Literal[
    "auto", "none", "hermes", "qwen3_coder", "llama3_json", "pythonic", "mistral", "granite", "phi4_mini_json", "deepseek_v3",
    "deepseek_v31", "kimi_k2", "glm45", "gpt_oss", "json", "lfm2", "hunyuan_a13b", "olmo3", "internlm",
    "seed_oss", "minimax_m2", "deepseek_v32", "deepseek_v4", "functiongemma", "gemma4",
]  # fmt: skip
ReasoningParser = Literal["auto", "none", "deepseek_r1", "qwen3"]

_POLICY_ALIASES = {"lpm": "longest-prefix"}
_PARSER_ALIASES = {  # other engines' names for the same
    "qwen": "hermes", "qwen25": "hermes", "qwen3": "hermes", "llama3": "llama3_json", "llama4_json": "llama3_json",
    "llama4_pythonic": "pythonic", "qwen3_xml": "qwen3_coder", "xlam": "json",
    "deepseekv3": "deepseek_v3", "deepseekv31": "deepseek_v31", "glm": "glm45", "glm47": "glm45", "gpt-oss": "gpt_oss",
    "openai": "gpt_oss", "jamba": "hunyuan_a13b", "minimax": "hunyuan_a13b",
    "interns1": "internlm", "deepseekv32": "deepseek_v32", "deepseekv4": "deepseek_v4", "minimax-m2": "minimax_m2",
    "granite4": "hermes", "mimo": "qwen3_coder", "step3p5": "qwen3_coder",
}  # fmt: skip
_MAX_FRACTION = 0.95


def _option(default: Any, text: str, more: str = "", *, unset: str = "", secret: bool = False) -> Any:
    """A field: ``text`` has to fit a line of ``--help`` beside the default, ``more`` is what that line has no room for.

    ``unset`` says what the option comes to where its default is None. A ``secret`` is in no repr.
    """
    return field(default=default, repr=not secret, metadata={"help": text, "more": more, "unset": unset})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    model: str | None = _option(
        None,
        "file, folder or Hugging Face id",
        "A .gguf file, a folder with config.json and safetensors, organisation/name, or organisation/name/file.gguf; MODEL "
        "without a flag is the same.",
        unset="demo model",
    )
    revision: str | None = _option(None, "commit, tag or branch on the hub", unset="main")
    offline: bool = _option(
        False, "nothing is asked of the hub", "Models that it has are taken as they are cached; also HF_HUB_OFFLINE=1."
    )
    dtype: Dtype = _option("auto", "type of weights in memory", "auto (as stored), float32, float16 or bfloat16.")
    quantization: Quantization | None = _option(None, "int8 or int4 weights", unset="as stored")
    weight_cache: str | None = _option(
        None,
        "folder of packed weights",
        "What weights are converted to is kept there, for a faster next start; auto is a folder of Ramet's own cache.",
        unset="none",
    )
    weight_cache_size: int | str = _option("20GiB", "limit of that folder", "The least used weights are deleted.")
    max_model_len: int | None = _option(
        None, "context length in tokens", "Longer prompts are refused, never cut.", unset="model's"
    )

    def __post_init__(self) -> None:
        _text("model", self.model)
        _text("revision", self.revision)
        _text("weight_cache", self.weight_cache)
        if self.weight_cache == "":  # to Path, the folder that the process is in
            raise ConfigError(
                "weight_cache is a folder or auto, not an empty text; leave it out to keep nothing (--weight-cache)"
            )
        object.__setattr__(self, "weight_cache_size", parse_size(self.weight_cache_size, "weight_cache_size"))
        if not isinstance(self.offline, bool):
            raise ConfigError(f"offline is True or False, not {shown(self.offline)} (--offline)")
        _one_of("dtype", self.dtype, get_args(Dtype))
        _one_of("quantization", self.quantization, (None, *get_args(Quantization)))
        _at_least("max_model_len", self.max_model_len, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    page_size: int = _option(16, "tokens a page, 1 to 128", "What is reused, stored and evicted is whole pages of the KV pool.")
    prefix_cache: PrefixCacheKind = _option(
        "radix", "radix, hash or none", "What finds reusable KV: radix is a tree, hash is chained hashes; none computes all."
    )
    kv_cache_memory: int | str | None = _option(
        None, "KV pool, e.g. 2GiB", "Left out, it is a quarter of the free memory, at most 4 GiB.", unset="1/4 of free"
    )
    mem_fraction: float | None = _option(
        None, "KV pool as a share of free memory", f"Over 0, up to {_MAX_FRACTION}; instead of --kv-cache-memory."
    )
    max_total_tokens: int | None = _option(None, "limit on tokens in the pool")
    kv_cache_dtype: KVDtype = _option(
        "auto",
        "float32, bfloat16 or int8",
        "Type of keys and values in the pool; auto is float32 for float32 weights, else bfloat16. int8 holds twice the tokens.",
    )

    def __post_init__(self) -> None:
        if not _is_whole(self.page_size) or not 1 <= self.page_size <= 128:
            raise ConfigError(f"page_size is a whole number from 1 to 128, not {shown(self.page_size)} (--page-size)")
        _one_of("prefix_cache", self.prefix_cache, get_args(PrefixCacheKind))
        _one_of("kv_cache_dtype", self.kv_cache_dtype, get_args(KVDtype))
        _at_least("max_total_tokens", self.max_total_tokens, 1)
        if self.mem_fraction is not None:
            _over_zero("mem_fraction", self.mem_fraction, _MAX_FRACTION)
            if self.kv_cache_memory is not None:
                raise ConfigError(
                    f"the KV pool has one size, and both {shown(self.kv_cache_memory)} and the share {self.mem_fraction} of the "
                    "free memory were given; leave one out (--kv-cache-memory, --mem-fraction)"
                )
        if self.kv_cache_memory is not None:
            object.__setattr__(self, "kv_cache_memory", parse_size(self.kv_cache_memory, "kv_cache_memory"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    schedule_policy: PolicyName = _option(
        "fcfs", "order of waiting requests", "fcfs, or longest-prefix (also lpm): the most cached tokens first."
    )
    max_running_seqs: int = _option(64, "sequences running at once")
    max_batch_tokens: int = _option(2048, "tokens computed in a step")
    chunked_prefill_size: int | None = _option(
        256, "prompt tokens a step", "Of one prompt; of all together while answers are being written, which wait for them."
    )
    jump_forward: Switch = _option(
        "on", "forced text at once", "Text that a grammar forces is verified in one step, not token by token; no answer changes."
    )
    speculative: DraftKind = _option(
        "none",
        "guesses: none or ngram",
        "ngram guesses from what stands in the prompt or in the cache; no answer changes, only speed.",
    )
    num_speculative_tokens: int = _option(8, "guesses in a row", "Of ngram, for one sequence and step, at most.")
    max_queued_requests: int = _option(
        1024, "most waiting requests", "Further ones are refused, with status 429 and when to retry."
    )

    def __post_init__(self) -> None:
        policy = self.schedule_policy
        object.__setattr__(self, "schedule_policy", _POLICY_ALIASES.get(policy, policy) if isinstance(policy, str) else policy)
        _one_of("schedule_policy", self.schedule_policy, get_args(PolicyName))
        _at_least("chunked_prefill_size", self.chunked_prefill_size, 1)
        _one_of("jump_forward", self.jump_forward, get_args(Switch))
        _one_of("speculative", self.speculative, get_args(DraftKind))
        for name in ("max_running_seqs", "max_batch_tokens", "max_queued_requests", "num_speculative_tokens"):
            _at_least(name, getattr(self, name), 1, optional=False)
        if self.max_batch_tokens < self.max_running_seqs:
            raise ConfigError(
                f"max_batch_tokens {self.max_batch_tokens} is under max_running_seqs {self.max_running_seqs}: "
                "each running sequence needs a token a step (--max-batch-tokens, --max-running-seqs)"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerConfig:
    threads: int | None = _option(
        None,
        "threads of the kernels",
        "Left out: the cores this process is bound to, or its container's quota.",
        unset="all cores",
    )
    isa: str | None = _option(
        None, "instruction set of the kernels", "amx, avx512_bf16, avx512, avx_vnni, avx2, neon or generic.", unset="best"
    )

    def __post_init__(self) -> None:
        _at_least("threads", self.threads, 1)
        _text("isa", self.isa)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """Adapters: those that are there from the start, and what may be loaded later."""

    lora_modules: tuple[str, ...] = _option(
        (),
        "adapter as NAME=PATH; repeatable",
        "A folder as PEFT writes it, or a GGUF file. Requests name it as their model: NAME, or MODEL:NAME.",
    )
    lora_root: tuple[str, ...] = _option(
        (),
        "folder to load more from",
        "Adapters below it may be loaded while the server runs (POST /v1/load_lora_adapter); repeatable. Left out, none may.",
    )
    max_loras: int = _option(16, "adapters loaded at a time")
    max_lora_rank: int = _option(256, "largest rank of one")

    def __post_init__(self) -> None:
        object.__setattr__(self, "lora_modules", _texts("lora_modules", self.lora_modules))
        object.__setattr__(self, "lora_root", _texts("lora_root", self.lora_root))
        _at_least("max_loras", self.max_loras, 1, optional=False)
        _at_least("max_lora_rank", self.max_lora_rank, 1, optional=False, high=4096)
        names = [name for name, _ in self.modules]
        for text, name in zip(self.lora_modules, names, strict=True):
            if not name or not text.partition("=")[2]:
                raise ConfigError(f"lora_modules has {shown(text, 100)}; an adapter is NAME=PATH (--lora-modules)")
            if names.count(name) > 1:
                raise ConfigError(f"lora_modules has two adapters called {shown(name)} (--lora-modules)")

    @property
    def modules(self) -> list[tuple[str, str]]:
        """Names and paths of ``lora_modules``."""
        return [(name, path) for name, _, path in (text.partition("=") for text in self.lora_modules)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All start-up options of one engine."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    runner: RunnerConfig = field(default_factory=RunnerConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    seed: int = _option(0, "seed of requests that give none", unset="random")

    @classmethod
    def of(cls, **options: Any) -> Self:
        """From options by their own names, whichever part each belongs to; what is left out has its default."""
        kinds: dict[str, Any] = {one.name: one.default_factory for one in fields(cls) if one.default_factory is not MISSING}
        parts = {
            name: kind(**{one.name: options.pop(one.name) for one in fields(kind) if one.name in options})
            for name, kind in kinds.items()
        }
        return cls(**parts, **options)

    def __post_init__(self) -> None:
        if not _is_whole(self.seed) or not 0 <= self.seed < 2**64:
            raise ConfigError(f"seed is a whole number from 0 to 2**64 - 1, not {shown(self.seed)} (--seed)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Start-up options of the HTTP server. Pure data: ``api_key_file`` is read by the command line, into ``api_key``.

    Beyond this machine it listens only with a key, or where that is waived in words (T33). Keys are in no repr (T36).
    """

    host: str = _option("127.0.0.1", "address to listen on")
    port: int = _option(8000, "port; 0 is any free one")
    served_model_name: tuple[str, ...] = _option(
        (), "name that clients use", "What /v1/models lists and requests call the model; repeatable.", unset="its own"
    )
    api_key: tuple[str, ...] = _option(
        (),
        "key that clients send; repeatable",
        "Each key has a cache of its own. Other users of the machine can read flags; the variable, with "
        "spaces between keys, and --api-key-file they cannot.",
        secret=True,
    )
    api_key_file: str | None = _option(None, "file of such keys, one a line", "Lines that begin with # are comments.")
    admin_api_key: str | None = _option(
        None,
        "key of the admin routes",
        "Those are /server_info, /flush_cache and what loads adapters. Left out, they exist only where the server listens on "
        "this machine alone.",
        secret=True,
    )
    share_cache: bool = _option(False, "one cache for all keys", "What one caller has sent makes another's answer come sooner.")
    allowed_hosts: tuple[str, ...] = _option(
        (), "further names in Host", "Host names that requests may use besides the address; with commas between, or repeated."
    )
    allow_unauthenticated: bool = _option(
        False,
        "no key needed",
        "Lets --host be an address that others reach without --api-key: anyone who does may use the model.",
    )
    tool_call_parser: ToolCallParser = _option(
        "auto",
        "how the model calls tools",
        "auto (by the chat template), none, hermes (Qwen too), llama3_json, pythonic, mistral, deepseek_v3, glm45, others of "
        "docs/design/tools.md, or json. With a name a model whose "
        "template has no place for tools is told of them in a message.",
    )
    reasoning_parser: ReasoningParser = _option(
        "auto",
        "how the model thinks",
        "auto (by the chat template), none, qwen3 (between <think> and </think>) or deepseek_r1 (from the start to </think>).",
    )
    max_body_size: int | str = _option("4MiB", "largest request body")
    drain_timeout_s: float = _option(30.0, "seconds to finish on SIGTERM", "What still runs then is aborted.")
    metrics_compat: tuple[str, ...] = _option(
        (), "names of vllm, sglang too", "Metrics under the names of these engines as well; with commas between, or repeated."
    )
    log_requests: bool = _option(False, "write prompts to the log", "Without it no text of a request is in the log.")
    log_level: LogLevel = _option("info", "error, warning, info or debug")

    def __post_init__(self) -> None:
        _at_least("port", self.port, 0, optional=False, high=65535)
        _over_zero("drain_timeout_s", self.drain_timeout_s, 86400.0)
        _one_of("log_level", self.log_level, get_args(LogLevel))
        parser = self.tool_call_parser
        object.__setattr__(self, "tool_call_parser", _PARSER_ALIASES.get(parser, parser) if isinstance(parser, str) else parser)
        _one_of("tool_call_parser", self.tool_call_parser, get_args(ToolCallParser))
        _one_of("reasoning_parser", self.reasoning_parser, get_args(ReasoningParser))
        for name in ("share_cache", "allow_unauthenticated", "log_requests"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is True or False, not {shown(getattr(self, name))} ({_flag(name)})")
        object.__setattr__(self, "max_body_size", parse_size(self.max_body_size, "max_body_size"))
        object.__setattr__(self, "served_model_name", _texts("served_model_name", self.served_model_name))
        for name in ("allowed_hosts", "metrics_compat"):
            object.__setattr__(self, name, _texts(name, getattr(self, name), split=True))
        for name in self.metrics_compat:
            _one_of("metrics_compat", name, get_args(MetricNames))
        self._check_access()

    def _check_access(self) -> None:
        _text("api_key_file", self.api_key_file)
        keys = _keys("api_key", self.api_key)
        object.__setattr__(self, "api_key", keys)
        if self.admin_api_key is not None and _keys("admin_api_key", (self.admin_api_key,))[0] in keys:
            raise ConfigError("a key of clients is the admin key too; give admins one of their own (--admin-api-key)")
        if not isinstance(self.host, str) or not self.host or not self.host.isprintable() or " " in self.host:
            raise ConfigError(f"host is an address or a name, not {shown(self.host)} (--host)")
        if not (self.is_local or keys or self.api_key_file is not None or self.allow_unauthenticated):
            raise ConfigError(
                f"host {shown(self.host)} can be reached from other machines, and no key is set; give one (--api-key, "
                "--api-key-file, RAMET_API_KEY), or let everyone in (--allow-unauthenticated)"
            )

    @property
    def is_local(self) -> bool:
        """Whether it listens on this machine alone: ``localhost``, 127.0.0.0/8 or ::1."""
        try:
            return self.host.lower() == "localhost" or ip_address(self.host).is_loopback
        except ValueError:
            return False


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


def is_key(text: object) -> bool:
    """Whether a key can stand in a header: ASCII letters, digits and signs, at least one, and no spaces."""
    return isinstance(text, str) and text != "" and all("!" <= character <= "~" for character in text)


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


def _at_least(name: str, value: object, low: int, *, optional: bool = True, high: int = _MAX_COUNT) -> None:
    if value is None and optional:
        return
    if not _is_whole(value) or not low <= value <= high:  # type: ignore[operator]
        raise ConfigError(f"{name} is a whole number from {low} to {high}, not {shown(value)} ({_flag(name)})")


def _over_zero(name: str, value: object, high: float) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= high:
        raise ConfigError(f"{name} is a number over 0 and up to {high:g}, not {shown(value)} ({_flag(name)})")


def _texts(name: str, values: object, *, split: bool = False) -> tuple[str, ...]:
    """The texts, each once; ``split`` takes those apart that have commas in them."""
    if not isinstance(values, tuple | list) or not all(isinstance(value, str) for value in values):
        raise ConfigError(f"{name} is a list of texts, not {shown(values)} ({_flag(name)})")
    parts = [part.strip() for value in values for part in value.split(",")] if split else values
    if not all(parts):
        raise ConfigError(f"{name} has an empty text in it ({_flag(name)})")
    return tuple(dict.fromkeys(parts))


def _keys(name: str, keys: object) -> tuple[str, ...]:
    """Keys as they can stand in a header, each once. What is wrong with one is said by its number: keys are in no message."""
    if not isinstance(keys, tuple | list):
        raise ConfigError(f"{name} is a list of keys ({_flag(name)})")
    for number, key in enumerate(keys, start=1):
        if not is_key(key):
            raise ConfigError(
                f"{name} number {number} cannot stand in a header: a key is a text of ASCII letters, digits and signs "
                f"without spaces, and not empty ({_flag(name)})"
            )
    return tuple(dict.fromkeys(keys))
