"""``--config``: what a file may say, and that what is wrong with it is one line without its values."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramet.cli.config_file import read_config_file
from ramet.cli.options import start_up_options
from ramet.errors import ConfigError


@pytest.fixture
def read(tmp_path):
    def read(text: str | bytes) -> dict[str, object]:
        path = tmp_path / "options.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_config_file(str(path), start_up_options())

    return read


def test_keys_are_flags_or_their_aliases(read):
    text = "# a comment\npage-size: 8\nmax_body_size: 1MiB\nmax-num-seqs: 3\ndrain-timeout-s: 5\nshare-cache: true\n"
    assert read(text) == {
        "page_size": 8, "max_body_size": "1MiB", "max_running_seqs": 3, "drain_timeout_s": 5, "share_cache": True,
    }  # fmt: skip
    assert read("kv-cache-memory: 1048576") == {"kv_cache_memory": 1 << 20}
    assert read("prefix-cache: none") == {"prefix_cache": "none"}


def test_lists(read):
    assert read("api-key: [a, b]\nallowed-hosts:\n- x\n- y\nmetrics-compat: vllm") == {
        "api_key": ["a", "b"], "allowed_hosts": ["x", "y"], "metrics_compat": ["vllm"],
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "# nothing\n", "page-size:\n", "model: null\n"])
def test_what_is_left_out_is_left_out(read, text):
    assert read(text) == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("page-sise: 8", "unknown key 'page-sise'; nearest: page-size, "),
        ("host: localhost\npage size: 8", "unknown key 'page size'; nearest: page-size, "),
        ("page-size: 8\npage_size: 9", "page-size is given twice"),
        ("page-size: 8\npage-size: 9", "page-size is given twice"),
        ("page-size: 8\nblock-size: 9", "page-size is given twice"),
        ("page-size: '8'", "page-size is a whole number, not of type str"),
        ("page-size: 8.5", "page-size is a whole number, not of type float"),
        ("page-size: true", "page-size is a whole number, not of type bool"),
        ("page-size: [8]", "page-size is a whole number, not of type list"),
        ("mem-fraction: half", "mem-fraction is a number, not of type str"),
        ("share-cache: 1", "share-cache is true or false, not of type int"),
        ("revision: 2024-01-01", "in quotes where it looks like none"),
        ("model: 7", "model is a text"),
        ("kv-cache-memory: 1.5", "kv-cache-memory is a whole number or a text"),
        ("api-key: [canary, 7]", "api-key is a text .*, or a list of them"),
        ("api-key: {canary: 1}", "api-key is a text"),
        ("- canary", "a flag's name, a colon and a value"),
        ("canary", "a flag's name, a colon and a value"),
        ("1: canary", "a flag's name, a colon and a value"),
        ("api-key: 'canary\n", "line 2: not YAML"),
        ("api-key: canary\n  x: [", "not YAML"),
        ("revision: 2024-99-99", "not YAML"),
        ("api-key: !!python/object/apply:os.getcwd []", "not YAML"),
        ("a: &x [1]\n<<: *x", "not YAML"),
        ("[" * 1200, "not YAML"),
        ("api-key: *canary", "line 1: not YAML"),
        ("api-key: !canary x", "line 1: not YAML"),
        ("api-key: %canary", "line 1: not YAML"),
        ("{a: 1, a: 2}", "unknown key 'a'"),
        ("{[1]: 2}", "not YAML|a flag's name"),
        (b"\xff\xfe\x00", "no text in UTF-8"),
        ("a\x00b: 1", "not YAML"),
    ],
)
def test_what_is_wrong_is_one_line_without_values(read, text, words):
    with pytest.raises(ConfigError, match=words) as caught:
        read(text)
    message = str(caught.value)
    assert "canary" not in message
    assert "\n" not in message
    assert "options.yaml" in message
    assert message.endswith("(--config)")


@pytest.mark.parametrize("path", ["/no/such/file.yaml", "/", "~nobody-of-this-name/x"])
def test_files_that_cannot_be_read(path):
    with pytest.raises(ConfigError, match=r"^cannot read .*\(--config\)$"):
        read_config_file(path, start_up_options())


def test_home_is_known(monkeypatch, tmp_path: Path):
    (tmp_path / "c.yaml").write_text("port: 5")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_config_file("~/c.yaml", start_up_options()) == {"port": 5}
