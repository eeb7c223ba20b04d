"""Logprobs in the three forms that clients know: chat's, the old completions', and vLLM's of prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from ramet.engine.assemble import Logprob
from ramet.server.schemas.openai import ChatLogprobs, PromptLogprob, TextLogprobs, TokenLogprob, TopLogprob
from ramet.text.detokenizer import Detokenizer
from ramet.text.tokenizer import Tokenizer

__all__ = ["TextPlaces", "chat_logprobs", "echo_places", "prompt_logprobs", "text_logprobs"]

_Found = Mapping[int, Logprob]
_LEAST = -9999.0  # what OpenAI says where a probability is 0; JSON has no infinity


def chat_logprobs(found: Sequence[_Found], num_top: int, tokenizer: Tokenizer | None) -> ChatLogprobs:
    """``found`` is an answer's, the token itself first in each."""
    return ChatLogprobs([_token(one, num_top, tokenizer) for one in found])


def prompt_logprobs(found: Sequence[_Found | None]) -> list[dict[int, PromptLogprob] | None]:
    """Of a whole prompt; the first token has none."""
    return [
        None if one is None else {i: PromptLogprob(_finite(lp.logprob), lp.rank, lp.decoded_token) for i, lp in one.items()}
        for one in found
    ]


class TextPlaces:
    """Where in a text each of its tokens begins, told as they come.

    A token that goes on with a character begins where that character does, and one that is not shown, where the next one is.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, before: Sequence[int] = (), *, start: int = 0, skip_special_tokens: bool = True
    ) -> None:
        """``before`` are the token ids in front of the text, which begins at ``start``."""
        self._end = start
        self._reader = None
        if tokenizer is not None:
            self._reader = Detokenizer(tokenizer, before, skip_special_tokens=skip_special_tokens)

    def take(self, token_ids: Sequence[int]) -> list[int]:
        places = []
        for token_id in token_ids:
            places.append(self._end)
            if self._reader is not None:
                self._end += len(self._reader.push((token_id,)))
        return places


def echo_places(text: str, token_ids: Sequence[int], tokenizer: Tokenizer | None) -> list[int]:
    """Of a prompt's tokens in its text: which shows special tokens where it was written with them, or as ids."""
    is_shown = tokenizer is not None and tokenizer.decode(token_ids, skip_special_tokens=False) == text
    return TextPlaces(tokenizer, skip_special_tokens=not is_shown).take(token_ids)


def text_logprobs(
    token_ids: Sequence[int], found: Sequence[_Found | None], places: list[int], num_top: int, tokenizer: Tokenizer | None
) -> TextLogprobs:
    """The old form. The token itself is among the top ones even where it is none of them, as it always was there."""
    return TextLogprobs(
        text_offset=places,
        token_logprobs=[None if one is None else _finite(one[i].logprob) for i, one in zip(token_ids, found, strict=True)],
        tokens=[_name(i, tokenizer) for i in token_ids],
        top_logprobs=[_top_by_name(one, num_top, tokenizer) for one in found] if num_top else [],
    )


def _token(found: _Found, num_top: int, tokenizer: Tokenizer | None) -> TokenLogprob:
    token_id, own = next(iter(found.items()))
    best = sorted(found.items(), key=lambda item: item[1].rank)
    top = [
        TopLogprob(one.decoded_token, _finite(one.logprob), _bytes(top_id, tokenizer)) for top_id, one in islice(best, num_top)
    ]
    return TokenLogprob(own.decoded_token, _finite(own.logprob), _bytes(token_id, tokenizer), top)


def _top_by_name(found: _Found | None, num_top: int, tokenizer: Tokenizer | None) -> dict[str, float] | None:
    if found is None:
        return None
    best = sorted(found.items(), key=lambda item: item[1].rank)
    own = next(iter(found.items()))
    return {_name(token_id, tokenizer): _finite(one.logprob) for token_id, one in dict([*best[:num_top], own]).items()}


def _name(token_id: int, tokenizer: Tokenizer | None) -> str:
    """A token by its text, or its bytes where they are none: as keys, two broken characters must not be one."""
    data = b"" if tokenizer is None else tokenizer.token_bytes(token_id)
    try:
        return data.decode() or f"token_id:{token_id}"
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _bytes(token_id: int, tokenizer: Tokenizer | None) -> list[int]:
    return [] if tokenizer is None else list(tokenizer.token_bytes(token_id))


def _finite(logprob: float) -> float:
    return logprob if logprob > _LEAST else _LEAST  # NaN is not over anything
