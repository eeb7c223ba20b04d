"""Text and its bytes: the one definition of decoding, whole or piece by piece, and the check that text has bytes at all."""

from __future__ import annotations

import codecs

from ramet.errors import InvalidRequest

__all__ = ["MAX_CHAR_BYTES", "Utf8Text", "check_unicode", "incomplete_end"]

MAX_CHAR_BYTES = 4
_Utf8 = codecs.getincrementaldecoder("utf-8")


class Utf8Text:
    """Bytes to text, whole characters only; what is not UTF-8 becomes U+FFFD, as in ``bytes.decode(errors="replace")``.

    However the bytes are cut, the pieces join to the same text. ``begun`` are the bytes of a character that the
    text before left unfinished: it is completed here, or dropped as the other text's fault. Up to ``leading_spaces`` spaces
    in front of the text are dropped.
    """

    def __init__(self, begun: bytes = b"", leading_spaces: int = 0) -> None:
        self._decoder = _Utf8("replace")
        self._begun = begun
        self._droppable_spaces = leading_spaces

    def push(self, data: bytes) -> str:
        """The characters that end in ``data``."""
        if self._begun and data:
            data = self._after_begun(data)
        return self._drop_spaces(self._decoder.decode(data))

    def finish(self) -> str:
        """U+FFFD if the bytes end inside a character."""
        return self._drop_spaces(self._decoder.decode(b"", True))

    def _after_begun(self, data: bytes) -> bytes:
        """The bytes to decode, the begun character in front if ``data`` goes on with it."""
        begun, self._begun = self._begun, b""
        try:
            _Utf8("strict").decode(begun + data[:1])
        except UnicodeDecodeError:
            return data
        return begun + data

    def _drop_spaces(self, text: str) -> str:
        while self._droppable_spaces and text:
            if text[0] != " ":
                self._droppable_spaces = 0
                break
            self._droppable_spaces -= 1
            text = text[1:]
        return text


def check_unicode(text: str, what: str, param: str | None = None) -> None:
    """Raise ``InvalidRequest`` where ``text``, called ``what``, has a lone surrogate: no character, so it has no bytes."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        surrogate = f"U+{ord(text[error.start]):04X}"
        raise InvalidRequest(
            f"{what} has a lone surrogate ({surrogate}) at character {error.start}; send valid Unicode", param
        ) from error


def incomplete_end(data: bytes) -> bytes:
    """The bytes at the end that begin a character and may still be completed."""
    decoder = _Utf8("replace")
    decoder.decode(data)
    return decoder.getstate()[0]
