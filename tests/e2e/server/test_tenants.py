"""T27, B187: what one key has sent, another can neither hit nor hear of, unless the cache is shared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.http import Served, call

from ramet.config import ServerConfig
from ramet.server.app import build_app
from ramet.server.gate import Gate, Keys

PATHS = {
    "/v1/completions": lambda text: {"prompt": text, "max_tokens": 1},
    "/v1/chat/completions": lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 1},
    "/v1/responses": lambda text: {"input": text, "max_output_tokens": 1},
    "/v1/messages": lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 1},
    "/generate": lambda text: {"text": text, "sampling_params": {"max_new_tokens": 1}},
}


def app_with_keys(server: Served, *, share_cache: bool) -> Gate:
    keys = ("k1", "k2")
    config = ServerConfig(api_key=keys, share_cache=share_cache)
    return build_app(replace(server.services, config=config), Keys(keys, None, share_cache=share_cache))


def cached(server: Served, app: Gate, path: str, text: str, key: str, **fields: Any) -> int:
    body = {"model": "tiny", **PATHS[path](text), **fields}
    answer = server.run(call(app, path, body, headers={"authorization": f"Bearer {key}"})).json()
    usage = answer.get("usage") or answer["meta_info"]
    if "cache_read_input_tokens" in usage:
        return int(usage["cache_read_input_tokens"])
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or usage
    return int(details["cached_tokens"])


@pytest.mark.parametrize("share_cache", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_t27_b187_hits_by_key_and_salt(server: Served, path: str, share_cache: bool) -> None:
    app = app_with_keys(server, share_cache=share_cache)
    text = f"{path} {share_cache} " * 4  # a text of this test's own
    long = len(text) - 8
    first, other, again = (cached(server, app, path, text, key) for key in ("k1", "k2", "k1"))
    assert first < long
    assert (other >= long) == share_cache
    assert again >= long
    salted = [cached(server, app, path, text, key, cache_salt="s") for key in ("k1", "k2", "k1")]
    assert salted[0] < long, "a salt parts the cache of one key, too"
    assert (salted[1] >= long) == share_cache
    assert salted[2] >= long
