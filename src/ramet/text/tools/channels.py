"""Answers in messages, each with a channel: what gpt-oss writes (harmony).

::

    <|channel|>analysis<|message|>a thought<|end|><|start|>assistant
    <|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>
    <|channel|>final<|message|>what is said<|return|>

The prompt ends with ``<|start|>assistant``; ``<|call|>`` and ``<|return|>`` end an answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ramet.text.tools import rules
from ramet.text.tools.form import ToolFormat
from ramet.text.tools.json_calls import json_arguments
from ramet.text.tools.reading import Parsing, Reading
from ramet.text.tools.tool import Tool

__all__ = ["Channels"]

_BEGINS = ("<|channel|>", "<|start|>")
_MESSAGE = "<|message|>"
_OF_HEAD = ("<|channel|>", "<|constrain|>")
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_MAX_HEAD = 300
_TO = "to=functions."
_TOOL = re.compile(r"\bto=functions\.([\w.:/-]+)")
_IS_THOUGHT = re.compile(r"(?:.*<\|channel\|>)?\s*analysis\b", re.DOTALL)


class Channels(ToolFormat):
    """Thoughts are the channel ``analysis``; a message to ``functions.f`` is a call; all others are said."""

    reads_calls = True
    is_single = True
    has_channels = True
    marks = (*_BEGINS, _MESSAGE, "<|constrain|>", *_ENDS)

    def __init__(self, special: frozenset[str] = frozenset()) -> None:
        self._special = special

    def read(self, reading: Reading) -> Parsing[None]:
        reading.hold(is_mark=True)
        yield from reading.skip_space()
        if (yield from reading.word((_TO,))):  # the prompt's ``assistant`` goes on so
            yield from _message(reading, _TO)
        else:
            reading.release()
        while mark := (yield from reading.text_until((*_BEGINS, *_ENDS))):
            if mark in _BEGINS:
                yield from _message(reading)
            else:
                reading.end_message()

    def lark(self, tools: Sequence[Tool], most: int) -> str:
        return "calls: thought? call\n" + self._calls(tools)

    def free_lark(self, tools: Sequence[Tool], most: int) -> str:
        said = f'said: {self._mark("<|channel|>")} "final" {self._mark(_MESSAGE)} /(.|\\n)*/\n'
        return f"answer: thought? (said | call)\n{said}" + self._calls(tools)

    def _calls(self, tools: Sequence[Tool]) -> str:
        channel, constrain, message = (self._mark(one) for one in ("<|channel|>", "<|constrain|>", _MESSAGE))
        ways = " | ".join(
            f'{rules.quoted(f"commentary to=functions.{tool.name} ")} {constrain} "json" {message} arguments_{i}'
            for i, tool in enumerate(tools)
        )
        begin = f'{self._mark("<|start|>")} "assistant"'
        inside = rules.until("inside", "<|end|>", self._special)
        thought = f'thought: {channel} "analysis" {message} inside {begin}\n'
        return f"{thought}{inside}call: {channel} ({ways})\n" + rules.arguments(tools)

    def _mark(self, mark: str) -> str:
        return rules.mark(mark, self._special)


def _message(reading: Reading, head: str = "") -> Parsing[None]:
    """From behind its first mark to the beginning of what it says, or the end of a call. Without a beginning it is text."""
    while (char := (yield from reading.peek())) and len(head) < _MAX_HEAD:
        if char != "<":
            head += reading.take()
            continue
        mark = yield from reading.word((_MESSAGE, *_OF_HEAD))
        if mark == _MESSAGE and (tool := _TOOL.search(head)):
            yield from reading.skip_space()
            if not (yield from json_arguments(reading, tool[1])):
                break
            return
        if mark == _MESSAGE:
            reading.drop()
            reading.begin("reasoning" if _IS_THOUGHT.match(head) else "text", is_more=True)
            return
        if not mark:
            break
        head += mark
    reading.release()
