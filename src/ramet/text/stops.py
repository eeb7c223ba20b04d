"""Stop strings over a stream of text, in one pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache

from ramet.errors import InvalidRequest

__all__ = ["StopStrings"]


class StopStrings:
    """All stop strings of a request as one automaton (Aho and Corasick, 1975); immutable, shared by its sequences.

    State s is the longest suffix of the text read so far that begins some stop; ``depth(s)`` is its length, which is just
    the text that has to be held back. **The match that ends first wins; of those that end together, the longest.** That
    depends on the text alone, never on how it was cut into tokens, and no text is held to see whether an earlier start
    turns up.
    """

    START = 0

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise InvalidRequest("a stop string is empty; it would stop before the first character", "stop")
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._match: list[str | None] = [None]
        for stop in stops:
            self._add(stop)
        self._fallback = self._link()

    @classmethod
    def of(cls, stops: tuple[str, ...]) -> StopStrings:
        """The automaton of these stops, kept for the next sequence with the same ones."""
        return _compiled(stops)

    def depth(self, state: int) -> int:
        """Characters at the end of the text that may become a stop."""
        return self._depth[state]

    def step(self, state: int, char: str) -> int:
        """The state after one more character; amortised constant time."""
        while char not in self._next[state]:
            if state == self.START:
                return state
            state = self._fallback[state]
        return self._next[state][char]

    def match(self, state: int) -> str | None:
        """The stop that ends here, the longest of several."""
        return self._match[state]

    def _add(self, stop: str) -> None:
        state = self.START
        for char in stop:
            if char not in self._next[state]:
                self._next[state][char] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._match.append(None)
            state = self._next[state][char]
        self._match[state] = stop

    def _link(self) -> list[int]:
        """Fallback of each state: its longest proper suffix that is a state too. Breadth first, so shorter ones are ready."""
        fallback = [self.START] * len(self._next)
        queue = deque(self._next[self.START].values())
        while queue:
            state = queue.popleft()
            if self._match[state] is None:
                self._match[state] = self._match[fallback[state]]
            for char, child in self._next[state].items():
                back = fallback[state]
                while back != self.START and char not in self._next[back]:
                    back = fallback[back]
                fallback[child] = self._next[back].get(char, self.START)
                queue.append(child)
        return fallback


@lru_cache(maxsize=64)
def _compiled(stops: tuple[str, ...]) -> StopStrings:
    return StopStrings(stops)
