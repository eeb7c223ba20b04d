"""T31: names of models are looked up, not joined to a path: what is not known is not found, and nothing is opened for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

import pytest
from support.http import Served

NAMES = [
    "../../../etc/passwd",
    "..",
    "/etc/passwd",
    "/dev/zero",
    "/dev/stdin",
    "~/.ssh/id_rsa",
    "~root",
    "file:///etc/passwd",
    "tiny/../tiny",
    "tiny\0",
    "tiny:../../adapter",
    "con",
    "x" * 4096,
    "\u202etiny",
]
MESSAGES = [{"role": "user", "content": "a"}]
ASKING = [
    ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1}),
    ("/v1/completions", {"prompt": "a", "max_tokens": 1}),
    ("/v1/responses", {"input": "a", "max_output_tokens": 1}),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": 1}),
    ("/v1/messages/count_tokens", {"messages": MESSAGES}),
    ("/tokenize", {"prompt": "a"}),
    ("/detokenize", {"tokens": [1]}),
]
_opened: list[str] | None = None


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if _opened is not None and event in ("open", "os.listdir", "os.scandir", "os.open"):
        _opened.append(str(arguments[0]))


sys.addaudithook(_note)  # which nothing can take away again


@contextmanager
def opened() -> Iterator[list[str]]:
    """All that this process opens meanwhile."""
    global _opened
    _opened = found = []
    try:
        yield found
    finally:
        _opened = None


@pytest.mark.parametrize("name", NAMES, ids=[str(i) for i in range(len(NAMES))])
def test_t31_names_that_mean_a_path_are_not_found(name: str, server: Served) -> None:
    server.post("/tokenize", {"prompt": "a", "model": "other"})  # whatever is imported at the first time
    with opened() as found:
        for path, body in ASKING:
            answer = server.post(path, {**body, "model": name})
            assert answer.status_code == 404, (path, answer.text)
            assert len(answer.content) < 1000
            assert "passwd" not in answer.text or "passwd" in name
        assert server.http.get(f"/v1/models/{quote(name, safe='')}").status_code == 404
    assert [path for path in found if "encodings" not in path] == []


def test_t31_what_is_opened_is_seen() -> None:
    with opened() as found, open("/dev/null"):
        pass
    assert found == ["/dev/null"]
