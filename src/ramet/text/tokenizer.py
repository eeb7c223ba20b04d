"""Text to token ids and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from ramet.core.ports import Clock
from ramet.errors import InvalidRequest
from ramet.text.gguf_vocabulary import vocabulary_of_gguf
from ramet.text.guards import Guards
from ramet.text.patterns import try_pattern
from ramet.text.tokenizer_file import vocabulary_of_file
from ramet.text.utf8 import Utf8Text, check_unicode
from ramet.text.vocabulary import Vocabulary, is_panic

__all__ = ["Tokenizer"]


class Tokenizer:
    """Text to token ids and back; immutable, so any number of threads may share one.

    BOS, in one place. ``encode`` puts the model's BOS in front of a prompt where the model's files ask for one and the text
    does not begin with it already. ``encode_chat`` does the same for text that a chat template made, whether the
    template wrote BOS or not, and never adds EOS. A model that asks for no BOS gets none from either.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._pieces = vocabulary.pieces
        self._special = vocabulary.special_ids
        self._with_special = vocabulary.backend
        self._as_text = vocabulary.plain or _without_special(vocabulary.backend)
        self.guards = Guards(self.token_text(one) for one in self._special)

    @classmethod
    def from_file(cls, path: str | Path, config: Mapping[str, Any] | None = None) -> Tokenizer:
        """Of a file that tokenizer_file.py knows; ``config`` is what ``tokenizer_config.json`` holds. Raises ``ModelError``."""
        return cls(vocabulary_of_file(Path(path), config or {}))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> Tokenizer:
        """Of the ``tokenizer.*`` entries of a GGUF file. Raises ``ModelError`` naming the key."""
        return cls(vocabulary_of_gguf(metadata))

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id. The model's own table may be longer (padding)."""
        return len(self._pieces)

    @property
    def bos_id(self) -> int | None:
        return self._vocabulary.bos_id

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end an answer, the main one first; what ``generation_config.json`` adds is the caller's."""
        return self._vocabulary.eos_ids

    @property
    def bos_token(self) -> str | None:
        """Text of BOS, as chat templates want it."""
        return None if self.bos_id is None else self.token_text(self.bos_id)

    @property
    def eos_token(self) -> str | None:
        """Text of the main EOS, as chat templates want it."""
        return self.token_text(self.eos_ids[0]) if self.eos_ids else None

    @property
    def leading_spaces(self) -> int:
        """Spaces in front of a text that decoding drops (SentencePiece marks the first word with one)."""
        return self._vocabulary.leading_spaces

    def try_patterns(self, clock: Clock) -> None:
        """Time the patterns that the file brought along, by the processor time of this thread. Raises ``ModelError`` at one that
        may hold up a server: whoever serves strangers calls this first.
        """
        for pattern in self._vocabulary.patterns:
            try_pattern(pattern, "the tokenizer", clock)

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of a text.

        ``add_special_tokens`` adds the BOS (and EOS) the model's files ask for, never a second one. ``parse_special`` reads
        the text of special tokens as those tokens; without it they are text like any other.
        A character whose bytes the vocabulary lacks is dropped, as the models' own tokenizers do.
        Raises ``InvalidRequest`` for a lone surrogate.
        """
        ids = self._encode(text, parse_special)
        return self._after_bos(ids) + self._before_eos(ids) if add_special_tokens else ids

    def encode_chat(self, text: str) -> list[int]:
        """Token ids of a text that a chat template made: BOS once where the model's files ask for it, no EOS added.

        What is guarded in it (``guards``) is text, and no special token.
        """
        ids: list[int] = []
        for run, is_text in self.guards.runs(text):
            ids += self._encode(run, not is_text)
        return self._after_bos(ids)

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; invalid UTF-8 becomes U+FFFD, ids that name no token become nothing. Never raises."""
        parts = (b"" if skip_special_tokens and i in self._special else self.token_bytes(i) for i in ids)
        text = Utf8Text(leading_spaces=self.leading_spaces)
        return text.push(b"".join(parts)) + text.finish()

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of one token, empty where the id names none; a special token's are its text."""
        return self._pieces[token_id] if 0 <= token_id < len(self._pieces) else b""

    def token_text(self, token_id: int) -> str:
        """One token to show to people: its bytes, U+FFFD where they are no whole character."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_id(self, token: str) -> int | None:
        """Id of a token by the vocabulary's own spelling, such as ``<|im_end|>``; None where there is none."""
        return self._with_special.token_to_id(token)

    def is_special(self, token_id: int) -> bool:
        """Whether the token is one that plain text never means: BOS, EOS, marks of turns."""
        return token_id in self._special

    def _encode(self, text: str, parse_special: bool) -> list[int]:
        if not isinstance(text, str):
            raise InvalidRequest(f"the text to tokenize is a {type(text).__name__}, not a string")
        check_unicode(text, "the text")
        backend = self._with_special if parse_special else self._as_text
        # the batch form computes no offsets and lets other threads run meanwhile
        try:
            return backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except BaseException as error:
            if not is_panic(error):
                raise
            raise InvalidRequest(f"the tokenizer gave up on this text of {len(text)} characters: {error}") from None

    def _after_bos(self, ids: list[int]) -> list[int]:
        prefix = list(self._vocabulary.prefix)
        return ids if ids[: len(prefix)] == prefix else prefix + ids

    def _before_eos(self, ids: list[int]) -> list[int]:
        suffix = list(self._vocabulary.suffix)
        return [] if ids[len(ids) - len(suffix) :] == suffix else suffix


def _without_special(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The same tokenizer, reading special tokens as text. Shares the model; the package has this only as a mutable switch,
    which threads could not share.
    """
    plain = tokenizers.Tokenizer(backend.model)
    if backend.normalizer is not None:
        plain.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        plain.pre_tokenizer = backend.pre_tokenizer
    plain.add_tokens([token for _, token in sorted(backend.get_added_tokens_decoder().items())])
    plain.encode_special_tokens = True
    return plain
