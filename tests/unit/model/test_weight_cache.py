"""Packed weights that are kept: the same bytes, never those of another model, and no fault of the disk but costs time."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_models import TINY_MODELS, write_folder, write_gguf

from ramet import _native
from ramet.config import ModelConfig
from ramet.errors import ConfigError
from ramet.kernels.registry import make_backend
from ramet.model import weight_cache, weight_file, weight_folder
from ramet.model.source import open_model
from ramet.model.weight_cache import load_decoder
from ramet.model.weight_folder import OwnFolder, TooLarge

BACKEND = make_backend("cpu", threads=2)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = write_folder(TINY_MODELS["llama3"], tmp_path / "model", dtype="BF16", tokenizer=False)
    for path in folder.iterdir():
        os.utime(path, ns=(10**18, 10**18))
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


class Loaded:
    """What a start gave: the packed bytes by name, and what it was seen doing."""

    def __init__(self, model: Path, cache: Path | None, **options: Any) -> None:
        self.seen: list[str] = []
        config = ModelConfig(model=str(model), weight_cache=None if cache is None else str(cache), **options)
        decoder = load_decoder(config, open_model(config), BACKEND, lambda what, done, total: self.seen.append(what))
        self.bytes = {
            name: b"".join(data.tobytes() for _, _, data in _native.pieces(weight))  # type: ignore[arg-type]
            for name, weight in decoder.products.items()
        }

    @property
    def was_read(self) -> bool:
        return "reading packed weights" in self.seen and "packing weights" not in self.seen


def files(cache: Path, suffix: str = ".weights") -> list[Path]:
    return sorted(path for path in cache.iterdir() if path.name.endswith(suffix))


@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
def test_second_start_reads_the_same_bytes(quantization: str | None, model: Path, cache: Path) -> None:
    plain = Loaded(model, None, quantization=quantization)
    first = Loaded(model, cache, quantization=quantization)
    second = Loaded(model, cache, quantization=quantization)
    assert (plain.was_read, first.was_read, second.was_read) == (False, False, True)
    assert plain.bytes == first.bytes == second.bytes
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in files(cache)] == [0o600]
    assert files(cache, ".part") == []


def test_gguf_too(tmp_path: Path, cache: Path) -> None:
    file = write_gguf(TINY_MODELS["llama"], tmp_path / "m.gguf", type_name="Q4_1")
    first, second = Loaded(file, cache), Loaded(file, cache)
    assert first.bytes == second.bytes
    assert second.was_read


def test_files_are_known_by_what_is_in_them(model: Path, tmp_path: Path, cache: Path) -> None:
    """Another place is the same model; another byte, type, layout or conversion is not (D14)."""
    Loaded(model, cache)
    assert Loaded(Path(shutil.copytree(model, tmp_path / "copy")), cache).was_read
    assert not Loaded(model, cache, dtype="float32").was_read
    weights = model / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert not Loaded(model, cache).was_read


@pytest.mark.parametrize("place", ["layout", "conversion", "version"])
def test_other_versions_are_misses(place: str, model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Loaded(model, cache)
    if place == "layout":
        monkeypatch.setattr(type(BACKEND), "layout", "cpu 999")
    elif place == "conversion":
        monkeypatch.setattr(weight_cache, "CONVERSION_VERSION", 999)
    else:
        monkeypatch.setattr(weight_cache, "version", lambda name: "999")
    assert not Loaded(model, cache).was_read
    assert len(files(cache)) == 2


def test_hash_is_noted_only_of_files_that_rest(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Loaded(model, cache)
    assert files(cache, ".note") == []  # made just now: a change in this very moment would not show in its times
    monkeypatch.setattr(weight_cache, "_SETTLED_NS", 0)
    first = Loaded(model, cache)
    assert len(files(cache, ".note")) == 1
    second = Loaded(model, cache)
    assert ("hashing weights" in first.seen, "hashing weights" in second.seen) == (True, False)
    (model / "model.safetensors").touch()
    assert "hashing weights" in Loaded(model, cache).seen


@pytest.mark.parametrize("note", ["", "ab", "x" * 64, "0" * 65])
def test_a_note_that_is_no_hash_is_not_believed(
    note: str, model: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash may leave it empty: of two models alike, that would be one key for both."""
    monkeypatch.setattr(weight_cache, "_SETTLED_NS", 0)
    other = Path(shutil.copytree(model, tmp_path / "other"))
    data = bytearray((other / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (other / "model.safetensors").write_bytes(data)
    for one in (model, other):
        Loaded(one, cache)
    for path in files(cache, ".note"):
        path.write_text(note)
    for path in files(cache):
        path.unlink()
    assert Loaded(model, cache).bytes == Loaded(model, None).bytes
    assert Loaded(other, cache).bytes == Loaded(other, None).bytes


def test_files_are_read_where_nothing_can_be_written(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **options: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    Loaded(model, cache)
    monkeypatch.setattr(os, "utime", fails)
    assert Loaded(model, cache).was_read


def test_files_changed_while_they_are_read_are_not_kept(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    finish = weight_cache._AsFarAsItGoes.finish

    def touched(self: Any, new: Any) -> None:
        (model / "model.safetensors").touch()
        finish(self, new)

    monkeypatch.setattr(weight_cache._AsFarAsItGoes, "finish", touched)
    Loaded(model, cache)
    assert files(cache) == []
    assert "were changed while they were read" in caplog.text


def flip(at: int) -> Callable[[bytearray], bytearray]:
    def change(data: bytearray) -> bytearray:
        data[at] ^= 1
        return data

    return change


@pytest.mark.parametrize(
    "change",
    [
        flip(3),
        flip(20),
        flip(4096 + 5),
        flip(-3),
        lambda data: data[:-1],
        lambda data: data[:4096],
        lambda data: data[:10],
        lambda data: bytearray(),
        lambda data: data + b"x",
        lambda data: bytearray(len(data)),
    ],
    ids=["magic", "head", "piece", "index", "cut by 1", "cut to the head", "cut to 10", "empty", "longer", "zeros"],
)
def test_damaged_files_are_made_anew(
    change: Callable[[bytearray], bytearray], model: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = Loaded(model, cache)
    (file,) = files(cache)
    whole = file.read_bytes()
    file.write_bytes(change(bytearray(whole)))
    again = Loaded(model, cache)
    assert not again.was_read
    assert again.bytes == plain.bytes
    assert file.read_bytes() == whole
    assert caplog.text.count("are made anew") == 1
    assert Loaded(model, cache).was_read


def test_every_flipped_bit_is_seen(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D4, in small: 60 places all over the file, and not one byte that is wrong is used."""
    monkeypatch.setattr(weight_file, "_CHUNK_BYTES", 1000)  # many checksums
    plain = Loaded(model, cache)
    (file,) = files(cache)
    whole = file.read_bytes()
    for at in range(0, len(whole), len(whole) // 60):
        data = bytearray(whole)
        data[at] ^= 0x10
        file.write_bytes(data)
        assert Loaded(model, cache).bytes == plain.bytes, at


def test_file_of_another_model_under_this_name(model: Path, tmp_path: Path, cache: Path) -> None:
    """D5: a right checksum in the wrong place."""
    Loaded(model, cache, dtype="float32")
    (other,) = files(cache)
    plain = Loaded(model, cache)
    (mine,) = set(files(cache)) - {other}
    shutil.copy(other, mine)
    again = Loaded(model, cache)
    assert not again.was_read
    assert again.bytes == plain.bytes


def test_index_that_lies_is_not_believed(model: Path, cache: Path) -> None:
    """Shapes, offsets and sums with a right checksum, of a file that somebody made."""
    plain = Loaded(model, cache)
    (file,) = files(cache)
    whole = file.read_bytes()
    _, at, length, _, _ = weight_file._HEAD.unpack(whole[: weight_file._HEAD.size])
    text = whole[at : at + length]
    for old, new in (
        (b'"k": 64', b'"k": 2147483647'),
        (b'["bf16", ', b'["bf16", 1'),
        (b'["bf16", ', b'["q9", '),
        (b", 4096, [", b", 4611686018427387904, ["),
        (b", 4096, [", b", -4096, ["),
        (b'"pieces": [[', b'"pieces": [[],['),
        (b'"weights": {', b'"weights": [], "x": {'),
    ):
        assert old in text, old
        lie = text.replace(old, new, 1)
        size = at + len(lie)
        head = weight_file._HEAD.pack(weight_file._MAGIC, at, len(lie), weight_file.zlib.crc32(lie), size)
        head += weight_file._CRC.pack(weight_file.zlib.crc32(head))
        file.write_bytes(head + whole[len(head) : at] + lie)
        again = Loaded(model, cache)
        assert not again.was_read
        assert again.bytes == plain.bytes


@pytest.mark.parametrize("kind", ["link", "others", "pipe", "folder"])
def test_what_is_no_file_of_ours_is_not_opened(kind: str, model: Path, cache: Path, tmp_path: Path) -> None:
    """T10, T31."""
    plain = Loaded(model, cache)
    (file,) = files(cache)
    kept = tmp_path / "kept"
    file.rename(kept)
    if kind == "link":
        file.symlink_to(kept)
    elif kind == "others":
        shutil.copy(kept, file)
        file.chmod(0o666)
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.mkdir()
    before = kept.read_bytes()
    again = Loaded(model, cache)
    assert not again.was_read
    assert again.bytes == plain.bytes
    assert kept.read_bytes() == before


def test_folder_that_is_not_ours_alone(model: Path, tmp_path: Path) -> None:
    """T10: world-writable, or a link."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ConfigError, match=r"open can be written to by others; chmod 700 it \(--weight-cache\)"):
        Loaded(model, tmp_path / "open")
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(ConfigError, match=r"cannot use the folder .*link"):
        Loaded(model, tmp_path / "link")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot use the folder .*file"):
        Loaded(model, tmp_path / "file")
    assert list((tmp_path / "mine").iterdir()) == []


@pytest.mark.parametrize("call", ["pwrite", "rename", "open"])
def test_disk_that_is_full(
    call: str, model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = Loaded(model, None)
    Loaded(model, cache, dtype="float32")
    real_open = os.open

    def fails(*args: Any, **options: Any) -> Any:
        if call == "open" and not args[1] & os.O_CREAT:
            return real_open(*args, **options)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, fails)
    loaded = Loaded(model, cache)
    monkeypatch.undo()
    assert loaded.bytes == plain.bytes
    assert caplog.text.count("are not kept: [Errno 28] No space left") == 1
    assert len(files(cache)) == 1
    assert files(cache, ".part") == []


def test_least_used_are_deleted(model: Path, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    Loaded(model, cache)
    (first,) = files(cache)
    size = first.stat().st_size
    Loaded(model, cache, quantization="int8")
    (second,) = set(files(cache)) - {first}
    os.utime(second, ns=(10**18, 10**18))
    Loaded(model, cache)  # the first was used last
    limit = size + second.stat().st_size + 1000
    Loaded(model, cache, quantization="int4", weight_cache_size=limit)
    assert first in files(cache)
    assert second not in files(cache)
    assert sum(path.stat().st_size for path in files(cache)) <= limit
    before = files(cache)
    Loaded(model, cache, dtype="float32", weight_cache_size=1000)
    assert files(cache) == before
    assert "are over the limit of 0 (--weight-cache-size)" in caplog.text


def test_unfinished_files_of_processes_that_are_gone(model: Path, cache: Path) -> None:
    cache.mkdir(mode=0o700)
    (cache / "dead.part").write_bytes(b"x")
    (cache / "live.part").write_bytes(b"x")
    with (cache / "live.part").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        Loaded(model, cache)
    assert files(cache, ".part") == [cache / "live.part"]


def test_two_that_start_at_once(model: Path, cache: Path) -> None:
    script = (
        "import sys; from ramet.config import ModelConfig; from ramet.model.source import open_model\n"
        "from ramet.model.weight_cache import load_decoder; from ramet.kernels.registry import make_backend\n"
        "config = ModelConfig(model=sys.argv[1], weight_cache=sys.argv[2])\n"
        "load_decoder(config, open_model(config), make_backend('cpu', threads=1))\n"
    )
    command = [sys.executable, "-c", script, str(model), str(cache)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
    assert [(process.communicate(timeout=60)[1], process.returncode) for process in processes] == [(b"", 0)] * 2
    assert len(files(cache)) == 1
    assert files(cache, ".part") == []
    assert Loaded(model, cache).bytes == Loaded(model, None).bytes


def test_notes_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_folder, "_MAX_NOTES", 3)
    with OwnFolder(tmp_path / "own", 1 << 20) as folder:
        for i in range(6):
            folder.leave_note(f"n{i}", str(i))
        assert folder.note("n5") == "5"
        assert folder.note("n0") is None
        assert len(files(tmp_path / "own", ".note")) == 3
        with pytest.raises(TooLarge):
            folder.make_room(2 << 20)
