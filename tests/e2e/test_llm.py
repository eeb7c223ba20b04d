"""The Python API on a tiny model with a byte-level tokenizer."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_models import TINY_MODELS, write_folder

from ramet import LLM, ConfigError, ContextTooLong, InvalidRequest, ModelError, SamplingParams
from ramet.kv.audit import audit

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(TINY_MODELS["llama"], tmp_path_factory.mktemp("llama"))


@pytest.fixture
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), threads=1) as one:
        yield one
        audit(one._engine._kv, [])


def text_of(llm: LLM, prompt: Any, params: SamplingParams) -> str:
    return llm.generate(prompt, params)[0].outputs[0].text


def test_many_prompts_keep_their_order(llm: LLM) -> None:
    prompts = [f"prompt {i} " + "x" * i for i in range(20)]
    together = llm.generate(prompts, GREEDY)
    assert [out.prompt for out in together] == prompts
    llm.flush_cache()
    alone = [llm.generate(prompt, GREEDY)[0] for prompt in prompts]
    assert [out.outputs[0].token_ids for out in together] == [out.outputs[0].token_ids for out in alone]


def test_text_and_ids_are_the_same_prompt(llm: LLM) -> None:
    ids = llm.tokenizer.encode("Hello, tree")
    assert llm.generate(ids, GREEDY)[0].outputs[0].token_ids == llm.generate("Hello, tree", GREEDY)[0].outputs[0].token_ids
    assert len(llm.generate([ids, ids], GREEDY)) == 2


def test_vllms_names_for_the_same_things(llm: LLM) -> None:
    ids = llm.tokenizer.encode("Hello, tree")
    expected = llm.generate("Hello, tree", GREEDY)[0].outputs[0].token_ids
    for prompt in ({"prompt": "Hello, tree"}, {"prompt_token_ids": ids}):
        assert llm.generate([prompt, prompt], sampling_params=GREEDY)[1].outputs[0].token_ids == expected
    for prompt in ({"prompt": 5}, {}, {"prompt": "a", "multi_modal_data": 1}):
        with pytest.raises(InvalidRequest, match="mapping"):
            llm.generate(prompt, GREEDY)
    with pytest.raises(InvalidRequest, match="give one of them"):
        llm.generate("a", GREEDY, sampling_params=GREEDY)


def test_tools_without_a_place_for_them_are_refused(llm: LLM) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    with pytest.raises(InvalidRequest, match="no place for tools"):
        llm.chat([{"role": "user", "content": "hi"}], GREEDY, tools=[tool])


def test_usage_counts_cached_tokens(llm: LLM) -> None:
    prompt = list(range(100))
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    first, second = (llm.generate(prompt, params)[0].usage for _ in range(2))
    assert (first.prompt_tokens, first.cached_tokens, first.completion_tokens) == (100, 0, 20)
    assert second.cached_tokens == 99  # all but the last, to the token: the page it leaves the tree in is copied
    longer = llm.generate([*prompt, 1, 2, 3], GREEDY)[0].usage
    assert longer.cached_tokens == 100


def test_n_answers(llm: LLM) -> None:
    params = SamplingParams(n=3, temperature=1.5, seed=7, max_tokens=10, ignore_eos=True)
    [out] = llm.generate("one prompt", params)
    assert [answer.index for answer in out.outputs] == [0, 1, 2]
    assert len({tuple(answer.token_ids) for answer in out.outputs}) == 3
    assert out.usage.completion_tokens == 30
    assert out.usage.prompt_tokens == 10
    again = llm.generate("one prompt", params)[0]
    assert [a.token_ids for a in again.outputs] == [a.token_ids for a in out.outputs]


def test_a_request_without_a_seed_reports_one_that_repeats_it(llm: LLM) -> None:
    params = SamplingParams(temperature=1.5, max_tokens=10, ignore_eos=True)
    first, second = llm.generate(["p", "p"], params)
    assert first.seed != second.seed
    repeat = llm.generate("p", SamplingParams(temperature=1.5, max_tokens=10, ignore_eos=True, seed=first.seed))[0]
    assert repeat.outputs[0].token_ids == first.outputs[0].token_ids


def test_stream_says_what_generate_says(llm: LLM) -> None:
    params = SamplingParams(n=2, temperature=1.0, seed=3, max_tokens=25, logprobs=2, ignore_eos=True)
    [whole] = llm.generate("streamed prompt", params)
    texts, last = ["", ""], None
    for last in llm.stream("streamed prompt", params):
        for answer in last.outputs:
            texts[answer.index] += answer.delta
    assert last is not None
    assert texts == [answer.text for answer in whole.outputs]
    assert [a.token_ids for a in last.outputs] == [a.token_ids for a in whole.outputs]
    assert [a.logprobs for a in last.outputs] == [a.logprobs for a in whole.outputs]
    assert [a.finish_reason for a in last.outputs] == ["length", "length"]


def test_streams_may_interleave(llm: LLM) -> None:
    expected = [text_of(llm, prompt, GREEDY) for prompt in ("first", "second")]
    streams = [llm.stream(prompt, GREEDY) for prompt in ("first", "second")]
    texts = ["", ""]
    while streams[0] or streams[1]:
        for i, stream in enumerate(streams):
            piece = next(stream, None) if stream else None
            if piece is None:
                streams[i] = None
            else:
                texts[i] += piece.outputs[0].delta
    assert texts == expected


def test_leaving_a_stream_aborts_its_request(llm: LLM) -> None:
    for _ in llm.stream("abc", SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)):
        break
    llm.generate("next", GREEDY)
    assert llm._engine.stats().num_open_requests == 0


@pytest.mark.parametrize("include", [False, True])
def test_stop_string(llm: LLM, include: bool) -> None:
    """B115, B116: the stop ends the text wherever it falls, streamed or not, and nothing of it leaks."""
    text = text_of(llm, "stop here", SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
    for stop in (text[7:10], text[3], text[5:20]):
        params = SamplingParams(
            temperature=0, max_tokens=40, ignore_eos=True, stop=[stop, "zzzz"], include_stop_str_in_output=include
        )
        [out] = llm.generate("stop here", params)
        expected = text[: text.index(stop) + (len(stop) if include else 0)]
        assert (out.outputs[0].text, out.outputs[0].finish_reason, out.outputs[0].stop_reason) == (expected, "stop", stop)
        assert "".join(piece.outputs[0].delta for piece in llm.stream("stop here", params)) == expected
        assert out.usage.completion_tokens == len(out.outputs[0].token_ids)


def test_min_tokens_holds_off_stop_strings(llm: LLM) -> None:
    text = text_of(llm, "stop here", SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
    params = SamplingParams(temperature=0, max_tokens=40, min_tokens=20, ignore_eos=True, stop=text[3])
    [out] = llm.generate("stop here", params)
    assert len(out.outputs[0].token_ids) >= 20


def test_stop_token_is_not_part_of_the_text(llm: LLM) -> None:
    ids = llm.generate("stop here", GREEDY)[0].outputs[0].token_ids
    [out] = llm.generate("stop here", SamplingParams(temperature=0, max_tokens=12, stop_token_ids=[ids[4]], ignore_eos=True))
    answer = out.outputs[0]
    assert (answer.finish_reason, answer.stop_reason) == ("stop", ids[4])
    cut = ids.index(ids[4])
    assert answer.token_ids == ids[: cut + 1]
    assert answer.text == llm.tokenizer.decode(ids[:cut])


def test_logprobs_name_the_token_and_the_best(llm: LLM) -> None:
    [out] = llm.generate("abc", SamplingParams(temperature=2.0, seed=1, max_tokens=8, logprobs=3, ignore_eos=True))
    answer = out.outputs[0]
    assert len(answer.logprobs) == 8
    for token_id, named in zip(answer.token_ids, answer.logprobs, strict=True):
        assert token_id in named
        assert len(named) in (3, 4)
        ranks = sorted(one.rank for one in named.values())
        assert ranks[:3] == [1, 2, 3]
    assert answer.cumulative_logprob == pytest.approx(
        sum(named[token_id].logprob for token_id, named in zip(answer.token_ids, answer.logprobs, strict=True))
    )


@pytest.mark.parametrize("length", [1, 33, 64])
def test_prompt_logprobs_are_right_on_cache_hits(llm: LLM, length: int) -> None:
    """B019, B020: every entry is there and the same, hit or miss, whatever came before."""
    prompt = [(i * 7) % 200 for i in range(length)]
    params = SamplingParams(temperature=0, max_tokens=0, prompt_logprobs=1)
    cold = llm.generate(prompt, params)[0]
    llm.generate([*prompt, 5, 6], GREEDY)
    warm = llm.generate(prompt, params)[0]
    assert cold.prompt_logprobs == warm.prompt_logprobs
    assert len(cold.prompt_logprobs) == length
    assert cold.prompt_logprobs[0] is None
    assert all(token in named for token, named in zip(prompt[1:], cold.prompt_logprobs[1:], strict=True))
    assert warm.usage.cached_tokens == 0  # their logits have to be computed
    assert warm.outputs[0].token_ids == []
    assert warm.outputs[0].finish_reason == "length"


def test_max_tokens_one_and_none(llm: LLM) -> None:
    assert len(llm.generate("a", SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))[0].outputs[0].token_ids) == 1
    [out] = llm.generate("a" * 250, SamplingParams(temperature=0, max_tokens=None, ignore_eos=True))
    assert out.usage.prompt_tokens + out.usage.completion_tokens == 256


def test_chat_renders_and_hits_the_tree(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hello there, how are you today"}]
    [first] = llm.chat(messages, GREEDY)
    assert first.prompt.startswith("<|im_start|>user\nhello")
    messages += [{"role": "assistant", "content": first.outputs[0].text}, {"role": "user", "content": "and now?"}]
    [second] = llm.chat(messages, GREEDY)
    assert second.usage.cached_tokens >= first.usage.prompt_tokens - 1
    assert "".join(piece.outputs[0].delta for piece in llm.stream(messages, GREEDY)) == second.outputs[0].text


def test_flush_cache(llm: LLM) -> None:
    llm.generate(list(range(64)), GREEDY)
    assert llm.cache_stats()["num_evictable_pages"] > 0
    assert llm.flush_cache() > 0
    assert llm.generate(list(range(64)), GREEDY)[0].usage.cached_tokens == 0


@pytest.mark.parametrize(
    ("prompt", "error", "words"),
    [
        ("", InvalidRequest, "empty"),
        ([], InvalidRequest, "empty"),
        ([[]], InvalidRequest, "empty"),
        ([0, 304], InvalidRequest, "0 to 303"),
        ([[0, -1]], InvalidRequest, "0 to 303"),
        ([0, 2**31], InvalidRequest, "0 to 303"),
        ([[0, 1.5]], InvalidRequest, "whole numbers"),
        ([[0, True]], InvalidRequest, "whole numbers"),
        ("x" * 300, ContextTooLong, "300"),
        (["fine", 5], InvalidRequest, "prompt"),
        ({"a": 1}, InvalidRequest, "mapping"),
        (None, InvalidRequest, "prompts"),
        ("a\ud83d", InvalidRequest, "surrogate"),
    ],
)
def test_bad_prompts_are_refused_and_nothing_else_changes(llm: LLM, prompt: Any, error: type[Exception], words: str) -> None:
    before = text_of(llm, "a neighbour", GREEDY)
    stream = llm.stream("a neighbour", GREEDY)
    text = next(stream).outputs[0].delta
    with pytest.raises(error, match=words):
        llm.generate(prompt, GREEDY)
    assert text + "".join(piece.outputs[0].delta for piece in stream) == before
    assert llm._engine.stats().num_open_requests == 0


def test_one_bad_prompt_of_many_computes_none(llm: LLM) -> None:
    with pytest.raises(InvalidRequest):
        llm.generate([[1, 2, 3], [999]], GREEDY)
    assert llm._engine.stats().num_open_requests == 0


def test_sampling_errors_name_the_fix(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="temperature"):
        SamplingParams(temperature=float("nan"))
    with pytest.raises(InvalidRequest, match="n is a whole number from 1"):
        SamplingParams(n=0)
    with pytest.raises(InvalidRequest, match="did you mean max_tokens"):
        SamplingParams(max_token=5)
    with pytest.raises(InvalidRequest, match="0 to 303"):
        llm.generate("a", SamplingParams(logit_bias={304: 1.0}))
    with pytest.raises(InvalidRequest, match="2 sampling parameters for 1 prompts"):
        llm.generate("a", [GREEDY, GREEDY])


def test_prompt_longer_than_the_pool(folder: Path) -> None:
    with LLM(str(folder), threads=1, max_total_tokens=64) as llm:
        with pytest.raises(ContextTooLong, match=r"KV pool.*--kv-cache-memory"):
            llm.generate(list(range(60)), GREEDY)
        assert llm.generate(list(range(52)), GREEDY)[0].usage.completion_tokens == 12  # exactly the pool


def test_a_folder_without_a_tokenizer_serves_ids(tmp_path: Path) -> None:
    with LLM(str(write_folder(TINY_MODELS["qwen3"], tmp_path, tokenizer=False)), threads=1) as llm:
        [out] = llm.generate([1, 2, 3], SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=1))
        assert len(out.outputs[0].token_ids) == 4
        assert out.outputs[0].text == ""
        with pytest.raises(InvalidRequest, match="token ids"):
            llm.generate("text")
        with pytest.raises(InvalidRequest, match="stop_token_ids"):
            llm.generate([1], SamplingParams(stop="x"))
        with pytest.raises(InvalidRequest, match="chat template"):
            llm.chat([{"role": "user", "content": "hi"}])


def test_start_up_errors_name_the_option(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--page-size"):
        LLM(str(folder), page_size=0)
    with pytest.raises(ConfigError, match="--max-model-len"):
        LLM(str(folder), max_model_len=10_000)
    with pytest.raises(ConfigError, match="--kv-cache-memory"):
        LLM(str(folder), kv_cache_memory="100TiB")
    with pytest.raises(ModelError, match="nowhere"):
        LLM(str(tmp_path / "nowhere"))
    for name in ("max_running_seqs", "max_batch_tokens", "chunked_prefill_size", "max_total_tokens", "threads"):
        with pytest.raises(ConfigError, match=name):
            LLM(str(folder), **{name: 0})


def test_a_closed_llm_says_so(folder: Path) -> None:
    llm = LLM(str(folder), threads=1)
    llm.close()
    llm.close()
    with pytest.raises(InvalidRequest, match="closed"):
        llm.generate("a", GREEDY)


def test_a_folder_with_a_sentencepiece_model(tmp_path: Path) -> None:
    models = json.loads((Path(__file__).parents[1] / "golden/sentencepiece_models.json").read_text(encoding="utf-8"))
    (data,) = (base64.b64decode(model["model"]) for model in models if model["name"] == "bpe without bytes")
    folder = write_folder(TINY_MODELS["llama"], tmp_path / "model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    (folder / "tokenizer.model").write_bytes(data)
    form = SamplingParams(temperature=0, max_tokens=24, structured_outputs={"regex": "the (fox|dog) sleeps"})
    with LLM(str(folder), threads=1) as llm:
        (out,) = llm.generate("the quick", form)
        assert out.prompt_token_ids == llm.tokenizer.encode("the quick")
        assert out.prompt_token_ids[0] == 1
        assert out.outputs[0].text in ("the fox sleeps", "the dog sleeps")
