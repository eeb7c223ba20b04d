"""Faults seen in the field that need a real model, on a tiny one: whatever the cache, the pool and the mates, a cold run.

The numbers are the project's list of such faults; what needs no model is tested beside its own part.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tiny_models import TINY_MODELS, write_folder

from ramet import LLM, RequestOutput, SamplingParams
from ramet.core.request import Namespace
from ramet.kv.audit import audit
from ramet.text.detokenizer import Detokenizer

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
VOCAB_SIZE, PADDED_FROM = 304, 262  # the tokenizer has 262 tokens, the embedding 304 rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_folder(TINY_MODELS["llama"], tmp_path_factory.mktemp("llama")))


class Tiny(LLM):
    """Audits after every call, and says what a request gives in an engine of its own."""

    folder: str

    @classmethod
    def of(cls, folder: str, **options: Any) -> Tiny:
        tiny = cls(folder, threads=1, **{"kv_cache_memory": "4MiB", **options})
        tiny.folder = folder
        return tiny

    def many(self, prompts: list[Any], params: SamplingParams | list[SamplingParams]) -> list[RequestOutput]:
        outputs = self.generate(prompts, params)
        audit(self._engine._kv, [])
        assert self._engine.stats().num_open_requests == 0
        return outputs

    def one(self, prompt: Any, **sampling: Any) -> RequestOutput:
        return self.many([prompt], SamplingParams(**{**GREEDY, **sampling}))[0]

    def cold(self, prompt: Any, params: SamplingParams) -> RequestOutput:
        with LLM(self.folder, threads=1, prefix_cache="none", kv_cache_memory="4MiB") as alone:
            return alone.generate(prompt, params)[0]

    def check_cold(self, output: RequestOutput, params: SamplingParams) -> None:
        expected = self.cold(output.prompt_token_ids, params)
        assert told(output) == told(expected)

    @property
    def num_preemptions(self) -> int:
        return self._engine.stats().scheduler.num_preemptions


def told(output: RequestOutput) -> list[Any]:
    """All of an output that must not depend on what else happened."""
    answers = [(a.token_ids, a.text, a.logprobs, a.finish_reason, a.stop_reason) for a in output.outputs]
    return [*answers, output.prompt_logprobs]


@pytest.fixture(params=["radix", "hash"])
def cache(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def small(folder: str, cache: str) -> Iterator[Tiny]:
    """4 pages of 4 tokens."""
    with Tiny.of(folder, page_size=4, max_total_tokens=16, prefix_cache=cache) as llm:
        yield llm


@pytest.fixture
def llm(folder: str, cache: str) -> Iterator[Tiny]:
    with Tiny.of(folder, prefix_cache=cache) as llm:
        yield llm


# --- reuse


def test_b001_pages_handed_out_again_are_no_hit(small: Tiny) -> None:
    first = small.one(list(range(1, 9)), max_tokens=1)
    small.one(list(range(50, 65)), max_tokens=1)
    again = small.one(list(range(1, 9)), max_tokens=1)
    assert again.usage.cached_tokens == 0
    assert told(again) == told(first)


def test_b004_a_strict_prefix_of_what_is_cached(llm: Tiny) -> None:
    prompt = list(b"one prompt of some length")
    llm.one([*prompt, *b" q q q q q q"], max_tokens=4)
    params = SamplingParams(**GREEDY, max_tokens=6, logprobs=2)
    [shorter] = llm.many([prompt], params)
    assert shorter.usage.cached_tokens == len(prompt) - 1
    llm.check_cold(shorter, params)


def test_b005_a_full_hit_keeps_the_chain(folder: str, cache: str) -> None:
    prompt = list(range(1, 13))
    with Tiny.of(folder, page_size=4, prefix_cache=cache) as llm:
        outputs = [llm.one(tokens, max_tokens=1) for tokens in (prompt, prompt, [*prompt, *range(90, 98)])]
        assert [out.usage.cached_tokens for out in outputs] == [0, 11, 12]
        llm.check_cold(outputs[2], SamplingParams(**GREEDY, max_tokens=1))


def test_b008_an_abort_between_chunks(folder: str, cache: str) -> None:
    prompt, params = [7 * i % 200 for i in range(48)], SamplingParams(**GREEDY, max_tokens=6, logprobs=1)
    options = {"page_size": 4, "chunked_prefill_size": 16, "max_total_tokens": 80, "prefix_cache": cache}
    with Tiny.of(folder, **options) as llm:
        output = llm._submit(prompt, None, params)
        for _ in range(2):
            llm._engine.step()
        llm._abort(output.request_id)
        for seed in range(3):
            llm.one([100 + seed] * 60, max_tokens=3)
        [again] = llm.many([prompt], params)
        llm.check_cold(again, params)


def test_b020_prompt_logprobs_in_either_order(folder: str, cache: str) -> None:
    prompt, tail = [3 * i % 200 for i in range(33)], [9, 8, 7, 6, 5]
    params = SamplingParams(**GREEDY, max_tokens=2, prompt_logprobs=2)
    for order in ((prompt, prompt + tail), (prompt + tail, prompt)):
        with Tiny.of(folder, prefix_cache=cache) as llm:
            for tokens in (*order, *order):
                [output] = llm.many([tokens], params)
                assert len(output.prompt_logprobs or []) == len(tokens)
                llm.check_cold(output, params)


def test_b022_what_stop_strings_leave_behind_is_right(llm: Tiny) -> None:
    shared = "def f(x):\n    return x"
    free = SamplingParams(**GREEDY, max_tokens=30)
    prompts = [f"{shared} {i}" for i in range(4)]
    texts = [out.outputs[0].text for out in llm.many(prompts, free)]
    llm.flush_cache()  # which is refused while a request is open
    stopping = [SamplingParams(**GREEDY, max_tokens=30, stop=[text[9:11], text[20:22]]) for text in texts]
    stopped = llm.many(prompts, stopping)
    assert {out.outputs[0].finish_reason for out in stopped} == {"stop"}
    for prompt, out in zip(prompts, stopped, strict=True):
        follow_up = [*llm.tokenizer.encode(prompt), *out.outputs[0].token_ids, 120]
        [output] = llm.many([follow_up], free)
        assert output.usage.cached_tokens >= 16, "the whole pages"
        llm.check_cold(output, free)


def test_b037_hit_and_miss_have_the_same_bits(llm: Tiny) -> None:
    params = SamplingParams(**GREEDY, max_tokens=20, logprobs=5)
    cold, warm = (llm.many(["the same prompt, twice"], params)[0] for _ in range(2))
    assert (cold.usage.cached_tokens, warm.usage.cached_tokens) == (0, 21)
    assert told(cold) == told(warm)


def test_b038_the_default_engine_hits(folder: str) -> None:
    with Tiny.of(folder) as llm:
        assert [llm.one(list(range(64)), max_tokens=1).usage.cached_tokens for _ in range(2)] == [0, 63]


def test_b025_b029_salts_and_generations_on_a_real_model(llm: Tiny) -> None:
    prompt, cached, answers = list(range(40)), [], []
    for namespace in (Namespace("t1"), Namespace("t2"), Namespace("t1"), Namespace(), Namespace("t1", generation=1)):
        request_id = llm._engine.submit(prompt, SamplingParams(**GREEDY, max_tokens=4), namespace=namespace)
        output = llm._assembler.open(llm._engine.request(request_id))
        while not output.finished:
            llm._assembler.apply(llm._engine.step())
        cached.append(output.usage.cached_tokens)
        answers.append(told(output))
    assert cached == [0, 0, 32, 0, 0]
    assert answers == [answers[0]] * 5


# --- a short pool


def test_b016_b032_two_that_do_not_fit_together(folder: str, cache: str) -> None:
    """9 pages of 16: each of the two grows from 3 to 5."""
    params = [SamplingParams(ignore_eos=True, temperature=0.9, seed=seed, max_tokens=35, logprobs=1) for seed in (1, 2)]
    prompts = [[50 * seed + i for i in range(34)] for seed in (1, 2)]
    for page_size, tokens in ((16, 144), (4, 100)):
        with Tiny.of(folder, page_size=page_size, max_total_tokens=tokens, prefix_cache=cache) as llm:
            outputs = llm.many(prompts, params)
            assert llm.num_preemptions >= 1
            for output, one in zip(outputs, params, strict=True):
                assert output.usage.cached_tokens == 0
                llm.check_cold(output, one)


def test_b035_b058_seeded_draws_go_on_after_preemptions_under_chunked_prefill(folder: str, cache: str) -> None:
    params = SamplingParams(ignore_eos=True, temperature=0.9, seed=5, max_tokens=60)
    prompts = [[60 * seed + i for i in range(12)] for seed in range(4)]
    options = {"page_size": 4, "max_total_tokens": 128, "chunked_prefill_size": 5, "prefix_cache": cache}
    with Tiny.of(folder, **options) as llm:
        outputs = llm.many(prompts, params)
        assert 2 <= llm.num_preemptions <= 8
        for output in outputs:
            llm.check_cold(output, params)


def test_b059_output_stays_output_after_preemption(folder: str, cache: str) -> None:
    penalties = {"frequency_penalty": 1.5, "repetition_penalty": 1.3}
    params = SamplingParams(**GREEDY, **penalties, max_tokens=40, prompt_logprobs=0)
    with Tiny.of(folder, page_size=4, max_total_tokens=92, prefix_cache=cache) as llm:
        outputs = llm.many([[60 * seed + i for i in range(20)] for seed in range(2)], params)
        assert llm.num_preemptions >= 1
        for output in outputs:
            assert (output.usage.prompt_tokens, output.usage.completion_tokens) == (20, 40)
            assert len(output.prompt_logprobs or []) == 20
            assert output.outputs[0].text == llm.tokenizer.decode(output.outputs[0].token_ids)
            llm.check_cold(output, params)


@pytest.mark.parametrize("length", range(24, 34))
def test_b040_b041_what_is_taken_finishes_and_what_is_left_blocks_nobody(folder: str, length: int) -> None:
    """8 pages of 4. At each length around the pool: refused at once, or admitted at once and done."""
    with Tiny.of(folder, page_size=4, max_total_tokens=32) as llm:
        if length > 30:
            with pytest.raises(ValueError, match=r"holds 32.*--max-total-tokens"):
                llm.one(list(range(length)), max_tokens=2)
        else:
            stream = llm.stream(list(range(length)), SamplingParams(**GREEDY, max_tokens=2))
            next(stream)
            stream.close()
            assert llm.one(list(range(length)), max_tokens=2).usage.completion_tokens == 2
        assert llm.one([1, 2, 3], max_tokens=2).usage.completion_tokens == 2


# --- many at once


def test_b050_closing_a_stream_of_n_leaves_nothing(llm: Tiny) -> None:
    params = SamplingParams(n=3, temperature=1.0, seed=1, max_tokens=200, ignore_eos=True)
    stream = llm.stream("three answers", params)
    next(stream), next(stream)
    stream.close()
    llm.cache_stats()  # any call lets go of what was left
    scheduler = llm._engine._scheduler
    assert (scheduler.stats().num_running, scheduler.stats().num_waiting, llm._engine.stats().num_open_requests) == (0, 0, 0)
    assert not scheduler._queues._followers
    assert not llm._assembler.open_ids()
    audit(llm._engine._kv, [])


@pytest.mark.parametrize("streamed", [False, True])
def test_b053_n_answers_are_told_apart(llm: Tiny, streamed: bool) -> None:
    params = SamplingParams(n=3, temperature=1.5, seed=7, max_tokens=10, ignore_eos=True)
    whole = llm.many(["one prompt"], params)[0]
    output = list(llm.stream("one prompt", params))[-1] if streamed else whole
    assert [a.index for a in output.outputs] == [0, 1, 2]
    assert len({a.text for a in output.outputs}) == 3
    assert told(output) == told(whole)
    assert (output.usage.prompt_tokens, output.usage.completion_tokens) == (10, 30)


def test_b179_seeds_hold_in_mixed_batches(llm: Tiny) -> None:
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0.9, "seed": 5},
        {"temperature": 1.3},
        {"top_k": 4, "seed": 5},
    ]
    params = [SamplingParams(**kinds[i % 4], max_tokens=6 + i, ignore_eos=True, logprobs=1) for i in range(8)]
    prompts = [f"mixed {i % 3}" for i in range(8)]
    for output, one in zip(llm.many(prompts, params), params, strict=True):
        if one.temperature == 0 or one.seed is not None:
            llm.check_cold(output, one)


ID_LISTS = ["stop_token_ids", "allowed_token_ids", "logit_bias", "prompt"]


def _with_id(name: str, token_id: Any) -> tuple[list[Any], dict[str, Any]]:
    if name == "prompt":
        return [5, token_id], {}
    return [5, 6], {name: {token_id: 3.0} if name == "logit_bias" else [token_id]}


@pytest.mark.parametrize("name", ID_LISTS)
def test_t12_every_id_list_at_its_edges_beside_eight_mates(llm: Tiny, name: str) -> None:
    """Refused, or exact; the eight others get their bits either way."""
    mates = [SamplingParams(temperature=0.8, seed=i, max_tokens=5, ignore_eos=True, logprobs=1) for i in range(8)]
    prompts: list[Any] = [[10 + i, 20, 30] for i in range(8)]
    expected = [told(out) for out in llm.many(prompts, mates)]
    for bad in (-1, VOCAB_SIZE, 2**31, 2**63, True, 1.0):
        tokens, sampling = _with_id(name, bad) if name == "prompt" else ([5, 6], {})
        with pytest.raises(ValueError, match=name):  # noqa: PT012 - the parameters refuse some, the engine the others
            sampling = _with_id(name, bad)[1]
            llm.many([*prompts, tokens], [*mates, SamplingParams(**GREEDY, **sampling)])
        assert llm._engine.stats().num_open_requests == 0
    for good in (VOCAB_SIZE - 1, PADDED_FROM, PADDED_FROM - 1, 0):
        tokens, sampling = _with_id(name, good)
        params = SamplingParams(**GREEDY, **sampling, max_tokens=4, logprobs=1)
        outputs = llm.many([*prompts, tokens], [*mates, params])
        assert [told(out) for out in outputs[:8]] == expected
        llm.check_cold(outputs[8], params)
        if name == "allowed_token_ids":
            assert outputs[8].outputs[0].token_ids == [good] * 4


# --- text


def test_b146_a_prompt_that_ends_inside_a_character(llm: Tiny) -> None:
    pepper = "🌶".encode()
    for last in (0x80, 0x86):
        params = SamplingParams(**GREEDY, max_tokens=2, allowed_token_ids=[last])
        pieces = [piece.outputs[0].delta for piece in llm.stream([*b"hey ", *pepper[:2]], params)]
        assert "".join(pieces) == (pepper[:2] + bytes([last, last])).decode()


def test_b115_a_stop_in_a_last_character_that_is_cut_off(llm: Tiny) -> None:
    one_byte = SamplingParams(**GREEDY, max_tokens=1, allowed_token_ids=[0xED], stop="\N{REPLACEMENT CHARACTER}")
    [output] = llm.many(["x"], one_byte)
    answer = output.outputs[0]
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("", "stop", "\N{REPLACEMENT CHARACTER}")


def test_b118_b119_no_end_before_min_tokens_and_none_that_is_ignored(llm: Tiny) -> None:
    ends = {256: 100.0}
    [ended] = llm.many(["x"], SamplingParams(temperature=0, min_tokens=5, max_tokens=20, logit_bias=ends))
    assert ended.outputs[0].token_ids[5:] == [256]
    assert 256 not in ended.outputs[0].token_ids[:5]
    assert ended.outputs[0].finish_reason == "stop"
    [ignoring] = llm.many(["x"], SamplingParams(**GREEDY, max_tokens=30, logit_bias=ends))
    assert (ignoring.outputs[0].token_ids, ignoring.outputs[0].finish_reason) == ([256] * 30, "length")


@pytest.mark.parametrize("at", [0, 3])
def test_b190_an_exception_while_one_answer_is_put_into_words(llm: Tiny, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(**GREEDY, max_tokens=6)
    prompts = [f"prompt {i}" for i in range(5)]
    expected = [told(out) for out in llm.many(prompts, params)]
    push, readers = Detokenizer.push, []

    def break_down(reader: Detokenizer, token_ids: Any) -> str:
        if reader not in readers:
            readers.append(reader)  # by prompt, as they all speak in each step
        if readers.index(reader) == 2 and reader.num_tokens == at:
            raise RuntimeError("broken")
        return push(reader, token_ids)

    monkeypatch.setattr(Detokenizer, "push", break_down)
    outputs = llm.many(prompts, params)
    broken = outputs[2].outputs[0]
    assert broken.finish_reason == "error"
    assert "broken" in str(broken.error)
    assert [told(out) for i, out in enumerate(outputs) if i != 2] == [one for i, one in enumerate(expected) if i != 2]
