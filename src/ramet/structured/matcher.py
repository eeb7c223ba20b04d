"""A sequence's place in its grammar, kept by llguidance."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from ramet.core.ids import UInt32
from ramet.errors import GrammarError

if TYPE_CHECKING:
    from llguidance import LLMatcher

__all__ = ["GuidanceMatcher", "reason"]

_MAX_REASON = 300
_LISTING = re.compile(r"\n\s*\d+ \|")
_PLACE = re.compile(r"^(?:at )?\d+\(\d+\): ")
_KNOWN = {"NoExtensionBias": "no text can match it", "NoExtension": "no text can go on from here"}


class GuidanceMatcher:
    """``Matcher`` over a copy of ``guide``, an ``LLMatcher`` at the start.

    ``unending`` and ``ending`` are masks: all but the ids that may end an output, and those that end this one.
    llguidance raises nothing for a fault of its own: it keeps an error, and then allows EOS. So its error is asked for each time.

    All copies of a guide share one lexer, which may have so many states and no more. So what one sequence looked ahead, or what
    many have met, could end another. Where a limit is met the way is walked once more, over a guide of its own from
    ``make_guide`` and with no looking ahead: what fails then fails of the sequence's own tokens.
    """

    __slots__ = ("_ending", "_guide", "_is_alone", "_make_guide", "_token_ids", "_unending")

    def __init__(self, guide: LLMatcher, unending: UInt32, ending: UInt32, make_guide: Callable[[], LLMatcher]) -> None:
        self._guide = guide.deep_copy()
        self._unending = unending
        self._ending = ending
        self._make_guide = make_guide
        self._is_alone = False
        self._token_ids: list[int] = []

    @property
    def num_words(self) -> int:
        return len(self._unending)

    @property
    def is_accepting(self) -> bool:
        return self._guide.is_accepting()

    @property
    def is_finished(self) -> bool:
        return self._guide.is_stopped()

    def fill_mask(self, row: UInt32) -> None:
        self._guide.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if self._must_try_again():
            self._guide.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        self._check()
        row &= self._unending
        if self._guide.is_accepting():
            row |= self._ending

    def accept(self, token_id: int) -> None:
        self._guide.consume_token(token_id)
        if self._must_try_again():
            self._guide.consume_token(token_id)
        self._check()
        self._token_ids.append(token_id)

    def validate(self, token_ids: list[int]) -> int:
        count = 0 if self._is_alone else self._guide.validate_tokens(token_ids)
        return 0 if self._must_try_again() else count

    def forced_bytes(self) -> bytes:
        forced = b"" if self._is_alone else self._guide.compute_ff_bytes()
        return b"" if self._must_try_again() else forced

    def rollback(self, num_tokens: int) -> None:
        kept = len(self._token_ids) - num_tokens
        if self._guide.is_error():
            self._walk(self._token_ids[:kept])
        else:
            self._guide.rollback(num_tokens)
        self._check()
        del self._token_ids[kept:]

    def fork(self) -> GuidanceMatcher:
        other = GuidanceMatcher(self._guide, self._unending, self._ending, self._make_guide)
        other._is_alone = self._is_alone
        other._token_ids = list(self._token_ids)
        return other

    def _must_try_again(self) -> bool:
        """Whether a limit was met for the first time; then it stands where it stood, alone."""
        if self._is_alone or not self._guide.is_error():
            return False
        self._is_alone = True
        self._walk(self._token_ids)
        return True

    def _walk(self, token_ids: list[int]) -> None:
        self._guide = self._make_guide()
        for token_id in token_ids:
            self._guide.consume_token(token_id)

    def _check(self) -> None:
        if self._guide.is_error():
            raise GrammarError(reason(self._guide))


def reason(guide: LLMatcher) -> str:
    """What went wrong in llguidance, on one line, without the grammar and the state that it adds."""
    text = _LISTING.split(guide.get_error(), maxsplit=1)[0].replace("<non-verbose/>", "")
    text = " ".join(_PLACE.sub("", text).split())
    return _KNOWN.get(text, text[:_MAX_REASON]) or "no reason is given"
