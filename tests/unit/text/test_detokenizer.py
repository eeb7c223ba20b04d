"""Text as it streams: joined it is the whole decode, or that text up to the stop."""

from __future__ import annotations

import itertools
import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from small_vocabularies import BOS, EOS, FIRST_WORD, gguf, sentencepiece_file

from ramet.text.detokenizer import Detokenizer
from ramet.text.tokenizer import Tokenizer
from ramet.text.utf8 import Utf8Text, incomplete_end

SMALL = Tokenizer.from_gguf(gguf(merges=["c Ġ", "cĠ d", "cĠd x"]))
"""Its ids 0 to 255 are the bytes; the last token is ``c dx``."""
C_DX = SMALL.vocab_size - 1

with tempfile.TemporaryDirectory() as _folder:
    SENTENCEPIECE = Tokenizer.from_file(sentencepiece_file(Path(_folder)), {"bos_token": "<s>"})

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
SIZES = st.lists(st.integers(1, 7), min_size=1, max_size=8)


def cut(ids: list[int], sizes: list[int]) -> Iterator[list[int]]:
    """``ids`` in parts of these sizes, over and over."""
    for size in itertools.cycle(sizes):
        if not ids:
            return
        yield ids[:size]
        ids = ids[size:]


def ids_of(text: str) -> list[int]:
    return list(text.encode())


class Streamed:
    """Everything a detokenizer said, one token at a time."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        ids: Sequence[int],
        prompt: Sequence[int] = (),
        *,
        stops: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
    ) -> None:
        reader = Detokenizer(tokenizer, prompt, stops=stops, include_stop=include_stop, skip_special_tokens=skip_special_tokens)
        self.deltas = [reader.push([token_id]) for token_id in ids]
        self.last = reader.finish()
        self.text = "".join(self.deltas) + self.last
        self.stopped = reader.stopped
        self.num_tokens = reader.num_tokens


# --- characters


@given(st.binary(max_size=60), SIZES)
def test_bytes_cut_anywhere_decode_as_the_whole(data: bytes, sizes: list[int]) -> None:
    text = Utf8Text()
    pieces = [text.push(bytes(part)) for part in cut(list(data), sizes)]
    assert "".join([*pieces, text.finish()]) == data.decode(errors="replace")


@given(ANY_TEXT, SIZES)
def test_any_split_of_any_text_streams_to_it(text: str, sizes: list[int]) -> None:
    reader = Detokenizer(SMALL, ())
    said = ""
    for part in cut(ids_of(text), sizes):
        said += reader.push(part)
        assert text.startswith(said)  # what is out is final; no stray U+FFFD
    assert said + reader.finish() == text


@given(st.lists(st.integers(-3, SMALL.vocab_size + 3), max_size=80), st.booleans())
def test_any_ids_stream_to_their_decode(ids: list[int], skip: bool) -> None:
    assert Streamed(SMALL, ids, skip_special_tokens=skip).text == SMALL.decode(ids, skip_special_tokens=skip)


def test_b151_b158_ten_thousand_random_ids(demo: Tokenizer) -> None:
    source = random.Random(151)
    lone = [demo.encode("한", add_special_tokens=False)[-1]] * 100
    ids = lone + [source.randrange(-10, demo.vocab_size + 10) for _ in range(10_000)] + lone
    assert Streamed(demo, ids).text == demo.decode(ids)
    again = demo.encode("한국어")
    assert Streamed(demo, again).text == "한국어"  # nothing is left over from before


def test_b146_a_prompt_that_ends_inside_a_character() -> None:
    pepper = "🌶".encode()
    prompt = [BOS, *b"hey ", *pepper[:2]]
    assert Streamed(SMALL, pepper[2:], prompt).deltas == ["", "🌶"]
    assert Streamed(SMALL, [*pepper[2:], *b"!"], prompt).text == "🌶!"
    assert Streamed(SMALL, b"ab", prompt).text == "ab"  # the broken character is the prompt's
    assert Streamed(SMALL, pepper, prompt).text == "🌶"
    assert Streamed(SMALL, [], prompt).text == ""
    assert Streamed(SMALL, pepper[2:3], prompt).text == "�"
    assert Streamed(SMALL, pepper[2:], [*prompt, EOS]).text == "��"  # a special token ends the character
    assert Streamed(SMALL, pepper[1:], [pepper[0], EOS]).text == "���"


@given(ANY_TEXT, st.integers(0, 160))
def test_a_seam_anywhere_shows_each_whole_character_once(text: str, at: int) -> None:
    ids = ids_of(text)
    before, after = ids[:at], ids[at:]
    shown = bytes(before[: len(before) - len(incomplete_end(bytes(before)))]).decode()
    assert shown + Streamed(SMALL, after, before).text == text


def test_b149_spaces_between_words_stay() -> None:
    tokenizer = SENTENCEPIECE
    space, _lead, one, dot, two, three, x = range(FIRST_WORD, FIRST_WORD + 7)
    ids = [one, dot, two, space, three, x]
    assert tokenizer.decode(ids) == "one. two  threex"
    assert Streamed(tokenizer, ids).deltas == ["one", ".", " two", " ", " three", "x"]
    assert Streamed(tokenizer, ids, [1]).text == "one. two  threex"
    assert Streamed(tokenizer, [two], [1, one]).text == " two"  # the prompt has text, so the space is part of it


def test_b154_the_leading_space_is_dropped_once() -> None:
    assert Streamed(SENTENCEPIECE, [FIRST_WORD, FIRST_WORD + 1]).text == " lead"
    assert Streamed(SMALL, ids_of(" hi")).text == " hi"


@given(st.lists(st.integers(0, FIRST_WORD + 6), max_size=30))
def test_sentencepiece_ids_stream_to_their_decode(ids: list[int]) -> None:
    assert Streamed(SENTENCEPIECE, ids).text == SENTENCEPIECE.decode(ids)


def test_real_text_streams_clean(shared: Path, demo: Tokenizer) -> None:
    for line in (shared / "unicode-text/udhr_39_languages.jsonl").read_text().splitlines():
        text = json.loads(line)["text"][:1500]
        ids = demo.encode(text)
        assert demo.decode(ids) == text
        said = ""
        for delta in (streamed := Streamed(demo, ids)).deltas:
            said += delta
            assert text.startswith(said)
        assert said + streamed.last == text


# --- stops


def test_b115_a_stop_over_several_tokens() -> None:
    ids = ids_of("a b c d e f")
    streamed = Streamed(SMALL, ids, stops=["c d"])
    assert streamed.deltas[:7] == ["a", " ", "b", " ", "", "", ""]
    assert (streamed.text, streamed.stopped, streamed.num_tokens) == ("a b ", "c d", 7)
    assert Streamed(SMALL, ids, stops=["c d"], include_stop=True).text == "a b c d"


def test_b115_a_stop_inside_one_token() -> None:
    streamed = Streamed(SMALL, [*b"a ", C_DX, *b"yz"], stops=[" d"])
    assert (streamed.text, streamed.stopped, streamed.num_tokens) == ("a c", " d", 3)
    assert Streamed(SMALL, [*b"a ", C_DX], stops=[" d"], include_stop=True).text == "a c d"


def test_b115_overlapping_stops() -> None:
    """The match that ends first wins, however the text is cut; of two that end together, the longer."""
    assert Streamed(SMALL, ids_of("xabcd"), stops=["bc", "abcd"]).text == "xa"
    assert Streamed(SMALL, ids_of("xabcd"), stops=["bc", "abc"]).text == "x"
    assert Streamed(SMALL, ids_of("ababc"), stops=["abc"]).text == "ab"
    whole = Detokenizer(SMALL, (), stops=["abcd", "bc"])
    assert whole.push(ids_of("xabcd")) == "xa"


def test_b115_a_stop_of_several_bytes() -> None:
    streamed = Streamed(SMALL, ids_of("a한b"), stops=["한"])
    assert (streamed.deltas, streamed.stopped, streamed.num_tokens) == (["a", "", "", "", ""], "한", 4)


def test_b116_held_text_comes_out_at_the_end() -> None:
    streamed = Streamed(SMALL, ids_of("buzzz"), stops=["zzzz"])
    assert streamed.deltas == ["b", "u", "", "", ""]
    assert (streamed.last, streamed.stopped, streamed.num_tokens) == ("zzz", None, 5)


def test_nothing_comes_after_a_stop() -> None:
    reader = Detokenizer(SMALL, (), stops=["b"])
    assert reader.push(ids_of("abc")) == "a"
    assert (reader.push(ids_of("def")), reader.finish(), reader.num_tokens) == ("", "", 2)


def test_a_stop_in_the_last_broken_character() -> None:
    streamed = Streamed(SMALL, [*b"a", 0xED], stops=["�"])
    assert (streamed.text, streamed.stopped) == ("a", "�")


def test_special_tokens_match_stops_only_where_they_are_shown() -> None:
    ids = [*b"a", EOS, *b"b"]
    assert Streamed(SMALL, ids, stops=["</s>"]).text == "ab"
    assert Streamed(SMALL, ids, stops=["</s>"], skip_special_tokens=False).text == "a"


@given(st.text("abc한", max_size=30), st.lists(st.text("abc한", min_size=1, max_size=4), max_size=4), st.booleans(), SIZES)
def test_streaming_with_stops_is_a_plain_search(text: str, stops: list[str], include: bool, sizes: list[int]) -> None:
    ends = [(end, -len(stop), stop) for stop in stops for end in range(1, len(text) + 1) if text[:end].endswith(stop)]
    expected, stopped = text, None
    if ends:
        end, minus, stopped = min(ends)
        expected = text[: end if include else end + minus]
    reader = Detokenizer(SMALL, (), stops=stops, include_stop=include)
    said = ""
    for part in cut(ids_of(text), sizes):
        said += reader.push(part)
        assert expected.startswith(said)
    said += reader.finish()
    assert (said, reader.stopped) == (expected, stopped)
