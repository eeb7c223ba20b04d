"""Grammars in the engine, over the fake runner: ends, exactness, and the reach of a fault."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.engines import EOS_IDS, VOCAB_SIZE, Bench

from ramet.core.batch import NO_MASKS, Batch
from ramet.core.grammar import GrammarSpec
from ramet.core.ids import UInt32
from ramet.core.output import StepOutput
from ramet.core.ports import Matcher, Pending
from ramet.core.sampling import SamplingParams
from ramet.errors import GrammarError
from ramet.schedule.build import Chunk
from ramet.schedule.masks import fill_masks
from ramet.structured.compiler import GrammarCompiler, TokenTable

# Every byte that a word of JSON needs is a token, so that no choice of tokens leads where none can follow.
PIECES = [
    b"",
    b"<e>",
    b"<f>",
    *(bytes([c]) for c in b'{}[]",: 0123456789abeflnorstuy'),
    b'"a"',
    b"true",
    b"false",
    b"yes",
    b"no",
    b'{"a',
]
PIECE_TABLE = TokenTable(PIECES, frozenset({1, 2}), EOS_IDS, VOCAB_SIZE)
GRAMMARS = GrammarCompiler(PIECE_TABLE)
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}, "b": {"type": "array", "items": {"enum": ["a", 1]}, "minItems": 1, "maxItems": 3}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
JSON = {"json": SCHEMA}


class Made:
    """A matcher that is there."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher

    def done(self) -> bool:
        return True

    def wait(self, seconds: float) -> None:
        pass

    def result(self) -> Matcher:
        return self._matcher


def bench(**changes: Any) -> Bench:
    return Bench(**{"grammars": GRAMMARS} | changes)


def text(ids: list[int]) -> str:
    return b"".join(PIECES[i] for i in ids if i not in EOS_IDS).decode()


def alone(prompt: list[int], **sampling: Any) -> tuple[object, ...]:
    one = bench()
    request_id = one.submit(prompt, **sampling)
    one.run()
    return one.answers[request_id, 0].result


def test_outputs_are_valid_documents_and_end_by_themselves() -> None:
    one = bench(max_model_len=512, num_pages=600)
    ids = [one.submit([5, 6, seed], seed=seed, max_tokens=120, structured_outputs=JSON) for seed in range(20)]
    one.run()
    for request_id in ids:
        answer = one.answers[request_id, 0]
        document = json.loads(text(answer.token_ids))
        assert isinstance(document["a"], bool)
        assert 1 <= len(document["b"]) <= 3
        assert set(document["b"]) <= {"a", 1}
        assert (answer.finish_reason, answer.stop_token_id) == ("stop", None), "no step is spent on EOS"


@pytest.mark.parametrize("changes", [{}, {"ignore_eos": True}, {"min_tokens": 10}, {"stop_token_ids": [9]}, {"temperature": 0}])
def test_b103_a_complete_output_ends(changes: dict[str, Any]) -> None:
    """B103."""
    one = bench()
    bias = {i: 100.0 for i in range(VOCAB_SIZE) if i not in EOS_IDS}  # a model that dislikes EOS
    request_id = one.submit([5], seed=1, max_tokens=20, logit_bias=bias, structured_outputs={"choice": ["yes"]}, **changes)
    one.run()
    assert text(one.answers[request_id, 0].token_ids) == "yes"
    assert one.answers[request_id, 0].finish_reason == "stop"


def test_eos_ends_where_the_grammar_accepts_and_nowhere_else() -> None:
    one = bench()
    loud = {1: 100.0, 2: 100.0}  # a model that wants to stop at once, by either EOS
    request_id = one.submit([5], seed=1, max_tokens=50, logit_bias=loud, structured_outputs={"regex": "[ab]{3,9}"})
    silent = one.submit([5], seed=1, max_tokens=50, ignore_eos=True, logit_bias=loud, structured_outputs={"regex": "[ab]{3,9}"})
    later = one.submit([5], seed=1, max_tokens=50, min_tokens=6, logit_bias=loud, structured_outputs={"regex": "[ab]{3,9}"})
    one.run()
    first, second, third = (one.answers[i, 0] for i in (request_id, silent, later))
    assert (len(first.token_ids), first.finish_reason, first.stop_token_id in EOS_IDS) == (4, "stop", True)
    assert (len(second.token_ids), second.finish_reason) == (9, "stop")
    assert (len(third.token_ids), third.finish_reason) == (7, "stop")


def test_logprobs_are_those_of_the_model_and_length_may_cut() -> None:
    constrained = alone([5, 7], seed=3, temperature=0, max_tokens=4, logprobs=3, structured_outputs=JSON)
    assert constrained[2] == "length"
    free = alone([5, 7], seed=3, temperature=0, max_tokens=1, logprobs=3)
    assert constrained[1][0][3] == free[1][0][3], "the best of the raw distribution"  # type: ignore[index]
    assert constrained[1][0][4] == free[1][0][4]  # type: ignore[index]


CELLS = [
    {"cache": cache, "page_size": page, "chunked_prefill_size": chunk, "num_pages": pages // page}
    for cache, page, chunk, pages in [("radix", 1, 3, 400), ("hashed", 4, None, 400), ("null", 4, 2, 400), ("radix", 4, 5, 88)]
]


@pytest.mark.parametrize("cell", CELLS)
def test_the_same_bits_whatever_else_runs(cell: dict[str, Any]) -> None:
    probes = [
        {"seed": 5, "max_tokens": 40, "logprobs": 2, "structured_outputs": JSON},
        {"temperature": 0, "max_tokens": 40, "structured_outputs": {"regex": "[abefl]{5,30}"}},
        {"seed": 6, "max_tokens": 30, "top_k": 3, "repetition_penalty": 1.3, "structured_outputs": {"json_object": True}},
        {"seed": 7, "max_tokens": 30},
    ]
    prompts = [[5, 6, 7, 8, 9, 10 + i] for i in range(len(probes))]
    expected = [alone(prompt, **probe) for prompt, probe in zip(prompts, probes, strict=True)]
    one = bench(max_running_seqs=6, **cell)
    for _ in range(2):  # cold, then warm
        ids = [one.submit(prompt, **probe) for prompt, probe in zip(prompts, probes, strict=True)]
        for i in range(4):
            one.submit([5, 6, 7, 30 + i, *range(3, 20)], seed=i, max_tokens=25, priority=i % 2)
        one.run()
        assert [one.answers[i, 0].result for i in ids] == expected
    if cell["num_pages"] == 22:
        assert one.scheduler.stats().num_preemptions > 0, "the small pool preempts, and the matchers go on"


def test_several_answers_have_a_grammar_each() -> None:
    one = bench()
    request_id = one.submit([5, 6, 7], n=3, seed=4, max_tokens=60, structured_outputs=JSON)
    one.run()
    texts = [text(one.answers[request_id, k].token_ids) for k in range(3)]
    assert [set(json.loads(t)) for t in texts] == [{"a", "b"}] * 3
    assert len(set(texts)) > 1


def test_a_fork_begins_its_grammar_anew() -> None:
    one = bench()
    parent = one.submit([5, 6, 7], seed=4, max_tokens=60, structured_outputs=JSON)
    [seq_id] = one.engine.seq_ids(parent)
    for _ in range(6):
        one.step()
    so_far = one.scheduler.sequence(seq_id).tokens.view().tolist()  # type: ignore[union-attr]
    branch = one.fork(seq_id, seed=9, max_tokens=60, structured_outputs=JSON)
    other = one.fork(seq_id, seed=9, max_tokens=9, structured_outputs={"choice": ["no"]})
    one.run()
    assert set(json.loads(text(one.answers[branch, 0].token_ids))) == {"a", "b"}
    assert one.answers[branch, 0].result == alone(so_far, seed=9, max_tokens=60, structured_outputs=JSON)
    assert text(one.answers[other, 0].token_ids) == "no"
    assert set(json.loads(text(one.answers[parent, 0].token_ids))) == {"a", "b"}


def test_an_abort_lets_the_matcher_go() -> None:
    one = bench()
    request_id = one.submit([5, 6, 7], seed=4, max_tokens=60, structured_outputs=JSON)
    for _ in range(3):
        one.step()
    [seq] = one.scheduler.sequences
    assert seq.matcher is not None
    one.engine.abort(request_id)
    one.run()
    assert seq.matcher is None
    assert one.answers[request_id, 0].finish_reason == "abort"


class _Broken:
    """A matcher that fails at the ``at``-th call of a method."""

    def __init__(self, inner: Matcher, method: str, at: int) -> None:
        self._inner, self._method, self._left = inner, method, at

    def _count(self, method: str) -> None:
        if method == self._method:
            self._left -= 1
            if self._left < 0:
                raise RuntimeError(f"planted in {method}")

    @property
    def num_words(self) -> int:
        return self._inner.num_words

    @property
    def is_accepting(self) -> bool:
        return self._inner.is_accepting

    @property
    def is_finished(self) -> bool:
        self._count("is_finished")
        return self._inner.is_finished

    def fill_mask(self, row: UInt32) -> None:
        row[:] = 0xFFFFFFFF
        self._count("fill_mask")
        self._inner.fill_mask(row)

    def accept(self, token_id: int) -> None:
        self._count("accept")
        self._inner.accept(token_id)

    def validate(self, token_ids: list[int]) -> int:
        return self._inner.validate(token_ids)

    def forced_bytes(self) -> bytes:
        return self._inner.forced_bytes()

    def rollback(self, num_tokens: int) -> None:
        self._inner.rollback(num_tokens)

    def fork(self) -> Matcher:
        return _Broken(self._inner.fork(), self._method, self._left)


class _BrokenFor:
    """``Grammars`` whose matchers of one constraint are broken."""

    def __init__(self, method: str, at: int) -> None:
        self._broken: Callable[[Matcher], Matcher] = lambda inner: _Broken(inner, method, at)

    def matcher(self, spec: GrammarSpec, stop_ids: frozenset[int]) -> Pending[Matcher]:
        inner = GRAMMARS.matcher(spec, stop_ids)
        return Made(self._broken(inner.result())) if spec.kind == "regex" else inner


@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("method", ["fill_mask", "accept", "is_finished"])
def test_b190_t11_a_fault_of_one_grammar_is_its_own_sequences(method: str, at: int) -> None:
    """B190, T11."""
    mates = [
        {"seed": 1, "max_tokens": 12},
        {"seed": 2, "max_tokens": 40, "structured_outputs": JSON},
        {"temperature": 0, "max_tokens": 9},
    ]
    expected = [alone([5, 6, i], **mate) for i, mate in enumerate(mates)]
    one = bench(grammars=_BrokenFor(method, at))
    ids = [one.submit([5, 6, i], **mate) for i, mate in enumerate(mates)]
    broken = one.submit([5, 9], seed=3, max_tokens=20, structured_outputs={"regex": "[abefl]{5,30}"})
    one.run()
    assert [one.answers[i, 0].result for i in ids] == expected
    answer = one.answers[broken, 0]
    assert answer.finish_reason == "error"
    assert f"planted in {method}" in str(answer.error)
    assert len(answer.token_ids) == at, "what was chosen before it stays"
    assert one.scheduler.sequences == []


def test_a_fault_behind_a_guess_is_none_before_it() -> None:
    inner = GRAMMARS.matcher(GrammarSpec("regex", "[abefl]{5,30}"), EOS_IDS).result()
    start = np.zeros(inner.num_words, np.uint32)
    inner.fill_mask(start)
    drafts = tuple(PIECES.index(piece) for piece in (b"a", b"b", b"e"))
    seq = SimpleNamespace(matcher=_Broken(inner, "fill_mask", 2))
    chunk = Chunk(seq, 0, 1, samples=True, drafts=drafts)  # type: ignore[arg-type]
    masks, errors = fill_masks([chunk])
    assert list(errors) == [2]
    assert masks[0].tolist() == start.tolist()
    assert not masks[2:].any()
    again = np.zeros(inner.num_words, np.uint32)
    inner.fill_mask(again)
    assert again.tolist() == start.tolist(), "the matcher is where it was"


def test_grammars_need_a_tokenizer() -> None:
    one = Bench()
    with pytest.raises(GrammarError, match="no tokenizer"):
        one.submit([5], structured_outputs=JSON)
    assert not one.engine.has_work


def test_a_grammar_that_cannot_be_used_changes_nothing() -> None:
    one = bench()
    with pytest.raises(GrammarError):
        one.submit([5], n=3, structured_outputs={"regex": "a("})
    assert (one.engine.has_work, one.engine.stats().num_open_requests) == (False, 0)
    seq = one.submit([5], max_tokens=20)
    one.step()
    [seq_id] = one.engine.seq_ids(seq)
    with pytest.raises(GrammarError):
        one.engine.fork(seq_id, sampling=SamplingParams(structured_outputs={"regex": "a("}))
    assert one.engine.stats().num_open_requests == 1


def steps(one: Bench) -> Iterator[tuple[Batch, UInt32]]:
    """Each step's batch, and the masks that it is given."""
    given: list[UInt32] = []
    collect = one.runner.collect

    def collecting(masks: UInt32 = NO_MASKS) -> StepOutput:
        given.append(masks)
        return collect(masks)

    one.runner.collect = collecting  # type: ignore[method-assign]
    while one.engine.has_work:
        one.engine.begin_step()
        batches = list(one.runner.launched)
        one.finish_step()
        yield from zip(batches, given[-len(batches) :], strict=True)


def test_a_batch_without_grammars_has_no_masks_and_a_mixed_one_just_theirs() -> None:
    one = bench()
    one.submit([5, 6], seed=1, max_tokens=4)
    for batch, masks in steps(one):
        assert masks.size == 0
        assert not batch.sampling.mask_indptr.any()
    assert fill_masks([]) == (NO_MASKS, {})
    one.submit([5, 6], seed=1, max_tokens=4)
    one.submit([5, 6], seed=1, max_tokens=4, structured_outputs={"regex": "a{9}"})
    one.submit([5, 6], seed=1, max_tokens=4)
    mixed = [(batch, masks) for batch, masks in steps(one) if len(batch.sample_rows) == 3]
    assert mixed
    for batch, masks in mixed:
        assert batch.sampling.mask_indptr.tolist() == [0, 0, 1, 1]
        assert np.unpackbits(masks.view(np.uint8), bitorder="little").sum() == 1
