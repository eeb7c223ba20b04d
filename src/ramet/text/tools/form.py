"""What is to be known of a family's way to write calls of tools."""

from __future__ import annotations

from collections.abc import Sequence

from ramet.text.tools.reading import Parsing, Reading
from ramet.text.tools.tool import Tool

__all__ = ["ANY_TEXT", "ToolFormat"]

ANY_TEXT = "text: /(.|\\n)*/\n"
"""A rule of Lark."""


class ToolFormat:
    """One family; this one has no calls: all is text.

    ``marks`` are what may be special tokens of a vocabulary. ``is_single``: there is one call at most. ``is_marked``: each call
    begins with a mark, so no document is one. ``has_channels``: text and thoughts have marks as well, with tools or without.
    ``thoughts`` are the marks around what a model thinks before it answers.
    """

    reads_calls = False
    is_single = False
    is_marked = False
    has_channels = False
    has_short_ids = False  # nine letters and digits: templates refuse others
    marks: Sequence[str] = ()
    thoughts: tuple[str, str] = ("<think>", "</think>")

    def read(self, reading: Reading) -> Parsing[None]:
        """Read an answer to its end."""
        return (yield from reading.rest())

    def opening(self, tools: Sequence[Tool]) -> str:
        """What a prompt ends with where a call has to come: the beginning of its markup that no grammar can spell."""
        return ""

    def lark(self, tools: Sequence[Tool], most: int) -> str:
        """Rules of which ``calls`` is one to ``most`` calls of these tools, behind the opening. Empty where there are none."""
        return ""

    def free_lark(self, tools: Sequence[Tool], most: int) -> str:
        """Rules of which ``answer`` is any text with at most so many calls in it. Empty where nothing that a grammar can name
        tells a call from text.
        """
        return ""

    def unkept(self, tool: Tool) -> str | None:
        """What these rules cannot keep to of a tool's schema, beside what no grammar can; None where there is nothing."""
        return None
