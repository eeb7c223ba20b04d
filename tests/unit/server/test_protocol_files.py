"""H10: more connections than the process may open files."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time

import pytest
from support.edge_server import GOOD, connect, eventually, read_all, read_until

pytest.importorskip("resource", reason="limits of open files are set by `resource`, which this platform lacks")

HOST = b"Host: localhost\r\n"
NUM_CLIENTS = 400
SERVER = """
import resource, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
from ramet.server.connections import HttpLimits
from support.edge_server import serving
with serving(HttpLimits(max_connections=int(sys.argv[1]) or None)) as edge:
    print(edge.port, flush=True)
    for _ in sys.stdin:
        try:
            open("/dev/null").close()
            is_room = True
        except OSError:
            is_room = False
        print(time.process_time(), is_room, edge.app.num_running, flush=True)
"""


class Child:
    """The server in a process of its own that may open 128 files."""

    def __init__(self, process, port):
        self.process = process
        self.port = port

    def state(self):
        """CPU seconds so far, whether a file can be opened, requests running."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        cpu, is_room, running = self.process.stdout.readline().split()
        return float(cpu), is_room == "True", int(running)

    def good(self):
        with connect(self.port) as client:
            client.sendall(GOOD)
            return read_all(client).status


@contextlib.contextmanager
def child(max_connections):
    command = [sys.executable, "-c", SERVER, str(max_connections)]
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
        try:
            yield Child(process, int(process.stdout.readline()))
        finally:
            process.kill()


def is_calm(server) -> bool:
    """Whether it takes under a fifth of a core for half a second; a crowd that has just come keeps it busy for a moment."""
    before, start = server.state(), time.monotonic()
    time.sleep(0.5)
    return server.state()[0] - before[0] < 0.2 * (time.monotonic() - start)


@pytest.mark.parametrize(
    ("max_connections", "request_", "has_room"),
    [
        (0, b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n", True),
        (0, b"", True),
        (1000, b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n", False),  # a limit that is none
    ],
    ids=["busy", "silent", "unlimited"],
)
def test_a_server_outlives_more_clients_than_it_may_have_files(max_connections, request_, has_room):
    with child(max_connections) as server, contextlib.ExitStack() as clients:
        streams = [clients.enter_context(connect(server.port)) for _ in range(8)]
        for stream in streams:
            stream.sendall(b"GET /count HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
            read_until(stream, b"\r\n\r\n")
        crowd = []
        for _ in range(NUM_CLIENTS):
            client = clients.enter_context(connect(server.port))
            crowd.append(client)
            with contextlib.suppress(ConnectionError):
                client.sendall(request_)
        assert eventually(lambda: server.state()[1] == has_room)
        assert any(is_calm(server) for _ in range(10)), "it spins"
        assert all(b"\r\n19 \r\n" in read_all(stream).data for stream in streams)
        for client in crowd:
            client.close()
        assert eventually(lambda: server.state()[2] == 0)
        assert [server.good() for _ in range(3)] == [200] * 3
        assert server.state()[1:] == (True, 0)
