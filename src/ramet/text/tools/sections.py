"""Calls in a section of their own at the end of an answer, each with marks around its name and its arguments: DeepSeek, Kimi.

::

    begin  call head separator arguments end  call ...  end of all
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ramet.text.tools import rules
from ramet.text.tools.blocks import Block
from ramet.text.tools.json_calls import json_arguments
from ramet.text.tools.reading import Parsing, Reading
from ramet.text.tools.tool import Tool

__all__ = ["DeepSeek", "DeepSeek31", "Kimi", "Sections"]

_MAX_HEAD = 200
_KIMI_HEAD = re.compile(r"(?:functions\.)?([\w./:-]+?)(?::[0-9]+)?")


class _Marks(NamedTuple):
    begin: str
    call: str
    separator: str
    end: str
    end_of_all: str


_DEEPSEEK = _Marks(
    *(
        f"<\uff5c{words}\uff5c>".replace(" ", "\u2581")  # a wide bar, and SentencePiece's sign for a space
        for words in ("tool calls begin", "tool call begin", "tool sep", "tool call end", "tool calls end")
    )
)
_KIMI = _Marks(
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
)


class Sections(Block):
    """Both families. The mark that begins the section may be left out."""

    between = ""  # calls
    marks: _Marks

    def __init__(self, special: frozenset[str] = frozenset()) -> None:
        super().__init__(special)
        self.bare = self.marks.call

    def read(self, reading: Reading) -> Parsing[None]:
        begin, call, _, *ends = self.marks
        while mark := (yield from reading.text_until((begin, call, *ends))):
            if mark in ends:
                reading.end_mark()
                continue
            if mark == begin:
                yield from reading.skip_space()
            if (mark == begin and not (yield from reading.word((call,)))) or not (yield from self._read_call(reading)):
                reading.release()

    def _read_call(self, reading: Reading) -> Parsing[bool]:
        """What stands behind a call's mark, to the end of its arguments."""
        head = ""
        while (yield from reading.peek()) not in ("", "<") and len(head) < _MAX_HEAD:
            head += reading.take()
        if not (yield from reading.word((self.marks.separator,))):
            return False
        name = yield from self._name(reading, head.strip())
        return bool(name) and (yield from json_arguments(reading, name, self._id(head.strip())))

    def _id(self, head: str) -> str | None:
        """The id that a head gives its call."""
        return None

    def _name(self, reading: Reading, head: str) -> Parsing[str]:
        """The tool's, of what stands before the separator; empty where there is none."""
        raise NotImplementedError

    def _call(self, tool: Tool, arguments: str) -> str:
        """The rule of what stands between a call's marks."""
        raise NotImplementedError

    def _block(self, tools: Sequence[Tool], most: int) -> str:
        ways = " | ".join(self._call(tool, f"arguments_{i}") for i, tool in enumerate(tools))
        more = rules.more(rules.quoted(self.between) if self.between else "", "call", most)
        return (
            f"block: call {more} {self._mark(self.marks.end_of_all)}\n"
            f"call: {self._mark(self.marks.call)} behind\nbehind: ({ways}) {self._mark(self.marks.end)}\n"
            + rules.arguments(tools)
        )


class DeepSeek(Sections):
    """V3 and R1: the head says ``function``, and the name and a block of JSON stand behind the separator."""

    marks = _DEEPSEEK
    between = "\n"

    def _read_call(self, reading: Reading) -> Parsing[bool]:
        if not (yield from super()._read_call(reading)):
            return False
        if not reading.is_broken and (yield from reading.skip_space()) == "`":
            reading.hold(is_mark=True)
            if (yield from reading.word(("```",))):
                reading.drop()
            else:
                reading.release()
        return True

    def _name(self, reading: Reading, head: str) -> Parsing[str]:
        """That of V3.1 where arguments follow at once."""
        if (yield from reading.skip_space()) == "{":
            return head
        name = ""
        while (yield from reading.peek()) not in ("", "\n", "<", "{") and len(name) < _MAX_HEAD:
            name += reading.take()
        if (yield from reading.skip_space()) == "`":
            if not (yield from reading.word(("```",))) or (
                (yield from reading.peek()) == "j" and not (yield from reading.word(("json",)))
            ):
                return ""
            if (yield from reading.skip_space()) != "{":
                return ""
        return name.strip()

    def _call(self, tool: Tool, arguments: str) -> str:
        head = f"{rules.quoted('function')} {self._mark(self.marks.separator)}"
        return f'{head} {rules.quoted(tool.name + chr(10) + "```json" + chr(10))} {arguments} "\\n```"'


class DeepSeek31(DeepSeek):
    """V3.1 and later: a name, the separator, arguments."""

    between = ""

    def _call(self, tool: Tool, arguments: str) -> str:
        return f"{rules.quoted(tool.name)} {self._mark(self.marks.separator)} {arguments}"


class Kimi(Sections):
    """Kimi K2: the head is the call's id, ``functions.name:0``."""

    marks = _KIMI

    def _name(self, reading: Reading, head: str) -> Parsing[str]:
        found = _KIMI_HEAD.fullmatch(head)
        char = yield from reading.skip_space()
        return found[1] if found is not None and char == "{" else ""

    def _id(self, head: str) -> str | None:
        return head if head.startswith("functions.") and ":" in head else None

    def _call(self, tool: Tool, arguments: str) -> str:
        return f"{rules.quoted('functions.' + tool.name + ':')} /[0-9]{{1,3}}/ {self._mark(self.marks.separator)} {arguments}"
