"""One answer, apart: what the model thought, what it says, which tools it calls."""

from __future__ import annotations

from collections.abc import Iterable

from ramet.text.tools.form import ToolFormat
from ramet.text.tools.reading import Delta, Parsing, Part, Reading
from ramet.text.tools.tool import Tool

__all__ = ["AnswerReader"]


class AnswerReader:
    """Takes an answer's text as it comes and gives what is certain of its parts; how it is cut makes no difference to them.

    ``tools`` are those that may be called; ``is_forced`` says that a grammar holds the answer to calls. What stands between the
    two marks of ``thoughts``, if any, is reasoning; the first of them must come first. ``opening`` is markup that the prompt
    ends with: the answer is read as if it began with that. Not thread-safe.
    """

    def __init__(
        self,
        form: ToolFormat,
        tools: Iterable[Tool] = (),
        *,
        is_forced: bool = False,
        thoughts: tuple[str, str] | None = None,
        opening: str = "",
    ) -> None:
        self._reading = Reading({tool.name: tool.parameters for tool in tools}, is_forced=is_forced)
        self._run = _answer(self._reading, form, thoughts)
        next(self._run)
        self._push(opening)

    @property
    def parts(self) -> list[Part]:
        """So far."""
        return self._reading.parts

    @property
    def ends_in_calls(self) -> bool:
        """Whether the last part that is a call is there to its end."""
        calls = [part for part in self.parts if part.kind == "call"]
        return bool(calls) and calls[-1].is_whole

    def push(self, text: str) -> list[Delta]:
        self._push(text)
        return self._reading.written()

    def finish(self, *, is_cut: bool) -> list[Delta]:
        """What was kept back. ``is_cut``: the answer did not end by itself, so unfinished markup is no text."""
        self._reading.is_over, self._reading.is_cut = True, is_cut
        next(self._run, None)
        self._reading.end()
        return self._reading.written()

    def _push(self, text: str) -> None:
        if text:
            self._reading.feed(text)
            next(self._run)


def _answer(reading: Reading, form: ToolFormat, thoughts: tuple[str, str] | None) -> Parsing[None]:
    if thoughts is not None:
        begin, end = thoughts
        reading.hold(is_mark=True)
        yield from reading.skip_space()
        if (yield from reading.word((begin,))):
            reading.drop()
            reading.begin("reasoning")
            if (yield from reading.text_until((end,))):
                reading.drop()
                reading.begin("text")
        elif (yield from reading.peek()):
            reading.reread()
        else:
            reading.release()
    yield from form.read(reading)
