"""Calls in one block between two marks, at the end of an answer.

::

    begin  call, call ...  end
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ramet.text.tools import rules
from ramet.text.tools.form import ANY_TEXT, ToolFormat
from ramet.text.tools.json_calls import json_calls
from ramet.text.tools.pythonic import pythonic_calls
from ramet.text.tools.reading import Parsing, Reading
from ramet.text.tools.tool import Tool
from ramet.text.tools.xml_calls import Tags, xml_calls

__all__ = ["Block", "Layout", "Listed", "Tagged"]


class Block(ToolFormat):
    """Text, and then calls behind the first of the marks. ``bare`` is what begins a call, if calls are read without that."""

    reads_calls = True
    is_marked = True
    bare = ""

    def __init__(self, special: frozenset[str] = frozenset()) -> None:
        self._special = special

    def lark(self, tools: Sequence[Tool], most: int) -> str:
        return f"calls: {self._mark(self.marks[0])} block\n" + self._block(tools, most)

    def free_lark(self, tools: Sequence[Tool], most: int) -> str:
        answer = "answer: text | begin block\n"
        begin = rules.until("begin", self.marks[0], self._special)
        if self.bare:
            answer = f"answer: {rules.fewer('bare', most)} (text | begin block) | bare{{{most}}}\nbare: begin_bare behind\n"
            begin += rules.until("begin_bare", self.bare, self._special)
        return answer + ANY_TEXT + begin + self._block(tools, most)

    def _mark(self, mark: str) -> str:
        return rules.mark(mark, self._special)

    def _block(self, tools: Sequence[Tool], most: int) -> str:
        """Rules of which ``block`` is all that comes behind the first mark, and ``behind`` what comes behind a ``bare`` one."""
        raise NotImplementedError


class Layout(NamedTuple):
    """How a family lays its calls out: the marks, what stands before, between and behind calls in Python's form, which is used
    where all tools can be called so, and the name that arguments have in an object.
    """

    begin: str
    end: str
    head: str = ""  # a mark of its own behind the first
    pythonic: tuple[str, str, str] | None = None
    arguments: str = "arguments"
    is_single: bool = False


class Listed(Block):
    """A list of objects, or calls in Python's form; where there is one call at most, it is an object without a list."""

    def __init__(self, layout: Layout, special: frozenset[str] = frozenset()) -> None:
        super().__init__(special)
        self._layout = layout
        self.is_single = layout.is_single
        self.marks = [mark for mark in (layout.begin, layout.end, layout.head) if mark]

    def read(self, reading: Reading) -> Parsing[None]:
        begin, end = self.marks[:2]
        head = self._layout.head
        while mark := (yield from reading.text_until((begin, end))):
            if mark == end:
                reading.end_mark()
                continue
            yield from reading.skip_space()
            if not head or (yield from reading.word((head,))):
                yield from self._calls(reading)
            else:
                reading.release()

    def _calls(self, reading: Reading) -> Parsing[None]:
        is_list = (yield from reading.skip_space()) == "["
        if is_list:
            reading.take()
        if (yield from reading.skip_space()) == "{":
            yield from json_calls(reading, is_list=is_list, is_marked=True)
        elif self._layout.pythonic:
            yield from pythonic_calls(reading, is_list=is_list, is_marked=True)
        else:
            reading.release()

    def _block(self, tools: Sequence[Tool], most: int) -> str:
        head = f"{self._mark(self._layout.head)} line?" if self._layout.head else ""
        end = self._mark(self._layout.end)
        if self._layout.pythonic and all(map(rules.has_plain_arguments, tools)):
            first, between, last = map(rules.quoted, self._layout.pythonic)
            return f"block: {head} {first} call {rules.more(between, 'call', most)} {last} {end}\n" + rules.pythonic(tools)
        more = rules.more('"," (" " | line)', "object", most)
        calls = "object" if self.is_single else f'"[" line? object {more} line? "]"'
        line = "line: /\\n {0,4}/\n"  # as Jamba writes it
        return f"block: {head} {calls} {end}\n{line}" + rules.objects(tools, self._layout.arguments)


class Tagged(Block):
    """Calls with tags around names and values, each on lines of its own. Behind the two marks may be others that are in tags."""

    def __init__(self, marks: Sequence[str], tags: Tags, special: frozenset[str] = frozenset()) -> None:
        super().__init__(special)
        self.marks = marks
        self.bare = tags.function
        self._tags = tags

    def read(self, reading: Reading) -> Parsing[None]:
        yield from xml_calls(reading, self.marks[:2], self._tags)

    def _block(self, tools: Sequence[Tool], most: int) -> str:
        calls = f'"\\n" function {rules.more(rules.quoted(chr(10)), "function", most)}'
        return f'block: {calls} "\\n" {self._mark(self.marks[1])}\n' + rules.xml(tools, self._tags, self._special)

    def unkept(self, tool: Tool) -> str | None:
        return rules.unkept_of_xml(tool, self._tags.parameter_end)
