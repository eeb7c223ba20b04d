"""SentencePiece's models: ids of the package that makes them, spaces, special tokens, and files that would do harm."""

from __future__ import annotations

import base64
import json
import time
import tracemalloc
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_vocabularies import (
    BYTE,
    CONTROL,
    FIRST_PIECE,
    NORMAL,
    PIECES,
    UNKNOWN,
    USER_DEFINED,
    field,
    piece,
    sentencepiece_file,
    sentencepiece_model,
)

from ramet.errors import ModelError
from ramet.text.detokenizer import Detokenizer
from ramet.text.sentencepiece_file import vocabulary_of_sentencepiece
from ramet.text.tokenizer import Tokenizer

GOLDEN = json.loads((Path(__file__).parents[2] / "golden/sentencepiece_models.json").read_text(encoding="utf-8"))
SPACE, A, B, SPACE_A, AB, SPACE_AB = range(FIRST_PIECE, FIRST_PIECE + len(PIECES))
MORE = FIRST_PIECE + len(PIECES)
RULES = base64.b64decode(GOLDEN[-1]["model"])


def of_model(data: bytes, **config: Any) -> Tokenizer:
    return Tokenizer(vocabulary_of_sentencepiece(data, config, "tokenizer.model"))


@cache
def of_small_model() -> Tokenizer:
    return of_model(sentencepiece_model())


def of_gguf(kind: str = "llama", more: list[tuple[str, int]] | None = None, **changes: Any) -> Tokenizer:
    """The small model as GGUF metadata."""
    tokens = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
    tokens += [(f"<0x{byte:02X}>", BYTE) for byte in range(256)]
    tokens += [(token, NORMAL) for token in PIECES]
    tokens += more or []
    found = {
        "model": kind,
        "tokens": [token for token, _ in tokens],
        "token_type": [kind for _, kind in tokens],
        "scores": [-float(i) for i in range(len(tokens))],
        **changes,
    }
    metadata: dict[str, object] = {"tokenizer.ggml." + key: value for key, value in found.items() if value is not None}
    if "architecture" in changes:
        metadata["general.architecture"] = changes["architecture"]
    return Tokenizer.from_gguf(metadata)


def plain(tokenizer: Tokenizer, text: str, **options: bool) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False, **options)


# --- ids


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["name"])
def test_ids_are_those_of_sentencepiece(case: dict[str, Any]) -> None:
    tokenizer = of_model(base64.b64decode(case["model"]))
    assert len(case["pairs"]) > 15
    for pair in case["pairs"]:
        assert plain(tokenizer, pair["text"], parse_special=False) == pair["ids"]


@pytest.mark.parametrize("case", GOLDEN[:2] + GOLDEN[3:4], ids=lambda case: case["name"])
def test_every_text_comes_back_where_there_are_bytes(case: dict[str, Any]) -> None:
    tokenizer = of_model(base64.b64decode(case["model"]))

    @settings(max_examples=40)
    @given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁")))
    def check(text: str) -> None:
        assert tokenizer.decode(plain(tokenizer, text, parse_special=False)) == text

    check()


def test_gguf_and_model_file_agree() -> None:
    by_file, by_gguf = of_model(sentencepiece_model()), of_gguf()
    for text in ("ab", " ab  a b", "한 a", "<0x41>", "</s>ab", ""):
        assert by_file.encode(text) == by_gguf.encode(text)
    assert by_file.encode("ab") == [1, SPACE_AB]
    assert (by_file.bos_token, by_file.eos_token, by_file.vocab_size) == ("<s>", "</s>", MORE)


def test_b149_spaces_between_words_stay(tmp_path: Path) -> None:
    tokenizer = of_gguf()
    ids = plain(tokenizer, "a. b  ab")
    assert "".join(tokenizer.token_text(i) for i in ids) == " a. b  ab"
    assert tokenizer.decode(ids) == "a. b  ab"


def streamed(tokenizer: Tokenizer, ids: list[int], prompt: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer, prompt)
    return [*(detokenizer.push([i]) for i in ids), detokenizer.finish()]


@given(st.lists(st.integers(-3, MORE + 3), max_size=60))
def test_b151_any_ids_stream_to_their_decode(ids: list[int]) -> None:
    tokenizer = of_small_model()
    assert "".join(streamed(tokenizer, ids, [1])) == tokenizer.decode(ids)


def test_b146_b148_a_character_over_byte_tokens() -> None:
    tokenizer = of_small_model()
    ids = plain(tokenizer, "a 🌶")
    assert [tokenizer.token_bytes(i) for i in ids[-4:]] == [bytes([byte]) for byte in "🌶".encode()]
    assert streamed(tokenizer, ids[-2:], [1, *ids[:-2]]) == ["", "🌶", ""]
    assert tokenizer.decode(ids) == "a 🌶"


# --- spaces in front, special tokens


@pytest.mark.parametrize(
    ("config", "ids"),
    [
        ({}, [SPACE_AB, 2, SPACE_AB]),  # after each special token
        ({"legacy": False}, [SPACE_AB, 2, AB]),  # at the beginning only
        ({"add_prefix_space": False}, [AB, 2, AB]),
    ],
)
def test_where_a_space_is_put_in_front(config: dict[str, Any], ids: list[int]) -> None:
    tokenizer = of_model(sentencepiece_model(), **config)
    assert plain(tokenizer, "ab</s>ab") == ids
    assert tokenizer.leading_spaces == (0 if "add_prefix_space" in config else 1)
    assert tokenizer.decode(plain(tokenizer, "ab a")) == "ab a"


def test_models_that_put_no_space_in_front() -> None:
    assert plain(of_model(sentencepiece_model(normalizer=field(3, 0) + field(4, 0))), "ab") == [AB]
    assert plain(of_gguf(add_space_prefix=False), "ab") == [AB]


@pytest.mark.parametrize("kind", [1, 2])
def test_special_tokens_are_text_where_asked(kind: int) -> None:
    tokenizer = of_model(sentencepiece_model(piece("<call>", 0.0, USER_DEFINED), kind=kind))
    assert plain(tokenizer, "ab</s>")[-1] == 2
    spelled = plain(tokenizer, "a</s><unk><call>", parse_special=False)
    assert not {0, 1, 2} & set(spelled)
    assert spelled[-1] == MORE
    assert tokenizer.decode(spelled) == "a</s><unk><call>"
    written = plain(tokenizer, "<0x41>")
    assert tokenizer.decode(written) == "<0x41>"
    assert 3 + 0x41 not in written


def test_user_defined_spaces_are_taken_whole() -> None:
    tokenizer = of_gguf(more=[("  ", USER_DEFINED), ("   ", USER_DEFINED)], add_space_prefix=False)
    assert plain(tokenizer, "a     b") == [A, MORE + 1, MORE, B]
    by_file = of_model(sentencepiece_model(piece("▁▁", 0.0, USER_DEFINED), normalizer=field(3, 0) + field(4, 0)))
    assert plain(by_file, "a   b") == [A, MORE, SPACE, B]
    assert by_file.decode([A, MORE, B]) == "a  b"


def test_added_tokens_of_the_config() -> None:
    added = {
        "2": {"content": "</s>", "rstrip": True, "special": True},
        str(MORE): {"content": "<|user|>", "lstrip": True, "rstrip": True, "special": True},
        str(MORE + 1): {"content": "tool", "single_word": True, "special": False},
    }
    tokenizer = of_model(sentencepiece_model(), added_tokens_decoder=added, add_bos_token=False, eos_token="<|user|>")
    assert tokenizer.encode("ab  <|user|>\nab</s>  ab") == [SPACE_AB, MORE, SPACE_AB, 2, SPACE_AB]
    assert MORE + 1 in tokenizer.encode("a tool")
    assert MORE + 1 not in tokenizer.encode("atool")
    assert (tokenizer.vocab_size, tokenizer.eos_ids, tokenizer.token_text(MORE)) == (MORE + 2, (MORE,), "<|user|>")
    assert tokenizer.is_special(MORE)
    assert not tokenizer.is_special(MORE + 1)


def test_phi3_eats_line_breaks_behind_turns() -> None:
    tokens = [("<|user|>", CONTROL), ("<|end|>", USER_DEFINED)]
    for architecture, ids in (("phi3", [MORE, SPACE_A, MORE + 1]), ("llama", [MORE, SPACE, 3 + 10, A, MORE + 1, SPACE, 3 + 10])):
        assert plain(of_gguf(more=tokens, architecture=architecture), "<|user|>\na<|end|>\n") == ids


@pytest.mark.parametrize(("kind", "prefix", "suffix"), [("llama", [1], []), ("t5", [], [1])])
def test_what_goes_around_a_prompt_where_the_file_is_silent(kind: str, prefix: list[int], suffix: list[int]) -> None:
    tokenizer = of_gguf(kind)
    assert tokenizer.encode("ab") == [*prefix, *plain(tokenizer, "ab"), *suffix]
    silent = of_gguf(kind, add_bos_token=False, add_eos_token=False)
    assert silent.encode("ab") == plain(silent, "ab")


def test_a_unigram_model_in_tokenizer_json_reads_special_tokens_as_text(tmp_path: Path) -> None:
    path = sentencepiece_file(tmp_path)
    file = json.loads(path.read_text())
    vocab = sorted(file["model"]["vocab"].items(), key=lambda item: item[1])
    file["model"] = {"type": "Unigram", "unk_id": 0, "byte_fallback": True, "vocab": [[t, -1.0] for t, _ in vocab]}
    path.write_text(json.dumps(file))
    tokenizer = Tokenizer.from_file(path)
    assert plain(tokenizer, "x</s>")[-1] == 2
    ids = plain(tokenizer, "x</s>", parse_special=False)
    assert 2 not in ids
    assert tokenizer.decode(ids) == "x</s>"


# --- files that cannot be used, or would do harm


def charsmap(trie: list[int], replacements: bytes = b"x\0") -> bytes:
    body = b"".join(unit.to_bytes(4, "little") for unit in trie)
    return len(body).to_bytes(4, "little") + body + replacements


HARM: list[tuple[str, Callable[[], bytes], str]] = [
    ("empty", lambda: b"", "holds no pieces"),
    ("text", lambda: b"hello, I am no model", "wire type"),
    ("cut", lambda: sentencepiece_model()[:-3], "bytes are left|are left|cut"),
    ("long piece", lambda: b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "are left"),
    ("endless number", lambda: b"\xff" * 12, "over 64 bits"),
    ("cut number", lambda: b"\x80", "cut short"),
    ("piece is a number", lambda: field(1, 7), "is the number 7"),
    ("token is a number", lambda: field(1, field(1, 7)), "is the number 7"),
    ("type is a float", lambda: field(1, field(1, b"a") + field(3, 1.0)), "no whole number"),
    ("score is bytes", lambda: field(1, field(1, b"a") + field(2, b"abcd")), "score is no number"),
    ("not UTF-8", lambda: field(1, field(1, b"\xff")), "piece 0: not UTF-8 at byte 0"),
    ("NaN", lambda: sentencepiece_model(piece("z", float("nan"))), f"score of token {MORE} is nan"),
    ("infinite", lambda: sentencepiece_model(piece("z", float("inf"))), f"score of token {MORE} is inf"),
    ("type 9", lambda: sentencepiece_model(piece("z", 0.0, 9)), "has type 9"),
    ("type 0", lambda: sentencepiece_model(piece("z", 0.0, 0)), "has type 0"),
    ("twice", lambda: sentencepiece_model(piece("ab")), f"tokens {AB} and {MORE} are both 'ab'"),
    ("twice, unigram", lambda: sentencepiece_model(piece("ab"), kind=1), f"tokens {AB} and {MORE} are both 'ab'"),
    ("no byte", lambda: sentencepiece_model(piece("x", 0.0, BYTE)), "names none, such as <0x0A>"),
    ("word model", lambda: sentencepiece_model(kind=3), "a word model"),
    ("kind 77", lambda: sentencepiece_model(kind=77), "a 77 model"),
    ("no unknown", lambda: field(1, field(1, b"a")) + field(2, field(3, 1)), "needs a token for the unknown"),
    (
        "bos out of range",
        lambda: field(1, field(1, b"a")) + field(2, field(3, 2) + field(41, 1 << 40)),
        "names token 1099511627776",
    ),
    ("spaces behind", lambda: sentencepiece_model() + field(2, field(24, 1)), "treat_whitespace_as_suffix"),
    ("long tokens", lambda: sentencepiece_model(piece("z" * 100_000)), "tokens of up to 100000 characters"),
    ("charsmap cut", lambda: sentencepiece_model(normalizer=field(2, b"\x01")), "precompiled_charsmap"),
    (
        "charsmap size",
        lambda: sentencepiece_model(normalizer=field(2, charsmap([0] * 256)[:-600])),
        "says its trie has 1024 bytes",
    ),
    ("charsmap way out", lambda: sentencepiece_model(normalizer=field(2, charsmap([1 << 30] * 256))), "leads out of its own"),
    ("charsmap short", lambda: sentencepiece_model(normalizer=field(2, charsmap([0] * 8))), "leads out of its own"),
    ("charsmap no end", lambda: sentencepiece_model(normalizer=field(2, charsmap([0] * 256, b"x"))), "leads out of its own"),
    (
        "charsmap value",
        lambda: sentencepiece_model(normalizer=field(2, charsmap([1 << 8] + [(1 << 31) + 77] * 255))),
        "leads out of its own",
    ),
    ("charsmap not UTF-8", lambda: sentencepiece_model(normalizer=field(2, charsmap([0] * 256, b"\xff\0"))), "not UTF-8"),
    ("charsmap bomb", lambda: sentencepiece_model(normalizer=field(2, charsmap([0] * 256, b"x" * 999 + b"\0"))), "of 999 bytes"),
]


@pytest.mark.parametrize(("data", "words"), [(make, words) for _, make, words in HARM], ids=[name for name, _, _ in HARM])
def test_harmful_models_are_refused(data: Callable[[], bytes], words: str) -> None:
    with pytest.raises(ModelError, match=words) as raised:
        of_model(data())
    assert str(raised.value).startswith("tokenizer.model")


def test_t09_a_length_of_a_gigabyte_allocates_nothing() -> None:
    data = sentencepiece_model() + b"\x0a" + bytes([0x80, 0x80, 0x80, 0x80, 0x04]) + b"x" * 10
    tracemalloc.start()
    with pytest.raises(ModelError, match="says it has 1073741824 bytes"):
        of_model(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


@settings(max_examples=150)
@given(st.integers(0, len(RULES) - 1), st.integers(0, 255), st.booleans())
def test_f3_broken_models_are_refused_or_read(at: int, byte: int, cut: bool) -> None:
    """A byte changed anywhere, its charsmap too: an error of ours, or a tokenizer that works."""
    data = bytearray(RULES)
    data[at] = byte
    if cut:
        del data[at:]
    try:
        tokenizer = of_model(bytes(data))
    except ModelError:
        return
    tokenizer.decode(tokenizer.encode("the quick ①ﬁ \uff21\uff22 한국어 e\u0301"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scores": None}, "tokenizer.ggml.scores is missing"),
        ({"scores": [0.0]}, "tokenizer.ggml.scores has 1 entries"),
        ({"scores": [float("nan")] * MORE}, "score of token 0 is nan"),
        ({"tokens": ["a"] * MORE}, "tokens 0 and 1 are both 'a'"),
        ({"precompiled_charsmap": [1, 2, 300]}, "no list of bytes"),
        ({"precompiled_charsmap": [9, 9, 9, 9, 9]}, "precompiled_charsmap"),
        ({"tokens": ["", *(f"t{i}" for i in range(1, MORE))], "token_type": [2, *[1] * (MORE - 1)]}, "token 0, which stands for"),
        ({"unknown_token_id": 10**9}, "unknown_token_id is 1000000000"),
    ],
)
def test_harmful_metadata_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        of_gguf(**changes)


@pytest.mark.parametrize(
    ("added", "words"),
    [
        (7, "is 7, not an object"),
        ({"x": {"content": "a"}}, "no id with a token"),
        ({"9" * 5000: {"content": "a"}}, "no id with a token"),
        ({str(MORE): {"content": ""}}, "no id with a token"),
        ({str(MORE): {"content": "a", "lstrip": 1}}, "not all true or false"),
        ({str(MORE + 5): {"content": "<late>"}}, f"has id {MORE + 5}, where {MORE} would be"),
        ({str(MORE): {"content": "ab"}}, f"'ab' has id {MORE}, where {AB} would be"),
    ],
)
def test_harmful_added_tokens_are_refused(added: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        of_model(sentencepiece_model(), added_tokens_decoder=added)


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AQAAAA=="}, "precompiled_charsmap|Precompiled"),
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "BAAAAP////8="}, "precompiled_charsmap"),
        ("normalizer", {"type": "Replace", "pattern": {"String": "a"}, "content": "x" * 999}, "999 characters"),
        ("normalizer", {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "x" * 999}]}, "999 characters"),
        ("pre_tokenizer", {"type": "FixedLength", "length": 0}, "chunk size"),
        ("model", {"type": "Unigram", "unk_id": None, "vocab": [["a", 1.0]], "byte_fallback": False}, "without unk_id"),
        ("model", {"type": "WordLevel", "vocab": {"a": 0, "<s>": 1}, "unk_token": "a"}, "WordLevel is not supported"),
        ("model", {"type": "BPE", "vocab": {"a": 0}, "merges": [], "unk_token": "zz"}, "unk_token 'zz'"),
        ("model", {"type": "BPE", "vocab": {"a": 2**32 - 1, "<unk>": 1, "<s>": 2, "</s>": 3}, "merges": []}, "id 4294967295"),
        ("model", {"type": "BPE", "vocab": {"a": 1}, "merges": [["a", "b"]]}, "not a tokenizer"),
    ],
)
def test_t09_harmful_tokenizer_files_are_refused(tmp_path: Path, part: str, value: Any, words: str, capfd: Any) -> None:
    path = sentencepiece_file(tmp_path)
    file = json.loads(path.read_text())
    file |= {part: value, "added_tokens": file["added_tokens"] if part != "model" else [], "post_processor": None}
    path.write_text(json.dumps(file))
    with pytest.raises(ModelError, match=words):
        Tokenizer.from_file(path)


def test_a_long_text_is_quick() -> None:
    tokenizer = of_gguf()
    start = time.process_time()
    assert tokenizer.decode(tokenizer.encode("ab a" * 50_000)) == "ab a" * 50_000
    assert time.process_time() - start < 5  # 0.2 s alone on a machine
