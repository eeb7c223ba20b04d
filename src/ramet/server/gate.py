"""What every request passes before its endpoint: it gets an id, and is refused by its host, origin, key, type, size or time.

Default is to refuse: a path that is not open to all needs a key where there are keys, whether anything is served there or not.
Only ``scope["path"]`` decides, which is what routes the request too; no header does.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ramet.config import ServerConfig
from ramet.server.errors import ApiError, dialect_of, error_response, log_failure, problem_of

__all__ = ["Caller", "Gate", "Keys", "OnEnd", "body_of", "caller_of", "is_draining", "request_id_of"]

_OPEN_PATHS = frozenset({"/health", "/"})
_ADMIN_PATHS = frozenset({"/flush_cache", "/server_info", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"})
_CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_TENANT_CHARS = 16


OnEnd = Callable[[Scope, int, float], None]


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose request it is. ``tenant``, who share a cache, is "" where there are no keys or all share one; ``owner``, whose
    requests are his alone to abort, is "" only where there are no keys.
    """

    tenant: str
    is_admin: bool
    owner: str = ""


class Keys:
    """The keys in force, as digests. All are compared each time, in constant time."""

    def __init__(self, user_keys: Iterable[str], admin_key: str | None, *, share_cache: bool) -> None:
        users = [(_digest(key), False) for key in user_keys]
        self._known = users + ([(_digest(admin_key), True)] if admin_key else [])
        self._share_cache = share_cache
        self.has_users = bool(users)
        self.has_admin = admin_key is not None

    def caller(self, key: str | None) -> Caller | None:
        """Whose key it is; None for nobody's."""
        digest = _digest(key or "")
        found: Caller | None = None
        for known, is_admin in self._known:
            if hmac.compare_digest(known, digest):
                owner = known.hex()[:_TENANT_CHARS]
                found = Caller("" if self._share_cache else owner, is_admin, owner)
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


class Gate:
    """An ASGI app in front of the router. ``is_draining`` refuses what is new; /health still answers.

    ``on_end`` is told of each request that is done: its scope, its status (0 where nobody was there for an answer), its seconds.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig, keys: Keys, on_end: OnEnd) -> None:
        self._app = app
        self._keys = keys
        self._on_end = on_end
        self._max_body_bytes = int(config.max_body_size)
        self._is_local = config.is_local
        self._hosts = _LOOPBACK_NAMES | {_bare_host(config.host), *map(_bare_host, config.allowed_hosts)}
        self._any_host = "*" in config.allowed_hosts or (config.host in ("0.0.0.0", "::") and not config.allowed_hosts)
        self.is_draining = False
        self.num_running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path, method = scope["path"], scope["method"]
        headers = _Headers(scope)
        scope["ramet.request_id"] = request_id = _request_id(headers.get("x-request-id"))
        scope["ramet.is_draining"] = self.is_draining
        began_s = time.monotonic()
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        self.num_running += 1
        try:
            self._check_host(headers, method)
            scope["ramet.caller"] = self._caller(scope, headers)
            if self.is_draining and path not in _OPEN_PATHS:
                raise ApiError(503, "the server is stopping; send the request to another, or again in a moment", code="draining")
            scope["ramet.body"] = await self._body(headers, method, receive)
            await self._app(scope, receive, answer)
        except Exception as error:
            problem = problem_of(error, request_id)
            log_failure(error, problem, request_id)
            if status:
                return  # uvicorn closes the connection, so that the client sees the answer is not whole
            await error_response(problem, dialect_of(path), request_id)(scope, receive, answer)
        finally:
            self.num_running -= 1
            self._on_end(scope, status, time.monotonic() - began_s)

    def _check_host(self, headers: _Headers, method: str) -> None:
        """A page of another site that has this machine's name by DNS, or posts to it blindly, is not a client (T25, T26)."""
        host = headers.get("host")
        if not self._any_host and _bare_host(host or "") not in self._hosts:
            raise ApiError(421, "this Host is not one of the server's; name it with --allowed-hosts", code="host")
        origin = headers.get("origin")
        if origin is not None and method in _CHANGING and _bare_host(origin.partition("://")[2]) not in self._hosts:
            raise ApiError(403, "requests from pages of other sites are refused; see --allowed-hosts", code="origin")

    def _caller(self, scope: Scope, headers: _Headers) -> Caller:
        path = scope["path"]
        given = headers.get("authorization") or ""
        scheme, _, token = given.partition(" ")
        key = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key")
        caller = self._keys.caller(key)
        if path in _ADMIN_PATHS:
            return self._admin(scope, caller)
        if caller is None and self._keys.has_users and path not in _OPEN_PATHS:
            raise ApiError(
                401,
                "no key of this server's was sent; send one as `Authorization: Bearer KEY` or `x-api-key: KEY`",
                code="invalid_api_key",
            )
        has_keys = self._keys.has_users or self._keys.has_admin
        return caller or Caller("", is_admin=not has_keys and self._is_among_friends(scope))

    def _admin(self, scope: Scope, caller: Caller | None) -> Caller:
        """T23: with an admin key, that key; without one, whoever may ask where the server listens on this machine alone."""
        if caller is None and (self._keys.has_users or self._keys.has_admin):
            raise ApiError(401, "the admin key is needed: send it as `Authorization: Bearer KEY`", code="invalid_api_key")
        if caller is not None and caller.is_admin:
            return caller
        if self._keys.has_admin or not self._is_among_friends(scope):
            raise ApiError(403, "this needs the admin key (--admin-api-key)", code="admin")
        return Caller("", is_admin=True) if caller is None else replace(caller, is_admin=True)

    def _is_among_friends(self, scope: Scope) -> bool:
        """The caller's address alone would not do: behind a proxy on this machine everyone has its address."""
        return self._is_local and _is_loopback(scope)

    async def _body(self, headers: _Headers, method: str, receive: Receive) -> bytes:
        """The whole body, within its limit. Types and codings that no client of ours sends are refused (T26)."""
        if method not in _CHANGING:
            return b""
        limit = self._max_body_bytes
        length = headers.get("content-length")
        if length is not None and not (length.isascii() and length.isdigit() and int(length[:20]) <= limit):
            raise _too_large(limit)
        if headers.get("content-encoding", "identity").lower() != "identity":  # type: ignore[union-attr]
            raise ApiError(415, "bodies are taken as they are: send no Content-Encoding", code="content_encoding")
        pieces: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ApiError(400, "the connection ended before the body did")
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            if size > limit:
                raise _too_large(limit)
            if not message.get("more_body", False):
                break
        kind = (headers.get("content-type") or "").partition(";")[0].strip().lower()
        if size and kind != "application/json":
            raise ApiError(415, "bodies are JSON: send `Content-Type: application/json`", code="content_type")
        return b"".join(pieces)


class _Headers:
    """Headers by lower-case name; of one that comes twice the first counts, for keys as for sizes."""

    def __init__(self, scope: Scope) -> None:
        self._by_name: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            self._by_name.setdefault(name, value)

    def get(self, name: str, default: str | None = None) -> str | None:
        value = self._by_name.get(name.encode())
        return default if value is None else value.decode("latin-1")


def caller_of(scope: Scope) -> Caller:
    """Whose request it is."""
    caller: Caller = scope["ramet.caller"]
    return caller


def request_id_of(scope: Scope) -> str:
    """The request's id in logs and in ``x-request-id``: the client's own where it is a sound one. Never a key to anything."""
    request_id: str = scope["ramet.request_id"]
    return request_id


def is_draining(scope: Scope) -> bool:
    """Whether the server was stopping when the request came."""
    draining: bool = scope["ramet.is_draining"]
    return draining


def body_of(scope: Scope) -> bytes:
    """The request's whole body."""
    body: bytes = scope["ramet.body"]
    return body


def _request_id(given: str | None) -> str:
    return given if given is not None and _REQUEST_ID.fullmatch(given) else f"req-{uuid.uuid4().hex}"


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is over {limit:,} bytes; send less, or start the server with a larger --max-body-size")


def _bare_host(host: str) -> str:
    """Lower case, without the port."""
    name = host.strip().lower()
    if name.startswith("["):
        return name.partition("]")[0] + "]"
    return f"[{name}]" if name.count(":") > 1 else name.partition(":")[0]


def _is_loopback(scope: Scope) -> bool:
    client = scope.get("client")
    try:
        return client is not None and ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False
