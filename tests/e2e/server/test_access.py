"""Who may reach what, through the whole server: keys, raw paths, other callers' requests, and the world outside."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route
from support.attacks import ENDPOINTS
from support.edge_server import read_all
from support.http import Called, Served, call, write_tiny
from support.serve_process import ServeProcess, serving

from ramet.config import ServerConfig
from ramet.server.app import ROUTES, build_app
from ramet.server.gate import Gate, Keys

USER, OTHER, ADMIN = "user-key-1", "user-key-2", "admin-key-3"
SECRET = "sk-of-the-environment"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
OPEN = {"/", "/health"}
ADMINS = {"/flush_cache", "/server_info", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"}
TEXT = "/v1/completions"


def paths() -> list[str]:
    return [route.path.replace("{model:path}", "tiny") for route in ROUTES if isinstance(route, Route)]


def keyed(server: Served, **config: Any) -> Gate:
    """The whole app over the server's services, with keys."""
    options = ServerConfig(api_key=(USER, OTHER), admin_api_key=ADMIN, **config)
    keys = Keys(options.api_key, options.admin_api_key, share_cache=options.share_cache)
    return build_app(replace(server.services, config=options), keys)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """A server process with keys, and with secrets about."""
    folder = tmp_path_factory.mktemp("guarded")
    flags = ("--threads", "1", "--api-key", USER, "--admin-api-key", ADMIN)
    with serving(write_tiny(folder / "model"), folder / "log", *flags, env={"SOME_API_KEY": SECRET}) as made:
        yield made


# ---- keys


def test_t21_t24_b185_every_route_and_method_without_a_key(server: Served) -> None:
    app = keyed(server)
    refused: list[tuple[str, str, int]] = []

    async def all_of_them() -> None:
        for path, method in itertools.product([*paths(), "/openapi.json", "/docs", "/nothing", "*"], METHODS):
            for headers in ({}, bearer("wrong"), bearer(USER + "x"), {"x-api-key": ""}, {"authorization": USER}):
                answer = await call(app, path, {}, method=method, headers=headers)
                expected = {200, 405} if path in OPEN else {401}
                assert answer.status in expected, (method, path, headers, answer.status, answer.text)
                refused.append((path, method, answer.status))
            if path not in ADMINS:
                answer = await call(app, path, {}, method=method, headers=bearer(USER))
                assert answer.status not in (401, 403, 500), (method, path, answer.text)

    server.run(all_of_them())
    assert len(refused) >= len(METHODS) * len(ROUTES) * 5


def test_t23_the_table_of_admin_routes_is_whole(server: Served) -> None:
    app = keyed(server)
    for path in paths():
        method = "GET" if path == "/server_info" else "POST"
        answer = server.run(call(app, path, {}, method=method, headers=bearer(USER)))
        assert (answer.status == 403) == (path in ADMINS), (path, answer.status)


RAW_TARGETS = [
    b"//v1/models", b"/V1/MODELS", b"/v1//models", b"/v1/./models", b"/v1/../v1/models", b"/v1/..;/models", b"/;/v1/models",
    b"/v1;x/models", b"/v1/models;x", b"/v1%2fmodels", b"/%76%31/models", b"/v1/models%2f", b"/v1/models/", b"/v1/models.",
    b"/v1/models%20", b"/v1/models%00", b"/v1/models%0a", b"/v1/models?x=/health", b"/v1/models#/health", b"/%2e%2e/v1/models",
    b"/health/../v1/models", b"/health/..%2fv1/models", b"/health%2f..%2fv1/models", b"/health/..;/v1/models", b"/health/",
    b"//health", b"/HEALTH", b"/health;x", b"/health.json", b"/health%00", b"/health%20", b"/health%2f", b"/health%3f/v1/models",
    b"http://localhost/v1/models", b"http://localhost//v1/models", b"http://evil.example/v1/models", b"http://localhost/health/x",
    b"http://user@localhost/v1/models", b"//localhost/v1/models", b"/@localhost/v1/models", b"@localhost", b"*", b"/*", b"/.",
    b"/server_info", b"/metrics", b"/flush_cache", b"/\xef\xbc\x8fv1/models", b"/v1\\models", b"/..\\v1\\models",
]  # fmt: skip
RAW_HEADERS = [
    b"", b"X-Original-URL: /health\r\n", b"X-Rewrite-URL: /health\r\n", b"X-HTTP-Method-Override: OPTIONS\r\n",
    b"X-Forwarded-For: 127.0.0.1\r\nX-Real-IP: 127.0.0.1\r\nForwarded: for=127.0.0.1;host=localhost\r\n",
    b"X-Forwarded-Prefix: /health\r\nX-Forwarded-Path: /health\r\n", b"Authorization: Bearer\r\n",
    b"Authorization: Bearer wrong\r\nAuthorization: Bearer user-key-1\r\n", b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
]  # fmt: skip


def raw(server: ServeProcess, target: bytes, headers: bytes = b"", method: bytes = b"GET", host: bytes = b"localhost") -> Any:
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=10)) as client:
        client.sendall(b"%s %s HTTP/1.1\r\nHost: %s\r\n%s\r\n" % (method, target, host, headers + b"Connection: close\r\n"))
        return read_all(client)


def test_t21_h15_raw_paths_are_no_way_around_the_key(guarded: ServeProcess) -> None:
    for target, headers in [*((target, b"") for target in RAW_TARGETS), *((b"/v1/models", one) for one in RAW_HEADERS)]:
        for method in (b"GET", b"POST", b"HEAD", b"OPTIONS"):
            reply = raw(guarded, target, headers, method)
            assert reply.status in (400, 401), (method, target, headers, reply.data)
            assert reply.seconds < 5
            assert b'"data"' not in reply.data
            assert b"ramet:" not in reply.data
    assert raw(guarded, b"/v1/models", b"Authorization: Bearer user-key-1\r\n").status == 200
    assert raw(guarded, b"/health").status == raw(guarded, b"/%68ealth?x").status == 200
    for host in (b"a/?x=", b"evil.example", b"localhost@evil.example", b"127.0.0.1.evil.example", b"localhost/v1"):
        assert raw(guarded, b"/v1/models", b"Authorization: Bearer user-key-1\r\n", host=host).status == 421
        assert raw(guarded, b"/health", host=host).status == 421


# ---- callers among each other


def long_one(name: str, **more: Any) -> dict[str, Any]:
    return {"prompt": f"{name} goes on", "max_tokens": 1500, "ignore_eos": True, "stream": True, "request_id": "same", **more}


@pytest.mark.parametrize("share_cache", [False, True])
def test_t30_nobody_ends_anothers_request(server: Served, share_cache: bool) -> None:
    app = keyed(server, share_cache=share_cache)
    headers = {"x-request-id": "same"}

    async def both() -> None:
        mine = asyncio.create_task(call(app, TEXT, long_one("mine"), headers=headers | bearer(USER)))
        other = {"text": "hi", "rid": "same", "sampling_params": {"max_new_tokens": 1500, "ignore_eos": True}}
        theirs = asyncio.create_task(call(app, "/generate", other, headers=headers | bearer(OTHER)))
        while len(server.services.client.generations) < 2:
            await asyncio.sleep(0.001)
        ids = [generation.request.request_id for generation in server.services.client.generations]
        aborted = await call(app, "/abort_request", {"rid": ids, "request_id": "same"}, headers=bearer(OTHER))
        assert aborted.json() == {"num_aborted": 1}
        assert (await theirs).status == 499
        assert not mine.done()
        denied = await call(app, "/abort_request", {"abort_all": True, "rid": "same"}, headers=bearer(OTHER))
        assert denied.status == 403
        assert (await call(app, "/abort_request", {"rid": "same"}, headers=bearer(ADMIN))).json() == {"num_aborted": 1}
        assert '"code":"aborted"' in (await mine).text

    server.run(both())
    server.until_idle()


def text_of(answer: Called) -> str:
    assert answer.status == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


def test_t30_the_same_ids_are_still_two_requests(server: Served) -> None:
    """At once, with every id that a client may send the same, each has its own answer; and none of them is a cache's key."""
    same = {"request_id": "r", "user": "u", "prompt_cache_key": "k", "safety_identifier": "s", "seed": 3, "max_tokens": 12}
    bodies = [{"prompt": f"number {i} of them", "ignore_eos": True} for i in range(8)]
    alone = [text_of(server.call(TEXT, body | {"seed": 3, "max_tokens": 12})) for body in bodies]

    async def at_once() -> list[Called]:
        headers = {"x-request-id": "r"}
        return await asyncio.gather(*(call(server.app, TEXT, body | same, headers=headers) for body in bodies))

    answers = server.run(at_once())
    assert [text_of(answer) for answer in answers] == alone
    assert len({answer.json()["id"] for answer in answers}) == len(bodies)


@pytest.mark.parametrize("share_cache", [False, True])
def test_t30_no_id_reaches_into_anothers_cache(server: Served, share_cache: bool) -> None:
    app = keyed(server, share_cache=share_cache)
    body = {"prompt": f"{share_cache} beginning " * 9, "max_tokens": 1, "prompt_cache_key": "k", "user": "u", "request_id": "r"}

    def cached(key: str) -> int:
        answer = server.run(call(app, TEXT, body, headers=bearer(key) | {"x-request-id": "r"})).json()
        count: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return count

    assert [cached(USER) > 50, cached(USER) > 50] == [False, True]
    assert (cached(OTHER) > 50) == share_cache


# ---- what is told of the server


_PRYING = (None, {"model": "/etc/passwd"}, {"model": "../../etc/passwd", "messages": [], "prompt": "a", "text": "a"})


def test_t34_no_endpoint_tells_secrets_paths_or_the_environment(guarded: ServeProcess) -> None:
    model = str(guarded.log.parent)
    told = []
    asked = [*paths(), "/openapi.json", "/docs", "/redoc", "/env", "/debug", "/config", "/.env", "/v1/files", "/start_profile"]
    for path in asked:
        for method in ("GET", "POST"):
            told += [guarded.ask(path, body, method=method, headers=bearer(ADMIN))[2].decode() for body in _PRYING]
    for path in ("/v1/models//etc/passwd", "/v1/models/..%2f..%2fetc%2fpasswd", "/v1/models/~root", "/v1/models/a%00b"):
        status, _, body = guarded.ask(path, headers=bearer(USER))
        assert status == 404
        told.append(body.decode())
    for text in told:
        for word in (SECRET, USER, ADMIN, "SOME_API_KEY", "root:", model, os.path.expanduser("~") + "/", "/proc/"):
            assert word not in text, text[:500]
    info = guarded.info(**bearer(ADMIN))
    assert (info["config"]["has_api_key"], info["config"]["has_admin_api_key"]) == (True, True)
    assert not {"api_key", "admin_api_key", "api_key_file", "env"} & set(info["config"])
    assert guarded.ask("/openapi.json", headers=bearer(USER))[0] == 404


# ---- the world outside


def _saying(part: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [part]}]} | more


_URL, _HI = {"url": "@"}, [{"role": "user", "content": "a"}]
FETCHES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", _saying({"type": "image_url", "image_url": _URL})),
    ("/v1/chat/completions", _saying({"type": "video_url", "video_url": _URL})),
    ("/v1/chat/completions", _saying({"type": "input_audio", "input_audio": {"data": "@"}})),
    ("/v1/chat/completions", _saying({"type": "file", "file": {"file_url": "@"}})),
    ("/v1/chat/completions", {"messages": _HI, "audio": _URL}),
    ("/v1/chat/completions", {"messages": _HI, "chat_template": "@"}),
    ("/v1/chat/completions", {"messages": _HI, "model": "@"}),
    ("/v1/chat/completions", {"messages": _HI, "guided_json": {"$ref": "@"}}),
    ("/v1/completions", {"prompt": "a", "model": "@"}),
    ("/v1/completions", {"prompt": "a", "guided_json": {"$ref": "@#/x"}}),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "@"}]}]}),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "@"}]}]}),
    ("/v1/responses", {"input": "a", "tools": [{"type": "mcp", "server_url": "@", "server_label": "x"}]}),
    ("/v1/responses", {"input": "a", "tools": [{"type": "web_search"}]}),
    ("/v1/responses", {"input": "a", "previous_response_id": "@"}),
    ("/v1/responses", {"input": "a", "prompt": {"id": "@"}}),
    ("/v1/messages", _saying({"type": "image", "source": _URL}, max_tokens=1)),
    ("/v1/messages", _saying({"type": "document", "source": _URL}, max_tokens=1)),
    ("/v1/messages", {"messages": _HI, "max_tokens": 1, "tools": [{"name": "f", "type": "web_fetch"}]}),
    ("/v1/messages/count_tokens", _saying({"type": "image", "source": _URL})),
    ("/generate", {"text": "a", "image_data": "@"}),
    ("/generate", {"text": "a", "video_data": ["@"]}),
    ("/generate", {"text": "a", "lora_path": "@"}),
    ("/generate", {"text": "a", "custom_logit_processor": "@"}),
    ("/tokenize", {"prompt": "a", "model": "@"}),
    ("/tokenize", _saying({"type": "image_url", "image_url": _URL})),
]
IGNORED = [
    {"webhook_url": "@", "callback": "@"},
    {"bootstrap_host": "@", "kv_transfer_params": {"remote_host": "@", "remote_port": 1}},
    {"user": "@", "prompt_cache_key": "@", "safety_identifier": "@", "request_id": "@"},
]


def outbound(server: ServeProcess) -> list[str]:
    """TCP connections of the server and its engine, and of whatever they started, that are not to the server's own port."""
    found = []
    for pid in (server.pid, server.engine_pid):
        links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()]
        inodes = {match[1] for link in links if (match := re.fullmatch(r"socket:\[(\d+)\]", link))}
        for table in ("tcp", "tcp6", "udp", "udp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[9] in inodes and not fields[1].endswith(f":{server.port:04X}"):
                    found.append(line)
    return found


def test_t19_nothing_is_fetched_for_a_client(guarded: ServeProcess) -> None:
    with socket.socket() as canary:
        canary.bind(("127.0.0.1", 0))
        canary.listen()
        canary.setblocking(False)
        for url in (f"http://127.0.0.1:{canary.getsockname()[1]}/x.png", "file:///etc/passwd", "http://192.0.2.1/x.png"):
            for path, body in FETCHES:
                answer = guarded.ask(path, json.dumps(body).replace("@", url).encode(), headers=bearer(USER))
                assert answer[0] in (400, 404), (path, body, answer)
                assert b"root:" not in answer[2]
            for fields in IGNORED:
                for endpoint in ENDPOINTS[:4]:
                    body = json.dumps(endpoint.good | fields).replace("@", url[:250]).encode()
                    named = {"x-request-id": url, "x-bootstrap-host": url, "x-callback-url": url}
                    assert guarded.ask(endpoint.path, body, headers=bearer(USER) | named)[0] == 200
            assert outbound(guarded) == []
        time.sleep(0.05)
        with pytest.raises(BlockingIOError):
            canary.accept()
