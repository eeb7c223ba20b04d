"""Text to ids and back: real vectors, odd vocabularies, and the faults of other engines by their number."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_vocabularies import (
    BOS,
    BYTE,
    CALL,
    CONTROL,
    EOS,
    FIRST_MERGED,
    FIRST_WORD,
    NORMAL,
    UNUSED,
    gguf,
    sentencepiece_file,
)

from ramet.errors import InvalidRequest, ModelError
from ramet.text.byte_level import CUTS
from ramet.text.tokenizer import Tokenizer

SMALL = Tokenizer.from_gguf(gguf())


# --- real vocabularies


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "I'll go  to 1234!\n\n x", ["I", "'ll", "Ġgo", "Ġ", "Ġto", "Ġ1234", "!", "ĊĊ", "Ġx"]),
        ("smollm", "a 12b", ["a", "Ġ", "1", "2", "b"]),
        ("llama-bpe", "I'LL (go) 12345!\n\n  x", ["I", "'LL", "Ġ(", "go", ")", "Ġ", "123", "45", "!ĊĊ", "Ġ", "Ġx"]),
        ("qwen2", "\tgo 12\n \n\ny'S", ["ĉgo", "Ġ", "1", "2", "ĊĠĊĊ", "y", "'S"]),
    ],
)
def test_pre_tokenizers_cut_where_they_should(pre: str, text: str, pieces: list[str]) -> None:
    assert [piece for piece, _ in CUTS[pre].pre_tokenizer().pre_tokenize_str(text)] == pieces


def test_llama3_takes_whole_words_without_merges() -> None:
    for pre, ids in (("llama-bpe", [FIRST_MERGED + 3]), ("qwen2", list(b"xyz"))):
        tokenizer = Tokenizer.from_gguf(gguf(pre=pre, more=[("xyz", NORMAL)]))
        assert tokenizer.encode("xyz", add_special_tokens=False) == ids


def test_only_qwen2_composes_characters() -> None:
    """As its tokenizer.json does; GPT-2's and its like leave text as it is."""
    apart, together = "e\u0301", "\u00e9"
    assert Tokenizer.from_gguf(gguf(pre="qwen2")).encode(apart) == list(together.encode())
    assert SMALL.encode(apart) == list(apart.encode())


def test_the_demo_vocabulary_loads_fast_and_gives_known_ids(demo_metadata: dict[str, object]) -> None:
    start = time.process_time()
    demo = Tokenizer.from_gguf(demo_metadata)
    assert time.process_time() - start < 0.6  # 0.2 s alone on a machine
    assert demo.encode("Hello world! 123") == [19556, 905, 17, 216, 33, 34, 35]
    assert demo.encode("<|im_start|>user\n") == [1, 4093, 198]
    assert (demo.vocab_size, demo.bos_id, demo.eos_ids) == (49152, 1, (2, 0))  # <|im_end|>, <|endoftext|>
    assert (demo.bos_token, demo.eos_token) == ("<|im_start|>", "<|im_end|>")


@pytest.mark.parametrize(
    "text", ["The quick brown fox, 12 naïve cafés! " * 5000, "a" * 200_000, " " * 200_000 + "x", "\n" * 200_000]
)
def test_long_texts_are_quick(gpt2: Tokenizer, text: str) -> None:
    start = time.process_time()
    assert gpt2.decode(gpt2.encode(text)) == text
    assert time.process_time() - start < 5  # 0.2 s alone on a machine; a quadratic encoder takes minutes


def test_threads_share_one(gpt2: Tokenizer) -> None:
    texts = [f"thread {i} says {i * i} 한국어 <|endoftext|>" * 50 for i in range(8)]
    alone = [(gpt2.encode(text), gpt2.encode(text, parse_special=False)) for text in texts]
    together: dict[int, Any] = {}

    def work(i: int) -> None:
        together[i] = [(gpt2.encode(texts[i]), gpt2.encode(texts[i], parse_special=False)) for _ in range(20)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(together[i] == [alone[i]] * 20 for i in range(8))


# --- special tokens and BOS


def test_special_tokens_in_text() -> None:
    assert SMALL.encode(" the</s>") == [FIRST_MERGED + 2, EOS]
    ids = SMALL.encode("a</s><call>")
    assert ids == [ord("a"), EOS, CALL]
    assert SMALL.encode("a</s>", parse_special=False) == list(b"a</s>")
    assert SMALL.encode("a<call>", parse_special=False) == [ord("a"), CALL]  # user-defined tokens are ordinary text
    assert SMALL.decode(ids) == "a<call>"
    assert SMALL.decode(ids, skip_special_tokens=False) == "a</s><call>"
    assert SMALL.is_special(EOS)
    assert not SMALL.is_special(CALL)
    assert SMALL.token_bytes(EOS) == b"</s>"
    assert SMALL.token_id("</s>") == EOS
    assert SMALL.token_id("nowhere") is None


@pytest.mark.parametrize("adds", [True, False, None])
@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe"])
def test_b152_bos_never_twice(adds: bool | None, pre: str) -> None:
    tokenizer = Tokenizer.from_gguf(gguf(pre=pre, add_bos_token=adds))
    asks = pre == "llama-bpe" if adds is None else adds
    bos = [BOS] if asks else []
    assert tokenizer.encode("a") == [*bos, ord("a")]
    assert tokenizer.encode("") == bos
    assert tokenizer.encode("<s>a") == [BOS, ord("a")]
    assert tokenizer.encode("a", add_special_tokens=False) == [ord("a")]
    assert tokenizer.encode_chat("<s>a") == [BOS, ord("a")]
    assert tokenizer.encode_chat("a") == [*bos, ord("a")]


def test_eos_behind_a_prompt_where_the_file_asks() -> None:
    tokenizer = Tokenizer.from_gguf(gguf(add_bos_token=True, add_eos_token=True))
    assert tokenizer.encode("a") == [BOS, ord("a"), EOS]
    assert tokenizer.encode("a</s>") == [BOS, ord("a"), EOS]
    assert tokenizer.encode_chat("a") == [BOS, ord("a")]


def test_bos_of_a_tokenizer_json(tmp_path: Path) -> None:
    path = sentencepiece_file(tmp_path)
    config = {"bos_token": {"content": "<s>", "special": True}, "eos_token": "</s>"}
    by_file = Tokenizer.from_file(path, config)
    assert by_file.encode("x")[0] == 1
    assert by_file.encode("<s>x").count(1) == 1
    assert by_file.encode("x" * 50)[1:] == by_file.encode("x" * 50, add_special_tokens=False)  # its truncation to 4 is off
    assert len(by_file.encode("x" * 50)) > 50
    assert (by_file.bos_id, by_file.eos_ids, by_file.bos_token, by_file.eos_token) == (1, (2,), "<s>", "</s>")
    silent = Tokenizer.from_file(path, {**config, "add_bos_token": False})
    assert 1 not in silent.encode("x")
    asked = Tokenizer.from_file(sentencepiece_file(tmp_path, bos=False), {**config, "add_bos_token": True})
    assert asked.encode("x")[0] == 1


# --- bytes


def test_b155_byte_tokens_are_bytes() -> None:
    typed = gguf(more=[("<0x0A>", NORMAL), ("<0x0B>", BYTE), ("<0x0C>", UNUSED), ("<0x41>", CONTROL)])
    tokenizer = Tokenizer.from_gguf(typed)
    first = tokenizer.vocab_size - 4
    assert [tokenizer.token_bytes(first + i) for i in range(4)] == [b"\n", b"\x0b", b"<0x0C>", b"<0x41>"]
    assert tokenizer.decode([first]) == "\n"


def test_a_token_that_merges_spell_is_its_text() -> None:
    merges = ["< 0", "<0 x", "<0x 4", "<0x4 1", "<0x41 >"]
    tokenizer = Tokenizer.from_gguf(gguf(merges=merges))
    assert tokenizer.decode([tokenizer.vocab_size - 1]) == "<0x41>"


def test_byte_fallback_of_a_tokenizer_json(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(sentencepiece_file(tmp_path), {})
    ids = tokenizer.encode("한", add_special_tokens=False)
    assert [tokenizer.token_bytes(i) for i in ids] == [b" ", *(bytes([b]) for b in "한".encode())]
    assert tokenizer.decode(ids) == "한"


def test_b154_one_leading_space_is_dropped_once(tmp_path: Path) -> None:
    for metaspace in (False, True):
        tokenizer = Tokenizer.from_file(sentencepiece_file(tmp_path, metaspace=metaspace), {})
        assert tokenizer.decode([FIRST_WORD, FIRST_WORD + 1]) == " lead"
        assert tokenizer.decode([FIRST_WORD + 1]) == "lead"
    assert Tokenizer.from_file(sentencepiece_file(tmp_path, strip=False), {}).decode([FIRST_WORD + 1]) == " lead"
    assert SMALL.decode(SMALL.encode(" the")) == " the"


def test_b148_a_character_over_tokens(demo: Tokenizer) -> None:
    ids = demo.encode("가격표🙂")
    assert any("�" in demo.token_text(i) for i in ids)
    assert demo.decode(ids) == "가격표🙂"
    assert b"".join(map(demo.token_bytes, ids)).decode() == "가격표🙂"


def test_b131_token_strings_are_json_whatever_the_bytes() -> None:
    for token_id in range(SMALL.vocab_size):
        assert json.loads(json.dumps(SMALL.token_text(token_id))) == SMALL.token_text(token_id)
    assert [SMALL.token_bytes(i) for i in range(256)] == [bytes([i]) for i in range(256)]


@given(st.lists(st.integers(-5, SMALL.vocab_size + 5)))
def test_decoding_never_raises(ids: list[int]) -> None:
    known = [i for i in ids if 0 <= i < SMALL.vocab_size and not SMALL.is_special(i)]
    assert SMALL.decode(ids) == b"".join(map(SMALL.token_bytes, known)).decode(errors="replace")


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back(text: str) -> None:
    assert SMALL.decode(SMALL.encode(text, parse_special=False)) == text


@pytest.mark.parametrize("text", ["a\ud83d", "\udc00", "한\ud800b"])
def test_b157_a_lone_surrogate_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="lone surrogate"):
        SMALL.encode(text)


# --- files that cannot be used


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "bert"}, "tokenizer.ggml.model is 'bert'"),
        ({"pre": "whitespace"}, "tokenizer.ggml.pre is 'whitespace'"),
        ({"pre": None}, "tokenizer.ggml.pre is None"),
        ({"tokens": None}, "tokenizer.ggml.tokens"),
        ({"tokens": ["a", 1]}, "tokenizer.ggml.tokens"),
        (
            {"tokens": ["a", "b", "a"], "token_type": None, "bos_token_id": None, "eos_token_id": None},
            "tokenizer.ggml.tokens: tokens 0 and 2 are both 'a'",
        ),
        ({"merges": None}, "tokenizer.ggml.merges is missing"),
        ({"merges": ["ab"]}, "tokenizer.ggml.merges has 'ab'"),
        ({"merges": ["zz qq"]}, "tokenizer.ggml.merges: the merges do not fit"),
        ({"token_type": [1]}, "tokenizer.ggml.token_type has 1 entries"),
        ({"token_type": 7}, "tokenizer.ggml.token_type"),
        ({"bos_token_id": 10**6}, "tokenizer.ggml.bos_token_id is 1000000"),
        ({"bos_token_id": -1}, "tokenizer.ggml.bos_token_id"),
        ({"bos_token_id": None, "add_bos_token": True}, "tokenizer.ggml.bos_token_id is missing"),
    ],
)
def test_bad_metadata_name_their_key(changes: dict[str, Any], words: str) -> None:
    metadata = gguf() | {"tokenizer.ggml." + key: value for key, value in changes.items()}
    with pytest.raises(ModelError) as raised:
        Tokenizer.from_gguf({key: value for key, value in metadata.items() if value is not None})
    assert words in str(raised.value)


def test_known_ends_of_turns_end_an_output_without_a_key() -> None:
    ends = [("<|im_end|>", CONTROL), ("<|end|>", CONTROL), ("<end_of_turn>", NORMAL)]
    first = Tokenizer.from_gguf(gguf(more=ends)).vocab_size - 3
    assert Tokenizer.from_gguf(gguf(more=ends)).eos_ids == (EOS, first, first + 1)
    harmony = [*ends, ("<|return|>", CONTROL)]
    assert Tokenizer.from_gguf(gguf(more=harmony)).eos_ids == (EOS, first)


def test_optional_keys_may_be_absent() -> None:
    bare = Tokenizer.from_gguf(gguf(token_type=None, bos_token_id=None))
    assert (bare.bos_id, bare.bos_token, bare.eos_ids) == (None, None, (EOS,))
    assert bare.encode("a</s>") == [ord("a"), EOS]
    more = Tokenizer.from_gguf(gguf(eot_token_id=BOS, eom_token_id=EOS))
    assert more.eos_ids == (EOS, BOS)


@pytest.mark.parametrize(
    ("decoder", "config", "words"),
    [
        ({"type": "WordPiece", "prefix": "##", "cleanup": True}, {}, "decoder WordPiece"),
        (None, {}, "no decoder"),
        (..., {"bos_token": "<nowhere>"}, "bos_token '<nowhere>'"),
        (..., {"add_bos_token": True}, "names no bos_token"),
    ],
)
def test_bad_tokenizer_files_are_refused(tmp_path: Path, decoder: Any, config: dict[str, Any], words: str) -> None:
    path = sentencepiece_file(tmp_path)
    file = json.loads(path.read_text())
    if decoder is not ...:
        file["decoder"] = decoder
    path.write_text(json.dumps(file))
    with pytest.raises(ModelError) as raised:
        Tokenizer.from_file(path, config)
    assert words in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b"[" * 10_000])
def test_a_broken_tokenizer_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        Tokenizer.from_file(path)
