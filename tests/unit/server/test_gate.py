"""Who is let in, and how everybody else is told: ids, hosts, origins, keys, bodies, drains."""

from __future__ import annotations

import ast
import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from ramet.config import ServerConfig
from ramet.errors import EngineDead, InvalidRequest, Overloaded, RequestFailed
from ramet.server import gate as gate_module
from ramet.server.gate import Caller, Gate, Keys, body_of, caller_of, request_id_of

LOCAL = {"host": "127.0.0.1:8000"}


@dataclass
class Answer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def error(self) -> dict[str, Any]:
        return json.loads(self.body)["error"]


class Site:
    """A gate over an app that tells what it was let see, or raises what it is given."""

    def __init__(
        self, keys: Iterable[str] = (), admin: str | None = None, raises: Exception | None = None, **config: Any
    ) -> None:
        share = config.get("share_cache", False)
        self.ended: list[tuple[str, int]] = []
        keys_ = Keys(keys, admin, share_cache=share)
        self.gate = Gate(self._app, ServerConfig(**config), keys_, self._on_end)
        self._raises = raises
        self.seen: list[tuple[Caller, str, bytes]] = []

    def _on_end(self, scope: Scope, status: int, seconds: float) -> None:
        assert seconds >= 0
        self.ended.append((request_id_of(scope), status))

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._raises is not None:
            raise self._raises
        self.seen.append((caller_of(scope), request_id_of(scope), body_of(scope)))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    def ask(
        self,
        path: str = "/v1/models",
        method: str = "GET",
        headers: dict[str, str] | None = None,
        body: bytes | list[bytes] = b"",
        peer: str | None = "127.0.0.1",
    ) -> Answer:
        answer = Answer()
        pieces = [body] if isinstance(body, bytes) else list(body)

        async def receive() -> dict[str, Any]:
            if not pieces:
                return {"type": "http.disconnect"}
            piece = pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                answer.body += message.get("body", b"")

        given = {**LOCAL, **(headers or {})}
        scope = {
            "type": "http",
            "path": path,
            "method": method,
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in given.items()],
            "client": None if peer is None else (peer, 1234),
        }
        asyncio.run(self.gate(scope, receive, send))  # type: ignore[arg-type]
        return answer

    def post(self, path: str = "/v1/completions", body: bytes | list[bytes] = b"{}", **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask(path, "POST", {"content-type": "application/json", **named}, body)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


# ---- ids


def test_every_answer_has_an_id_and_each_request_its_own() -> None:
    site = Site()
    ids = {site.ask().headers["x-request-id"] for _ in range(3)} | {
        site.ask("/v1/models", headers={"host": "evil"}).headers["x-request-id"]
    }
    assert len(ids) == 4


@pytest.mark.parametrize("given", ["abc-1", "A.b_c", "x" * 128])
def test_t20_a_sound_id_is_echoed(given: str) -> None:
    assert Site().ask(headers={"x-request-id": given}).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", "host:80", "a\r\nset-cookie: x=1", "é", "x" * 10**6, "../x"])
def test_t20_an_odd_id_is_replaced(given: str) -> None:
    answer = Site().ask(headers={"x-request-id": given})
    assert answer.status == 200
    assert answer.headers["x-request-id"].startswith("req-")


# ---- hosts and origins


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:8000", "[::1]", "[::1]:8000"])
def test_t25_names_of_this_machine_are_taken(host: str) -> None:
    assert Site().ask(headers={"host": host}).status == 200


@pytest.mark.parametrize(
    "host", ["", "evil.example", "127.0.0.1.evil.example", "localhost.evil", "a/?x=", "169.254.1.1", "[::2]:80"]
)
def test_t25_other_hosts_are_misdirected(host: str) -> None:
    site = Site()
    answer = site.ask(headers={"host": host, "x-forwarded-host": "localhost"})
    assert (answer.status, site.seen) == (421, [])
    assert "--allowed-hosts" in answer.error["message"]


def test_t25_hosts_that_were_named_are_taken() -> None:
    site = Site(allowed_hosts=("llm.example",))
    assert site.ask(headers={"host": "llm.example:443"}).status == 200
    assert site.ask(headers={"host": "other.example"}).status == 421
    assert Site(allowed_hosts=("*",)).ask(headers={"host": "any.example"}).status == 200


def test_t26_pages_of_other_sites_change_nothing_and_get_no_cors_header() -> None:
    site = Site()
    answer = site.post(origin="https://evil.example")
    assert (answer.status, site.seen) == (403, [])
    assert site.post(origin="null").status == 403
    assert site.post(origin="http://localhost:3000").status == 200
    reading = site.ask(headers={"origin": "https://evil.example"})
    assert not any(name.startswith("access-control") for name in {**answer.headers, **reading.headers})


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""])
def test_t26_bodies_that_are_not_called_json_are_refused(kind: str) -> None:
    assert Site().ask("/v1/completions", "POST", {"content-type": kind}, b"{}").status == 415


def test_json_may_name_its_charset_and_an_empty_body_needs_no_type() -> None:
    site = Site()
    assert site.ask("/x", "POST", {"content-type": "Application/JSON; charset=utf-8"}, b"{}").status == 200
    assert site.ask("/flush_cache", "POST").status == 200


# ---- bodies


def test_t15_a_body_over_the_limit_is_413_told_or_not() -> None:
    site = Site(max_body_size=100)
    assert site.post(body=b"x" * 100).status == 200
    assert site.post(content_length="101").status == 413
    assert site.post(content_length="9" * 5000).status == 413
    for odd in ("-1", "+5", "\xb2", "5 5", ""):
        assert site.post(content_length=odd).status == 413
    assert site.post(body=[b"x" * 60, b"x" * 60]).status == 413
    assert len(site.seen) == 1


def test_t15_coded_bodies_are_415() -> None:
    assert Site().post(content_encoding="gzip").status == 415
    assert Site().post(content_encoding="identity").status == 200


def test_pieces_of_a_body_are_put_together() -> None:
    site = Site()
    site.post(body=[b'{"a":', b"1}"])
    assert site.seen[0][2] == b'{"a":1}'


# ---- keys


def test_no_keys_no_questions() -> None:
    site = Site()
    site.ask()
    assert site.seen[0][0] == Caller("", is_admin=True)
    site.ask(peer="203.0.113.7")
    assert site.seen[1][0] == Caller("", is_admin=False)


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize(
    "path",
    ["/v1/models", "/v1/chat/completions", "//v1/models", "/V1/models", "/v1/models/", "/v1/..;/health", "/v1/%2e", "/nothing",
     "@h", "", "/health/", "/health/x", "//health", "/HEALTH", "/metrics", "/docs"],
)  # fmt: skip
def test_t21_t24_without_a_key_every_path_and_method_is_401(path: str, method: str) -> None:
    site = Site(keys=["k1"])
    answer = site.ask(path, method)
    assert (answer.status, site.seen) == (401, [])
    assert answer.headers["www-authenticate"] == "Bearer"


def test_t21_only_health_and_the_front_door_are_open() -> None:
    site = Site(keys=["k1"])
    assert site.ask("/health").status == site.ask("/").status == 200


@pytest.mark.parametrize("headers", [bearer("k2"), {"authorization": "bearer k2"}, {"x-api-key": "k2"}])
def test_any_of_several_keys_opens(headers: dict[str, str]) -> None:
    site = Site(keys=["k1", "k2", "k3"])
    assert site.ask(headers=headers).status == 200


@pytest.mark.parametrize(
    "headers",
    [bearer("k"), bearer("k22"), bearer(""), bearer("K2"), {"authorization": "Basic k2"}, {"authorization": "k2"}, bearer("k2 x"),
     {"x-api-key": "k\xe92"}],
)  # fmt: skip
def test_no_other_key_opens(headers: dict[str, str]) -> None:
    answer = Site(keys=["k1", "k2"]).ask(headers=headers)
    assert answer.status == 401
    assert "k2" not in answer.body.decode().replace("invalid_api_key", "")


def test_tenants_are_told_apart_by_key_unless_the_cache_is_shared() -> None:
    site = Site(keys=["k1", "k2"])
    for key in ("k1", "k2", "k1"):
        site.ask(headers=bearer(key))
    one, two, again = (caller.tenant for caller, _, _ in site.seen)
    assert one == again
    assert one != two
    assert "k1" not in one
    shared = Site(keys=["k1", "k2"], share_cache=True)
    for key in ("k1", "k2"):
        shared.ask(headers=bearer(key))
    assert {caller.tenant for caller, _, _ in shared.seen} == {""}


@pytest.mark.parametrize("path", ["/flush_cache", "/server_info"])
def test_t23_admin_paths_need_the_admin_key(path: str) -> None:
    site = Site(keys=["k1"], admin="root")
    assert site.ask(path).status == 401
    assert site.ask(path, headers=bearer("k1")).status == 403
    assert site.ask(path, headers=bearer("root")).status == 200
    assert site.seen[0][0].is_admin
    assert site.ask("/v1/models", headers=bearer("root")).status == 200


def test_t23_without_an_admin_key_they_exist_on_this_machine_only() -> None:
    open_site = Site()
    assert open_site.ask("/server_info").status == 200
    assert open_site.ask("/server_info", peer="203.0.113.7").status == 403
    assert open_site.ask("/server_info", peer=None).status == 403
    keyed = Site(keys=["k1"])
    assert keyed.ask("/server_info").status == 401
    assert keyed.ask("/server_info", headers=bearer("k1")).status == 200
    assert keyed.ask("/server_info", headers=bearer("k1"), peer="203.0.113.7").status == 403
    assert Site(admin="root").ask("/server_info").status == 401
    abroad = Site(keys=["k1"], host="0.0.0.0", allow_unauthenticated=True)
    assert abroad.ask("/server_info", headers=bearer("k1")).status == 403, "behind a proxy everyone has a local address"


def test_t22_keys_are_compared_as_digests_in_constant_time_and_all_of_them() -> None:
    tree = ast.parse(Path(gate_module.__file__).read_text("utf-8"))
    (caller,) = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "caller")
    loops = [node for node in ast.walk(caller) if isinstance(node, ast.For)]
    assert "compare_digest" in ast.unparse(loops[0])
    assert not any(isinstance(node, ast.Break | ast.Return) for node in ast.walk(loops[0]))
    assert not any(isinstance(node, ast.Eq | ast.In) for node in ast.walk(caller))


# ---- errors


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InvalidRequest("top_p is wrong", "top_p"), 400, "invalid_value"),
        (Overloaded("full"), 429, "queue_full"),
        (EngineDead("gone"), 503, "engine_restarted"),
        (HTTPException(405), 405, None),
        (RequestFailed("a secret /path 0x1234"), 500, "request_failed"),
        (ValueError("a secret /path 0x1234"), 500, "internal_error"),
    ],
)
def test_t35_errors_are_told_in_words_of_ours(
    error: Exception, status: int, code: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    for path in ("/v1/completions", "/v1/messages", "/v1/responses", "/generate"):
        answer = Site(raises=error).post(path)
        assert answer.status == status
        told = answer.body.decode()
        assert not any(word in told for word in ("secret", "0x", "Traceback", "Error("))
        if path == "/v1/messages":
            assert json.loads(told)["type"] == "error"
            assert set(answer.error) == {"type", "message"}
        else:
            assert set(answer.error) == {"message", "type", "param", "code"}
            assert answer.error["code"] == code
        assert ("retry-after" in answer.headers) == (status in (429, 503))
        if status == 500:
            assert answer.headers["x-request-id"] in told
    assert (len(caplog.records) > 0) == (status >= 500)


def test_a_stopping_server_refuses_what_is_new_and_still_tells_its_health() -> None:
    site = Site()
    site.gate.is_draining = True
    answer = site.post()
    assert answer.status == 503
    assert answer.error["code"] == "draining"
    assert "retry-after" in answer.headers
    assert site.ask("/health").status == 200
    assert site.gate.num_running == 0
    assert [status for _, status in site.ended] == [503, 200]
