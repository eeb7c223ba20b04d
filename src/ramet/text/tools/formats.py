"""How models write calls of tools, by families of chat templates: how that is read, and a grammar that allows nothing else.

The forms are those that the families' own templates write and ask for; each reader takes more than its grammar allows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ramet.text.tools import rules
from ramet.text.tools.blocks import Layout, Listed, Tagged
from ramet.text.tools.channels import Channels
from ramet.text.tools.form import ANY_TEXT, ToolFormat
from ramet.text.tools.json_calls import json_arguments, json_call, json_calls
from ramet.text.tools.pythonic import pythonic_calls
from ramet.text.tools.reading import Parsing, Reading
from ramet.text.tools.sections import DeepSeek, DeepSeek31, Kimi
from ramet.text.tools.tool import Tool
from ramet.text.tools.xml_calls import Tags, key_value_call, xml_calls

__all__ = ["MAX_CALLS", "ToolFormat", "tool_format"]

MAX_CALLS = 16  # of one answer that is held to calls: so it ends

_UNMARKED = r"[ \t\r\n]*([^ \t\r\n{\[](.|\n)*)?"  # a text that is no call: it does not begin as one


def _tool_name(reading: Reading) -> Parsing[str]:
    """What comes next of one; empty where none does."""
    yield from reading.skip_space()
    name = ""
    while (char := (yield from reading.peek())) and (char.isalnum() or char in "_-./:") and len(name) < 128:
        name += reading.take()
    return name


class _Marked(ToolFormat):
    """Text, and calls between ``<tool_call>`` and ``</tool_call>``, whatever stands there."""

    reads_calls = True
    is_marked = True
    marks: Sequence[str] = ("<tool_call>", "</tool_call>")
    line = "\n"  # what stands beside the marks
    between = "\n"  # calls
    bare = ""  # what begins a call, if calls are read without the first mark

    def __init__(self, special: frozenset[str] = frozenset()) -> None:
        self._special = special

    def _call(self, tools: Sequence[Tool]) -> tuple[str, str]:
        """What stands between the marks, and its rules, of which ``behind`` is what comes behind a ``bare`` one."""
        raise NotImplementedError

    def lark(self, tools: Sequence[Tool], most: int) -> str:
        begin, end = (rules.mark(one, self._special) for one in self.marks[:2])
        inside, its_rules = self._call(tools)
        calls = f"calls: call {rules.more(rules.quoted(self.between), 'call', most)}\n"
        line = rules.quoted(self.line)
        return f"{calls}call: {begin} {line} {inside} {line} {end}\n{its_rules}"

    def free_lark(self, tools: Sequence[Tool], most: int) -> str:
        end = rules.mark(self.marks[1], self._special)
        inside, its_rules = self._call(tools)
        text = ANY_TEXT + rules.until("begin", self.marks[0], self._special)
        line = rules.quoted(self.line)
        call = f"call: begin {line} {inside} {line} {end}"
        if self.bare:
            call += " | begin_bare behind"
            text += rules.until("begin_bare", self.bare, self._special)
        return f"answer: {rules.fewer('call', most)} text | call{{{most}}}\n{text}{call}\n{its_rules}"


class _Hermes(_Marked):
    """``<tool_call>{"name": ..., "arguments": ...}</tool_call>``, once a call: Hermes, Qwen 2.5 and 3, and many others."""

    def read(self, reading: Reading) -> Parsing[None]:
        while mark := (yield from reading.text_until(self.marks)):
            if mark == self.marks[1]:
                reading.end_mark()
                continue
            if (yield from reading.skip_space()) != "{" or not (yield from json_call(reading, is_marked=True)):
                reading.release()
                continue
            while (yield from reading.skip_space()) == "}":  # one too many, as small models write
                reading.take()

    def _call(self, tools: Sequence[Tool]) -> tuple[str, str]:
        return "object", rules.objects(tools, "arguments")


class _Xml(_Marked):
    """``<tool_call><function=f><parameter=a>...</parameter></function></tool_call>``, once a call: Qwen3-Coder; Seed-OSS with
    marks of its own. The first mark may be left out.
    """

    def __init__(
        self, marks: Sequence[str], tags: Tags, special: frozenset[str], thoughts: tuple[str, str] = ToolFormat.thoughts
    ) -> None:
        super().__init__(special)
        self.marks = marks
        self.bare = tags.function
        self.thoughts = thoughts
        self._tags = tags

    def read(self, reading: Reading) -> Parsing[None]:
        yield from xml_calls(reading, self.marks, self._tags)

    def _call(self, tools: Sequence[Tool]) -> tuple[str, str]:
        return "function", rules.xml(tools, self._tags, self._special)

    def unkept(self, tool: Tool) -> str | None:
        return rules.unkept_of_xml(tool, self._tags.parameter_end)


class _KeyValues(_Marked):
    """``<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>``, once a call, with line breaks between the tags
    or, from 4.7 on, without: GLM.
    """

    line = ""

    def __init__(self, special: frozenset[str] = frozenset(), *, is_later: bool = False) -> None:
        super().__init__(special)
        self._between = "" if is_later else "\n"

    def read(self, reading: Reading) -> Parsing[None]:
        while mark := (yield from reading.text_until(self.marks)):
            if mark == self.marks[1]:
                reading.end_mark()
            else:
                yield from key_value_call(reading)

    def _call(self, tools: Sequence[Tool]) -> tuple[str, str]:
        return "function", rules.key_values(tools, self._between)

    def unkept(self, tool: Tool) -> str | None:
        return rules.unkept_of_xml(tool, "</arg_value>")


class _Gemma(_Marked):
    """``<|tool_call>call:f{a:1,b:<|"|>x<|"|>}<tool_call|>``, once a call: Gemma 4, and FunctionGemma with other marks. The third
    mark is the quote of texts.
    """

    line = between = ""

    def __init__(self, marks: Sequence[str], special: frozenset[str], thoughts: tuple[str, str] = ToolFormat.thoughts) -> None:
        super().__init__(special)
        self.marks = marks
        self.thoughts = thoughts

    def read(self, reading: Reading) -> Parsing[None]:
        begin, end, quote = self.marks[:3]
        while mark := (yield from reading.text_until((begin, end))):
            if mark == end:
                reading.end_mark()
                continue
            yield from reading.skip_space()
            name = (yield from _tool_name(reading)) if (yield from reading.word(("call:",))) else ""
            if (
                not name
                or (yield from reading.skip_space()) != "{"
                or not (yield from json_arguments(reading, name, quote=quote))
            ):
                reading.release()

    def _call(self, tools: Sequence[Tool]) -> tuple[str, str]:
        return "function", rules.braced(tools, self.marks[2], self._special)

    def unkept(self, tool: Tool) -> str | None:
        return rules.unkept_of_xml(tool, self.marks[2])


class _Bare(ToolFormat):
    """Calls that are all the answer, or follow a mark: an object, a list of objects, or a list in Python's form.

    Without a mark an object is a call only by the name of a tool. Llama 3 calls arguments ``parameters``.
    """

    reads_calls = True

    def __init__(
        self,
        marks: Sequence[str],
        special: frozenset[str] = frozenset(),
        arguments: str = "arguments",
        *,
        is_pythonic: bool = False,
        is_single: bool = False,
    ) -> None:
        self.marks = marks
        self.is_single = is_single
        self._special = special
        self._arguments = arguments
        self._is_pythonic = is_pythonic

    def read(self, reading: Reading) -> Parsing[None]:
        reading.hold()
        yield from self._calls(reading)
        if not self.marks:
            yield from reading.rest()
        while self.marks and (yield from reading.text_until(self.marks)):
            yield from self._calls(reading)

    def _calls(self, reading: Reading) -> Parsing[None]:
        char = yield from reading.skip_space()
        if char == "[":
            reading.take()
            char = yield from reading.skip_space()
            if self._is_pythonic and char != "{":
                yield from pythonic_calls(reading)
            else:
                yield from json_calls(reading, is_list=True)
        elif char == "{":
            yield from json_calls(reading)
        else:
            reading.release()

    def lark(self, tools: Sequence[Tool], most: int) -> str:
        if self._is_pythonic and all(map(rules.has_plain_arguments, tools)):
            return f'calls: "[" call {rules.more(rules.COMMA, "call", most)} "]"\n' + rules.pythonic(tools)
        many = "" if most == 1 else f' | "[" object {rules.more(rules.COMMA, "object", most)} "]"'
        return f"calls: object{many}\n" + rules.objects(tools, self._arguments)

    def free_lark(self, tools: Sequence[Tool], most: int) -> str:
        """An answer that begins as a call does is one."""
        ways = ["calls", "plain"]
        text = f"plain: /{_UNMARKED}/\n"
        for i, mark in enumerate(self.marks):
            ways.append(f"begin_{i} calls")
            if mark in self._special:
                text += f"begin_{i}: plain {rules.mark(mark, self._special)}\n"
            else:
                text += f"begin_{i}[lazy]: /{_UNMARKED}{rules.pattern(mark)}/\n"
        return f"answer: {' | '.join(ways)}\n" + text + self.lark(tools, most)


class _Mistral(ToolFormat):
    """``[TOOL_CALLS][{"name": ..., "arguments": ...}, ...]``, or from version 11 on ``[TOOL_CALLS]name[ARGS]{...}`` once a call.

    The marks are special tokens, so a prompt ends with those that have to come; in the later form that is one call.
    """

    reads_calls = True
    has_short_ids = True
    marks = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")

    def __init__(self, special: frozenset[str] = frozenset(), *, is_later: bool) -> None:
        self._special = special
        self._is_later = self.is_single = is_later

    def read(self, reading: Reading) -> Parsing[None]:
        while (yield from reading.text_until(self.marks[:1])):
            match (yield from reading.skip_space()):
                case "[":
                    reading.take()
                    yield from json_calls(reading, is_list=True)
                case "{":
                    yield from json_calls(reading)
                case _:
                    yield from self._named_call(reading)

    def _named_call(self, reading: Reading) -> Parsing[None]:
        name = yield from _tool_name(reading)
        if name and (yield from reading.word(self.marks[1:])) == "[CALL_ID]":
            while (yield from reading.peek()).isalnum():
                reading.take()
            yield from reading.word(self.marks[1:2])
        if not name or (yield from reading.skip_space()) != "{" or not (yield from json_arguments(reading, name)):
            reading.release()

    def opening(self, tools: Sequence[Tool]) -> str:
        return f"[TOOL_CALLS]{tools[0].name}[ARGS]" if self._is_later and len(tools) == 1 else "[TOOL_CALLS]"

    def lark(self, tools: Sequence[Tool], most: int) -> str:
        if not self._is_later:
            return f'calls: " "? "[" object {rules.more(rules.COMMA, "object", most)} "]"\n' + rules.objects(tools, "arguments")
        if len(tools) == 1:
            return "calls: arguments_0\n" + rules.arguments(tools)
        return f"calls: {self._named(tools)}\n" + rules.arguments(tools)

    def free_lark(self, tools: Sequence[Tool], most: int) -> str:
        if not self._special.issuperset(self.marks[:1]):
            return ""
        begin = f"{rules.mark(self.marks[0], self._special)}"
        if not self._is_later:
            return f"answer: text ({begin} calls)?\n{ANY_TEXT}" + self.lark(tools, most)
        head = f"answer: text ({begin} ({self._named(tools)})){{0,{most}}}\n"
        return head + ANY_TEXT + rules.arguments(tools)

    def _named(self, tools: Sequence[Tool]) -> str:
        behind = f"{rules.mark(self.marks[1], self._special)} " if self.marks[1] in self._special else ""
        return " | ".join(f"{rules.quoted(tool.name)} {behind}arguments_{i}" for i, tool in enumerate(tools))


def _listed(layout: Layout, template: str, special: frozenset[str]) -> ToolFormat:
    return Listed(layout, special)


def _dsml(section: str, template: str, special: frozenset[str]) -> ToolFormat:
    """DeepSeek's from V3.2 on: a word that is one token is in each of its tags."""
    tags = Tags(
        f'<{_DSML}invoke name="', f'<{_DSML}parameter name="', f"</{_DSML}parameter>", f"</{_DSML}invoke>", '">', says_kind=True
    )
    return Tagged((f"<{_DSML}{section}>", f"</{_DSML}{section}>", _DSML), tags, special)


_DSML = "\uff5cDSML\uff5c"
_INVOKES = Tags('<invoke name="', '<parameter name="', "</parameter>", "</invoke>", '">')
_LAYOUTS = {
    "lfm2": Layout("<|tool_call_start|>", "<|tool_call_end|>", pythonic=("[", ", ", "]")),
    "hunyuan_a13b": Layout("<tool_calls>", "</tool_calls>"),
    "olmo3": Layout("<function_calls>", "</function_calls>", pythonic=("", "\n", "")),
    "internlm": Layout("<|action_start|>", "<|action_end|>", "<|plugin|>", arguments="parameters", is_single=True),
}

_FORMATS: Mapping[str, Callable[[str, frozenset[str]], ToolFormat]] = {
    "none": lambda template, special: ToolFormat(),
    "hermes": lambda template, special: _Hermes(special),
    "qwen3_coder": lambda template, special: _Xml(_Marked.marks, Tags(line="\n"), special),
    "llama3_json": lambda template, special: _Bare(("<|python_tag|>",), special, "parameters", is_single=True),
    "pythonic": lambda template, special: _Bare(("<|python_tag|>", "<|python_start|>"), special, is_pythonic=True),
    "mistral": lambda template, special: _Mistral(special, is_later="[ARGS]" in template),
    "granite": lambda template, special: _Bare(("<|tool_call|>", "<tool_call>"), special),
    "phi4_mini_json": lambda template, special: _Bare(("functools", "<|tool_call|>"), special),
    "deepseek_v3": lambda template, special: DeepSeek(special),
    "deepseek_v31": lambda template, special: DeepSeek31(special),
    "kimi_k2": lambda template, special: Kimi(special),
    "glm45": lambda template, special: _KeyValues(special, is_later="</arg_key><arg_value>" in template),
    "gpt_oss": lambda template, special: Channels(special),
    "json": lambda template, special: _Bare((), special),
    "seed_oss": lambda template, special: _Xml(
        ("<seed:tool_call>", "</seed:tool_call>"), Tags(), special, ("<seed:think>", "</seed:think>")
    ),
    "minimax_m2": lambda template, special: Tagged(("<minimax:tool_call>", "</minimax:tool_call>"), _INVOKES, special),
    "functiongemma": lambda template, special: _Gemma(("<start_function_call>", "<end_function_call>", "<escape>"), special),
    "gemma4": lambda template, special: _Gemma(
        ("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>"), special, ("<|channel>thought\n", "<channel|>")
    ),
    "deepseek_v32": partial(_dsml, "function_calls"),
    "deepseek_v4": partial(_dsml, "tool_calls"),
    **{name: partial(_listed, layout) for name, layout in _LAYOUTS.items()},
}


def tool_format(name: str, template: str, special: Callable[[str], bool]) -> ToolFormat:
    """The family of this name; ``auto`` is the one whose marks are in the template, ``json`` where there are none.

    ``special`` says which texts are special tokens of the model's.
    """
    if name == "auto":
        name = next((found for marks, found in _MARKS.items() if all(mark in template for mark in marks)), "json")
    make = _FORMATS[name]
    return make(template, frozenset(filter(special, make(template, frozenset()).marks)))


_MARKS = {  # the first whose marks are all there
    ("<seed:tool_call>",): "seed_oss",
    ("<minimax:tool_call>",): "minimax_m2",
    (_DSML, "function_calls>"): "deepseek_v32",
    (_DSML,): "deepseek_v4",
    ("<|tool_call>",): "gemma4",
    ("<start_function_call>",): "functiongemma",
    ("<parameter=",): "qwen3_coder",
    ("<function=",): "none",  # JSON in a tag of its own, which is not read here
    (DeepSeek.marks.begin, "```json"): "deepseek_v3",
    (DeepSeek.marks.begin,): "deepseek_v31",
    ("<|tool_calls_section_begin|>",): "kimi_k2",
    ("<|channel|>",): "gpt_oss",
    ("<arg_key>",): "glm45",
    ("<|tool_call|>",): "granite",
    ("<|tool|>",): "phi4_mini_json",
    ("<tool_call>",): "hermes",
    ("<tool_calls>",): "hunyuan_a13b",
    ("<|tool_call_start|>",): "lfm2",
    ("<|tool_list_start|>",): "lfm2",
    ("<|action_start|>",): "internlm",
    ("<functions>", "<function_calls>"): "olmo3",
    ("[TOOL_CALLS]",): "mistral",
    ("[func_name1(",): "pythonic",
    ("<|python_tag|>",): "llama3_json",
}
