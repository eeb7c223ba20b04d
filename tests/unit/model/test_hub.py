"""Fetching from the hub, played by a server of this process: what is asked, what is believed, and what each fault comes to."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.hub_server import COMMIT, HubServer, hub_server
from tiny_models import TINY_MODELS, write_folder, write_gguf

from ramet.config import ModelConfig
from ramet.errors import ModelError
from ramet.model import download
from ramet.model import hub as hub_module
from ramet.model.source import open_model, pinned, resolve

BLOBS, SNAPSHOT = "hub/models--org--m/blobs", f"hub/models--org--m/snapshots/{COMMIT}"


@pytest.fixture(scope="module")
def model_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = write_folder(TINY_MODELS["llama"], tmp_path_factory.mktemp("made"))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def hub(model_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """The hub, with its cache in ``tmp_path/hub``."""
    from huggingface_hub import constants
    from huggingface_hub.utils import close_session

    strangers = {
        "modeling.py": b"raise SystemExit",
        "pytorch_model.bin": b"x",
        "extra.safetensors": b"x",
        "tokenizer.model": b"x",
    }
    with hub_server(model_files | strangers, {"model.safetensors"}) as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(download, "_FIRST_PAUSE_S", 0.01)
        monkeypatch.setattr(download, "_LOCK_POLL_S", 0.01)
        monkeypatch.setattr(hub_module, "_PAUSES_S", (0.01, 0.01))
        yield server
        close_session()


def load() -> Any:
    return open_model(ModelConfig(model="org/m"))


def test_only_what_is_read_is_fetched_and_of_one_commit(hub: HubServer, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    checkpoint = open_model(ModelConfig(model="org/m"), lambda *news: seen.append(news))
    assert checkpoint.spec.num_layers == 2
    assert hub.fetched() == ["config.json", "tokenizer_config.json", "tokenizer.json", "model.safetensors"]
    assert hub.asked[0].path == "/api/models/org/m/revision/main"
    assert len(hub.asked) == 5  # and nothing else is asked, or told
    host = hub.url.removeprefix("http://")
    assert seen[0] == (f"asking {host} for org/m", 0, 0)
    assert seen[-1] == ("fetching org/m", len(hub.files["model.safetensors"]), len(hub.files["model.safetensors"]))
    assert (tmp_path / "hub/models--org--m/refs/main").read_text() == COMMIT
    assert not [path for path in (tmp_path / BLOBS).iterdir() if path.name.endswith(".part")]
    link = tmp_path / SNAPSHOT / "model.safetensors"
    assert os.readlink(link).startswith("../../blobs/")


def test_huggingface_hub_finds_it_too(hub: HubServer, tmp_path: Path) -> None:
    from huggingface_hub import try_to_load_from_cache

    load()
    found = try_to_load_from_cache("org/m", "model.safetensors", cache_dir=tmp_path / "hub")
    assert found == str(tmp_path / SNAPSHOT / "model.safetensors")


def test_what_is_cached_is_not_fetched_again(hub: HubServer) -> None:
    load()
    hub.asked.clear()
    load()
    assert [one.path for one in hub.asked] == ["/api/models/org/m/revision/main"]
    hub.asked.clear()
    open_model(ModelConfig(model="org/m", revision=COMMIT))  # a commit never changes
    assert hub.asked == []


def test_revision_is_pinned_to_its_commit(hub: HubServer) -> None:
    with pytest.raises(ModelError, match=r"org/m, revision other: the hub has no such revision \(--revision\)"):
        open_model(ModelConfig(model="org/m", revision="other"))
    open_model(ModelConfig(model="org/m", revision="main"))
    assert all(f"/resolve/{COMMIT}/" in one.path for one in hub.asked[2:])
    with pytest.raises(ModelError, match="is no name of a branch"):
        open_model(ModelConfig(model="org/m", revision="../../../etc/passwd"))


def test_pinned_model_stays_what_it_was(hub: HubServer, tmp_path: Path) -> None:
    """A server opens its model once for the text and once for each engine it starts: all of one commit."""
    config = pinned(ModelConfig(model="org/m", quantization="int8"))
    assert config == ModelConfig(model="org/m", quantization="int8", revision=COMMIT)
    hub.asked.clear()
    assert open_model(config).spec.num_layers == 2
    assert hub.asked == []
    local = ModelConfig(model=str(tmp_path / SNAPSHOT))
    assert pinned(local) == local


@pytest.mark.parametrize("how", ["flag", "variable"])
def test_offline_asks_nobody(how: str, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    config = ModelConfig(model="org/m", offline=how == "flag")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", how == "variable")
    with pytest.raises(ModelError, match=r"org/m: config\.json is not cached and the hub is switched off"):
        open_model(config)
    with pytest.raises(ModelError, match=r"revision a\{b: config\.json is not cached"):
        open_model(ModelConfig(model="org/m", revision="a{b", offline=True))
    assert hub.asked == []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    load()
    hub.asked.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", how == "variable")
    assert open_model(config).spec.num_layers == 2
    assert hub.asked == []


def test_hub_that_is_away(hub: HubServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """No answer is an error within seconds, or what is cached, and that is said."""
    from huggingface_hub import constants

    load()
    with socket.socket() as taken:  # bound, and nobody listens: connections are refused
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
        started = time.monotonic()
        with pytest.raises(
            ModelError, match=r"org/other: 127\.0\.0\.1:\d+ cannot be reached \(.*refused.*\) and not all is cached"
        ):
            open_model(ModelConfig(model="org/other"))
        load()
        assert time.monotonic() - started < 5
    assert f"org/m is taken as cached, commit {COMMIT}" in caplog.text


def test_hub_that_does_not_answer(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "_ASKING_S", 0.2)
    stop = threading.Event()
    hub.trouble = lambda handler, path: stop.wait(10)
    try:
        with pytest.raises(ModelError, match=r"cannot be reached .*timed out"):
            load()
    finally:
        stop.set()


def test_answers_that_break_off_are_resumed(hub: HubServer, caplog: pytest.LogCaptureFixture) -> None:
    data = hub.files["model.safetensors"]

    def trouble(handler: Any, path: str) -> bool:
        tries = hub.fetched().count("model.safetensors")
        if path.endswith("model.safetensors") and tries <= 2:
            handler.send_file(data, cut=1000 * tries)
            return True
        return False

    hub.trouble = trouble
    load()
    ranges = [one.range for one in hub.asked if one.path.endswith("model.safetensors")]
    assert ranges == [None, "bytes=1000-", "bytes=3000-"]
    assert "at 1000 of" in caplog.text


def test_next_start_resumes(hub: HubServer, tmp_path: Path) -> None:
    hub.trouble = lambda handler, path: (
        path.endswith("model.safetensors") and not handler.send_file(hub.files["model.safetensors"], cut=0)
        if hub.fetched().count("model.safetensors") > 1
        else path.endswith("model.safetensors") and not handler.send_file(hub.files["model.safetensors"], cut=5000)
    )
    with pytest.raises(ModelError, match=r"model\.safetensors: .*; 5000 of \d+ bytes are kept for the next time"):
        load()
    assert [path.stat().st_size for path in (tmp_path / BLOBS).glob("*.part")] == [5000]
    hub.trouble = lambda handler, path: False
    hub.asked.clear()
    load()
    assert [one.range for one in hub.asked if one.path.endswith("model.safetensors")] == ["bytes=5000-"]


@pytest.mark.parametrize("answer", ["416", "200", "other-range"])
def test_server_that_does_not_resume(answer: str, hub: HubServer, tmp_path: Path) -> None:
    data = hub.files["model.safetensors"]
    part = tmp_path / BLOBS / f"{hub.listing()['siblings'][list(hub.files).index('model.safetensors')]['lfs']['sha256']}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(data[:2000])

    def trouble(handler: Any, path: str) -> bool:
        if not path.endswith("model.safetensors") or handler.note.range is None:
            return False
        if answer == "416":
            handler.answer(416, b"", {"content-range": f"bytes */{len(data)}"})
        elif answer == "200":
            handler.answer(200, data, {})
        else:
            handler.answer(206, data[1000:], {"content-range": f"bytes 1000-{len(data) - 1}/{len(data)}"})
        return True

    hub.trouble = trouble
    assert load().spec.num_layers == 2


def test_damaged_beginning_is_fetched_whole(hub: HubServer, tmp_path: Path) -> None:
    data = hub.files["model.safetensors"]
    sha = hub.listing()["siblings"][list(hub.files).index("model.safetensors")]["lfs"]["sha256"]
    (tmp_path / BLOBS).mkdir(parents=True)
    (tmp_path / BLOBS / f"{sha}.part").write_bytes(b"\xff" * (len(data) - 10))
    load()
    assert (tmp_path / BLOBS / sha).read_bytes() == data


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_wrong_hash_is_not_kept(name: str, hub: HubServer, tmp_path: Path) -> None:
    """T32: SHA-256 of large files, git's SHA-1 of small ones."""
    data = bytearray(hub.files[name])
    data[-1] ^= 1

    def trouble(handler: Any, path: str) -> bool:
        return path.endswith(name) and not handler.send_file(bytes(data))

    hub.trouble = trouble
    with pytest.raises(ModelError, match=rf"{name}: what came has the hash [0-9a-f]+, not [0-9a-f]+; it is not kept"):
        load()
    assert not (tmp_path / SNAPSHOT / name).exists()
    assert not [path for path in (tmp_path / BLOBS).iterdir() if path.suffix == ".part"]


def test_more_bytes_than_were_said_are_not_taken(hub: HubServer, tmp_path: Path) -> None:
    """T32: what is written is bounded by the list's size, whatever the answer says."""
    data = hub.files["model.safetensors"]
    hub.trouble = lambda handler, path: path.endswith("model.safetensors") and not handler.send_file(data + bytes(1 << 20))
    with pytest.raises(ModelError, match=rf"more than the {len(data)} bytes that the hub says it has came"):
        load()
    assert max((path.stat().st_size for path in (tmp_path / BLOBS).iterdir()), default=0) <= len(data)


@pytest.mark.parametrize(
    ("name", "lie", "message"),
    [
        ("tokenizer.json", {"size": 1 << 30}, r"tokenizer\.json has 1073741824 bytes, over 64 MiB"),
        ("config.json", {"blobId": None}, "has no config.json"),
        ("config.json", {"blobId": "../../../etc/passwd"}, "has no config.json"),
        ("config.json", {"size": -1}, "has no config.json"),
        ("model.safetensors", {"lfs": {"size": 1 << 60, "sha256": "0" * 64, "pointerSize": 1}}, r"MiB are to be fetched, but"),
        ("model.safetensors", {"rfilename": "../../model.safetensors"}, r"has no model\.safetensors; Ramet reads"),
    ],
)
def test_lists_that_lie(name: str, lie: dict[str, Any], message: str, hub: HubServer) -> None:
    hub.lie[name] = lie
    with pytest.raises(ModelError, match=message):
        load()


def test_faults_of_the_server_pass(hub: HubServer) -> None:
    """5xx, then an answer: of the list and of a file."""
    hub.trouble = lambda handler, path: (
        sum(one.path == path for one in hub.asked) == 1 and not handler.answer(503, b"busy", {"retry-after": "0"})
    )
    assert load().spec.num_layers == 2
    assert len(hub.asked) == 10


def test_token_goes_to_no_other_host(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """T32: a redirect to another host is followed without the token."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with hub_server(hub.files) as elsewhere:
        hub.trouble = lambda handler, path: (
            path.endswith("model.safetensors") and not handler.answer(302, b"", {"location": elsewhere.url + path})
        )
        load()
        assert [one.authorization for one in elsewhere.asked] == [None]
    assert {one.authorization for one in hub.asked} == {"Bearer hf_secret"}


def test_access(hub: HubServer) -> None:
    hub.trouble = lambda handler, path: not handler.answer(403, b"", {"X-Error-Code": "GatedRepo"})
    with pytest.raises(ModelError, match="org/m is gated: accept its licence"):
        load()
    hub.trouble = lambda handler, path: not handler.answer(401, b"", {"X-Error-Code": "RepoNotFound"})
    with pytest.raises(ModelError, match="org/m is not on the hub, or is private"):
        load()


def test_code_is_refused_before_weights_are_fetched(hub: HubServer) -> None:
    """T03."""
    config = hub.files["config.json"].replace(b"{", b'{"auto_map": {"AutoModel": "modeling.M"}, ', 1)
    hub.files = hub.files | {"config.json": config}
    with pytest.raises(ModelError, match="auto_map asks for code"):
        load()
    assert "model.safetensors" not in hub.fetched()
    assert "modeling.py" not in hub.fetched()


def test_repositories_that_are_no_models(hub: HubServer, model_files: dict[str, bytes]) -> None:
    hub.files = {"a/x-Q4_K_M.gguf": b"x", "y.gguf": b"y"}
    with pytest.raises(ModelError, match=r"org/m has GGUF files; name one of them: org/m/a/x-Q4_K_M\.gguf, org/m/y\.gguf"):
        load()
    hub.files = {name: data for name, data in model_files.items() if name != "model.safetensors"} | {"pytorch_model.bin": b"x"}
    with pytest.raises(ModelError, match=r"has no model\.safetensors; Ramet reads safetensors only"):
        load()
    hub.files["model.safetensors.index.json"] = b'{"weight_map": {"w": "../../evil.safetensors"}}'
    with pytest.raises(ModelError, match=r"is no \.safetensors file name"):
        load()


def test_a_gguf_file_of_a_repository(hub: HubServer, tmp_path: Path) -> None:
    hub.files = {"q/m-Q8_0.gguf": write_gguf(TINY_MODELS["llama"], tmp_path / "m.gguf").read_bytes(), "README.md": b"x"}
    assert open_model(ModelConfig(model="org/m/q/m-Q8_0.gguf")).spec.num_layers == 2
    assert hub.fetched() == ["q/m-Q8_0.gguf"]
    with pytest.raises(ModelError, match=r"org/m has no m\.gguf; its GGUF files: q/m-Q8_0\.gguf"):
        resolve("org/m/m.gguf")
    hub.files = {f"m-0000{i}-of-00002.gguf": b"x" * i for i in (1, 2)}
    resolve("org/m/m-00002-of-00002.gguf")
    assert hub.fetched()[1:] == ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]


def test_several_that_fetch_at_once(hub: HubServer, tmp_path: Path) -> None:
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(load())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert hub.fetched().count("model.safetensors") == 1
    assert not list(tmp_path.rglob("*.part"))


def test_links_in_the_cache_are_not_written_through(hub: HubServer, tmp_path: Path) -> None:
    """A name that another user has put where the file is to come."""
    victim = tmp_path / "victim"
    victim.write_text("kept")
    sha = hub.listing()["siblings"][list(hub.files).index("model.safetensors")]["lfs"]["sha256"]
    (tmp_path / BLOBS).mkdir(parents=True)
    (tmp_path / BLOBS / f"{sha}.part").symlink_to(victim)
    with pytest.raises(ModelError, match=r"cannot be fetched: .*symbolic links"):
        load()
    assert victim.read_text() == "kept"
