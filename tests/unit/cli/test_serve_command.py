"""``ramet serve`` up to the server: what it starts with, its keys, its exit code."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

from ramet.cli.serve import serve
from ramet.errors import ConfigError


@pytest.fixture
def started(monkeypatch) -> dict[str, Any]:
    """What the server was started with, if it was."""
    found: dict[str, Any] = {}
    module = ModuleType("ramet.server.serve")

    def run(**given: Any) -> int:
        found.update(given)
        return 3

    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ramet.server.serve", module)
    return found


def run(*args: str) -> int:
    done = CliRunner().invoke(serve, args)
    if isinstance(done.exception, ConfigError):
        raise done.exception
    return done.exit_code


def test_the_server_gets_its_options_and_gives_the_exit_code(started):
    assert run("./m", "--port", "0", "--page-size", "4") == 3
    assert (started["engine"].model.model, started["engine"].cache.page_size, started["server"].port) == ("./m", 4, 0)


def test_keys_from_a_file_are_put_with_the_others(started, tmp_path):
    file = tmp_path / "keys"
    file.write_text("# of the team\n\n  two  \nthree\n#four\r\nfive\r\n")
    assert run("--host", "0.0.0.0", "--api-key", "one", "--api-key-file", str(file)) == 3
    assert started["server"].api_key == ("one", "two", "three", "five")
    assert started["server"].api_key_file is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "has no key in it"),
        (b"\n# only this\n", "has no key in it"),
        (b"fine\ncan ary\n", "line 2: a key is ASCII"),
        ("canaré".encode(), "line 1: a key is ASCII"),
        (b"\xff\xfe", "no text in UTF-8"),
        (None, "cannot read"),
    ],
)
def test_files_of_keys_that_are_none(started, tmp_path, content, words):
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"{words}.*\(--api-key-file\)") as caught:
        run("--host", "0.0.0.0", "--api-key-file", str(file))
    assert "ary" not in str(caught.value)
    assert started == {}


def test_nothing_starts_beyond_this_machine_without_a_key(started):  # T33
    with pytest.raises(ConfigError, match="--allow-unauthenticated"):
        run("--host", "0.0.0.0")
    assert started == {}
    assert run("--host", "0.0.0.0", "--allow-unauthenticated") == 3
