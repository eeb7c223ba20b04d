"""The composition root: the one place that knows concrete classes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ramet.config import EngineConfig, KVDtype, LoraConfig, SchedulerConfig
from ramet.core.ports import Drafter, Grammars
from ramet.core.request import Sequence
from ramet.core.worker import InPlace
from ramet.engine.admission import Admission, Limits
from ramet.engine.clock import MonotonicClock, ThreadClock
from ramet.engine.engine import NO_GRAMMARS, Engine
from ramet.engine.worker import WorkerThread
from ramet.errors import ConfigError, InvalidRequest
from ramet.kernels.backend import Backend, KVFormat, PackedWeight
from ramet.kernels.cpu import default_threads
from ramet.kernels.registry import make_backend
from ramet.kv.hashed import HashedCache
from ramet.kv.manager import KVManager
from ramet.kv.null import NullCache
from ramet.kv.pool import PagePool
from ramet.kv.prefix import PrefixCache
from ramet.kv.radix import RadixCache
from ramet.model.adapters import LoadedAdapters
from ramet.model.decoder import Decoder
from ramet.model.source import open_model
from ramet.model.spec import Checkpoint, ModelSpec, Progress, TextSource, silent
from ramet.model.weight_cache import load_decoder
from ramet.runner.kv_tensors import allocate_kv, kv_bytes_per_token, num_pages_for
from ramet.runner.local import LocalRunner
from ramet.schedule.drafts import Drafters
from ramet.schedule.lookup import BestGuess, PromptLookup
from ramet.schedule.policy import make_policy
from ramet.schedule.scheduler import Scheduler
from ramet.structured.compiler import GrammarCompiler, TokenTable
from ramet.structured.jump import JumpForward, Speller
from ramet.text.chat import ChatTemplate
from ramet.text.tokenizer import Tokenizer

__all__ = ["EngineParts", "TextParts", "build_engine", "build_text", "make_grammars"]

_CACHES: Mapping[str, Callable[[int], PrefixCache]] = {"radix": RadixCache, "hash": HashedCache, "none": NullCache}


@dataclass(frozen=True, slots=True)
class TextParts:
    """What an edge needs of a model besides an engine. ``tokenizer`` and ``chat_template`` are None where it has none."""

    tokenizer: Tokenizer | None
    chat_template: ChatTemplate | None
    generation_defaults: Mapping[str, Any]
    description: str


@dataclass(frozen=True, slots=True)
class EngineParts:
    """A built engine, its edge's text, and what else there is to know of it.

    ``page_bytes`` are of all layers; ``products`` as ``Decoder`` has them.
    """

    engine: Engine
    text: TextParts
    grammars: Grammars
    adapters: LoadedAdapters
    spec: ModelSpec
    eos_ids: frozenset[int]
    page_size: int
    page_bytes: int
    kv_dtype: KVFormat
    backend: Backend
    products: Mapping[str, PackedWeight]


def build_text(checkpoint: Checkpoint) -> TextParts:
    """The text side alone, without weights: what a server in front of an engine process needs."""
    clock = MonotonicClock()
    tokenizer, chat_template = _text(checkpoint.text, clock)
    return TextParts(tokenizer, chat_template, checkpoint.generation_defaults, checkpoint.description)


def build_engine(config: EngineConfig, progress: Progress = silent) -> EngineParts:
    """Fetch, load and put together. Raises ``ModelError`` and ``ConfigError``; ``progress`` is told of fetching and packing."""
    backend = make_backend("cpu", threads=config.runner.threads, isa=config.runner.isa)
    checkpoint = open_model(config.model, progress)
    spec = checkpoint.spec
    max_model_len = _context_length(config.model.max_model_len, spec.max_position)
    text = build_text(checkpoint)

    page_size, kv_dtype = config.cache.page_size, _kv_dtype(config.cache.kv_cache_dtype, checkpoint)
    token_bytes = kv_bytes_per_token(spec.num_layers, spec.num_kv_heads, spec.head_dim, kv_dtype)
    num_pages = num_pages_for(config.cache, token_bytes, max_model_len)
    decoder = load_decoder(config.model, checkpoint, backend, progress)
    layers = allocate_kv(spec.num_layers, num_pages * page_size, spec.num_kv_heads, spec.head_dim, kv_dtype)
    kv = KVManager(PagePool(num_pages), _CACHES[config.cache.prefix_cache](page_size), page_size)
    eos_ids = frozenset(spec.eos_ids)
    if text.tokenizer is not None and (not eos_ids or checkpoint.text.gguf is not None):
        eos_ids |= frozenset(text.tokenizer.eos_ids)  # which knows ends that a GGUF file has no key for
    drafters = _drafters(config.scheduler, text.tokenizer, kv)
    grammars = NO_GRAMMARS if text.tokenizer is None else make_grammars(text.tokenizer, eos_ids, spec.vocab_size)
    # Measured on two cores with two threads of kernels: a third thread costs them more than it takes off their way.
    layers_worker = WorkerThread("ramet-layers") if default_threads() > backend.threads else InPlace()
    adapters = _adapters(config.lora, decoder)
    clock, limits = MonotonicClock(), Limits.of(spec.vocab_size, max_model_len, kv.fits)
    engine = Engine(
        runner=LocalRunner(decoder, backend, layers, page_size, layers_worker, adapters),
        scheduler=Scheduler(config.scheduler, kv, make_policy(config.scheduler.schedule_policy, kv), drafters),
        kv=kv,
        clock=clock,
        admission=Admission(limits, eos_ids, clock, config.seed),
        grammars=grammars,
        adapters=adapters,
    )
    return EngineParts(
        engine, text, grammars, adapters, spec, eos_ids, page_size, page_size * token_bytes, kv_dtype, backend, decoder.products
    )


def _adapters(config: LoraConfig, decoder: Decoder) -> LoadedAdapters:
    """Those of the start. Raises ``ConfigError`` where one cannot be had by its name, ``ModelError`` by its file."""
    found = LoadedAdapters(
        decoder.spec,
        decoder.adapter,
        WorkerThread("ramet-adapters"),
        roots=config.lora_root,
        max_adapters=config.max_loras,
        max_rank=config.max_lora_rank,
    )
    for name, path in config.modules:
        try:
            found.open_anywhere(name, path)
        except InvalidRequest as error:
            raise ConfigError(f"{error} (--lora-modules)") from None
    return found


def make_grammars(tokenizer: Tokenizer, eos_ids: Iterable[int], vocab_size: int) -> GrammarCompiler:
    """What holds outputs to a grammar: in an engine, and in a server in front of one, which refuses what the engine would.

    Reads the whole vocabulary: 0.2 s for 49,000 tokens. ``vocab_size`` is the model's, which may be longer than the tokenizer's.
    """
    ids = range(tokenizer.vocab_size)
    pieces = [tokenizer.token_bytes(token_id) for token_id in ids]
    table = TokenTable(pieces, frozenset(filter(tokenizer.is_special, ids)), frozenset(eos_ids), vocab_size)
    return GrammarCompiler(table, WorkerThread("ramet-grammars"))


def _drafters(config: SchedulerConfig, tokenizer: Tokenizer | None, kv: KVManager) -> Drafters:
    """Who guesses for a sequence: its grammar, where it has one, and where it is asked for, text that is there."""
    kinds: list[Drafters] = []
    if tokenizer is not None and config.jump_forward == "on":
        speller = Speller(partial(_encode_bytes, tokenizer), tokenizer.token_bytes)
        kinds.append(Drafters(lambda seq: JumpForward(seq, seq.matcher, speller) if seq.matcher else None, speller.forget))
    if config.speculative == "ngram":
        kinds.append(Drafters(lambda seq: PromptLookup(seq, config.num_speculative_tokens, kv.continuation)))

    def make(seq: Sequence) -> Drafter | None:
        made = [one for kind in kinds if (one := kind.make(seq)) is not None]
        return BestGuess(*made) if len(made) == 2 else made[0] if made else None

    def forget() -> None:
        for kind in kinds:
            kind.forget()

    return Drafters(make, forget)


def _encode_bytes(tokenizer: Tokenizer, text: bytes) -> list[int]:
    """Tokens of the whole characters at the beginning."""
    try:
        return tokenizer.encode(text.decode(), add_special_tokens=False, parse_special=False)
    except UnicodeDecodeError as error:
        return _encode_bytes(tokenizer, text[: error.start]) if error.start else []


def _context_length(asked: int | None, model_limit: int) -> int:
    if asked is not None and asked > model_limit:
        raise ConfigError(
            f"max_model_len {asked} is over the model's own {model_limit}, beyond which it was not trained (--max-model-len)"
        )
    return asked or model_limit


def _kv_dtype(asked: KVDtype, checkpoint: Checkpoint) -> KVFormat:
    if asked != "auto":
        return asked
    return "float32" if checkpoint.dtype == "float32" else "bfloat16"


def _text(source: TextSource, clock: MonotonicClock) -> tuple[Tokenizer | None, ChatTemplate | None]:
    if source.tokenizer_file is not None:
        tokenizer = Tokenizer.from_file(source.tokenizer_file, source.tokenizer_config)
        tokenizer.try_patterns(ThreadClock())
    elif source.gguf is not None:
        tokenizer = Tokenizer.from_gguf(source.gguf)
    else:
        return None, None
    if not source.chat_templates:
        return tokenizer, None
    template = ChatTemplate(
        source.chat_templates,
        tokenizer.bos_token,
        tokenizer.eos_token,
        clock=clock,
        strftime_now=time.strftime,
        guards=tokenizer.guards,
    )
    return tokenizer, template
