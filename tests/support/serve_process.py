"""``ramet serve`` as a user starts it: a process, its port, its output."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

START_S = 60.0


def free_port() -> int:
    with closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def plain_environment() -> dict[str, str]:
    """This process's, without what would be options of the server."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RAMET_") or name == "RAMET_CACHE"}


class ServeProcess:
    """A server that was started. ``log`` has what it wrote to both outputs."""

    def __init__(self, model: Path | None, log: Path, *flags: str, env: Mapping[str, str] | None = None) -> None:
        self.port = free_port()
        self.log = log
        command = [sys.executable, "-m", "ramet", "serve", *([str(model)] if model else []), "--port", str(self.port), *flags]
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env={**plain_environment(), **(env or {})}
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def engine_pid(self) -> int:
        (child,) = children(self.pid)
        return child

    def ask(
        self,
        path: str,
        body: Any = None,
        *,
        method: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 60,
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers by lower-case name, body."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)) as connection:
            content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            named = {**({"content-type": "application/json"} if body is not None else {}), **(headers or {})}
            connection.request(method or ("GET" if body is None else "POST"), path, content, named)
            response = connection.getresponse()
            return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()

    def health(self) -> int | None:
        """The status of /health; None where nobody answers."""
        try:
            return self.ask("/health", timeout=5)[0]
        except OSError:
            return None

    def until_healthy(self, limit_s: float = START_S) -> float:
        """Seconds until /health says 200."""
        began = time.monotonic()
        while self.health() != 200:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.log.read_text()}")
            assert time.monotonic() - began < limit_s, self.log.read_text()
            time.sleep(0.02)
        return time.monotonic() - began

    def kill_engine(self) -> None:
        """SIGKILL, and wait until another engine is ready."""
        engine = self.engine_pid
        os.kill(engine, signal.SIGKILL)
        began = time.monotonic()
        while children(self.pid) in ([engine], []) or self.health() != 200:
            assert time.monotonic() - began < START_S, self.log.read_text()
            time.sleep(0.02)

    def open_stream(self, body: Mapping[str, Any], path: str = "/v1/completions") -> socket.socket:
        """Send a request and give the socket, unread."""
        content = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        sock.sendall(head.encode() + content)
        return sock

    def info(self, **headers: str) -> dict[str, Any]:
        """/server_info."""
        found: dict[str, Any] = json.loads(self.ask("/server_info", headers=headers)[2])
        return found

    def until_idle(self, limit_s: float = 20) -> dict[str, float]:
        """Wait until nothing runs or waits; gives the metrics then."""
        began = time.monotonic()
        while True:
            found = self.metrics()
            if found["ramet:running_sequences"] == found["ramet:waiting_sequences"] == 0:
                return found
            assert time.monotonic() - began < limit_s, found
            time.sleep(0.05)

    def metrics(self) -> dict[str, float]:
        """Samples of /metrics by name and labels."""
        lines = self.ask("/metrics")[2].decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def stop(self) -> int:
        """Ask it to stop; its exit code. Killed where it does not."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(40)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@contextmanager
def serving(model: Path | None, log: Path, *flags: str, env: Mapping[str, str] | None = None) -> Iterator[ServeProcess]:
    """A server that is ready; ended in the end, and with it its engine."""
    server = ServeProcess(model, log, *flags, env=env)
    try:
        server.until_healthy()
        yield server
    finally:
        left = children(server.pid)
        server.process.kill()
        server.process.wait()
        began = time.monotonic()
        while any(is_running(pid) for pid in left):
            assert time.monotonic() - began < 10, "the engine outlived its server"
            time.sleep(0.01)


def children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def read_until_end(sock: socket.socket, limit_s: float = 60) -> bytes:
    """All that comes until the answer's last piece or the connection's end."""
    sock.settimeout(limit_s)
    data = b""
    try:
        while not data.endswith(b"0\r\n\r\n") and (piece := sock.recv(65536)):
            data += piece
    except ConnectionResetError:
        pass
    return data
