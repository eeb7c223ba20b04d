"""A small server that plays the Hugging Face hub, with the faults that are asked of it."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

__all__ = ["COMMIT", "Asked", "HubServer", "hub_server"]

COMMIT = "c0ffee" + "0" * 34


class Asked:
    """One request: its path, its Range and Authorization headers, and the answer's status."""

    def __init__(self, path: str, range_: str | None, authorization: str | None) -> None:
        self.path, self.range, self.authorization = path, range_, authorization
        self.status = 0


class HubServer:
    """A repository ``org/m`` of ``files``. ``trouble`` may answer a request in another way, and returns whether it did.

    ``large`` names files that are listed by SHA-256, as those in LFS are. ``lie`` replaces what the list says of a file.
    """

    def __init__(self, files: dict[str, bytes], large: set[str]) -> None:
        self.files, self.large = files, large
        self.asked: list[Asked] = []
        self.lie: dict[str, dict[str, Any]] = {}
        self.trouble: Callable[[_Handler, str], bool] = lambda handler, path: False
        self.url = ""

    def listing(self) -> dict[str, Any]:
        siblings = []
        for name, data in self.files.items():
            one: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": git_sha1(data)}
            if name in self.large:
                one["lfs"] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "pointerSize": 130}
            siblings.append(one | self.lie.get(name, {}))
        return {"id": "org/m", "sha": COMMIT, "siblings": siblings, "private": False, "downloads": 0, "likes": 0, "tags": []}

    def fetched(self) -> list[str]:
        """Names of the files that were asked for, in order."""
        return [one.path.split(f"/resolve/{COMMIT}/")[1] for one in self.asked if "/resolve/" in one.path]


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        self.note = Asked(path, self.headers.get("range"), self.headers.get("authorization"))
        self.hub.asked.append(self.note)
        if self.hub.trouble(self, path):
            return
        if path in ("/api/models/org/m/revision/main", f"/api/models/org/m/revision/{COMMIT}"):
            self.answer(200, json.dumps(self.hub.listing()).encode(), {"content-type": "application/json"})
        elif path.startswith(f"/org/m/resolve/{COMMIT}/") and path.rsplit(f"{COMMIT}/")[1] in self.hub.files:
            self.send_file(self.hub.files[path.rsplit(f"{COMMIT}/")[1]])
        elif path.startswith("/api/models/org/m/"):
            self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        else:
            self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})

    def send_file(self, data: bytes, *, cut: int | None = None) -> None:
        """All of it, or from the byte that is asked for; ``cut``: so many bytes, and then the connection breaks off."""
        start = int(self.note.range.removeprefix("bytes=").rstrip("-")) if self.note.range else 0
        headers = {"content-range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if self.note.range else {}
        self.answer(206 if self.note.range else 200, data[start:], headers, cut=cut)

    def answer(self, status: int, body: bytes, headers: dict[str, str], *, cut: int | None = None) -> None:
        self.note.status = status
        self.send_response(status)
        for name, value in {"content-length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(2)

    def log_message(self, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Connections are broken off on purpose."""


@contextmanager
def hub_server(files: dict[str, bytes], large: set[str] = frozenset()) -> Iterator[HubServer]:  # type: ignore[assignment]
    """A running one; ``url`` is where."""
    hub = HubServer(files, large)
    handler = type("Handler", (_Handler,), {"hub": hub})
    with _Server(("127.0.0.1", 0), handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
