"""Published ids of real vocabularies, and real texts through them and back.

Vocabularies that are not in the shared data are read from packages, if someone unpacked them (docs/design/text.md says which).
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from vocabulary_files import hard_texts, metadata_of_json, vectors, vocabulary_metadata

from ramet.text.byte_level import CUTS, Cut
from ramet.text.tokenizer import Tokenizer
from ramet.text.vocabulary import byte_level_bytes

MISTRAL_FILES = ("tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3")


@pytest.fixture(scope="session")
def packages() -> Path:
    """The folder with a folder per package of vocabularies."""
    folder = os.environ.get("RAMET_VOCABULARIES")
    if not folder:
        pytest.skip("RAMET_VOCABULARIES names no folder of vocabularies")
    return Path(folder)


@pytest.fixture(scope="session")
def mistral_common() -> Path:
    found = find_spec("mistral_common")
    if found is None or not found.submodule_search_locations:
        pytest.skip("the package mistral-common is not installed")
    return Path(found.submodule_search_locations[0]) / "data"


def same_ids(tokenizer: Tokenizer, pairs: list[tuple[str, list[int]]]) -> None:
    for text, ids in pairs:
        assert tokenizer.encode(text, add_special_tokens=False) == ids
        assert tokenizer.decode(ids) == text


def comes_back(tokenizer: Tokenizer, texts: list[str]) -> None:
    """Each text that has no byte which this vocabulary lacks: some made from texts alone lack a few (F3 of the flag of Wales)."""
    present = b"".join(data for i in range(tokenizer.vocab_size) if len(data := tokenizer.token_bytes(i)) == 1)
    lacking = 0
    for text in texts:
        if set(text.encode()) <= set(present):
            assert tokenizer.decode(tokenizer.encode(text, parse_special=False)) == text
        else:
            lacking += 1
    assert lacking < 30


# --- vocabularies of the shared data


def test_gpt2(shared: Path, gpt2: Tokenizer) -> None:
    same_ids(gpt2, vectors(shared, "gpt-2"))
    comes_back(gpt2, hard_texts(shared))
    published = json.loads((shared / "tokenizers/gpt2/encoder.json").read_text())
    assert all(gpt2.token_bytes(i) == byte_level_bytes(token) for token, i in published.items())


def test_the_demo_model(shared: Path, demo: Tokenizer) -> None:
    comes_back(demo, hard_texts(shared))


def test_falcon(shared: Path) -> None:
    falcon = Tokenizer.from_gguf(vocabulary_metadata(shared / "tokenizers/llama.cpp/ggml-vocab-falcon.gguf"))
    same_ids(falcon, vectors(shared, "falcon"))
    comes_back(falcon, hard_texts(shared))


@cache
def mistral(path: Path) -> Tokenizer:
    return Tokenizer.from_file(path)


@pytest.mark.parametrize("name", MISTRAL_FILES)
def test_every_text_comes_back_from_mistral(shared: Path, name: str) -> None:
    comes_back(mistral(shared / "tokenizers/mistral" / name), hard_texts(shared))


def mistral_samples(shared: Path) -> Iterator[tuple[str, str, list[int]]]:
    for path in sorted((shared / "tokenizers/mistral/samples").glob("*/text_v[13].txt")):
        version = path.stem[-2:]
        tokens = json.loads((path.parent / f"tokens_{version}.json").read_text())["tokens"]
        yield version, path.read_text(), tokens


def test_mistral_reads_its_own_samples(shared: Path) -> None:
    """Texts are given with ▁ for spaces, one before each word; the special tokens stand in them as text."""
    versions = dict(zip(("v1", "v3"), MISTRAL_FILES, strict=True))
    found = 0
    for version, text, ids in mistral_samples(shared):
        tokenizer = mistral(shared / "tokenizers/mistral" / versions[version])
        written = re.sub(r"(<s>|</s>|\[/?[A-Z_]+\])▁", r"\1", text.removesuffix("\n")).replace("▁", " ").replace("<0x0A>", "\n")
        if version == "v1":  # where [INST] is three words
            written = text.replace("<s>▁", "<s>").replace("</s>▁", "</s>").replace("▁", " ")
        assert tokenizer.encode(written) == ids
        found += 1
    assert found >= 5


# --- vocabularies of packages


@pytest.mark.parametrize(
    ("package", "pre", "names"),
    [
        ("tokenizer-llama3", "llama-bpe", ["llama-bpe"]),
        ("tokenizer-qwen3", "qwen2", ["qwen2", "deepseek-r1-qwen"]),
        ("tokenizer-deepseek_v3", "deepseek-v3", []),
        ("tokenizer-gpt4o", "gpt-4o", []),
    ],
)
def test_byte_level_vocabularies_of_packages(packages: Path, shared: Path, package: str, pre: str, names: list[str]) -> None:
    path = packages / package / "models/tokenizer.json"
    if not path.exists():
        pytest.skip(f"{package} is not in RAMET_VOCABULARIES")
    as_gguf, as_json = Tokenizer.from_gguf(metadata_of_json(path, pre)), Tokenizer.from_file(path)
    for name in names:
        same_ids(as_gguf, vectors(shared, name))
        same_ids(as_json, vectors(shared, name))
    for text in hard_texts(shared):
        ids = as_json.encode(text, add_special_tokens=False, parse_special=False)
        assert as_gguf.encode(text, add_special_tokens=False, parse_special=False) == ids
        if not CUTS[pre].nfc:
            assert as_gguf.decode(ids) == text


def test_llama2_and_phi3(packages: Path, shared: Path) -> None:
    path = packages / "llama-tokenizer-js/llama-tokenizer.js"
    if not path.exists():
        pytest.skip("llama-tokenizer-js is not in RAMET_VOCABULARIES")
    encoded = re.findall(r'"(PHVuaz4K[A-Za-z0-9+/=]{1000,})"', path.read_text())
    tokens = base64.b64decode(encoded[0]).decode().split("\n")
    spaces = [bool(token) and not token.strip("▁") for token in tokens]
    metadata = {
        "model": "llama",
        "tokens": tokens,
        "token_type": [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259),
        "scores": [0.0] * 259 + [-1e9 if is_space else 259.0 - i for i, is_space in enumerate(spaces) if i >= 259],
    }
    tokenizer = Tokenizer.from_gguf({"tokenizer.ggml." + key: value for key, value in metadata.items()})
    same_ids(tokenizer, vectors(shared, "llama-spm"))
    same_ids(tokenizer, vectors(shared, "phi-3"))
    comes_back(tokenizer, hard_texts(shared))


def test_gemma(packages: Path, shared: Path) -> None:
    """The package has its BPE as merges; as scores, in their order, they must give the same ids."""
    path = packages / "tokenizer-gemma3/models/tokenizer.json"
    if not path.exists():
        pytest.skip("tokenizer-gemma3 is not in RAMET_VOCABULARIES")
    metadata = metadata_of_json(path, "")
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list)
    assert isinstance(kinds, list)
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(metadata["tokenizer.ggml.merges"]):  # type: ignore[arg-type, var-annotated]
        ranks.setdefault(merge.replace(" ", ""), rank)
    named = {
        "model": "llama",
        "tokens": [token.replace("▁", " ") if kind == 4 else token for token, kind in zip(tokens, kinds, strict=True)],
        "token_type": [6 if re.fullmatch("<0x..>", token) else kind for token, kind in zip(tokens, kinds, strict=True)],
        "scores": [-float(ranks.get(token, 1e9)) for token in tokens],
        "add_space_prefix": False,
    }
    tokenizer, as_json = Tokenizer.from_gguf({"tokenizer.ggml." + k: v for k, v in named.items()}), Tokenizer.from_file(path)
    for text in [text for text, _ in vectors(shared, "gpt-2")] + hard_texts(shared):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert as_json.encode(text, add_special_tokens=False) == ids
    comes_back(tokenizer, hard_texts(shared))


@pytest.mark.parametrize("name", ["tekken_240718.json", "tekken_240911.json"])
def test_tekken(mistral_common: Path, shared: Path, name: str) -> None:
    tokenizer = Tokenizer.from_file(mistral_common / name)
    assert (tokenizer.vocab_size, tokenizer.bos_token, tokenizer.eos_token) == (131072, "<s>", "</s>")
    assert tokenizer.encode("Hello world!") == [1, 22177, 4304, 1033]
    comes_back(tokenizer, hard_texts(shared))


# --- cuts whose vocabularies are nowhere


def learn(cut: Cut, pairs: list[tuple[str, list[int]]], whole: str | None) -> dict[str, tuple[int, ...]]:
    """The ids of each piece, as far as the pairs tell, or an AssertionError where no ids fit them all."""
    split = cut.pre_tokenizer()
    known: dict[str, tuple[int, ...]] = {}
    open_pairs: list[tuple[list[str], list[int]]] = []
    for text, ids in pairs:
        parts = re.split(f"({whole})", text) if whole else [text]
        pieces = [p for i, part in enumerate(parts) for p in ([part] if i % 2 else [p for p, _ in split.pre_tokenize_str(part)])]
        open_pairs.append((pieces, ids))
    before = -1
    while len(known) > before:
        before = len(known)
        open_pairs = [shorter(known, pieces, ids) for pieces, ids in open_pairs]
        for pieces, ids in open_pairs:
            assert bool(pieces) == bool(ids)
            assert len(pieces) <= len(ids)
            found = [ids] if len(pieces) == 1 else [[i] for i in ids] if len(pieces) == len(ids) else []
            for piece, its in zip(pieces, found, strict=False):
                assert known.setdefault(piece, tuple(its)) == tuple(its)
    return known


def shorter(known: dict[str, tuple[int, ...]], pieces: list[str], ids: list[int]) -> tuple[list[str], list[int]]:
    """The pair without the pieces at its ends whose ids are known."""
    while pieces and (first := known.get(pieces[0])):
        assert tuple(ids[: len(first)]) == first
        pieces, ids = pieces[1:], ids[len(first) :]
    while pieces and (last := known.get(pieces[-1])):
        assert tuple(ids[-len(last) :]) == last
        pieces, ids = pieces[:-1], ids[: -len(last)]
    return pieces, ids


@pytest.mark.parametrize(
    "name",
    [
        "gpt-2", "falcon", "llama-bpe", "qwen2", "deepseek-r1-qwen", "deepseek-llm", "deepseek-coder", "command-r", "starcoder",
        "refact", "mpt", "chameleon", "roberta-bpe",
    ],
)  # fmt: skip
def test_cuts_fit_published_ids(shared: Path, name: str) -> None:
    """This proves less than equal ids: that some vocabulary gives the published ids to pieces cut so."""
    pairs = vectors(shared, name)
    spaces = " {2,24}" if name == "mpt" else None  # its vocabulary has runs of spaces as added tokens
    assert len(learn(CUTS[name], pairs, spaces)) >= 20


@pytest.mark.parametrize(
    ("name", "other"), [("falcon", "gpt-2"), ("chameleon", "smollm"), ("starcoder", "llama-bpe"), ("mpt", "mpt")]
)
def test_other_cuts_do_not_fit(shared: Path, name: str, other: str) -> None:
    with pytest.raises(AssertionError):
        learn(CUTS[other], vectors(shared, name), None)
