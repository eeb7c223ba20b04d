"""From a conversation to a prompt, a constraint and readers of its answers: one home for all dialects that have chats and tools.

``required`` and named tools are held to by a grammar in the form of the model's family. A model that thinks may do so before
what a grammar wants, be that calls or a JSON document.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ramet.core.grammar import GrammarSpec
from ramet.core.sampling import SamplingParams
from ramet.errors import GrammarError, InvalidRequest, shown
from ramet.server.parts import PartedAnswer
from ramet.server.services import Services
from ramet.server.translate import Encoded, Thinking, Translator
from ramet.structured.schema import checked_schema
from ramet.text.tools.form import ToolFormat
from ramet.text.tools.formats import MAX_CALLS
from ramet.text.tools.reader import AnswerReader
from ramet.text.tools.rules import mark, until
from ramet.text.tools.tool import Tool, ToolChoice, tools_of

__all__ = ["Conversation", "Prepared", "encoded_of", "prepared"]

_THOUGHT = {"never": "", "may": "thought: (BEGIN inside /\\n{0,2}/)?\n", "open": "thought: inside /\\n{0,2}/\n"}
_ANY_OBJECT = {"type": "object"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What a prompt is made of. Messages and ``tools`` are in OpenAI's shape; ``variables`` are for the template.
    ``stop_field`` is what the caller names its stop strings.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    choice: ToolChoice = ToolChoice()
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: Mapping[str, Any] | None = None
    stop_field: str = "stop"

    @property
    def offered(self) -> Sequence[Mapping[str, Any]] | None:
        """The tools that the model is told of."""
        return None if self.choice.mode == "none" else self.tools

    @property
    def is_forced(self) -> bool:
        return self.choice.mode == "required"

    def callable_tools(self) -> tuple[Tool, ...]:
        """Those that may be called. Raises ``InvalidRequest`` where one is none, and where the choice is not among them."""
        tools = tools_of(self.offered)
        if not self.is_forced:
            return tools
        if not tools:
            raise InvalidRequest("tool_choice wants a call, and there are no tools; send some", "tool_choice")
        if self.choice.name is None:
            return tools
        named = tuple(tool for tool in tools if tool.name == self.choice.name)
        if not named:
            known = ", ".join(tool.name for tool in tools[:8])
            raise InvalidRequest(f"tool_choice names {shown(self.choice.name)}, and the tools are {known}", "tool_choice")
        return named


@dataclass(slots=True)
class _Form:
    """What an answer may be, and what it is held to. ``special`` are the marks that are special tokens, ``ignored`` fields
    that are not kept to.
    """

    format: ToolFormat
    tools: Sequence[Tool]
    thinking: Thinking
    spec: GrammarSpec | None
    is_forced: bool
    thoughts: tuple[str, str]
    special: frozenset[str]
    ignored: list[str] = field(default_factory=list)

    @property
    def is_text(self) -> bool:
        """Whether all of the answer is text, as it comes."""
        return self.thinking == "never" and not self.format.reads_calls


@dataclass(frozen=True, slots=True)
class Prepared:
    """A conversation ready for an engine. ``opening`` is markup that the prompt ends with."""

    prompt: Encoded
    sampling: SamplingParams
    form: _Form
    opening: str

    @property
    def ignored(self) -> list[str]:
        return self.form.ignored

    def parted(self) -> PartedAnswer:
        """One for each answer."""
        form = self.form
        opening = (form.thoughts[0] if form.thinking == "open" else "") + self.opening
        thoughts = None if form.thinking == "never" else form.thoughts
        reader = AnswerReader(form.format, form.tools, is_forced=form.is_forced, thoughts=thoughts, opening=opening)
        return PartedAnswer(reader, is_text=form.is_text)


async def encoded_of(translator: Translator, wanted: Conversation) -> Encoded:
    """The prompt alone."""
    return await _encoded(translator, wanted, _opening(translator, wanted))


async def prepared(services: Services, wanted: Conversation, sampling: SamplingParams) -> Prepared:
    """Raises ``InvalidRequest``, and ``GrammarError`` for a constraint that cannot be kept to."""
    translator = services.translator
    opening = _opening(translator, wanted)
    prompt = await _encoded(translator, wanted, opening)
    thinking: Thinking = "never" if opening else translator.thinking_after(prompt.text or "")
    form = await translator.run(lambda: _form(translator, wanted, thinking, sampling.grammar))
    if sampling.ignores_stops:  # nor do they cut the thoughts before it, or it would be missing
        form.ignored.append(wanted.stop_field)
    shows_marks = not form.is_text and translator.has_special_marks
    sampling = replace(
        sampling,
        structured_outputs=form.spec,
        stop=sampling.stops,
        skip_special_tokens=sampling.skip_special_tokens and not shows_marks,
    )
    try:
        await services.check_grammar(sampling)
    except GrammarError:
        await _blame_a_tool(services, form)
        raise
    return Prepared(prompt, sampling, form, opening)


async def _blame_a_tool(services: Services, form: _Form) -> None:
    """Raise ``GrammarError`` naming the tool whose parameters no grammar can be made of, where there is one."""
    for tool in form.tools:
        schema = SamplingParams(structured_outputs={"json": tool.parameters})
        try:
            await services.check_grammar(schema)
        except GrammarError as error:
            raise GrammarError(f"the parameters of {tool.where} ({tool.name}): {error}", f"{tool.where}.parameters") from None


def _opening(translator: Translator, wanted: Conversation) -> str:
    tools = wanted.callable_tools()
    return translator.tool_format.opening(tools) if wanted.is_forced else ""


async def _encoded(translator: Translator, wanted: Conversation, opening: str) -> Encoded:
    return await translator.chat(
        wanted.messages,
        tools=wanted.offered,
        tells_tools=wanted.is_forced or translator.tells_tools,
        add_generation_prompt=wanted.add_generation_prompt,
        continue_final_message=wanted.continue_final_message,
        variables=wanted.variables,
        opening=opening,
    )


def _form(translator: Translator, wanted: Conversation, thinking: Thinking, spec: GrammarSpec | None) -> _Form:
    tools = wanted.callable_tools()
    family = translator.tool_format
    if not (tools or family.has_channels):
        family = ToolFormat()
    special = frozenset(filter(translator.is_special, (*translator.thoughts, *translator.tool_format.marks)))
    form = _Form(family, tools, thinking, spec, wanted.is_forced, translator.thoughts, special)
    most = 1 if form.format.is_single or wanted.choice.name or not wanted.choice.is_parallel else MAX_CALLS
    if wanted.is_forced:
        if not form.format.reads_calls:
            raise InvalidRequest("the calls of this model are not read here; see --tool-call-parser", "tool_choice")
        if spec is not None:
            raise InvalidRequest(
                "tool_choice wants a call, and another field says what the answer looks like; send one of them", "tool_choice"
            )
        form.spec = _grammar(form, "calls", form.format.lark(_kept(form, form.tools), most))
    elif spec is None:
        _hold_free(form, wanted.choice, most)
    elif not spec.is_document:
        form.format, form.thinking = ToolFormat(), "never"
    else:
        _hold_document(form, spec, most)
    return form


def _hold_free(form: _Form, choice: ToolChoice, most: int) -> None:
    """Text, and calls if the model likes: a grammar is needed only for what is strict about them."""
    strict = [tool for tool in form.tools if tool.is_strict]
    if not strict and (choice.is_parallel or not form.tools):
        return
    held = [tool if tool.is_strict else replace(tool, parameters=_ANY_OBJECT) for tool in form.tools]
    if rules := form.format.free_lark(_kept(form, held), most):
        form.spec = _grammar(form, "answer", rules)
        return
    form.ignored += [f"{tool.where}.strict" for tool in strict]
    if not (choice.is_parallel or form.format.is_single):
        form.ignored.append("parallel_tool_calls")


def _hold_document(form: _Form, spec: GrammarSpec, most: int) -> None:
    """A JSON document; where a mark tells calls from it, these as well."""
    schema = spec.text or json.dumps(_ANY_OBJECT)
    try:
        checked_schema(schema, spec.whitespace, is_closed=spec.is_closed)  # what is no schema could be any rules of Lark
    except GrammarError as error:
        raise GrammarError(str(error), spec.param) from None
    document = f"document: %json {schema}\n"
    if form.format.is_marked:
        rules = _grammar(form, "(calls | document)", document + form.format.lark(_kept(form, form.tools), most))
    else:
        form.format = ToolFormat()
        if form.thinking == "never":
            return
        rules = _grammar(form, "document", document)
    form.spec = replace(spec, kind="grammar", text=rules.text)


def _grammar(form: _Form, wanted: str, rules: str) -> GrammarSpec:
    """``wanted``, with thoughts before it; their marks are text, or special tokens."""
    if form.thinking == "never":
        return GrammarSpec("grammar", f"start: {wanted}\n{rules}")
    begin, end = form.thoughts
    thought = _THOUGHT[form.thinking].replace("BEGIN", mark(begin, form.special))
    inside = until("inside", end, form.special)
    return GrammarSpec("grammar", f"start: thought {wanted}\n{thought}{inside}{rules}")


def _kept(form: _Form, tools: Sequence[Tool]) -> list[Tool]:
    """The tools with what a grammar can keep to of their parameters: all, or, said in ``ignored``, that they are an object.
    Raises ``GrammarError`` where a tool is strict about what cannot be kept to.
    """
    kept = []
    for tool in tools:
        try:
            checked_schema(json.dumps(tool.parameters))
            if unkept := form.format.unkept(tool):
                raise GrammarError(f"{unkept} cannot be kept to in the form in which this model writes calls; leave it out")
        except GrammarError as error:
            if tool.is_strict:
                told = f"the parameters of {tool.where} ({tool.name}), which is strict: {error}"
                raise GrammarError(told, f"{tool.where}.parameters") from None
            form.ignored.append(f"{tool.where}.parameters")
            tool = replace(tool, parameters=_ANY_OBJECT)
        kept.append(tool)
    return kept
