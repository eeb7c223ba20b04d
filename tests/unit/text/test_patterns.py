"""T09: patterns that a tokenizer.json brings along hold up no request: refused at the start, or of linear time."""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_vocabularies import sentencepiece_file
from tiny_models import TINY_MODELS, write_folder
from tokenizers import Regex, pre_tokenizers
from tokenizers import Tokenizer as Backend

from ramet import LLM
from ramet.errors import InvalidRequest, ModelError
from ramet.text import patterns
from ramet.text.byte_level import CUTS, KNOWN_PATTERNS
from ramet.text.patterns import check_flat, linear, try_pattern
from ramet.text.tokenizer import Tokenizer
from ramet.text.tokenizer_file import vocabulary_of_file


class Thread:
    def now(self) -> float:
        return time.thread_time()


def check_pattern(pattern: str) -> None:
    check_flat(pattern, "f")
    try_pattern(pattern, "f", Thread())


ENDLESS = {
    r"(a+)+$": r"repeats '\(a\+\)' in",
    r"(a|aa)+$": "repeats",
    r"(?:a*)*b": "repeats",
    r"(?<x>a+)*b": "repeats",
    r"((a{0,9}){0,9}){0,9}b": "repeats",
    r"(?:a|aa){9}b": "repeats",
    r"a**": "a repetition of a repetition",
    r"(?=(a+))+b": "repeats",
    r"(a)\1+": r"has \\1 in",
    r"(?<n>a|b\g<n>c)": r"has \\g in",
    r"(?x)a # [\n(b+)+#]": r"has \(\?x in",  # a comment to Oniguruma, a class to who overlooks the flag
    r"(?#[)(b+)+c(?#])": r"has \(\?# in",
    r"(?~a)": r"has \(\?~ in",
    r"(*FAIL)": r"has \(\*F in",
    r"[^": "open class",
    r"(a": "open bracket",
    r"a)": "a bracket too many",
    r"\s+$": "takes too long on texts like",
    r"a[^b]*b": "takes too long on texts like 'aaa'",
    r"(?:xab)[^y]*y": "takes too long on texts like 'xabxabxab'",
    r"(.*)(.*)(.*)z": "takes too long",
    r"\p{L}+\p{N}*\p{L}+$": "takes too long",
    r"(?:\d{1,3}+)x": "takes too long",
    r"\d{1,3}(?=(?:\d{3})*\b)": "takes too long",
    "a?" * 25 + "a" * 25: "takes too long",
    "a" * 5000: "a pattern of 5000 characters; 4096 are allowed",
    "|".join(map(chr, range(0x4E00, 0x5200))): "too many parts",
}


@pytest.mark.parametrize("pattern", ENDLESS, ids=lambda pattern: pattern[:20].replace("\\n", " "))
def test_patterns_of_unbounded_time_are_refused(pattern: str, capfd: pytest.CaptureFixture[str]) -> None:
    started_s = time.process_time()
    with pytest.raises(ModelError, match=ENDLESS[pattern]) as refused:
        check_pattern(pattern)
    assert time.process_time() - started_s < 5
    assert len(str(refused.value)) < 400
    assert "\n" not in str(refused.value)
    capfd.readouterr()  # panics of native code


_BY_CASE = r"[^\r\n\p{L}\p{N}]?(<U>)*(<L>)+|[^\r\n\p{L}\p{N}]?(<U>)+(<L>)*|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+"
OTHERS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "looks ahead": _BY_CASE.replace("<U>", r"(?=[\p{L}])([^a-z])").replace("<L>", r"(?=[\p{L}])([^A-Z])"),
    "classes": r"[\p{Han}]+|"
    + _BY_CASE.replace("(<U>)", r"[\p{Lu}\p{M}&&[^\p{Han}]]").replace("(<L>)", r"[\p{Ll}\p{Lo}\p{M}&&[^\p{Han}]]"),
    "possessive": r"(?:'[sS]|'[lL]{2})|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s*[\r\n]|\s+(?!\S)|\s",
    "a set": r" ?[^(\s|[.,!?\u060c\u06d4])]+|[]a]+|(?-i:b){2,}|(ab){3,}",
}


@pytest.mark.parametrize("pattern", [*sorted(KNOWN_PATTERNS), *OTHERS.values()], ids=lambda pattern: pattern[:20])
def test_patterns_of_known_models_are_taken(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "_LENGTHS", (4096,))  # it is all the same to what is quick at the end
    check_pattern(pattern)


def test_a_run_at_the_end_is_the_same_and_linear() -> None:
    rng = random.Random(1)
    for slow in (r"\s+$", "[ \u2581]+$"):
        quick = linear(slow)
        check_pattern(quick)
        assert linear(quick) == quick
        for _ in range(200):
            text = "".join(rng.choices(" \u2581\n\tab", k=rng.randrange(12)))
            cuts = [pre_tokenizers.Split(Regex(p), "isolated").pre_tokenize_str(text) for p in (slow, quick)]
            assert cuts[0] == cuts[1]


def write(folder: Path, pattern: str, key: str = "pre_tokenizer") -> Path:
    path = sentencepiece_file(folder)
    file: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    step = (
        {"type": "Split", "behavior": "Isolated", "invert": False}
        if key == "pre_tokenizer"
        else {"type": "Replace", "content": ""}
    )
    file[key] = {"type": "Sequence", f"{key}s".replace("_", ""): [step | {"pattern": {"Regex": pattern}}]}
    path.write_text(json.dumps(file), encoding="utf-8")
    return path


@pytest.mark.parametrize("key", ["pre_tokenizer", "normalizer"])
def test_files_with_patterns(key: str, tmp_path: Path) -> None:
    """One that never ends is refused, one of the square is replaced by its like: 200,000 spaces take no minute."""
    with pytest.raises(ModelError, match=r"tokenizer.json: repeats '\(a\+\)' in a pattern"):
        Tokenizer.from_file(write(tmp_path, r"(a+)+$", key))
    started_s = time.process_time()
    with pytest.raises(ModelError, match="cuts text by a pattern of 360000 characters"):
        Tokenizer.from_file(write(tmp_path, r"[\p{L}&&[^\p{Lu}]]" * 20000, key))
    tokenizer = Tokenizer.from_file(write(tmp_path, r"\s+$", key))
    tokenizer.try_patterns(Thread())
    tokenizer.encode(" " * 200_000 + "x")
    assert time.process_time() - started_s < 10


def test_a_pattern_that_is_flat_and_slow_is_refused_when_it_is_tried(tmp_path: Path) -> None:
    """The engine tries it before it serves; to read the file is not to run it."""
    folder = write_folder(TINY_MODELS["llama"], tmp_path)
    write(folder, r"a[^b]*b")
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    Tokenizer.from_file(folder / "tokenizer.json", {"bos_token": "<s>"})
    with pytest.raises(ModelError, match=r"the tokenizer: cuts text by 'a\[\^b\]\*b', which takes too long"):
        LLM(str(folder), kv_cache_memory="16MiB")


def test_too_many_patterns(tmp_path: Path) -> None:
    path = write(tmp_path, "a")
    file = json.loads(path.read_text(encoding="utf-8"))
    file["pre_tokenizer"]["pretokenizers"] *= 17
    path.write_text(json.dumps(file), encoding="utf-8")
    with pytest.raises(ModelError, match="cuts text by 17 patterns; 16 are allowed"):
        Tokenizer.from_file(path)


def test_what_native_code_gives_up_is_a_fault_of_the_request(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    vocabulary = vocabulary_of_file(sentencepiece_file(tmp_path), {})
    backend = Backend.from_str(vocabulary.backend.to_str())
    backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    tokenizer = Tokenizer(replace(vocabulary, backend=backend))
    with pytest.raises(InvalidRequest, match="the tokenizer gave up on this text of 41 characters"):
        tokenizer.encode("a" * 40 + "!")
    assert tokenizer.encode("ab") == tokenizer.encode("ab")
    assert "a" * 40 not in capfd.readouterr().err


def test_whole_texts_of_spaces_are_cut_in_no_time() -> None:
    started_s = time.process_time()
    for cut in CUTS.values():
        cut.pre_tokenizer().pre_tokenize_str(" " * 50_000 + "x")
    assert time.process_time() - started_s < 10
