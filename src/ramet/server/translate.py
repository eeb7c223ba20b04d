"""From what clients say to what an engine takes: text to tokens, fields to sampling parameters, callers to namespaces.

Rendering and encoding run in a small pool of threads, so that a long prompt stops nobody else's stream; ``tokenizers`` releases
the GIL, and a template is metered. Long texts, one of which may take many seconds, have a thread to themselves: no short one
waits behind them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, TypeAlias, TypeVar

from starlette.types import Scope

from ramet.core.grammar import GrammarSpec
from ramet.core.request import Namespace
from ramet.core.sampling import SamplingParams
from ramet.engine.build import TextParts, make_grammars
from ramet.engine.wire import Ready
from ramet.errors import InvalidRequest
from ramet.server.gate import caller_of, request_id_of
from ramet.server.generation import Prompted
from ramet.structured.compiler import GrammarCompiler
from ramet.text.chat import ChatTemplate, check_variables
from ramet.text.guards import unguarded
from ramet.text.tokenizer import Tokenizer
from ramet.text.tools.form import ToolFormat
from ramet.text.tools.formats import tool_format

__all__ = ["Encoded", "Thinking", "Translator", "prompted_of"]

T = TypeVar("T")
Thinking: TypeAlias = Literal["never", "may", "open"]

_NUM_THREADS = 2
_LONG_CHARS = 1 << 16  # some 50 ms to encode
_MAX_SALT_CHARS = 256


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt's tokens, and its text where it was one."""

    token_ids: Sequence[int]
    text: str | None


class Translator:
    """The model's text side, for requests. Raises ``InvalidRequest`` where the model lacks what a request needs."""

    def __init__(self, text: TextParts, *, tool_call_parser: str = "auto", reasoning_parser: str = "auto") -> None:
        self._text = text
        self._tool_call_parser = tool_call_parser
        self._reasoning_parser = reasoning_parser
        self._pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="text")
        all_there = threading.Barrier(_NUM_THREADS)
        for _ in range(_NUM_THREADS):  # from the start: what clients send, and when, adds no thread and none of its memory
            self._pool.submit(all_there.wait)
        self._long_pool = ThreadPoolExecutor(1, thread_name_prefix="long-text")
        self._grammar_pool = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._grammars: GrammarCompiler | None = None
        self._grammars_lock = threading.Lock()

    def close(self) -> None:
        for pool in (self._pool, self._long_pool, self._grammar_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    @property
    def tokenizer(self) -> Tokenizer:
        if self._text.tokenizer is None:
            raise InvalidRequest("this model has no tokenizer; send prompts as lists of token ids", "prompt")
        return self._text.tokenizer

    @property
    def known_tokenizer(self) -> Tokenizer | None:
        """None where the model has none: its answers are token ids alone then."""
        return self._text.tokenizer

    @property
    def chat_template(self) -> ChatTemplate:
        if self._text.chat_template is None:
            raise InvalidRequest("this model has no chat template; use /v1/completions with a prompt of your own", "messages")
        return self._text.chat_template

    # ---- what answers consist of

    @cached_property
    def tool_format(self) -> ToolFormat:
        """How this model writes calls of tools."""
        return tool_format(self._tool_call_parser, self.chat_template.tools_source, self.is_special)

    @property
    def thoughts(self) -> tuple[str, str]:
        """The marks around what this model thinks."""
        return self.tool_format.thoughts

    @property
    def tells_tools(self) -> bool:
        """Whether a model whose template has no place for tools is told of them in a message: on demand."""
        return self._tool_call_parser not in ("auto", "none")

    @cached_property
    def thinks(self) -> bool:
        """Whether the model may think before it answers."""
        if self._reasoning_parser == "auto":
            return self.thoughts[1] in self.chat_template.tools_source
        return self._reasoning_parser != "none"

    @cached_property
    def has_special_marks(self) -> bool:
        """Whether marks of calls or thoughts are special tokens, which are not shown unless asked for."""
        return any(map(self.is_special, (*self.tool_format.marks, *self.thoughts)))

    def is_special(self, text: str) -> bool:
        """Whether a text is a special token of the vocabulary."""
        token_id = self.tokenizer.token_id(text)
        return token_id is not None and self.tokenizer.is_special(token_id)

    def thinking_after(self, prompt: str) -> Thinking:
        """Whether an answer to this prompt is, or may be, thought at first."""
        end = prompt.rstrip()
        think, thought = self.thoughts
        if not self.thinks or end.endswith(thought):
            return "never"
        return "open" if self._reasoning_parser == "deepseek_r1" or end.endswith(think.rstrip()) else "may"

    # ---- what is asked

    async def run(self, work: Callable[[], T], num_chars: int = 0) -> T:
        """Do ``work``, on a text of ``num_chars``, off the event loop."""
        pool = self._pool if num_chars <= _LONG_CHARS else self._long_pool
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    async def made(self, make: Callable[[], T], sampling: SamplingParams) -> T:
        """What ``make`` gives, an answer or its end; one with logprobs may take long, and is made off the event loop."""
        has_logprobs = sampling.logprobs is not None or sampling.prompt_logprobs is not None
        return await self.run(make) if has_logprobs else make()

    async def encode(self, text: str) -> Encoded:
        """A plain prompt; BOS is added where the model's files ask for it."""
        return Encoded(await self.run(lambda: self.tokenizer.encode(text), len(text)), text)

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tells_tools: bool = False,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
        opening: str = "",
    ) -> Encoded:
        """A conversation, rendered by the model's template. ``variables`` are the request's ``chat_template_kwargs``, ``opening``
        is the beginning of the answer.
        """

        def render() -> str:
            return self.chat_template.render(
                messages,
                tools,
                tells_tools=tells_tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                **check_variables(variables),
            )

        text = await self.run(render) + opening
        return Encoded(await self.run(lambda: self.tokenizer.encode_chat(text), len(text)), unguarded(text))

    def sampling(self, fields: Mapping[str, Any], *, default_max_tokens: int | None = None) -> SamplingParams:
        """The model's own defaults with those fields on top that are not None. Without ``max_tokens`` all that fits is meant,
        or what the dialect has for its default.
        """
        given = {name: value for name, value in fields.items() if value is not None}
        sampling = SamplingParams(**{"max_tokens": default_max_tokens, **self._text.generation_defaults, **given})
        if sampling.stops and self._text.tokenizer is None:
            raise InvalidRequest("stop strings need a tokenizer, which this model lacks; use stop_token_ids", "stop")
        return sampling

    async def check_grammar(self, spec: GrammarSpec, ready: Ready) -> None:
        """Compile a constraint as the engine will. Raises ``GrammarError``, and ``InvalidRequest`` without a tokenizer.

        A new one may take a second. So they have a thread of their own, one after another, and nobody else waits for them.
        """
        if self._grammars is None or not self._grammars.knows(spec):
            work = partial(self._check_new, spec, ready)
            await asyncio.get_running_loop().run_in_executor(self._grammar_pool, work)

    def _check_new(self, spec: GrammarSpec, ready: Ready) -> None:
        self._grammars_for(ready).check(spec)

    def _grammars_for(self, ready: Ready) -> GrammarCompiler:
        """Made when first needed: it reads the whole vocabulary."""
        with self._grammars_lock:
            if self._grammars is None:
                self._grammars = make_grammars(self.tokenizer, ready.eos_ids, ready.limits.vocab_size)
            return self._grammars


def prompted_of(
    scope: Scope,
    prompt: Encoded,
    sampling: SamplingParams,
    *,
    cache_salt: str | None,
    priority: int | None,
    adapter: str = "",
    names: Iterable[str] = (),
) -> Prompted:
    """One prompt of the request of ``scope``, its caller's. ``names`` are ids by which he may abort it, besides ``x-request-id``.

    It shares KV with those of the same key (or all, with --share-cache) that send the same salt. Raises ``InvalidRequest``.
    """
    if cache_salt is not None and not 0 < len(cache_salt) <= _MAX_SALT_CHARS:
        raise InvalidRequest(f"cache_salt is a text of 1 to {_MAX_SALT_CHARS} characters", "cache_salt")
    caller = caller_of(scope)
    return Prompted(
        token_ids=prompt.token_ids,
        sampling=sampling,
        text=prompt.text,
        namespace=Namespace(salt=cache_salt or "", adapter=adapter, tenant=caller.tenant),
        priority=priority or 0,
        names=frozenset((request_id_of(scope), *names)),
        owner=caller.owner,
    )
