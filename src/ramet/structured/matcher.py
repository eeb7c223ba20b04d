"""A sequence's place in its grammar, kept by llguidance."""

from __future__ import annotations

import re
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
    """``Matcher`` over an ``LLMatcher``, which it owns.

    ``unending`` and ``ending`` are masks: all but the ids that may end an output, and those that end this one.
    llguidance raises nothing for a fault of its own: it keeps an error, and then allows EOS. So its error is asked for each time.
    """

    __slots__ = ("_ending", "_guide", "_unending")

    def __init__(self, guide: LLMatcher, unending: UInt32, ending: UInt32) -> None:
        self._guide = guide
        self._unending = unending
        self._ending = ending

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
        self._check()
        row &= self._unending
        if self._guide.is_accepting():
            row |= self._ending

    def accept(self, token_id: int) -> None:
        self._guide.consume_token(token_id)
        self._check()

    def validate(self, token_ids: list[int]) -> int:
        count = self._guide.validate_tokens(token_ids)
        self._check()
        return count

    def forced_bytes(self) -> bytes:
        forced = self._guide.compute_ff_bytes()
        self._check()
        return forced

    def rollback(self, num_tokens: int) -> None:
        self._guide.rollback(num_tokens)
        self._check()

    def fork(self) -> GuidanceMatcher:
        return GuidanceMatcher(self._guide.deep_copy(), self._unending, self._ending)

    def _check(self) -> None:
        if self._guide.is_error():
            raise GrammarError(reason(self._guide))


def reason(guide: LLMatcher) -> str:
    """What went wrong in llguidance, on one line, without the grammar and the state that it adds."""
    text = _LISTING.split(guide.get_error(), maxsplit=1)[0].replace("<non-verbose/>", "")
    text = " ".join(_PLACE.sub("", text).split())
    return _KNOWN.get(text, text[:_MAX_REASON]) or "no reason is given"
