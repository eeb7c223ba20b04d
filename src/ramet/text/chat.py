"""Chat messages to the text that a model was trained on, by the model's own template."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2 import nodes

from ramet.core.ports import Clock
from ramet.errors import InvalidRequest
from ramet.text.guards import Guards
from ramet.text.messages import MessageRules, plain_data, plain_messages, plain_tools
from ramet.text.template import CompiledTemplate
from ramet.text.tools.tool import messages_with_tools

__all__ = ["ChatTemplate", "check_variables"]

_RESERVED = frozenset(
    {
        "add_generation_prompt",
        "bos_token",
        "chat_template",
        "continue_final_message",
        "eos_token",
        "messages",
        "tells_tools",
        "tools",
    }
)
_NO_GUARDS = Guards(())
_NO_PLACE = (
    "this model's chat template has no place for tools; leave them out, require a call (tool_choice), or start the server with "
    "--tool-call-parser json, which tells the model of them in a message"
)
_CONTINUE = "CONTINUE_FINAL_MESSAGE_TAG "  # transformers' mark; templates may trim the space


class ChatTemplate:
    """The chat template(s) of a model, compiled once; any number of threads may render.

    ``source`` is a template, or several by name, of which ``tool_use`` serves requests with tools and ``default`` the others;
    None makes every ``render`` raise: no format is guessed. ``strftime_now`` formats the present time
    (``time.strftime``); where it is None, templates that ask for the date find the function undefined. ``guards`` are put
    into all text of messages and tools but the assistant's, whose marks templates look for, so that only the template
    writes special tokens.
    Raises ``ModelError`` for a template that cannot be compiled.
    """

    def __init__(
        self,
        source: str | Mapping[str, str] | None,
        bos_token: str | None = None,
        eos_token: str | None = None,
        *,
        clock: Clock,
        strftime_now: Callable[[str], str] | None = None,
        guards: Guards = _NO_GUARDS,
    ) -> None:
        self._sources = _by_name(source)
        functions = {} if strftime_now is None else {"strftime_now": strftime_now}
        self._clock = clock
        self._guards = guards
        self._tokens = {k: v for k, v in (("bos_token", bos_token), ("eos_token", eos_token)) if v is not None}
        self._templates = {name: CompiledTemplate(text, functions) for name, text in self._sources.items()}
        self._rules = {name: _rules(template.syntax) for name, template in self._templates.items()}

    @property
    def tools_source(self) -> str:
        """The template that serves requests with tools, as it was written; empty where there is none."""
        return self._sources.get("tool_use", self._sources.get("default", ""))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tells_tools: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt's text, with guards. Encode it with ``Tokenizer.encode_chat``; show it ``unguarded``.

        Where the template has no place for tools, ``tells_tools`` tells the model of them in the system message; else they are
        refused.
        ``continue_final_message`` leaves the last message open, for the model to go on with; it excludes
        ``add_generation_prompt``. ``variables`` (``documents``, ``enable_thinking`` ...) go to the template as they are;
        those of a request go through ``check_variables`` first. Raises ``InvalidRequest`` naming ``messages[i]``, or with the
        template's own words.
        """
        offered = plain_tools(tools)
        name = self._name(offered is not None)
        plain = plain_messages(messages, self._rules[name])
        if offered is not None and not self._rules[name].takes_tools:
            if not tells_tools:
                raise InvalidRequest(_NO_PLACE, "tools")
            plain, offered = messages_with_tools(plain, offered), None
        plain = [self._guarded(message) for message in plain]
        final = ""
        if continue_final_message:
            if add_generation_prompt:
                raise InvalidRequest(
                    "continue_final_message and add_generation_prompt exclude each other", "continue_final_message"
                )
            final = _mark_final(plain[-1], len(messages) - 1)
        text = self._templates[name].render(
            {
                "documents": None,
                **self._tokens,
                **check_variables(variables),
                "messages": plain,
                "tools": self._guards.all_guarded(offered),
                "add_generation_prompt": add_generation_prompt,
            },
            self._clock,
        )
        return _cut_at_mark(text, final) if continue_final_message else text

    def _guarded(self, message: dict[str, Any]) -> dict[str, Any]:
        if message["role"] == "assistant":
            return message
        guarded: dict[str, Any] = self._guards.all_guarded(message)
        if message["role"].isidentifier():  # templates compare it with words, and a word has no marks but in odd vocabularies
            guarded["role"] = message["role"]
        return guarded

    def _name(self, has_tools: bool) -> str:
        if has_tools and "tool_use" in self._templates:
            return "tool_use"
        if "default" in self._templates:
            return "default"
        if self._templates:
            raise InvalidRequest(
                f"the model has chat templates only for {', '.join(self._templates)}, none by default", "messages"
            )
        raise InvalidRequest(
            "this model has no chat template, and none is guessed; complete a prompt of your own instead", "messages"
        )


def check_variables(variables: object) -> dict[str, Any]:
    """Template variables of a request (``chat_template_kwargs``), safe to pass to ``render`` by keyword. Raises
    ``InvalidRequest``; above all where they bring a template.
    """
    if variables is None:
        return {}
    if not isinstance(variables, Mapping):
        raise InvalidRequest("chat_template_kwargs is an object", "chat_template_kwargs")
    copied: dict[str, Any] = plain_data(variables, "chat_template_kwargs")
    for name in copied:
        if name in _RESERVED or not name.isidentifier() or name.startswith("_"):
            raise InvalidRequest(f"chat_template_kwargs may not set {name!r}", "chat_template_kwargs")
    return copied


def _by_name(source: str | Mapping[str, str] | None) -> Mapping[str, str]:
    return {"default": source} if isinstance(source, str) else source or {}


def _rules(syntax: nodes.Template) -> MessageRules:
    """What a template can do with messages, read off its syntax tree."""
    words = [node.value for node in syntax.find_all(nodes.Const) if isinstance(node.value, str)]
    tested = [test.node for test in syntax.find_all(nodes.Test) if test.name == "none"]
    return MessageRules(
        knows_developer="developer" in words,
        takes_tools=any(name.name == "tools" for name in syntax.find_all(nodes.Name)),
        tells_null=any(_is_item(node, "content") for node in tested),
        adds_arguments=any(_is_item(side, "arguments") for add in syntax.find_all(nodes.Add) for side in (add.left, add.right)),
    )


def _is_item(node: nodes.Node, key: str) -> bool:
    """``x.key`` or ``x["key"]``, of whatever x."""
    if isinstance(node, nodes.Getattr):
        return node.attr == key
    return isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == key


def _mark_final(message: dict[str, Any], index: int) -> str:
    """Put the mark behind the last message's text; gives the text."""
    text: str | None = message["content"]
    if not text:
        raise InvalidRequest(f"messages[{index}].content is empty, so there is nothing to continue", f"messages[{index}].content")
    message["content"] = text + _CONTINUE
    return text


def _cut_at_mark(text: str, final: str) -> str:
    mark = _CONTINUE.strip()
    end = text.rfind(mark)
    if end < 0 or final.strip() not in text[:end]:
        raise InvalidRequest(
            "the chat template does not put out the whole last message, so it cannot be continued", "continue_final_message"
        )
    # where the template trimmed the mark's space it trimmed the message's too
    return text[:end] if text.startswith(_CONTINUE, end) else text[:end].rstrip()
