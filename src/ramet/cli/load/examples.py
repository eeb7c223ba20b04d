"""Worked examples from a file, for few-shot prompts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ramet.errors import ConfigError

__all__ = ["Example", "read_examples"]

_PAIRS = (("question", "answer"), ("input", "target"), ("prompt", "completion"), ("instruction", "output"))
_BLANK_LINES = re.compile(r"\n[ \t]*\n\s*")


@dataclass(frozen=True, slots=True)
class Example:
    """A question and its worked answer."""

    question: str
    answer: str


def read_examples(path: Path) -> list[Example]:
    """The examples of a file. ``.jsonl`` has one object a line with ``question`` and ``answer`` (as GSM8K has; ``input`` and
    ``target``, ``prompt`` and ``completion``, ``instruction`` and ``output`` are read too). In any other file blank lines part
    the examples, and the last line of each is its answer. Raises ``ConfigError``.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--file {path} cannot be read: {error}") from error
    if path.suffix == ".jsonl":
        return [_parsed(path, number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    blocks = (block.strip() for block in _BLANK_LINES.split(text))
    return [_split(block) for block in blocks if block]


def _parsed(path: Path, number: int, line: str) -> Example:
    try:
        record = msgspec.json.decode(line, type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise ConfigError(f"--file {path}, line {number}, is no JSON object: {error}") from error
    for question, answer in _PAIRS:
        match record.get(question), record.get(answer):
            case str(asked), str(told):
                return Example(asked, told)
    pairs = ", ".join(" and ".join(pair) for pair in _PAIRS)
    raise ConfigError(f"--file {path}, line {number}, has keys {sorted(record)}; wanted are texts under {pairs}")


def _split(block: str) -> Example:
    question, _, answer = block.rpartition("\n")
    return Example(question, answer) if question else Example(answer, "")
