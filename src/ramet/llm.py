"""The Python API: an engine in the caller's own thread."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import TracebackType
from typing import Any, Self, TypeAlias

import msgspec
from rich.console import Console
from rich.progress import Progress as ProgressBar

from ramet.config import (
    DraftKind,
    Dtype,
    EngineConfig,
    KVDtype,
    PolicyName,
    PrefixCacheKind,
    Quantization,
    Switch,
)
from ramet.core.ids import RequestId
from ramet.core.request import Namespace
from ramet.core.sampling import SamplingParams
from ramet.engine.admission import check_sampling
from ramet.engine.assemble import OutputAssembler, RequestOutput
from ramet.engine.build import EngineParts, build_engine
from ramet.engine.engine import Engine
from ramet.errors import EngineDead, InvalidRequest, shown
from ramet.interrupt import held_interrupt
from ramet.model.spec import Progress, silent
from ramet.text.chat import ChatTemplate
from ramet.text.guards import unguarded
from ramet.text.tokenizer import Tokenizer

__all__ = ["LLM", "Message", "Prompt"]

Message: TypeAlias = Mapping[str, Any]
Prompt: TypeAlias = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or vLLM's ``{"prompt": text}`` and ``{"prompt_token_ids": ids}``."""
_Encoded: TypeAlias = tuple[Sequence[int], str | None]
_Params: TypeAlias = SamplingParams | Sequence[SamplingParams] | None
_Adapters: TypeAlias = str | Sequence[str | None] | None
_BASE = Namespace()
_PROGRESS_FROM = 8  # prompts from which a bar is worth its line


class LLM:
    """A loaded model with its KV cache.

    ::

        with LLM() as llm:
            print(llm.generate("The capital of France is", SamplingParams(temperature=0))[0].outputs[0].text)

    ``model`` is a .gguf file, a folder (config.json and safetensors), a Hugging Face id, or None for the demo model. ``lora``
    are adapters by name: folders as PEFT writes them, or GGUF files; calls name the one that they want. Raises
    ``ModelError`` and ``ConfigError`` at once, ``InvalidRequest`` from the calls. One call at a time: a second thread waits.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        page_size: int = 16,
        prefix_cache: PrefixCacheKind = "radix",
        threads: int | None = None,
        chunked_prefill_size: int | None = 256,
        max_total_tokens: int | None = None,
        dtype: Dtype = "auto",
        quantization: Quantization | None = None,
        seed: int = 0,
        max_model_len: int | None = None,
        kv_cache_memory: int | str | None = None,
        mem_fraction: float | None = None,
        kv_cache_dtype: KVDtype = "auto",
        max_running_seqs: int = 64,
        max_batch_tokens: int = 2048,
        schedule_policy: PolicyName = "fcfs",
        jump_forward: Switch = "on",
        speculative: DraftKind = "none",
        num_speculative_tokens: int = 8,
        revision: str | None = None,
        offline: bool = False,
        weight_cache: str | os.PathLike[str] | None = None,
        weight_cache_size: int | str = "20GiB",
        isa: str | None = None,
        lora: Mapping[str, str | os.PathLike[str]] | None = None,
        max_loras: int = 16,
        max_lora_rank: int = 256,
        progress: Progress = silent,
    ) -> None:
        config = EngineConfig.of(
            model=os.fspath(model) if isinstance(model, os.PathLike) else model,
            page_size=page_size,
            prefix_cache=prefix_cache,
            threads=threads,
            chunked_prefill_size=chunked_prefill_size,
            max_total_tokens=max_total_tokens,
            dtype=dtype,
            quantization=quantization,
            seed=seed,
            max_model_len=max_model_len,
            kv_cache_memory=kv_cache_memory,
            mem_fraction=mem_fraction,
            kv_cache_dtype=kv_cache_dtype,
            max_running_seqs=max_running_seqs,
            max_batch_tokens=max_batch_tokens,
            max_queued_requests=2**31,  # whoever calls with a long list waits for it
            schedule_policy=schedule_policy,
            jump_forward=jump_forward,
            speculative=speculative,
            num_speculative_tokens=num_speculative_tokens,
            revision=revision,
            offline=offline,
            weight_cache=os.fspath(weight_cache) if isinstance(weight_cache, os.PathLike) else weight_cache,
            weight_cache_size=weight_cache_size,
            isa=isa,
            lora_modules=tuple(f"{name}={os.fspath(path)}" for name, path in (lora or {}).items()),
            max_loras=max_loras,
            max_lora_rank=max_lora_rank,
        )
        self._start(build_engine(config, progress))

    @classmethod
    def from_config(cls, config: EngineConfig, progress: Progress = silent) -> Self:
        """An LLM from a whole configuration, as the command line makes it."""
        return cls.from_parts(build_engine(config, progress))

    @classmethod
    def from_parts(cls, parts: EngineParts) -> Self:
        """An LLM of parts that the caller looks at too (``ramet bench``). What else steps their engine loses updates."""
        llm = cls.__new__(cls)
        llm._start(parts)
        return llm

    def _start(self, parts: EngineParts) -> None:
        self._open_parts: EngineParts | None = parts
        self._assembler = OutputAssembler(self._parts.text.tokenizer, self._engine.abort_sequence)
        self._lock = threading.RLock()
        # Requests whose caller has left. The garbage collector ends a forgotten stream wherever it likes, on any thread and in
        # the midst of a step, so leaving only notes the request down and the next turn aborts it.
        self._left: deque[RequestId] = deque()

    @property
    def _parts(self) -> EngineParts:
        if self._open_parts is None:
            raise InvalidRequest("this LLM is closed; make a new one")
        return self._open_parts

    @property
    def _engine(self) -> Engine:
        return self._parts.engine

    def __repr__(self) -> str:
        return f"<LLM {self.description}>" if self._open_parts else "<LLM, closed>"

    @property
    def description(self) -> str:
        """The model in a few words, for people."""
        return self._parts.text.description

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises ``InvalidRequest`` where the model has none."""
        if self._parts.text.tokenizer is None:
            raise InvalidRequest("this model has no tokenizer; give prompts as lists of token ids")
        return self._parts.text.tokenizer

    @property
    def chat_template(self) -> ChatTemplate:
        """Raises ``InvalidRequest`` where the model has none."""
        if self._parts.text.chat_template is None:
            raise InvalidRequest("this model has no chat template; use generate() with a prompt of your own")
        return self._parts.text.chat_template

    def default_sampling_params(self, **changes: Any) -> SamplingParams:
        """The model's own defaults (generation_config.json) with ``changes`` on top."""
        return SamplingParams(**{**self._parts.text.generation_defaults, **changes})

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        lora: _Adapters = None,
    ) -> list[RequestOutput]:
        """Complete one prompt or many (text or token ids), in the order given.

        ``params``, or by vLLM's name ``sampling_params``, are one for all or one each; without them the model's own defaults
        count. ``lora`` names the adapter of all, or one each, None being the model as it is. One bad prompt raises
        ``InvalidRequest`` before any is computed. A long list shows a bar on a terminal unless ``use_tqdm`` is False.
        """
        many = _as_list(prompts)
        sampling = self._params_for(params, sampling_params, len(many))
        return self._run([self._encoded(prompt) for prompt in many], sampling, _namespaces(lora, len(many)), with_bar=use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        lora: _Adapters = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or many, rendered by the model's chat template. Parameters as in ``generate``."""
        if not isinstance(messages, Sequence) or not messages:
            raise InvalidRequest(f"messages is a list of at least one message, not {shown(messages)}", "messages")
        chats = [messages] if isinstance(messages[0], Mapping) else list(messages)
        prompts = [self._rendered(chat, tools) for chat in chats]  # type: ignore[arg-type]
        sampling = self._params_for(params, sampling_params, len(prompts))
        return self._run(prompts, sampling, _namespaces(lora, len(prompts)))

    def stream(
        self,
        prompt: Prompt | Sequence[Message],
        params: SamplingParams | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        sampling_params: SamplingParams | None = None,
        lora: str | None = None,
    ) -> Iterator[RequestOutput]:
        """One prompt or conversation, answered piece by piece.

        Yields the same, growing ``RequestOutput`` after each step that changed it; ``outputs[i].delta`` is the text that is
        new since the last time. Leaving the loop early aborts the request. Errors are raised by the first ``next``.
        """
        if isinstance(prompt, Sequence) and len(prompt) and isinstance(prompt[0], Mapping):
            token_ids, text = self._rendered(prompt, tools)  # type: ignore[arg-type]
        else:
            token_ids, text = self._encoded(prompt)  # type: ignore[arg-type]
        [sampling] = self._params_for(params, sampling_params, 1)
        output = None
        try:
            with self._turn():
                output = self._submit(token_ids, text, sampling, *_namespaces(lora, 1))
            yield from self._progress_of(output)
        finally:
            if output is not None and not output.finished:
                self._left.append(output.request_id)

    def load_lora(self, name: str, path: str | os.PathLike[str]) -> None:
        """Load an adapter, in the place of one that has its name. Raises ``InvalidRequest`` and ``ModelError``."""
        with self._turn():
            self._parts.adapters.open_anywhere(name, os.fspath(path), replaces=True)

    def unload_lora(self, name: str) -> None:
        """Take an adapter out; requests that run with it go on. Raises ``UnknownAdapter``."""
        with self._turn():
            self._engine.adapters.remove(name)

    @property
    def loras(self) -> list[str]:
        """Names of the adapters, in the order in which they were loaded."""
        return [info.name for info in self._engine.adapters.listed()]

    def cache_stats(self) -> dict[str, int]:
        """Pages by owner, and counters of the cache: ``num_free_pages``, ``num_hit_tokens`` and so on."""
        with self._turn():
            return msgspec.structs.asdict(self._engine.stats().kv)

    def flush_cache(self) -> int:
        """Forget all cached KV, and what jump-forward has learnt of earlier answers; returns the pages freed.

        Raises ``InvalidRequest`` while requests run.
        """
        with self._turn():
            return self._engine.flush_cache()

    def close(self) -> None:
        """Abort what still runs and let the memory go. Closing twice is no error."""
        with self._turn():
            if self._open_parts is not None:
                for request_id in self._assembler.open_ids():
                    self._abort(request_id)
                self._open_parts = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _encoded(self, prompt: Prompt) -> _Encoded:
        if isinstance(prompt, Mapping):
            return self._encoded_mapping(prompt)
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt), prompt
        return prompt, None

    def _encoded_mapping(self, prompt: Mapping[str, Any]) -> _Encoded:
        if prompt.keys() == {"prompt"} and isinstance(prompt["prompt"], str):
            return self._encoded(prompt["prompt"])
        if prompt.keys() == {"prompt_token_ids"}:
            return prompt["prompt_token_ids"], None
        raise InvalidRequest('a prompt given as a mapping has "prompt", a text, or "prompt_token_ids", and no more', "prompt")

    def _rendered(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None) -> _Encoded:
        text = self.chat_template.render(messages, tools)
        return self.tokenizer.encode_chat(text), unguarded(text)

    def _params_for(self, params: _Params, also: _Params, count: int) -> list[SamplingParams]:
        """One for each of ``count`` prompts, of the two names that callers may give them by."""
        if params is not None and also is not None:
            raise InvalidRequest("params and sampling_params are the same thing; give one of them", "sampling_params")
        params = also if params is None else params
        if params is None:
            return [self.default_sampling_params()] * count
        if isinstance(params, SamplingParams):
            return [params] * count
        if not isinstance(params, list | tuple):
            raise InvalidRequest(f"params is a SamplingParams, or a list of one a prompt, not {shown(params)}", "params")
        if len(params) != count:
            raise InvalidRequest(f"{len(params)} sampling parameters for {count} prompts; give one, or one each", "params")
        return list(params)

    def _submit(
        self, token_ids: Sequence[int], text: str | None, sampling: SamplingParams, namespace: Namespace = _BASE
    ) -> RequestOutput:
        check_sampling(sampling)
        if sampling.stops and self._parts.text.tokenizer is None:
            raise InvalidRequest("stop strings need a tokenizer, which this model lacks; use stop_token_ids", "stop")
        if sampling.grammar is not None:
            self._parts.grammars.check(sampling.grammar)
        request_id = self._engine.submit(token_ids, sampling, namespace=namespace)
        try:
            return self._assembler.open(self._engine.request(request_id), text)
        except BaseException:
            self._abort(request_id)
            raise

    @contextmanager
    def _turn(self) -> Iterator[Callable[[], None]]:
        """Alone with the engine, Ctrl-C held back: a step that is broken off half-way would be the engine's end.

        What it gives, called between steps, lets a Ctrl-C through that has come.
        """
        with self._lock, held_interrupt() as let_interrupt:
            self._abort_left()
            yield let_interrupt

    def _abort_left(self) -> None:
        while self._left and self._open_parts is not None:
            self._abort(self._left.popleft())

    def _abort(self, request_id: RequestId) -> None:
        self._engine.abort(request_id)
        self._assembler.close(request_id)
        self._assembler.apply(self._engine.finish_step())  # nothing is launched here: it only lets the request go

    def _step(self) -> list[RequestOutput]:
        """One step, in a turn; returns the outputs it changed. A stop string is seen after the step: the engine then lets go of
        the rest.
        """
        if not self._engine.has_work:
            raise EngineDead("requests are open, but the engine knows of none")
        changed = self._assembler.apply(self._engine.step())
        self._assembler.apply(self._engine.finish_step())  # nothing is launched here: it only lets go
        return changed

    def _run(
        self, prompts: list[_Encoded], params: list[SamplingParams], namespaces: list[Namespace], with_bar: bool = True
    ) -> list[RequestOutput]:
        bar = _progress_bar() if with_bar and len(prompts) >= _PROGRESS_FROM else None
        with self._turn() as let_interrupt, bar or nullcontext():  # one turn: to hold Ctrl-C anew takes 0.1 ms
            outputs: list[RequestOutput] = []
            try:
                for (token_ids, text), sampling, namespace in zip(prompts, params, namespaces, strict=True):
                    outputs.append(self._submit(token_ids, text, sampling, namespace))
                    let_interrupt()
                task = bar.add_task("prompts", total=len(prompts)) if bar else None
                pending = {output.request_id for output in outputs}
                while pending:
                    self._abort_left()
                    pending -= {out.request_id for out in self._step() if out.finished}
                    if bar and task is not None:
                        bar.update(task, completed=len(outputs) - len(pending))
                    let_interrupt()
            except BaseException:
                self._left.extend(output.request_id for output in outputs)
                self._abort_left()
                raise
        return outputs

    def _progress_of(self, output: RequestOutput) -> Iterator[RequestOutput]:
        """Steps until the output is finished; other calls may step in between, so what is new is measured on the output."""
        given: list[tuple[int, int, str | None]] = [(0, 0, None)] * len(output.outputs)
        while True:
            with self._lock:
                now: list[tuple[int, int, str | None]] = [
                    (len(answer.text), len(answer.token_ids), answer.finish_reason) for answer in output.outputs
                ]
                if now == given and output.finished:
                    return
                if now == given:
                    with self._turn():
                        self._step()
                    continue
                for answer, (num_chars, _, _) in zip(output.outputs, given, strict=True):
                    answer.delta = answer.text[num_chars:]
            given = now
            yield output


def _progress_bar() -> ProgressBar:
    """On stderr, where it is a terminal; gone when all is done."""
    console = Console(stderr=True)
    return ProgressBar(console=console, transient=True, disable=not console.is_terminal)


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if isinstance(prompts, Sequence) and prompts and all(isinstance(p, int) for p in prompts):
        return [prompts]  # type: ignore[list-item]
    if not isinstance(prompts, Sequence) or not prompts:
        raise InvalidRequest("prompts is a text, a list of texts or a list of lists of token ids, and not empty", "prompts")
    return list(prompts)  # type: ignore[arg-type]


def _namespaces(lora: _Adapters, count: int) -> list[Namespace]:
    """Of ``count`` prompts, for which there is one adapter or one each."""
    if lora is None or isinstance(lora, str):
        return [Namespace(adapter=lora or "")] * count
    if not isinstance(lora, list | tuple) or not all(name is None or isinstance(name, str) for name in lora):
        raise InvalidRequest(f"lora is the name of an adapter, or a list of one a prompt, not {shown(lora)}", "lora")
    if len(lora) != count:
        raise InvalidRequest(f"{len(lora)} adapters for {count} prompts; give one, or one each", "lora")
    return [Namespace(adapter=name or "") for name in lora]
