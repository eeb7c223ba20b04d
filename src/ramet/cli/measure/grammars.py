"""What constraints cost: to compile, to fill a mask, to accept a token, along random outputs of theirs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from json import loads
from typing import Any

import numpy as np

from ramet.config import EngineConfig
from ramet.core.grammar import GrammarSpec
from ramet.engine.build import build_text
from ramet.errors import ConfigError
from ramet.model.source import open_model
from ramet.structured.compiler import GrammarCompiler, TokenTable, lark_of

__all__ = ["Costs", "costs_of", "token_tables", "ways"]

_LARGE_VOCAB = 150_000
_COMPILATIONS = 3
_MAX_TOKENS = 100  # of a walk
_SCHEMA = {"type": "object", "properties": {f"property_{i}": {"type": "string", "maxLength": 40} for i in range(200)}}
_CONSTRAINTS: dict[str, dict[str, Any]] = {
    "date and words": {"regex": r"\d{4}-\d{2}-\d{2}( [a-z]+){1,20}"},
    "e-mail": {"regex": r"[\w.+-]{1,64}@[\w-]+(\.[\w-]+)+"},
    "JSON string": {"regex": r'"([^"\\\x00-\x1f]|\\["\\/bfnrt]){0,200}"'},
    "a line of text": {"regex": r"(Thought|Action|Final Answer): .{1,300}"},
    "choice of 4": {"choice": ["positive", "negative", "neutral", "not applicable"]},
    "choice of 5,000": {"choice": [f"{kind} {i}" for i in range(1_250) for kind in ("item", "user", "city", "road")]},
    "schema of 200 properties": {"json": _SCHEMA},
}


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one constraint done one way. Medians and 99th percentiles of one call; a mask is of one sequence and token."""

    vocab_size: int
    constraint: str
    by: str
    compile_ms: float
    cold_mask_us: tuple[float, float]
    mask_us: tuple[float, float]
    accept_us: tuple[float, float]


def token_tables(config: EngineConfig) -> list[TokenTable]:
    """The model's own, and one of 150,000 made of pairs of its tokens. Raises ``ConfigError`` where it has no tokenizer."""
    checkpoint = open_model(config.model)
    tokenizer = build_text(checkpoint).tokenizer
    if tokenizer is None:
        raise ConfigError("the model has no tokenizer, so there are no tokens to mask")
    ids = range(tokenizer.vocab_size)
    special = frozenset(filter(tokenizer.is_special, ids))
    pieces = [tokenizer.token_bytes(token_id) for token_id in ids]
    small = TokenTable(pieces, special, tokenizer.eos_ids, len(pieces))
    rng = np.random.default_rng(0)
    made = dict.fromkeys(pieces)
    while len(made) < _LARGE_VOCAB:
        first, second = rng.integers(0, len(pieces), 2).tolist()
        if not {first, second} & special:
            made[pieces[first] + pieces[second]] = None
    larger = [*pieces, *list(made)[len(dict.fromkeys(pieces)) :]]
    return [small, replace(small, pieces=larger, vocab_size=len(larger))]


def ways() -> Iterator[tuple[str, str, list[GrammarSpec]]]:
    """Constraint, who keeps to it, and several specs of it: each is compiled once, for what is compiled is kept."""
    for name, constraint in _CONSTRAINTS.items():
        specs = [_variant(constraint, index) for index in range(_COMPILATIONS)]
        if "json" in constraint:
            yield name, "llguidance", specs
        else:
            yield name, "automaton", specs
            patterns = [spec if "regex" in constraint else GrammarSpec("regex", "|".join(loads(spec.text))) for spec in specs]
            yield name, "llguidance", [GrammarSpec("grammar", lark_of(pattern, {})) for pattern in patterns]


def _variant(constraint: dict[str, Any], index: int) -> GrammarSpec:
    """The same language, written otherwise."""
    ((kind, value),) = constraint.items()
    if kind == "regex":
        return GrammarSpec.of({kind: "(?:" * index + value + ")" * index})
    return GrammarSpec.of({kind: value[index:] + value[:index] if kind == "choice" else value | {"title": str(index)}})


def costs_of(
    compiler: GrammarCompiler, table: TokenTable, of: tuple[str, str], specs: list[GrammarSpec], num_walks: int
) -> Costs:
    """``of`` is the constraint's name and who keeps to it."""
    clock = time.perf_counter
    compilations = []
    for spec in specs:
        start = clock()
        compiler.matcher(spec, frozenset(table.eos_ids)).result()
        compilations.append(clock() - start)
    outputs, cold = _random_walks(compiler, table, specs[0], num_walks)
    masks, accepts = _again(compiler, table, specs[0], outputs)
    return Costs(table.vocab_size, *of, round(1e3 * min(compilations), 3), _pair(cold), _pair(masks), _pair(accepts))


def _random_walks(
    compiler: GrammarCompiler, table: TokenTable, spec: GrammarSpec, num_walks: int
) -> tuple[list[list[int]], list[int]]:
    """Random outputs, always the same ones, and the nanoseconds of their masks."""
    rng = np.random.default_rng(1)
    ending = list(table.eos_ids)
    outputs, masks = [], []
    for _ in range(num_walks):
        matcher = compiler.matcher(spec, frozenset(ending)).result()
        row = np.zeros(matcher.num_words, np.uint32)
        output: list[int] = []
        while len(output) < _MAX_TOKENS and not matcher.is_finished:
            start = time.perf_counter_ns()
            matcher.fill_mask(row)
            masks.append(time.perf_counter_ns() - start)
            bits = np.unpackbits(row.view(np.uint8), bitorder="little")
            bits[ending] = 0
            if not bits.any():  # all that can come is the end
                break
            output.append(int(rng.choice(np.flatnonzero(bits))))
            matcher.accept(output[-1])
        outputs.append(output)
    return outputs, masks


def _again(
    compiler: GrammarCompiler, table: TokenTable, spec: GrammarSpec, outputs: list[list[int]]
) -> tuple[list[int], list[int]]:
    """Nanoseconds of the masks and of the tokens accepted when the same outputs come once more."""
    clock = time.perf_counter_ns
    masks, accepts = [], []
    for output in outputs:
        matcher = compiler.matcher(spec, frozenset(table.eos_ids)).result()
        row = np.zeros(matcher.num_words, np.uint32)
        for token_id in output:
            start = clock()
            matcher.fill_mask(row)
            filled = clock()
            matcher.accept(token_id)
            accepts.append(clock() - filled)
            masks.append(filled - start)
    return masks, accepts


def _pair(nanoseconds: list[int]) -> tuple[float, float]:
    median, p99 = np.percentile(np.array(nanoseconds) / 1000, (50, 99)).tolist()
    return round(median, 2), round(p99, 2)
