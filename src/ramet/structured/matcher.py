"""A sequence's place in its grammar, kept by llguidance."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING

from ramet.core.ids import UInt32
from ramet.core.ports import MAX_FORCED_BYTES, NotReady
from ramet.errors import GrammarError
from ramet.structured.digits import Watch
from ramet.structured.guides import Guide

if TYPE_CHECKING:
    from llguidance import LLMatcher

__all__ = ["GuidanceMatcher", "reason"]

_MAX_REASON = 300
_LISTING = re.compile(r"\n\s*\d+ \|")
_PLACE = re.compile(r"^(?:at )?\d+\(\d+\): ")
_KNOWN = {"NoExtensionBias": "no text can match it", "NoExtension": "no text can go on from here"}


def _nothing() -> None:
    pass


class GuidanceMatcher:
    """``Matcher`` over copies of a ``Guide``.

    ``unending`` and ``ending`` are masks: all but the ids that may end an output, and those that end this one. ``watch`` says
    where numbers have to end.
    llguidance raises nothing for a fault of its own: it keeps an error, and then allows EOS. So its error is asked for each time.

    Where the lexer is full, of this sequence's or of others' texts, or looking ahead met a limit, the sequence's own tokens are
    walked once more on another copy (``Guide`` says why that is exact). What fails on a lexer that is all its own is told.
    Until there is such a lexer the failed copy stays, and whatever is done next tries once more: masks and tokens wait for
    it, for a token that has not been taken in cannot be known to be the last one.
    """

    __slots__ = ("_copy", "_ending", "_guide", "_looks_ahead", "_token_ids", "_unending", "_watch")

    def __init__(self, guide: Guide, unending: UInt32, ending: UInt32, watch: Watch) -> None:
        self._guide = guide
        self._copy = guide.root.deep_copy()
        self._unending = unending
        self._ending = ending
        self._watch = watch
        self._looks_ahead = True
        self._token_ids: list[int] = []

    @property
    def num_words(self) -> int:
        return len(self._unending)

    @property
    def is_accepting(self) -> bool:
        return self._copy.is_accepting()

    @property
    def is_finished(self) -> bool:
        return self._copy.is_stopped() and not self._copy.is_error()

    def fill_mask(self, row: UInt32) -> None:
        self._do(lambda: self._copy.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes))
        row &= self._unending
        if self._copy.is_accepting():
            row |= self._ending
        self._watch.hold(row)

    def accept(self, token_id: int) -> None:
        self._do(lambda: self._copy.consume_token(token_id))
        self._token_ids.append(token_id)
        self._watch.accept(token_id)

    def validate(self, token_ids: list[int]) -> int:
        count = self._copy.validate_tokens(token_ids) if self._looks_ahead else 0
        return 0 if self._is_spoilt() else count

    def forced_bytes(self) -> bytes:
        forced = self._copy.compute_ff_bytes() if self._looks_ahead else b""
        return b"" if self._is_spoilt() else forced[:MAX_FORCED_BYTES]

    def rollback(self, num_tokens: int) -> None:
        del self._token_ids[len(self._token_ids) - num_tokens :]
        self._watch.rollback(num_tokens)
        if self._copy.is_error():
            self._renew()
        else:
            self._copy.rollback(num_tokens)
            self._check()
            self._copy.compute_bitmask()  # or a token taken next may leave later masks too narrow
            if self._copy.is_error():  # others have filled the lexer meanwhile
                self._renew()

    def fork(self) -> GuidanceMatcher:
        other = copy(self)
        other._copy = self._copy.deep_copy()
        other._token_ids = list(self._token_ids)
        other._watch = self._watch.fork()
        return other

    def _do(self, step: Callable[[], object]) -> None:
        step()
        if self._copy.is_error():
            self._begin_anew(step)
            self._check()

    def _is_spoilt(self) -> bool:
        """Whether looking ahead has met a limit; then it stands where it stood, and looks ahead no more."""
        if not self._copy.is_error():
            return False
        self._looks_ahead = False
        self._renew()
        return True

    def _renew(self) -> None:
        with suppress(NotReady):
            self._begin_anew()
            self._check()

    def _begin_anew(self, step: Callable[[], object] = _nothing) -> None:
        """Stand where it stood and do a step, on the guide's newest root; where that is full as well, on one that is unused.

        Raises ``NotReady`` where that is still to come.
        """
        self._walk(self._guide.root)
        step()
        if "lexer error" in self._copy.get_error():
            self._walk(self._guide.successor())
            step()

    def _walk(self, root: LLMatcher) -> None:
        self._copy = root.deep_copy()
        self._copy.compute_bitmask()  # which sets the limits of the lexer
        self._copy.consume_tokens(self._token_ids)

    def _check(self) -> None:
        if self._copy.is_error():
            raise GrammarError(reason(self._copy))


def reason(guide: LLMatcher) -> str:
    """What went wrong in llguidance, on one line, without the grammar and the state that it adds."""
    text = _LISTING.split(guide.get_error(), maxsplit=1)[0].replace("<non-verbose/>", "")
    text = " ".join(_PLACE.sub("", text).split())
    return _KNOWN.get(text, text[:_MAX_REASON]) or "no reason is given"
