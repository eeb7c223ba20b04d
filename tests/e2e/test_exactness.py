"""The matrix of docs/design/exactness.md: the same request gives the same bits in every cell.

Each cell answers the same probe requests as its family's baseline (no cache, one at a time, one thread), and tokens, logprobs and
prompt logprobs must be equal bit for bit. ``make check`` runs a pairwise cover, ``RAMET_EXACT=full`` the whole product.
"""

from __future__ import annotations

import itertools
import os
import random
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tiny_models import TINY_MODELS, write_folder

from ramet import LLM, RequestOutput, SamplingParams

_SETTINGS: Mapping[str, tuple[Any, ...]] = {
    "cache": ("none", "radix", "hash"),
    "page_size": (1, 16, 64),
    "chunk": (7, 64, None),
    "batch": (1, 8),
    "threads": (1, 2),
    "what": ("plain", "warm", "preempted", "forked"),
}
TINY = {"family": tuple(TINY_MODELS), "weights": ("float32", "bfloat16", "int8", "int4"), **_SETTINGS}
DEMO = {"family": ("demo",), "weights": ("as shipped",), **_SETTINGS}
Cell = dict[str, Any]
_TIGHT_POOL = {1: 145, 16: 160, 64: 192}  # tokens; see _preempted
_VOCAB = 300


def cells(axes: Mapping[str, tuple[Any, ...]]) -> list[Cell]:
    if os.environ.get("RAMET_EXACT") == "full":
        return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    return list(pairwise(axes))


def pairwise(axes: Mapping[str, tuple[Any, ...]]) -> Iterator[Cell]:
    """A small set of cells in which every two values of two axes meet: greedy, with fixed choices."""
    names = list(axes)
    open_pairs = {((a, x), (b, y)) for a, b in itertools.combinations(names, 2) for x in axes[a] for y in axes[b]}
    rng = random.Random(0)
    while open_pairs:
        candidates = [{name: rng.choice(values) for name, values in axes.items()} for _ in range(50)]
        (first, second) = min(open_pairs, key=repr)
        candidates = [c | {first[0]: first[1], second[0]: second[1]} for c in candidates]
        best = max(candidates, key=lambda c: len(open_pairs & _pairs(c)))
        open_pairs -= _pairs(best)
        yield best


def _pairs(cell: Cell) -> set[tuple[tuple[str, Any], tuple[str, Any]]]:
    return set(itertools.combinations(cell.items(), 2))


def _prompt(seed: int, length: int) -> list[int]:
    return [random.Random(seed).randrange(_VOCAB) for _ in range(1)] + [
        random.Random(seed * 1000 + i).randrange(_VOCAB) for i in range(length - 1)
    ]


_SHARED = _prompt(1, 45)
PROBES: list[tuple[list[int], SamplingParams]] = [
    (_SHARED + _prompt(2, 30), SamplingParams(temperature=0, max_tokens=14, logprobs=3, ignore_eos=True)),
    (
        _SHARED + _prompt(3, 9),
        SamplingParams(temperature=0.9, seed=5, top_p=0.95, top_k=40, max_tokens=20, logprobs=2, ignore_eos=True),
    ),
    (
        _prompt(4, 33),
        SamplingParams(
            temperature=0.7, seed=6, repetition_penalty=1.3, frequency_penalty=1.5, max_tokens=12, logprobs=1, ignore_eos=True
        ),
    ),
    (_SHARED + _prompt(2, 20), SamplingParams(temperature=0, max_tokens=4, logprobs=0, prompt_logprobs=2, ignore_eos=True)),
]
_MATES = [
    (_SHARED + _prompt(10 + i, 5 + 9 * i), SamplingParams(temperature=1.0, seed=i, max_tokens=3 + 5 * i, ignore_eos=True))
    for i in range(4)
]


def bits(output: RequestOutput, index: int = 0) -> tuple[Any, ...]:
    """Everything a request promises, floats as their bytes."""
    answer = output.outputs[index]
    assert answer.logprobs is not None
    named = [answer.logprobs, output.prompt_logprobs or []]
    floats = [
        [(token, one.rank, struct.pack("d", one.logprob)) for token, one in position.items()] if position else None
        for positions in named
        for position in positions
    ]
    return tuple(answer.token_ids), floats, answer.finish_reason


class Models:
    """Makes each tiny checkpoint once, and keeps what each family answers without cache, mates and threads."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._baselines: dict[tuple[str, str], list[tuple[Any, ...]]] = {}

    def llm(self, cell: Cell, **options: Any) -> LLM:
        if cell["family"] == "demo":
            return LLM(**options)
        weights = cell["weights"]
        dtype = "F32" if weights == "float32" else "BF16"
        folder = self._root / f"{cell['family']}-{dtype}"
        if not folder.exists():
            write_folder(TINY_MODELS[cell["family"]], folder, dtype=dtype, tokenizer=False)
        return LLM(str(folder), quantization=weights if weights.startswith("int") else None, **options)

    def baseline(self, cell: Cell) -> list[tuple[Any, ...]]:
        name = (cell["family"], cell["weights"])
        if name not in self._baselines:
            with self.llm(cell, prefix_cache="none", threads=1, page_size=16, max_running_seqs=1, kv_cache_memory="64MiB") as llm:
                self._baselines[name] = [bits(llm.generate([prompt], params)[0]) for prompt, params in PROBES]
        return self._baselines[name]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


def _name(cell: Cell) -> str:
    return "-".join(str(value) for value in cell.values())


@pytest.mark.parametrize("cell", cells(TINY), ids=_name)
def test_tiny_models(cell: Cell, models: Models) -> None:
    _compare(cell, models)


@pytest.mark.demo
@pytest.mark.parametrize("cell", cells(DEMO), ids=_name)
def test_demo_model(cell: Cell, models: Models) -> None:
    _compare(cell, models)


def _compare(cell: Cell, models: Models) -> None:
    options: dict[str, Any] = {
        "prefix_cache": cell["cache"],
        "page_size": cell["page_size"],
        "chunked_prefill_size": cell["chunk"],
        "threads": cell["threads"],
        "max_running_seqs": cell["batch"],
        "kv_cache_memory": "64MiB",
    }
    if cell["what"] == "preempted":
        options |= {"max_running_seqs": 8, "max_total_tokens": _TIGHT_POOL[cell["page_size"]]}
    with models.llm(cell, **options) as llm:
        assert _ANSWERS[cell["what"]](llm) == models.baseline(cell)


def _plain(llm: LLM) -> list[tuple[Any, ...]]:
    outputs = llm.generate([p for p, _ in PROBES + _MATES], [s for _, s in PROBES + _MATES])
    return [bits(output) for output in outputs[: len(PROBES)]]


def _warm(llm: LLM) -> list[tuple[Any, ...]]:
    _plain(llm)
    again = _plain(llm)
    if llm.cache_stats()["num_nodes"]:
        assert llm.cache_stats()["num_hit_tokens"] > 0
    return again


def _preempted(llm: LLM) -> list[tuple[Any, ...]]:
    """Each probe runs beside an older mate in a pool that the two outgrow, so that the probe, being younger, must give way."""
    answers = []
    for prompt, params in PROBES:
        mate = (_prompt(77, 60), SamplingParams(temperature=0, max_tokens=80, ignore_eos=True))
        outputs = llm.generate([mate[0], prompt], [mate[1], params])
        answers.append(bits(outputs[1]))
    assert llm._engine.stats().scheduler.num_preemptions > 0
    return answers


def _forked(llm: LLM) -> list[tuple[Any, ...]]:
    """Each probe is branched off a running sequence that holds just its prompt."""
    engine, answers = llm._engine, []
    for prompt, params in PROBES:
        parent = engine.submit(prompt[:-1], SamplingParams(max_tokens=8, allowed_token_ids=[prompt[-1]], ignore_eos=True))
        while not (seq_ids := engine.seq_ids(parent)) or engine._scheduler.sequence(seq_ids[0]).num_output_tokens < 1:
            llm._assembler.apply(engine.step())
        child = engine.fork(seq_ids[0], sampling=params)
        output = llm._assembler.open(engine.request(child))
        while not output.finished:
            llm._assembler.apply(engine.step())
        engine.abort(parent)
        engine.step()
        answers.append(bits(output))
    return answers


_ANSWERS = {"plain": _plain, "warm": _warm, "preempted": _preempted, "forked": _forked}
