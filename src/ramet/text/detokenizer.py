"""Token ids to text as they come: whole characters only, and never the beginning of a stop string."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ramet.text.stops import StopStrings
from ramet.text.tokenizer import Tokenizer
from ramet.text.utf8 import MAX_CHAR_BYTES, Utf8Text, incomplete_end

__all__ = ["Detokenizer"]


class Detokenizer:
    """Text of one sequence, piece by piece.

    Without a stop the pieces join to ``tokenizer.decode(all output ids)``; with one, to that text up to the stop (or
    through it with ``include_stop``). U+FFFD stands only where the bytes really are not UTF-8. Which stop wins is told in
    ``StopStrings``. Not thread-safe: one sequence, one reader.

    Stops are looked for in the text that comes after the first ``min_tokens`` tokens.

    ``prompt_ids`` matter only at the seam: a character that the prompt began is completed, a broken one is the
    prompt's and is not shown again, and the leading space of a first word is kept where the prompt has text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        *,
        stops: Sequence[str] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special_tokens
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._text = _seam(tokenizer, prompt_ids, skip_special_tokens)
        self._has_stops = bool(stops)
        self._stops = StopStrings.of(tuple(stops))
        self._state = StopStrings.START
        self._held = ""
        self._stopped: str | None = None
        self._num_tokens = 0

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text, or None."""
        return self._stopped

    @property
    def num_tokens(self) -> int:
        """Output tokens read; once stopped, up to and with the one that completed the stop."""
        return self._num_tokens

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens make certain; nothing more once stopped."""
        parts = []
        for token_id in token_ids:
            if self._stopped is not None:
                break
            self._num_tokens += 1
            if not (self._skip_special and self._tokenizer.is_special(token_id)):
                parts.append(self._release(self._text.push(self._tokenizer.token_bytes(token_id))))
        return "".join(parts)

    def finish(self) -> str:
        """The text that was held back; empty once stopped. Nothing is to be pushed afterwards."""
        if self._stopped is not None:
            return ""
        text = self._release(self._text.finish())
        held, self._held = self._held, ""
        return text + held if self._stopped is None else text

    def _release(self, new: str) -> str:
        """What of the held and the new text may go out. ``_held`` stays the text that the automaton's state spells."""
        if not self._has_stops or self._num_tokens <= self._min_tokens:
            return new  # no stop may end the text yet, and none that begins here is remembered
        state = self._state
        for count, char in enumerate(new, 1):
            state = self._stops.step(state, char)
            stop = self._stops.match(state)
            if stop is not None:
                self._stopped = stop
                text = self._held + new[:count]
                self._held = ""
                return text if self._include_stop else text[: -len(stop)]
        self._state = state
        text = self._held + new
        cut = len(text) - self._stops.depth(state)
        self._held = text[cut:]
        return text[:cut]


def _seam(tokenizer: Tokenizer, prompt_ids: Sequence[int], skip_special_tokens: bool) -> Utf8Text:
    """The reader of the output's bytes, knowing how the prompt ends. A special token ends what stands before it."""
    end = b""
    has_text = False
    at_special = False
    for token_id in reversed(prompt_ids):
        if tokenizer.is_special(token_id):
            at_special = True
            has_text = has_text or not skip_special_tokens
        elif data := tokenizer.token_bytes(token_id):
            has_text = True
            end = end if at_special else data + end
        if has_text and (at_special or len(end) >= MAX_CHAR_BYTES):
            break
    return Utf8Text(incomplete_end(end), 0 if has_text else tokenizer.leading_spaces)
