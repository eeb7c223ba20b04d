"""Jump-forward: where a grammar leaves one way on, its text is proposed at once, and the model verifies it in one step.

The idea of forced text is SGLang's (Zheng et al., 2024). There it is put in. Here it is proposed, because one text can be cut
into tokens in many ways and which of them is written is the model's choice: so it changes no answer.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from ramet.core.ports import Draft, Matcher
from ramet.core.request import Namespace, Sequence
from ramet.structured.habits import Habit, Habits, Trust

__all__ = ["NO_GUESS", "JumpForward", "Place", "Speller"]

_MAX_NAMESPACES = 64
_MAX_PLACES = 4_000  # of one namespace and one kind: 4 MB in all three kinds
_MAX_DRAFTS = 48
_MAX_OWN = 256  # places of one text: 64 KB
_NEAR, _FAR = 2, 6  # tokens before a place: what comes behind two is soon known, behind six it is surer
_MOST_SPELT = 64  # bytes of forced text that are looked at for its first token
_USUAL_TRUST = 0.7  # in the tokenizer's own way to cut a text
NO_GUESS = (-1, 0.0)


class Place(NamedTuple):
    """In whose text and behind which tokens a token comes and, where that is known, of which forced text it is the beginning.

    ``own`` is what came last behind each token of the text itself: one that breaks lines in a way will go on in it.
    """

    whose: Namespace
    own: Habits[int]
    near: tuple[int, ...]
    far: tuple[int, ...]
    forced: bytes


class _Hand:
    """How one namespace writes: what came last behind so many tokens, how forced text was cut, and how far to trust in that."""

    def __init__(self) -> None:
        self._near: Habits[tuple[int, ...]] = Habits(_MAX_PLACES)
        self._far: Habits[tuple[int, ...]] = Habits(_MAX_PLACES)
        self._cuts: Habits[bytes] = Habits(_MAX_PLACES)
        self.trust = Trust(4)

    def habits(self, place: Place) -> tuple[Habit | None, ...]:
        """What each kind of them says of a place."""
        cut = self._cuts.at(place.forced) if place.forced else None
        return self._near.at(place.near), self._far.at(place.far), cut, place.own.at(place.near[-1])

    def learn(self, place: Place, is_behind_miss: bool, token_id: int) -> None:
        self.trust.learn(token_id, self.habits(place), is_behind_miss)
        self._near.learn(place.near, token_id)
        self._far.learn(place.far, token_id)
        if place.forced:
            self._cuts.learn(place.forced, token_id)
        place.own.learn(place.near[-1], token_id)


_UNKNOWN = _Hand()  # nothing is ever learnt of it


class Speller:
    """How texts under grammars are written, learnt from all requests of a namespace together: what came last behind the tokens
    before, and how forced text was cut into tokens.

    Whether a guess held can be seen by the time an answer takes, so namespaces share nothing here: not what was written, not how
    far that is trusted, not the room for it. Of more than ``_MAX_NAMESPACES`` one is forgotten.
    A grammar often makes a model write what it would not have written, and then it cuts it in ways of its own; documents of one
    schema are cut alike. Where nothing is known of a forced text it is cut as the tokenizer does: ``encode`` gives the tokens of
    bytes that may begin or end inside a character; ``token_bytes`` the bytes of a token.
    """

    def __init__(self, encode: Callable[[bytes], list[int]], token_bytes: Callable[[int], bytes]) -> None:
        self._encode = encode
        self.token_bytes = token_bytes
        self._hands: OrderedDict[Namespace, _Hand] = OrderedDict()  # the one that wrote last comes last

    def guess(self, place: Place, is_behind_miss: bool) -> tuple[int, float]:
        """The token that is likeliest to come there, and how likely that is."""
        hand = self._hands.get(place.whose, _UNKNOWN)
        habits = hand.habits(place)
        best = NO_GUESS
        for token_id in {habit[0] for habit in habits if habit is not None}:
            if not place.forced or self._fits(token_id, place.forced):
                trust = hand.trust.of(token_id, habits, is_behind_miss)
                if trust > best[1]:
                    best = token_id, trust
        if best is NO_GUESS and place.forced and (usual := self._encode(place.forced)):
            best = usual[0], _USUAL_TRUST
        return best

    def learn(self, place: Place, is_behind_miss: bool, token_id: int) -> None:
        """It came there."""
        hand = self._hands.get(place.whose)
        if hand is None:
            if len(self._hands) == _MAX_NAMESPACES:
                self._give_one_up()
            hand = self._hands[place.whose] = _Hand()
        self._hands.move_to_end(place.whose)
        hand.learn(place, is_behind_miss, token_id)

    def forget(self) -> None:
        """All that was learnt, of every namespace."""
        self._hands.clear()

    def _give_one_up(self) -> None:
        """The namespace that wrote longest ago, of the tenant that has most: who makes up salts pushes out its own."""
        [(tenant, _)] = Counter(whose.tenant for whose in self._hands).most_common(1)
        del self._hands[next(whose for whose in self._hands if whose.tenant == tenant)]

    def _fits(self, token_id: int, text: bytes) -> bool:
        piece = self.token_bytes(token_id)
        return text.startswith(piece) or piece.startswith(text)


class JumpForward:
    """``Drafter`` of a sequence with a grammar.

    What was written in such a place before is guessed wherever it is, forced or not: JSON leaves white space open, and documents
    of one schema are much alike.
    """

    def __init__(self, seq: Sequence, matcher: Matcher, speller: Speller) -> None:
        self._seq = seq
        self._matcher = matcher
        self._speller = speller
        self._own: Habits[int] = Habits(_MAX_OWN)
        self._drafts: list[Draft] = []  # all that were guessed and did not fail; they are kept until they come
        self._places: list[Place] = []  # before each of them, and perhaps behind the last one
        self._is_behind_miss = False  # whether the last token was not the one that was guessed

    def propose(self, most: int, least: float) -> list[Draft]:
        most = min(most, _MAX_DRAFTS)
        drafts = self._drafts
        del self._places[len(drafts) :]
        if not drafts or (drafts[-1].likelihood > least and len(drafts) < most):
            self._go_on(most, least)
        return drafts[:most]

    def learn(self, num_proposed: int, token_ids: list[int]) -> None:
        if not token_ids:  # a lexer is made: what was guessed is still to come
            return
        was_behind_miss = self._is_behind_miss
        num = len(token_ids)
        guessed = [draft.token_id for draft in self._drafts[:num]]
        for i, place in enumerate(self._places[:num]):
            self._speller.learn(place, was_behind_miss, token_ids[i])
            if guessed[i : i + 1] != [token_ids[i]]:  # places behind a wrong guess never were
                break
        self._is_behind_miss = guessed != token_ids
        if was_behind_miss or self._is_behind_miss:  # what follows is guessed anew
            self._drafts, self._places = [], []
        else:
            come = self._drafts[num - 1].likelihood
            self._drafts = [Draft(token_id, likelihood / come) for token_id, likelihood in self._drafts[num:]]
            del self._places[:num]

    def _go_on(self, most: int, least: float) -> None:
        """Guess behind the guesses that there are."""
        drafts, request = self._drafts, self._seq.request
        forced = b"" if drafts else self._matcher.forced_bytes()
        tokens = [*self._seq.tokens.view()[-_FAR:].tolist(), *[draft.token_id for draft in drafts]]
        likelihood = drafts[-1].likelihood if drafts else 1.0
        while True:
            place = Place(request.namespace, self._own, tuple(tokens[-_NEAR:]), tuple(tokens[-_FAR:]), forced[:_MOST_SPELT])
            token_id, trust = self._speller.guess(place, self._is_behind_miss)
            self._places.append(place)
            likelihood *= trust
            if likelihood < least or len(drafts) == most or token_id in request.stop_ids:
                break
            drafts.append(Draft(token_id, likelihood))
            tokens.append(token_id)
            forced = forced and forced[len(self._speller.token_bytes(token_id)) :]
        num_good = self._matcher.validate([draft.token_id for draft in drafts]) if drafts else 0
        del self._places[num_good + 1 :], drafts[num_good:]
