"""Adapters in the Python API, and how long the engine keeps one."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_adapters import make_adapter, write_adapter
from tiny_models import TINY_MODELS, write_folder

from ramet import LLM, SamplingParams
from ramet.core.request import Namespace
from ramet.errors import ConfigError, InvalidRequest, ModelError, UnknownAdapter

MODEL = "llama"
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPT = list(range(40))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lora")
    write_folder(TINY_MODELS[MODEL], folder / "model")
    for seed, name in enumerate("abc", start=1):
        write_adapter(make_adapter(MODEL, seed), folder / name)
    return folder


@pytest.fixture
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder / "model", lora={"a": folder / "a", "b": folder / "b"}, kv_cache_memory="8MiB", threads=1) as llm:
        yield llm


def ids(llm: LLM, lora: str | None) -> list[int]:
    return llm.generate(PROMPT, GREEDY, lora=lora)[0].outputs[0].token_ids


def test_one_for_all_or_one_each(llm: LLM) -> None:
    alone = [ids(llm, name) for name in (None, "a", "b")]
    assert len(set(map(tuple, alone))) == 3
    together = llm.generate([PROMPT] * 4, GREEDY, lora=[None, "a", "b", "a"])
    assert [out.outputs[0].token_ids for out in together] == [*alone, alone[1]]
    assert [out.outputs[0].token_ids for out in llm.generate([PROMPT] * 2, GREEDY, lora="b")] == [alone[2]] * 2
    hi = [{"role": "user", "content": "hi"}]
    assert llm.chat(hi, GREEDY, lora="a")[0].outputs[0].token_ids != llm.chat(hi, GREEDY)[0].outputs[0].token_ids
    *_, last = llm.stream(PROMPT, GREEDY, lora="a")
    assert last.outputs[0].token_ids == alone[1]


def test_b028_b029_a_load_finds_nothing_of_another(llm: LLM, folder: Path) -> None:
    """In use.md's words: the same ids with the base, two adapters, and a new load under an old name."""
    for lora in (None, "a", "b"):
        assert [llm.generate(PROMPT, GREEDY, lora=lora)[0].usage.cached_tokens > 0 for _ in range(2)] == [False, True]
    old, new = ids(llm, "a"), ids(llm, "b")
    llm.load_lora("a", folder / "b")
    again = llm.generate(PROMPT, GREEDY, lora="a")[0]
    assert (again.outputs[0].token_ids, again.usage.cached_tokens) == (new, 0)
    assert new != old
    assert llm.loras == ["b", "a"]
    llm.unload_lora("a")
    llm.load_lora("a", folder / "a")
    again = llm.generate(PROMPT, GREEDY, lora="a")[0]
    assert (again.outputs[0].token_ids, again.usage.cached_tokens) == (old, 0)


def test_an_adapter_is_kept_until_its_last_request_has_done(llm: LLM, folder: Path) -> None:
    expected, engine, adapters = ids(llm, "a"), llm._engine, llm._parts.adapters
    output = llm._submit(PROMPT, None, GREEDY, Namespace(adapter="a"))
    llm._step()
    (generation,) = (info.generation for info in adapters.listed() if info.name == "a")
    held = weakref.ref(adapters[generation])
    child = engine.fork(engine.seq_ids(output.request_id)[0])
    llm.unload_lora("a")
    llm.load_lora("a", folder / "c")
    while not output.finished:
        llm._step()
    assert output.outputs[0].token_ids == expected
    assert generation in adapters
    engine.abort(child)
    engine.step()
    assert generation not in adapters
    gc.collect()
    assert held() is None


def test_what_cannot_be_is_told_and_changes_nothing(llm: LLM, folder: Path, tmp_path: Path) -> None:
    for call in (lambda: ids(llm, "x"), lambda: llm.unload_lora("x")):
        with pytest.raises(UnknownAdapter, match="no adapter 'x' is loaded"):
            call()
    with pytest.raises(InvalidRequest, match="2 adapters for 1 prompts"):
        llm.generate(PROMPT, GREEDY, lora=["a", "b"])
    with pytest.raises(InvalidRequest, match="lora is the name"):
        llm.generate(PROMPT, GREEDY, lora=[1])  # type: ignore[list-item]
    with pytest.raises(ModelError, match="there is no adapter at"):
        llm.load_lora("c", tmp_path / "nothing")
    with pytest.raises(ModelError, match=r"has no adapter_config\.json"):
        llm.load_lora("a", tmp_path)
    with pytest.raises(InvalidRequest, match="an adapter's name is"):
        llm.load_lora("a:b", folder / "a")
    assert llm.loras == ["a", "b"]
    assert ids(llm, "a")
    assert llm._engine.stats().num_open_requests == 0


def test_a_start_with_what_cannot_be_loaded_is_refused(folder: Path, tmp_path: Path) -> None:
    model = folder / "model"
    with pytest.raises(ModelError, match="there is no adapter at"):
        LLM(model, lora={"a": tmp_path / "x"})
    with pytest.raises(ConfigError, match=r"no more may be \(--max-loras\)"):
        LLM(model, lora={"a": folder / "a", "b": folder / "b"}, max_loras=1)
    with pytest.raises(ConfigError, match="an adapter's name"):
        LLM(model, lora={"a b": folder / "a"})
    with pytest.raises(ModelError, match="rank 4; 1 to 3 are allowed"):
        LLM(model, lora={"a": folder / "a"}, max_lora_rank=3)
