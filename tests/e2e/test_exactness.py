"""The matrix of docs/design/exactness.md: the same request gives the same bits in every cell.

Each cell answers the same probe requests as its family's baseline (no cache, one at a time, one thread), and tokens, logprobs and
prompt logprobs must be equal bit for bit. ``make check`` runs a cover, ``RAMET_EXACT=full`` the whole product.
A cell also proves from the launched batches that it was what its name says: one batch, chunks, a hit, a preemption, a fork.
"""

from __future__ import annotations

import itertools
import os
import random
import struct
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.oracle import Oracle
from tiny_adapters import make_adapter, write_adapter
from tiny_models import TINY_MODELS, write_folder

from ramet import LLM, RequestOutput, SamplingParams
from ramet.core.batch import NO_MASKS, Batch
from ramet.core.ids import UInt32
from ramet.core.output import StepOutput
from ramet.core.request import Namespace, Sequence
from ramet.runner.local import LocalRunner
from ramet.schedule.drafts import Drafters

_SETTINGS: Mapping[str, tuple[Any, ...]] = {
    "cache": ("none", "radix", "hash"),
    "page_size": (1, 16, 64),
    "chunk": (7, 64, None),
    "batch": (1, 8),
    "threads": (1, 2),
    "what": ("plain", "warm", "preempted", "forked", "drafted"),
    "kv": ("auto", "int8"),
}
_FAMILIES = (
    "llama", "qwen2-windows", "qwen3", "phi3", "smollm3", "granite", "olmo2", "mistral", "gemma2", "gemma3", "qwen3moe",
    "mixtral",
)  # fmt: skip
TINY = {
    "family": _FAMILIES,
    "weights": ("float32", "bfloat16", "int8", "int4"),
    "lora": ((None,), ("a", None, "b", "b")),  # of the probes in turn, and of their mates
    **_SETTINGS,
}
DEMO = {"family": ("demo",), "weights": ("as shipped",), "lora": ((None,),), **_SETTINGS}
Cell = dict[str, Any]
_TIGHT_POOL = {1: 145, 16: 160, 64: 256}  # tokens; see _preempted
_VOCAB = 300


def cells(axes: Mapping[str, tuple[Any, ...]], paired: Collection[str]) -> list[Cell]:
    if os.environ.get("RAMET_EXACT") == "full":
        return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    return list(cover(axes, paired))


def cover(axes: Mapping[str, tuple[Any, ...]], paired: Collection[str]) -> Iterator[Cell]:
    """A small set of cells with every value, in which every two values of two ``paired`` axes meet: greedy, always the same."""
    missing: set[tuple[tuple[str, Any], ...]] = {((name, value),) for name, values in axes.items() for value in values}
    missing |= {((a, x), (b, y)) for a, b in itertools.combinations(paired, 2) for x in axes[a] for y in axes[b]}
    rng = random.Random(2)
    while missing:
        candidates = [{name: rng.choice(values) for name, values in axes.items()} for _ in range(200)]
        wanted = dict(min(missing, key=repr))
        candidates = [c | wanted for c in candidates]
        best = max(candidates, key=lambda c: len(missing & _goals(c, paired)))
        missing -= _goals(best, paired)
        yield best


def _goals(cell: Cell, paired: Collection[str]) -> set[tuple[tuple[str, Any], ...]]:
    """What a cell is one of: its values, and its pairs."""
    return {(item,) for item in cell.items()} | set(itertools.combinations([(name, cell[name]) for name in paired], 2))


def _prompt(seed: int, length: int) -> list[int]:
    return [random.Random(seed).randrange(_VOCAB) for _ in range(1)] + [
        random.Random(seed * 1000 + i).randrange(_VOCAB) for i in range(length - 1)
    ]


_SHARED = _prompt(1, 45)
# Each probe's output goes on beyond a multiple of 64 tokens, and so into a new page at every page size.
PROBES: list[tuple[list[int], SamplingParams]] = [
    (_SHARED + _prompt(2, 80), SamplingParams(temperature=0, max_tokens=14, logprobs=3, ignore_eos=True)),
    (
        _SHARED + _prompt(3, 16),
        SamplingParams(temperature=0.9, seed=5, top_p=0.95, top_k=40, max_tokens=20, logprobs=2, ignore_eos=True),
    ),
    (
        _prompt(4, 62),
        SamplingParams(
            temperature=0.7, seed=6, repetition_penalty=1.3, frequency_penalty=1.5, max_tokens=12, logprobs=1, ignore_eos=True
        ),
    ),
    (_SHARED + _prompt(2, 18), SamplingParams(temperature=0, max_tokens=4, logprobs=0, prompt_logprobs=2, ignore_eos=True)),
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
        self._baselines: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}

    def llm(self, cell: Cell, **options: Any) -> LLM:
        options |= {"kv_cache_dtype": cell["kv"], "kv_cache_memory": "64MiB"}
        if cell["family"] == "demo":
            return LLM(**options)
        weights = cell["weights"]
        dtype = "F32" if weights == "float32" else "BF16"
        folder = self._root / f"{cell['family']}-{dtype}"
        if not folder.exists():
            write_folder(TINY_MODELS[cell["family"]], folder, dtype=dtype, tokenizer=False)
        adapters = {name: self._adapter(cell["family"], name) for name in cell["lora"] if name}
        return LLM(str(folder), quantization=weights if weights.startswith("int") else None, lora=adapters, **options)

    def _adapter(self, family: str, name: str) -> Path:
        """Two that differ in rank, type and the products that they change."""
        folder = self._root / f"{family}-{name}"
        if not folder.exists():
            first = {"targets": ("q_proj", "k_proj", "o_proj", "qkv_proj", "up_proj", "gate_up_proj")}
            adapter = make_adapter(family, 1, 3, **first) if name == "a" else make_adapter(family, 2, 16)
            write_adapter(adapter, folder, dtype="F32" if name == "a" else "BF16")
        return folder

    def baseline(self, cell: Cell) -> list[tuple[Any, ...]]:
        name = (cell["family"], cell["weights"], cell["kv"], cell["lora"])
        if name not in self._baselines:
            with self.llm(cell, prefix_cache="none", threads=1, page_size=16, max_running_seqs=1) as llm:
                probes = zip(PROBES, itertools.cycle(cell["lora"]))
                self._baselines[name] = [bits(llm.generate([ids], params, lora=lora)[0]) for (ids, params), lora in probes]
        return self._baselines[name]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


def _name(cell: Cell) -> str:
    return "-".join("+".join(map(str, value)) if isinstance(value, tuple) else str(value) for value in cell.values())


@pytest.mark.parametrize("cell", cells(TINY, list(TINY)), ids=_name)
def test_tiny_models(cell: Cell, models: Models) -> None:
    _compare(cell, models)


@pytest.mark.demo
@pytest.mark.parametrize("cell", cells(DEMO, ["chunk", "batch", "threads"]), ids=_name)
def test_demo_model(cell: Cell, models: Models) -> None:
    """Real sizes: the shapes of work that the kernels see are what chunks, batches and threads decide."""
    _compare(cell, models)


class Recorder:
    """Stands between engine and runner, and keeps the batches."""

    def __init__(self, runner: LocalRunner) -> None:
        self._runner = runner
        self.batches: list[Batch] = []

    def launch(self, batch: Batch) -> None:
        self.batches.append(batch)
        self._runner.launch(batch)

    def collect(self, masks: UInt32 = NO_MASKS) -> StepOutput:
        return self._runner.collect(masks)

    @property
    def num_seqs(self) -> int:
        """The most sequences in one batch."""
        return max(batch.num_seqs for batch in self.batches)

    def chunks_of(self, seq_id: int) -> list[int]:
        """Tokens of a sequence in each step."""
        return [
            int(batch.query_indptr[b + 1] - batch.query_indptr[b])
            for batch in self.batches
            for b in np.flatnonzero(batch.seq_ids == seq_id)
        ]


class Bench:
    """One cell's LLM, and what it launches."""

    def __init__(self, llm: LLM, cell: Cell) -> None:
        self.llm, self.engine, self.cell = llm, llm._engine, cell
        self.keeps = cell["cache"] != "none"
        runner = self.engine._runner
        assert (runner._kv_layers[0].keys.dtype == np.int8) == (cell["kv"] == "int8")
        self.recorder = Recorder(runner)
        self.engine._runner = self.recorder

    def submit(self, prompt: list[int], params: SamplingParams, number: int) -> tuple[RequestOutput, Sequence]:
        """With the adapter of probe ``number``."""
        lora = self.cell["lora"][number % len(self.cell["lora"])]
        output = self.llm._submit(prompt, None, params, Namespace(adapter=lora or ""))
        (seq_id,) = self.engine.seq_ids(output.request_id)
        return output, self.sequence(seq_id)

    def sequence(self, seq_id: int) -> Sequence:
        found = self.engine._scheduler.sequence(seq_id)
        assert found is not None
        return found

    def step(self) -> None:
        self.llm._assembler.apply(self.engine.step())

    def check_reuse(self, output: RequestOutput, params: SamplingParams) -> None:
        """All but the last token of the prompt came from the cache, if there is one and no prompt logprobs are owed."""
        reuses = self.keeps and params.prompt_logprobs is None
        assert output.usage.cached_tokens == (len(output.prompt_token_ids) - 1 if reuses else 0)


def _compare(cell: Cell, models: Models) -> None:
    options: dict[str, Any] = {
        "prefix_cache": cell["cache"],
        "page_size": cell["page_size"],
        "chunked_prefill_size": cell["chunk"],
        "threads": cell["threads"],
        "max_running_seqs": cell["batch"],
    }
    if cell["what"] in ("preempted", "forked"):
        options["max_running_seqs"] = max(2, cell["batch"])  # it takes two
    if cell["what"] == "preempted":
        options["max_total_tokens"] = _TIGHT_POOL[cell["page_size"]]
    baseline = models.baseline(cell)
    with models.llm(cell, **options) as llm:
        if cell["what"] == "drafted":
            assert _drafted(Bench(llm, cell), [list(answer[0]) for answer in baseline]) == baseline
        else:
            assert _ANSWERS[cell["what"]](Bench(llm, cell)) == baseline


def _plain(bench: Bench) -> list[tuple[Any, ...]]:
    """The probes and their mates at once: all in one batch, where the cell lets them."""
    outputs = _at_once(bench)
    assert bench.recorder.num_seqs == bench.cell["batch"]
    for seq_id, (prompt, params) in enumerate(PROBES):
        chunks = bench.recorder.chunks_of(seq_id)
        computed = len(prompt) - outputs[seq_id].usage.cached_tokens
        num_chunks = len(chunks) - (params.max_tokens - 1)
        assert sum(chunks[:num_chunks]) == computed
        assert chunks[num_chunks:] == [1] * (params.max_tokens - 1)
        # While others write answers, a prompt may get less than a whole chunk, but it is never done in one go.
        limit = bench.cell["chunk"] or computed
        assert max(chunks[:num_chunks]) == min(limit, computed)
        assert bench.cell["batch"] > 1 or num_chunks == -(-computed // limit)
    return [bits(output) for output in outputs]


def _at_once(bench: Bench) -> list[RequestOutput]:
    """The probes and their mates. One after the other, with nothing kept, mates would come last and change nothing."""
    mates = _MATES if bench.cell["batch"] > 1 or bench.keeps else []
    prompts, params = zip(*PROBES, *mates, strict=True)
    loras = list(itertools.islice(itertools.cycle(bench.cell["lora"]), len(prompts)))
    outputs = bench.llm.generate(prompts, params, lora=loras)
    return outputs[: len(PROBES)]


def _warm(bench: Bench) -> list[tuple[Any, ...]]:
    _at_once(bench)
    again = _at_once(bench)
    for output, (_, params) in zip(again, PROBES, strict=True):
        bench.check_reuse(output, params)
    return [bits(output) for output in again]


def _preempted(bench: Bench) -> list[tuple[Any, ...]]:
    """Each probe runs beside an older mate that leaves the pool one spare page. Both go on into a new page before the probe
    is done, and so the probe, being younger, must give way.
    """
    answers = []
    for number, (prompt, params) in enumerate(PROBES):
        size, pool = bench.cell["page_size"], _TIGHT_POOL[bench.cell["page_size"]]
        num_mate_pages = pool // size - -(-len(prompt) // size) - 1
        mate_prompt = _prompt(77, max(1, num_mate_pages * size - 1))
        forever = SamplingParams(temperature=0, max_tokens=pool - len(mate_prompt), ignore_eos=True)
        mate, running = bench.submit(mate_prompt, forever, number + 1)
        while running.num_output_tokens < 1:
            bench.step()
        output, sequence = bench.submit(prompt, params, number)
        while not sequence.num_preemptions:
            assert not output.finished, "the probe had room"
            bench.step()
        assert not mate.finished
        bench.llm._abort(mate.request_id)
        while not output.finished:
            bench.step()
        bench.llm.flush_cache()
        answers.append(bits(output))
    return answers


def _forked(bench: Bench) -> list[tuple[Any, ...]]:
    """Each probe is branched off a running sequence that holds just its prompt: its whole pages are shared, one is copied."""
    engine, answers = bench.engine, []
    for number, (prompt, params) in enumerate(PROBES):
        only = SamplingParams(max_tokens=8, allowed_token_ids=[prompt[-1]], ignore_eos=True)
        parent, sequence = bench.submit(prompt[:-1], only, number)
        while sequence.num_output_tokens < 1:
            bench.step()
        child = engine.fork(sequence.seq_id, sampling=params)
        output = bench.llm._assembler.open(engine.request(child))
        branch = bench.sequence(*engine.seq_ids(child))
        if bench.keeps and params.prompt_logprobs is None:  # else it has to compute its whole prompt, which a fork skips
            num_whole, num_tail = divmod(len(prompt) - 1, bench.cell["page_size"])
            bench.step()
            assert branch.pages.view(0, num_whole).tolist() == sequence.pages.view(0, num_whole).tolist()
            assert bench.recorder.batches[-1].page_copies.num_tokens.tolist() == [num_tail] * (num_tail > 0)
        while not output.finished:
            bench.step()
        bench.check_reuse(output, params)
        engine.abort(parent.request_id)
        engine.step()
        answers.append(bits(output))
    return answers


def _drafted(bench: Bench, expected: list[list[int]]) -> list[tuple[Any, ...]]:
    """The probes and their mates at once, with guesses of which most hold: several tokens a step, and some taken back."""
    made: list[Oracle] = []

    def drafter(seq: Sequence) -> Oracle | None:
        if seq.seq_id < len(expected):
            made.append(Oracle(seq, expected[seq.seq_id], _VOCAB))
            return made[-1]
        return None

    bench.engine._scheduler.drafters = Drafters(drafter)
    outputs = _at_once(bench)
    assert sum(one.num_right for one in made) > sum(map(len, expected)) // 3
    assert sum(one.num_wrong for one in made) > 0
    return [bits(output) for output in outputs]


_ANSWERS = {"plain": _plain, "warm": _warm, "preempted": _preempted, "forked": _forked}
