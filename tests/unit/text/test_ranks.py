"""tekken.json and tiktoken's lines: cuts, special tokens, and files that cannot be used."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from ramet.errors import ModelError
from ramet.text import ranks
from ramet.text.byte_level import CUTS
from ramet.text.tokenizer import Tokenizer

BYTES = [bytes([b]) for b in range(256)]
MERGED = [b"he", b"ll", b"hell", b"hello", b" hello", b"12"]
HE, LL, HELL, HELLO, SPACE_HELLO, TWELVE = range(256, 262)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def tekken(tokens: list[bytes], **changes: Any) -> dict[str, Any]:
    return {
        "config": {
            "pattern": CUTS["tekken"].steps[0],
            "num_vocab_tokens": len(tokens),
            "default_vocab_size": len(tokens) + 10,
            "default_num_special_tokens": 10,
            "version": "v7",
        }
        | changes.pop("config", {}),
        "vocab": [{"rank": i, "token_bytes": encoded(t), "token_str": None} for i, t in enumerate(tokens)],
        **changes,
    }


def of_tekken(folder: Path, file: object) -> Tokenizer:
    path = folder / "tekken.json"
    path.write_text(json.dumps(file))
    return Tokenizer.from_file(path)


def of_lines(folder: Path, tokens: list[bytes], name: str = "some.tiktoken", **config: Any) -> Tokenizer:
    path = folder / name
    path.write_text("".join(f"{encoded(token)} {rank}\n" for rank, token in enumerate(tokens)))
    return Tokenizer.from_file(path, config)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small vocabulary of tiktoken's kind, known by its number of ranks."""
    small = ranks._Known("llama-bpe", len(BYTES + MERGED) + 1, ["begin", "end"], asks_bos=True)
    monkeypatch.setattr(ranks, "_BY_RANKS", {len(BYTES + MERGED): small})


def test_tekken_ids_come_after_the_special_tokens(tmp_path: Path) -> None:
    tokenizer = of_tekken(tmp_path, tekken(BYTES + MERGED))
    assert tokenizer.encode("hello hello 12") == [1, 10 + HELLO, 10 + SPACE_HELLO, 10 + 32, 10 + ord("1"), 10 + ord("2")]
    assert tokenizer.encode("<s>[INST]hell[/INST]</s>") == [1, 3, 10 + HELL, 4, 2]
    assert tokenizer.decode(tokenizer.encode("naïve 🌶", parse_special=False)) == "naïve 🌶"
    assert not {3, 4} & set(tokenizer.encode("[INST]", parse_special=False))
    assert (tokenizer.vocab_size, tokenizer.eos_ids) == (10 + len(BYTES + MERGED), (2,))


def test_tekken_may_name_its_special_tokens(tmp_path: Path) -> None:
    names = [{"rank": 0, "token_str": "<unk>"}, {"rank": 1, "token_str": "<s>"}, {"rank": 2, "token_str": "</s>"}]
    file = tekken(BYTES + MERGED, special_tokens=[*names, {"rank": 7, "token_str": "[THINK]", "is_control": True}])
    tokenizer = of_tekken(tmp_path, file)
    assert tokenizer.encode("[THINK]", add_special_tokens=False) == [7]
    assert tokenizer.token_text(3) == "<SPECIAL_3>"


def test_tekken_takes_only_the_tokens_in_use(tmp_path: Path) -> None:
    tokenizer = of_tekken(tmp_path, tekken(BYTES + MERGED, config={"default_vocab_size": 10 + 258}))
    assert tokenizer.encode("hello", add_special_tokens=False) == [10 + HE, 10 + LL, 10 + ord("o")]


@pytest.mark.parametrize("name", ["some.tiktoken", "tokenizer.model"])
def test_tiktoken_lines(tmp_path: Path, known: None, name: str) -> None:
    tokenizer = of_lines(tmp_path, BYTES + MERGED, name)
    bos, eos = 263, 264
    assert tokenizer.encode("hello hello 12<|end|>") == [bos, HELLO, SPACE_HELLO, 32, TWELVE, eos]
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.vocab_size) == ("<|begin|>", "<|end|>", 265)
    assert tokenizer.token_bytes(262) == b""  # between the ranks and the special tokens
    assert eos not in tokenizer.encode("<|end|>", parse_special=False)


def test_tiktoken_special_tokens_of_the_config(tmp_path: Path, known: None) -> None:
    added = {"300": {"content": "<|own|>", "special": True}}
    tokenizer = of_lines(tmp_path, BYTES + MERGED, added_tokens_decoder=added, bos_token="<|own|>", eos_token="<|own|>")
    assert tokenizer.encode("he") == [300, HE]
    assert tokenizer.vocab_size == 301


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "has 0 ranks"),
        (b"aGVsbG8= 0\n", "has 1 ranks; how to cut text is known"),
        (b"aGVsbG8= x\n", "line 1 is not a token in base64"),
        (b"aGVsbG8= 99999999999999999999\n", "line 1 is not a token in base64"),
        (b"aGVsbG8= 0\naGVsbG8= 0\n", "line 2 is not a token in base64"),
        (b"%%%% 0\n", "line 1: b'%%%%' is no base64"),
        (b"a" * 100 + b"\n", "line 1 is not a token in base64"),
    ],
)
def test_harmful_lines_are_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "some.tiktoken"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=words):
        Tokenizer.from_file(path)


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ([*BYTES, *MERGED[:-1], b"he"], "two ranks are the token b'he'"),
        ([b"x1", *BYTES[1:], *MERGED], "1 of the 256 bytes are no tokens"),
        ([*BYTES, *MERGED[:-1], b"<|end|>"], "'<|end|>' is an ordinary one too"),
        ([*BYTES, *MERGED[:-1], b"z" * 100_000], "tokens of up to 100000 characters"),
    ],
)
def test_harmful_ranks_are_refused(tmp_path: Path, known: None, tokens: list[bytes], words: str) -> None:
    with pytest.raises(ModelError) as raised:
        of_lines(tmp_path, tokens)
    assert words in str(raised.value)


GOOD = tekken(BYTES + MERGED)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ([], "holds a JSON list"),
        ({}, "no tekken file"),
        (GOOD | {"vocab": 7}, "no tekken file"),
        (tekken(BYTES, config={"pattern": "(a*)*b"}), "a pattern that is not known: '(a*)*b'"),
        (tekken(BYTES, config={"default_vocab_size": 10**12}), "do not fit 256 in vocab"),
        (tekken(BYTES, config={"default_num_special_tokens": -5}), "-5 special tokens"),
        (tekken(BYTES, config={"default_num_special_tokens": 10**9}), "1000000000 special tokens"),
        (GOOD | {"vocab": [7] * 300}, "vocab entry 0 is not its rank"),
        (GOOD | {"vocab": [{"rank": 1, "token_bytes": "AA=="}] * 300}, "vocab entry 0 is not its rank"),
        (GOOD | {"vocab": [{"rank": i, "token_bytes": "%"} for i in range(300)]}, "is no base64 of a token"),
        (GOOD | {"special_tokens": [{"rank": 99, "token_str": "a"}]}, "no rank under 10"),
        (GOOD | {"special_tokens": 7}, "no list of at most 10"),
    ],
)
def test_harmful_tekken_files_are_refused(tmp_path: Path, file: object, words: str) -> None:
    with pytest.raises(ModelError) as raised:
        of_tekken(tmp_path, file)
    assert words in str(raised.value)


@pytest.mark.parametrize("name", ["tokenizer.json", "tekken.json", "tokenizer.model", "a.tiktoken"])
def test_files_too_large_or_absent_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with pytest.raises(ModelError, match="cannot read"):
        Tokenizer.from_file(path)
    with path.open("wb") as file:
        file.truncate(1 << 30)  # a gigabyte that takes no room
    with pytest.raises(ModelError, match="has 1024 MiB"):
        Tokenizer.from_file(path)


@pytest.mark.parametrize("content", [b"[" * 100_000, b"\xff\xfe", b"{"])
def test_a_tekken_file_that_is_no_json(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tekken.json"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="not valid JSON"):
        Tokenizer.from_file(path)
