"""Jump-forward: where a grammar leaves one way on, its text is proposed at once, and the model verifies it in one step.

The idea of forced text is SGLang's (Zheng et al., 2024). There it is put in. Here it is proposed, because one text can be cut
into tokens in many ways and which of them is written is the model's choice: so it changes no answer.
"""

from __future__ import annotations

from collections.abc import Callable

from ramet.core.ports import Matcher, NotReady
from ramet.core.request import Sequence
from ramet.structured.habits import Guess, Habits

__all__ = ["JumpForward", "Speller"]

_MAX_PLACES = 20_000
_MAX_OWN_PLACES = 1_000
_MAX_DRAFTS = 48
_DOUBT = 0.2  # of what was seen at a place once: forced text is cut in few ways, and what is open may go on anyhow
_OPEN_DOUBT = 1.0
_NO_TOKEN = -1  # before a prompt of one
_FIRST_TRUST = 0.7  # in the tokenizer's own way to cut a text


class Speller:
    """How forced text is cut into tokens: as models last cut it, else as the tokenizer does.

    A grammar often makes a model write what it would not have written, and then it cuts it in ways of its own. They are learnt,
    by the text that was still to come when a token was chosen, for all requests together: documents of one schema are cut alike.
    ``usual`` is what mostly comes behind two tokens where nothing is forced.
    ``encode`` gives the tokens of bytes that may begin or end inside a character; ``token_bytes`` the bytes of a token.
    """

    def __init__(self, encode: Callable[[bytes], list[int]], token_bytes: Callable[[int], bytes]) -> None:
        self._encode = encode
        self._token_bytes = token_bytes
        self.cuts: Habits[bytes] = Habits(_MAX_PLACES, _DOUBT)
        self.usual: Habits[tuple[int, int]] = Habits(_MAX_PLACES, _OPEN_DOUBT)

    def spell(self, text: bytes) -> list[tuple[Guess, bytes]]:
        """Tokens of ``text``, each with what was still to come before it; the last one may reach beyond the end."""
        spelt: list[tuple[Guess, bytes]] = []
        while text:
            known = self.cuts.guess(text)
            guesses = [Guess(token_id, _FIRST_TRUST) for token_id in self._encode(text)] if known is None else [known]
            if not guesses:
                break
            for one in guesses:
                spelt.append((one, text))
                text = text[len(self._token_bytes(one.token_id)) :]
        return spelt


class JumpForward:
    """``Drafter`` of a sequence with a grammar.

    Behind what is forced it goes on by habit: JSON leaves white space open, and a document's is always the same. ``matcher`` goes
    ahead over the guesses and comes back.
    """

    def __init__(self, seq: Sequence, matcher: Matcher, speller: Speller) -> None:
        self._seq = seq
        self._matcher = matcher
        self._speller = speller
        self._own: Habits[int] = Habits(_MAX_OWN_PLACES, _OPEN_DOUBT)
        self._places: list[bytes] = []  # the text that was forced before each guess, and behind the last one

    def propose(self, most: int, least: float) -> list[int]:
        most = min(most, _MAX_DRAFTS)
        drafts: list[int] = []
        trust = 1.0
        self._places = []
        while True:
            forced = self._matcher.forced_bytes()
            token_ids: list[int] = []
            for guess, place in self._speller.spell(forced) if forced else self._usual(drafts):
                trust *= guess.trust
                if trust < least or len(drafts) + len(token_ids) == most:
                    break
                token_ids.append(guess.token_id)
                self._places.append(place)
            count = self._accept(token_ids)
            del self._places[len(drafts) + count :]
            drafts += token_ids[:count]
            if not count or self._matcher.is_finished:
                break
        self._places.append(forced if not count else b"")
        if drafts:
            self._matcher.rollback(len(drafts))
        return drafts

    def _accept(self, token_ids: list[int]) -> int:
        """How many of them the grammar takes, and takes now."""
        count = self._matcher.validate(token_ids) if token_ids else 0
        for index in range(count):
            try:
                self._matcher.accept(token_ids[index])
            except NotReady:
                return index
        return count

    def learn(self, num_proposed: int, token_ids: list[int]) -> None:
        tokens = [_NO_TOKEN, *self._seq.tokens.view()[-len(token_ids) - 2 :].tolist()][-len(token_ids) - 2 :]
        for index, (token_id, place) in enumerate(zip(token_ids, self._places, strict=False)):
            if place:
                self._speller.cuts.learn(place, token_id)
            else:
                before, last = tokens[index : index + 2]
                self._speller.usual.learn((before, last), token_id)
                self._own.learn(last, token_id)
        self._places = []  # a step for which nothing was asked has none

    def _usual(self, drafts: list[int]) -> list[tuple[Guess, bytes]]:
        """What mostly comes behind the last token in this document, or behind the last two in all of them."""
        before, last = [_NO_TOKEN, *self._seq.tokens.view()[-2:].tolist(), *drafts][-2:]
        guesses = [guess for guess in (self._own.guess(last), self._speller.usual.guess((before, last))) if guess is not None]
        return [(max(guesses, key=lambda guess: guess.trust), b"")] if guesses else []
