"""``ramet doctor``: what a bug report needs to say of the machine. No secrets: no variable's value, no text of anybody's."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import click

__all__ = ["doctor", "examine"]


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True, help="port to look at")
@click.option("--json", "as_json", is_flag=True, help="one JSON object instead of lines")
def doctor(port: int, as_json: bool) -> None:
    """Show versions, machine and limits, for a bug report."""
    found = examine(port)
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
        return
    for name, value in found.items():
        print(f"{name:<14} {value}")


def examine(port: int = 8000) -> dict[str, str]:
    """What each probe found, by its name. A probe that fails says why, and the others go on."""
    probes: dict[str, Callable[[], str]] = {
        "ramet": lambda: _version("ramet"),
        "python": lambda: f"{platform.python_implementation()} {platform.python_version()}",
        "packages": _packages,
        "system": lambda: f"{platform.system()} {platform.release()} {platform.machine()}",
        "libc": lambda: " ".join(platform.libc_ver()).strip() or "unknown",
        "cpu": _cpu,
        "cores": _cores,
        "kernels": _kernels,
        "memory": _memory,
        "memory limit": _memory_limit,
        "cache folder": _cache_folder,
        "demo model": _demo_model,
        f"port {port}": lambda: _port(port),
    }
    return {name: _outcome(probe) for name, probe in probes.items()}


def _outcome(probe: Callable[[], str]) -> str:
    try:
        return probe()
    except Exception as error:  # whatever is broken here is what the report is about
        return f"failed: {type(error).__name__}: {' '.join(str(error).split())}"


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _packages() -> str:
    """The packages that Ramet needs, as they are installed."""
    from importlib.metadata import requires

    lines = [line for line in requires("ramet") or [] if "extra ==" not in line]
    names = sorted(re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in lines)
    return ", ".join(f"{name} {_version(name)}" for name in names)


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith(("model name", "Model"))]
    return named[0] if named else platform.processor() or "unknown"


def _cores() -> str:
    from ramet.kernels.cpu import default_threads

    return f"{default_threads()} usable of {os.cpu_count()}"


def _kernels() -> str:
    from ramet import _native
    from ramet.kernels.registry import make_backend

    chosen = getattr(make_backend(threads=1), "isa", "unknown")
    return f"{chosen} of {', '.join(_native.isas())}"


def _memory() -> str:
    from ramet.runner.kv_tensors import free_bytes

    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{_gib(free_bytes())} free for this process, {_gib(total)} in all"


def _memory_limit() -> str:
    from ramet.runner.kv_tensors import memory_limit

    limit = memory_limit()
    return "none" if limit is None else f"{_gib(limit)} (container)"


def _cache_folder() -> str:
    from ramet.model.demo import cache_folder

    folder = cache_folder()
    state = "" if os.access(folder, os.W_OK) else ", not writable"
    return f"{_from_home(folder)}, {_gib(shutil.disk_usage(folder).free)} free{state}"


def _demo_model() -> str:
    from ramet.model.demo import DEMO_FILE, cache_folder

    path = cache_folder() / DEMO_FILE
    return f"{DEMO_FILE}, {path.stat().st_size:,} bytes" if path.is_file() else "not there (fetched when it is first used)"


def _port(port: int) -> str:
    """Whether a server could listen there; nothing ever does, not even for a moment."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a connection's last minute is no hindrance
        try:
            tried.bind(("127.0.0.1", port))
        except OSError as error:
            return f"taken on 127.0.0.1 ({error.strerror})"
    return "free on 127.0.0.1"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.1f} GiB"


def _from_home(path: Path) -> str:
    """The path with ~ for the home folder: whose it is does not matter."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
