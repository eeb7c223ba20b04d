"""F3 and F4: vocabularies and chat templates that nobody meant well, and texts that go through them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Hashable, Sequence
from pathlib import Path
from random import Random

from fuzz.files import bounded
from fuzz.harness import Target, kind_of
from fuzz.mutation import as_json, mutated_bytes, mutated_json

from ramet.errors import InvalidRequest, ModelError
from ramet.text.chat import ChatTemplate
from ramet.text.tokenizer import Tokenizer

__all__ = ["SENTENCEPIECE", "TEMPLATE", "TOKENIZER"]

_TEXTS = ["a b<s> 한x lead</s>", "", "<0x41>", "e\u0301 ①  12", "\ufeff\u200b" * 3, " " * 300 + "x", "ab" * 200]
_TOKENIZER_WORDS = [
    "type", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model", "added_tokens", "vocab", "merges", "unk_token",
    "unk_id", "byte_fallback", "ignore_merges", "content", "special", "id", "pattern", "Regex", "String", "Sequence", "Split",
    "Replace", "Prepend", "Precompiled", "Metaspace", "ByteLevel", "ByteFallback", "Fuse", "Strip", "Digits", "Punctuation",
    "FixedLength", "BPE", "Unigram", "WordLevel", "WordPiece", "NFC", "NFKC", "TemplateProcessing", "isolated", "a", "b", "ab",
    "▁", "<s>", "</s>", "<0x0A>", "(a+)+$", r"\s+$", r"\p{L}+", "(?i:a|b)", "a[^b]*b", "bos_token", "eos_token", "add_bos_token",
    "default_vocab_size", "default_num_special_tokens", "rank", "token_bytes", "AA==", "config",
]  # fmt: skip
_PIECES = [
    b"\x0a\x05\x0a\x01a",
    b"\x15\x00\x00\x80\xbf",
    b"\x18\x03",
    b"\x12\x02\x18\x01",
    b"\x1a\x02\x20\x00",
    b"\xff" * 9,
    "▁".encode(),
]
_TEMPLATE_WORDS = [
    "{{", "}}", "{%", "%}", "{%-", "-%}", "{#", "#}", "{% for m in messages %}", "{% endfor %}", "{% if a %}", "{% else %}",
    "{% endif %}", "{% set n = namespace(a=1) %}", "{% set n.a = n.a + 1 %}", "{% macro f(x) %}", "{% endmacro %}",
    "{{ f(1) }}", "{% filter upper %}", "{% endfilter %}", "{% break %}", "{% continue %}", "{% generation %}", "range(999999)",
    "loop.index0", "messages", "messages[0]['content']", "m.role", "tools", "x", "'x'", "[1]", "{'a': 1}", " * 99999", " ** 99",
    " ~ ", " + ", " % ", " in ", " is defined", " is mapping", " and ", " not ", " if a else b", "[::-1]", "[0]", ".__class__",
    "|attr('__class__')", ".format(", "'{0.__class__}'", "|tojson", "|tojson(indent=9999)", "|map('upper')",
    "|map(attribute='a')", "|list", "|join", "|replace('a', 'aaaa')", "|indent(9999)", "|center(99999)", "|sort",
    "|groupby('a')", "|batch(2)", "|length", "|trim", "|string", ".split('')", ".join(", "raise_exception('no')",
    "strftime_now('%Y')", "recursive", "loop(messages)", "\n", "(", ")", ",",
]  # fmt: skip
_TAG = re.compile(r"(\{[{%#].*?[}%#]\})", re.DOTALL)
_BLOCKS = [
    ("{% for a in range(99) %}", "{% endfor %}"), ("{% for m in messages %}", "{% endfor %}"),
    ("{% if tools %}", "{% endif %}"), ("{% macro f(x) %}", "{% endmacro %}{{ f(f) }}"), ("{% set s %}", "{% endset %}"),
    ("{% filter indent(9) %}", "{% endfilter %}"), ("{% for m in messages recursive %}", "{{ loop([m, m]) }}{% endfor %}"),
    ("{% call(x) f(1) %}", "{% endcall %}"),
]  # fmt: skip
_OPERATIONS = [
    " * 9999", " ~ messages", " + 'x'", " % 3", " ** 9", "[::-1]", "[1:]", "|tojson", "|list", "|join(s)", "|length",
    "|replace('a', s)", "|map('upper')", "|map(attribute='content')", "|sort", "|groupby('role')", "|center(99999)",
    "|indent(999, true)", "|batch(2)", ".format(s)", ".split('')", ".items()", ".content", ".__class__", "|attr('__init__')",
    " is string", " if s else 1", "|string", "|dictsort", "|sum(start=s)", "|slice(3)", "|unique", "|wordwrap(2)", "|format(s)",
    "|trim", "|urlize", "|pprint", "|xmlattr",
]  # fmt: skip
_VALUES = [
    "messages", "messages[0]", "tools", "bos_token", "s", "[1, [2]]", "{'a': s}", "'a%s{0}'", "range(9999)", "namespace(a=s)",
    "10 ** 9", "m.content", "loop", "f", "dict(a=1)", "joiner()", "cycler(1, 2)", "lipsum()", "self", "strftime_now('%Y')",
    "true", "none", "1.5",
]  # fmt: skip
_CONVERSATIONS = [
    [{"role": "user", "content": "a"}],
    [{"role": "system", "content": "é<s>"}, {"role": "user", "content": "b" * 99}, {"role": "assistant", "content": "c"}] * 3,
]
_TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}
]


class _Vocabularies:
    """A folder to write in."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tried: dict[tuple[str, ...], str] = {}  # to try patterns takes longer than all else, and most inputs have the same

    def tokenizer(self, data: bytes) -> Hashable:
        """``file`` is a tokenizer.json, or one of Mistral's where it is like that; ``config`` what stands beside it."""
        value = as_json(data)
        file, config = (value.get("file"), value.get("config")) if isinstance(value, dict) else (None, None)
        name = "tekken.json" if isinstance(file, dict) and "default_vocab_size" in str(file.get("config")) else "tokenizer.json"
        text = data if file is None else json.dumps(file).encode()
        return self._read(name, text, config if isinstance(config, dict) else {})

    def sentencepiece(self, data: bytes) -> Hashable:
        """A tokenizer.model, by its first line a protocol buffer or tiktoken's."""
        return self._read("tokenizer.model", data, {})

    def _read(self, name: str, data: bytes, config: dict[str, object]) -> Hashable:
        path = self._folder / name
        path.write_bytes(data)
        with bounded(len(data)):
            try:
                tokenizer = Tokenizer.from_file(path, config)
            except ModelError as error:
                return kind_of(error)
            if refusal := self._refusal(tokenizer):
                return refusal
            lengths = [self._there_and_back(tokenizer, text) for text in _TEXTS]
        return tokenizer.vocab_size, tuple(lengths), tokenizer.bos_id, tokenizer.eos_ids

    def _refusal(self, tokenizer: Tokenizer) -> str:
        """Why its patterns are refused; empty where they are not."""
        patterns = tokenizer._vocabulary.patterns
        if patterns not in self._tried:
            try:
                tokenizer.try_patterns(_ThreadTime())
                self._tried[patterns] = ""
            except ModelError as error:
                self._tried[patterns] = kind_of(error)
        return self._tried[patterns]

    def _there_and_back(self, tokenizer: Tokenizer, text: str) -> int:
        try:
            ids = tokenizer.encode(text)
        except InvalidRequest:  # native code gave up
            return -1
        assert all(0 <= i < tokenizer.vocab_size for i in ids)
        tokenizer.decode(ids)
        tokenizer.decode(tokenizer.encode(text, parse_special=False), skip_special_tokens=False)
        return len(ids)


class _ThreadTime:
    def now(self) -> float:
        return time.thread_time()


class _RealTime:
    def now(self) -> float:
        return time.monotonic()


def _render(data: bytes) -> Hashable:
    """A template is refused, or renders what it is given in bounds of time and memory, or says why it does not."""
    with bounded(0):
        try:
            template = ChatTemplate(data.decode(errors="ignore"), "<s>", "</s>", clock=_RealTime(), strftime_now=time.strftime)
        except ModelError as error:
            return kind_of(error)
    return tuple(_rendered(template, messages) for messages in _CONVERSATIONS)


def _rendered(template: ChatTemplate, messages: list[dict[str, str]]) -> Hashable:
    with bounded(0):
        try:
            text = template.render(messages, _TOOLS, tells_tools=True)
        except InvalidRequest as error:
            return kind_of(error)
    assert "<class" not in text, "a type is shown, and what is seen can be reached"
    return min(len(text), 4)


def _mutate_tokenizer(rng: Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    value = as_json(data)
    if value is None or rng.random() < 0.05:
        return mutated_bytes(rng, data, pool, [word.encode() for word in _TOKENIZER_WORDS])
    others = [other for other in map(as_json, rng.choices(pool, k=4)) if other is not None]
    return json.dumps(mutated_json(rng, value, others or [{}], _TOKENIZER_WORDS)).encode()


def _mutate_sentencepiece(rng: Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    return mutated_bytes(rng, data, pool, _PIECES)


def _mutate_template(rng: Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    """Now and then as bytes; else by whole tags, so that most of what comes of it is a template still."""
    if rng.random() < 0.2:
        return mutated_bytes(rng, data, pool, [word.encode() for word in _TEMPLATE_WORDS])
    parts = _TAG.split(data.decode(errors="ignore"))
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(parts))
        stop = min(len(parts), start + rng.randint(1, 6))
        others = _TAG.split(rng.choice(pool).decode(errors="ignore"))
        at = rng.randrange(len(others))
        kind = rng.randrange(5)
        if kind == 0:
            parts[start:stop] = others[at : at + rng.randint(1, 6)]
        elif kind == 1:
            parts[start:start] = parts[start:stop]
        elif kind == 2:
            opening, ending = rng.choice(_BLOCKS)
            parts[start:stop] = [opening, *parts[start:stop], ending]
        elif kind == 3:
            parts[start] = parts[start].replace(" }}", rng.choice(_OPERATIONS) + " }}")
        else:
            parts.insert(start, f"{{{{ {rng.choice(_VALUES)}{rng.choice(_OPERATIONS)}{rng.choice(_OPERATIONS)} }}}}")
    return "".join(parts).encode()[:20_000]


TOKENIZER = Target("F3", "tokenizer", lambda folder: _Vocabularies(folder).tokenizer, _mutate_tokenizer)
SENTENCEPIECE = Target("F3", "sentencepiece", lambda folder: _Vocabularies(folder).sentencepiece, _mutate_sentencepiece)
TEMPLATE = Target("F4", "template", lambda _: _render, _mutate_template)
