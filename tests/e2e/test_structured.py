"""Structured output from text to text: models of random weights, and the demo model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tiny_models import TINY_MODELS, write_folder

from ramet import LLM, GrammarError, SamplingParams

PERSON = {
    "type": "object",
    "properties": {
        "full_name": {"type": "string", "maxLength": 24},
        "age_in_years": {"type": "integer", "minimum": 0, "maximum": 120},
        "occupation_category": {"enum": ["engineer", "teacher", "doctor", "artist"]},
        "currently_employed": {"type": "boolean"},
        "home_address": {
            "type": "object",
            "properties": {
                "street_name": {"type": "string", "maxLength": 24},
                "postal_code": {"type": "string", "pattern": "^[0-9]{5}$"},
            },
            "required": ["street_name", "postal_code"],
            "additionalProperties": False,
        },
    },
    "required": ["full_name", "age_in_years", "occupation_category", "currently_employed", "home_address"],
    "additionalProperties": False,
}
SMALL = {"type": "integer", "minimum": -9, "maximum": 99}
FLAGS = {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}
DATE = {"type": "string", "format": "date"}
SCHEMAS: list[Any] = [
    {"type": "object", "properties": {"a": SMALL}, "required": ["a"], "additionalProperties": False},
    {"type": "array", "items": {"enum": ["é", "b", None, 1.5]}, "minItems": 1, "maxItems": 4},
    {"type": "string", "minLength": 2, "maxLength": 6},
    {"anyOf": [{"const": {"k": [1, "x"]}}, {"type": "string", "pattern": "^[a-c]{3}-[0-9]{2}$"}, DATE]},
    {"$defs": {"flags": FLAGS}, "type": "array", "items": {"$ref": "#/$defs/flags"}, "maxItems": 3},
    {"type": "array", "prefixItems": [{"type": "boolean"}, {"enum": [1, 2]}], "items": False, "minItems": 2},
    {"type": "integer", "minimum": 2, "maximum": 600, "multipleOf": 25},
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = write_folder(next(iter(TINY_MODELS.values())), tmp_path_factory.mktemp("structured") / "model")
    with LLM(str(folder), threads=1, max_total_tokens=4096) as llm:
        yield llm


def test_random_weights_write_valid_json(tiny: LLM) -> None:
    params = [
        SamplingParams(temperature=t, seed=seed, max_tokens=100, structured_outputs={"json": schema})
        for schema in SCHEMAS
        for t, seed in ((0, 1), (1, 2), (2, 3))
    ]
    for one, out in zip(params, tiny.generate(["Write: "] * len(params), params), strict=True):
        answer = out.outputs[0]
        assert one.grammar is not None
        assert answer.finish_reason == "stop", (one.grammar, answer.text)
        jsonschema.validate(json.loads(answer.text), json.loads(one.grammar.text), format_checker=jsonschema.FormatChecker())


def test_choices_patterns_and_grammars(tiny: LLM) -> None:
    wanted: list[Any] = [{"choice": ["☕", "🙂"]}, {"regex": "[0-9]{4}-(a|é){2}"}, {"grammar": 'root ::= "(" root ")" | [x-z]'}]
    params = [SamplingParams(seed=4, max_tokens=30, structured_outputs=one) for one in wanted]
    cup, number, nested = (out.outputs[0] for out in tiny.generate(["Year: "] * 3, params))
    assert cup.text in ("☕", "🙂")
    assert re.fullmatch("[0-9]{4}-(a|é){2}", number.text)
    assert nested.text.strip("()") in ("x", "y", "z") or nested.finish_reason == "length"


def test_b107_the_prompt_stays_what_it_was(tiny: LLM) -> None:
    """B107."""
    free, held = tiny.generate(
        ["Year: "] * 2,
        [SamplingParams(max_tokens=5, seed=1), SamplingParams(max_tokens=5, seed=1, structured_outputs={"regex": " ?[0-9]{4}"})],
    )
    assert held.prompt_token_ids == free.prompt_token_ids
    assert held.outputs[0].text.strip().isdigit()


def test_the_same_bits_alone_and_in_company_cold_and_warm(tiny: LLM) -> None:
    params = [
        SamplingParams(temperature=1, seed=i, max_tokens=60, logprobs=2, structured_outputs={"json": SCHEMAS[i]})
        for i in range(7)
    ]
    prompts = [f"Document {i}: " for i in range(7)]
    together = tiny.generate(prompts, params)
    for prompt, one, out in zip(prompts, params, together, strict=True):
        tiny.flush_cache()
        for _ in range(2):  # cold, then warm
            [alone] = tiny.generate(prompt, one)
            assert (alone.outputs[0].token_ids, alone.outputs[0].logprobs) == (out.outputs[0].token_ids, out.outputs[0].logprobs)


def test_a_flush_forgets_how_answers_were_written(tiny: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=60, structured_outputs={"json": SCHEMAS[0]})

    def steps() -> int:
        before = tiny._engine.stats().scheduler.num_steps
        texts.append(tiny.generate("Write: ", params)[0].outputs[0].text)
        return tiny._engine.stats().scheduler.num_steps - before

    texts: list[str] = []
    tiny.flush_cache()
    first = steps()
    assert min(steps() for _ in range(4)) < first
    tiny.flush_cache()
    assert steps() == first
    assert len(set(texts)) == 1


def test_a_grammar_that_cannot_be_used_is_an_error_of_its_own(tiny: LLM) -> None:
    with pytest.raises(GrammarError, match="regex"):
        tiny.generate("x", SamplingParams(structured_outputs={"regex": "a("}))
    assert tiny.generate("x", SamplingParams(max_tokens=2))[0].outputs[0].token_ids


def test_without_a_tokenizer_nothing_can_be_constrained(tmp_path: Path) -> None:
    folder = write_folder(next(iter(TINY_MODELS.values())), tmp_path / "bare", tokenizer=False)
    with LLM(str(folder), threads=1, max_total_tokens=512) as llm, pytest.raises(GrammarError, match="no tokenizer"):
        llm.generate([[1, 2]], SamplingParams(structured_outputs={"json_object": True}))


@pytest.fixture(scope="module")
def demo() -> Iterator[LLM]:
    with LLM(kv_cache_memory="64MiB") as llm:
        yield llm


@pytest.mark.demo
def test_b106_jump_forward_changes_how_soon_and_nothing_else(demo: LLM) -> None:
    """B106. Greedy and sampled, with logprobs and without, of one schema and several, and with guesses of n-grams besides."""
    schemas = [PERSON, PERSON, *SCHEMAS[:3]]
    params = [
        SamplingParams(
            max_tokens=48,
            logprobs=1 if i % 3 == 0 else None,
            structured_outputs={"json": schemas[i % 5]},
            **({"temperature": 0} if i % 2 else {"temperature": 0.9, "seed": i}),
        )
        for i in range(7)
    ]
    prompts = [f"Describe number {i} as JSON.\n" for i in range(7)]

    def told(llm: LLM) -> tuple[list[tuple[Any, ...]], int]:
        """The answers, and how many steps they took."""
        begun = llm._engine.stats().scheduler.num_steps
        answers = [out.outputs[0] for out in llm.generate(prompts, params)]
        taken = llm._engine.stats().scheduler.num_steps - begun
        return [(one.token_ids, one.logprobs, one.finish_reason, one.text) for one in answers], taken

    with LLM(kv_cache_memory="64MiB", jump_forward="off") as llm:
        slowly, many = told(llm)
    with LLM(kv_cache_memory="64MiB", speculative="ngram", max_running_seqs=3) as llm:
        guessed, _ = told(llm)
    soon, few = told(demo)
    assert slowly == soon == guessed
    assert few < many


@pytest.mark.demo
def test_the_demo_model_describes_people(demo: LLM) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=160, structured_outputs={"json": PERSON})
    warm = SamplingParams(temperature=0.8, seed=7, max_tokens=160, structured_outputs={"json": PERSON})
    prompts = [f"Describe person number {i} as JSON.\n" for i in range(3)]
    for out in demo.generate(prompts * 2, [greedy] * 3 + [warm] * 3):
        assert out.outputs[0].finish_reason == "stop", out.outputs[0].text
        jsonschema.validate(json.loads(out.outputs[0].text), PERSON)
