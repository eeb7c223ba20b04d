"""The demo model, fetched as a newcomer's first command fetches it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ramet import LLM, SamplingParams

pytestmark = pytest.mark.demo

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM() as demo:
        yield demo


def test_paris(llm: LLM) -> None:
    [out] = llm.chat(QUESTION, llm.default_sampling_params(temperature=0, max_tokens=64))
    assert out.outputs[0].text == "The capital of France is Paris."
    assert out.outputs[0].finish_reason == "stop"


def test_every_instruction_set_knows_paris() -> None:
    from ramet import _native

    for isa in _native.isas():
        with LLM(isa=isa) as demo:
            [out] = demo.chat(QUESTION, demo.default_sampling_params(temperature=0, max_tokens=64))
            assert "Paris" in out.outputs[0].text, isa


def test_batch_mates_and_cache_change_no_bit(llm: LLM) -> None:
    params = [SamplingParams(temperature=0.8, seed=i, max_tokens=16, logprobs=2) for i in range(5)]
    prompts = [f"Story number {i % 3} begins with a" for i in range(5)]
    together = llm.generate(prompts, params)
    llm.flush_cache()
    for prompt, one, out in zip(prompts, params, together, strict=True):
        for _ in range(2):  # cold or warm
            [alone] = llm.generate(prompt, one)
            assert (alone.outputs[0].token_ids, alone.outputs[0].logprobs) == (out.outputs[0].token_ids, out.outputs[0].logprobs)


def test_a_conversation_computes_only_what_is_new(llm: LLM) -> None:
    llm.flush_cache()
    history = list(QUESTION)
    for question in ("And of Spain?", "And of Italy?"):
        [out] = llm.chat(history, llm.default_sampling_params(temperature=0, max_tokens=32))
        history += [{"role": "assistant", "content": out.outputs[0].text}, {"role": "user", "content": question}]
    [last] = llm.chat(history, llm.default_sampling_params(temperature=0, max_tokens=8))
    new = last.usage.prompt_tokens - out.usage.prompt_tokens
    assert last.usage.prompt_tokens - last.usage.cached_tokens <= new + 16
