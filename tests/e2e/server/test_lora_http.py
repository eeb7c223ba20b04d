"""Adapters over HTTP: chosen by a request's model, loaded and unloaded while others run, and never from outside their folders."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.http import MODEL_NAME, Served, call, serve_tiny, write_tiny
from tiny_adapters import make_adapter, write_adapter

from ramet.config import LoraConfig, ServerConfig
from ramet.server.app import build_app
from ramet.server.gate import Keys

TINY = "llama"
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
PROMPT = "a prompt of some length, so that a few pages of it can be found again"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``root`` with two adapters, and one beside it."""
    folder = tmp_path_factory.mktemp("lora")
    for seed, place in enumerate(("first", "root/second", "root/nested/third", "outside"), start=1):
        write_adapter(make_adapter(TINY, seed), folder / place)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    lora = LoraConfig(lora_modules=(f"first={folder / 'first'}",), lora_root=(str(folder / "root"),), max_loras=3)
    with serve_tiny(write_tiny(folder / "model"), lora=lora) as served:
        yield served


def complete(server: Served, model: str | None, prompt: str = PROMPT, **fields: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True, **fields}
    answer = server.post("/v1/completions", body | ({} if model is None else {"model": model}))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def said(answer: dict[str, Any]) -> tuple[str, int]:
    return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def load(server: Served, name: str, path: str, **fields: Any) -> tuple[int, str]:
    answer = server.post(LOAD, {"lora_name": name, "lora_path": path, **fields})
    return answer.status_code, answer.text


def unload(server: Served, name: str) -> int:
    return server.post(UNLOAD, {"lora_name": name}).status_code


def test_b028_b029_an_adapter_is_chosen_and_shares_no_cache(server: Served) -> None:
    """By its name, or as model:adapter, in every dialect; and with a new load under the same name nothing is found again."""
    base, cached = said(complete(server, None))
    assert cached == 0
    first, cached = said(complete(server, "first"))
    assert cached == 0
    assert first != base
    again, cached = said(complete(server, f"{MODEL_NAME}:first"))
    assert again == first
    assert cached > 0
    assert load(server, "other", "second")[0] == 200
    other, cached = said(complete(server, "other"))
    assert cached == 0
    assert other not in (first, base)
    assert said(complete(server, "other"))[1] > 0
    assert load(server, "other", "second", load_inplace=True)[0] == 200
    assert said(complete(server, "other")) == (other, 0)
    assert unload(server, "other") == 200
    assert load(server, "other", "nested/third")[0] == 200
    third, cached = said(complete(server, "other"))
    assert (third not in (other, first, base), cached) == (True, 0)
    assert unload(server, "other") == 200
    assert said(complete(server, None))[0] == base


def test_every_dialect_takes_it(server: Served) -> None:
    hi = [{"role": "user", "content": "hi"}]
    told = {}
    for model in (MODEL_NAME, "first"):
        chat = server.post("/v1/chat/completions", {"model": model, "messages": hi, "max_tokens": 6, "temperature": 0})
        message = server.post("/v1/messages", {"model": model, "messages": hi, "max_tokens": 6, "temperature": 0})
        response = server.post("/v1/responses", {"model": model, "input": "hi", "max_output_tokens": 6, "temperature": 0})
        for answer in (chat, message, response):
            assert answer.status_code == 200, answer.text
            assert answer.json()["model"] == model
        told[model] = [
            chat.json()["choices"][0]["message"]["content"],
            message.json()["content"][0]["text"],
            response.json()["output"][-1]["content"][0]["text"],
        ]
    assert all(one != other for one, other in zip(*told.values(), strict=True))
    generated = server.post("/generate", {"text": "hi", "lora_path": "first", "sampling_params": {"max_new_tokens": 2}})
    assert generated.status_code == 200


def test_models_lists_them_with_their_parent(server: Served) -> None:
    assert load(server, "org/other-1.0", str(Path("nested", "third")))[0] == 200
    try:
        listed = {one["id"]: one.get("parent") for one in server.http.get("/v1/models").json()["data"]}
        assert listed == {MODEL_NAME: None, "first": MODEL_NAME, "org/other-1.0": MODEL_NAME}
        assert server.http.get("/v1/models/org/other-1.0").json()["parent"] == MODEL_NAME
        engine = server.http.get("/server_info").json()["engine"]
        assert [(one["name"], one["rank"]) for one in engine["adapters"]] == [("first", 4), ("org/other-1.0", 4)]
    finally:
        assert unload(server, "org/other-1.0") == 200


def test_what_runs_goes_on_when_its_adapter_is_unloaded(server: Served) -> None:
    """To the end, as if nothing had happened; then the load is let go."""
    assert load(server, "brief", "second")[0] == 200
    expected = said(complete(server, "brief", max_tokens=150))[0]
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(said(complete(server, "brief", max_tokens=150))[0]))
    thread.start()
    while thread.is_alive() and not server.services.client.generations:
        pass
    assert unload(server, "brief") == 200
    assert server.post("/v1/completions", {"model": "brief", "prompt": "a"}).status_code == 404
    thread.join(30)
    assert found == [expected]


def test_what_cannot_be_loaded_is_told(server: Served, folder: Path) -> None:
    assert load(server, MODEL_NAME, "second")[0] == 400
    for name in ("a:b", "", "../a", "/a", "a\0", "~", "x" * 129, "a//b", "ä"):
        assert load(server, name, "second")[0] == 400, name
    status, text = load(server, "first", "second")
    assert (status, "loaded already" in text) == (400, True)
    assert server.post(LOAD, {"lora_name": "x"}).status_code == 400
    assert server.post(LOAD, {"lora_name": "x", "lora_path": 1}).status_code == 400
    broken = write_adapter(make_adapter(TINY, 5), folder / "root" / "dora", use_dora=True)
    status, text = load(server, "x", "dora")
    assert (status, "use_dora asks for DoRA" in text) == (400, True)
    assert unload(server, "x") == unload(server, "../x") == 404
    for number in range(2):
        assert load(server, f"more{number}", "second")[0] == 200
    status, text = load(server, "more2", "second")
    assert (status, "--max-loras" in text) == (400, True)
    for number in range(2):
        assert unload(server, f"more{number}") == 200
    assert broken.exists()
    assert said(complete(server, "first"))[0]


HOSTILE = (
    "../outside", "second/../../outside", "/etc", "/etc/passwd", "~", "~root", "~/x", "\0", "second\0", "x" * 4096, "/dev/zero",
    "", ".", "link", "linked", "second/adapter_model.safetensors", "/proc/self/root", "nul", "CON", "..", "root",
)  # fmt: skip


@pytest.mark.parametrize("path", HOSTILE, ids=lambda path: repr(path[:20]))
def test_t31_nothing_outside_its_folders_is_opened(server: Served, folder: Path, path: str) -> None:
    """``link`` is a link to a folder outside, ``linked`` an adapter whose matrices are."""
    root = folder / "root"
    if not (root / "link").is_symlink():
        (root / "link").symlink_to(folder / "outside")
        (root / "linked").mkdir()
        (root / "linked" / "adapter_config.json").write_bytes((root / "second" / "adapter_config.json").read_bytes())
        (root / "linked" / "adapter_model.safetensors").symlink_to(folder / "outside" / "adapter_model.safetensors")
    before = {one["id"] for one in server.http.get("/v1/models").json()["data"]}
    for tried in (path, str(folder / "outside")):
        status, text = load(server, "hostile", tried)
        assert status == (400 if tried.endswith(".safetensors") else 404), text
        assert "outside/" not in text
    assert server.post("/v1/completions", {"model": path or "x", "prompt": "a"}).status_code == 404
    assert {one["id"] for one in server.http.get("/v1/models").json()["data"]} == before


def test_an_absolute_path_under_a_folder_is_as_good(server: Served, folder: Path) -> None:
    assert load(server, "whole", os.fspath(folder / "root" / "second"))[0] == 200
    assert unload(server, "whole") == 200


def test_t23_users_may_not(server: Served) -> None:
    app = build_app(server.services, Keys(("user",), "admin", share_cache=False))
    for path in (LOAD, UNLOAD):
        body = {"lora_name": "first", "lora_path": "second"}
        for key, status in (("user", 403), ("other", 401)):
            assert server.run(call(app, path, body, headers={"authorization": f"Bearer {key}"})).status == status
    assert complete(server, "first")


def test_without_folders_none_may_be_loaded(tmp_path: Path) -> None:
    with serve_tiny(write_tiny(tmp_path / "model"), ServerConfig()) as served:
        status, text = load(served, "a", str(tmp_path))
        assert (status, "--lora-root" in text) == (404, True)
