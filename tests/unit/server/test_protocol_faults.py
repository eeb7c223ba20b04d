"""H6, H7 and H8 in full size and with the real deadlines: two minutes, for `make fault`."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time

import pytest
from support.edge_server import GOOD, connect, eventually, read_all, serving

pytestmark = pytest.mark.skipif(os.environ.get("RAMET_FAULT") != "full", reason="minutes long: set RAMET_FAULT=full")

HOST = b"Host: localhost\r\n"
CLIENTS_ELSEWHERE = """
import select, socket, sys
clients = []
for number in range(100):
    client = socket.create_connection(("203.0.113.1", int(sys.argv[1])))
    client.sendall(b"GET /%s HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n" % (b"stream", b"wait")[number % 2])
    clients.append(client)
print("up", flush=True)
while True:
    for client in select.select(clients, [], [], 0.1)[0]:
        client.recv(65536)
"""


def test_slow_clients_in_full_size():
    """H6: 500 dribble headers, 200 a body, 100 nothing; meanwhile others are served as ever."""
    starts = (
        [b"GET /echo HTTP/1.1\r\n"] * 500
        + [b"POST /echo HTTP/1.1\r\n" + HOST + b"Content-Length: 99\r\n\r\n"] * 200
        + [b""] * 100
    )
    with serving() as edge, contextlib.ExitStack() as clients:
        quiet = [edge.ask(GOOD).seconds for _ in range(50)]
        slow = []
        for start in starts:
            slow.append(clients.enter_context(edge.connect()))
            slow[-1].sendall(start)
        is_over = threading.Event()

        def dribble():
            while not is_over.wait(5):
                for client in slow[:700]:
                    with contextlib.suppress(OSError):
                        client.sendall(b"x")

        thread = threading.Thread(target=dribble)
        thread.start()
        start, waits, left = time.monotonic(), [], {}
        while time.monotonic() < start + 65:
            waits.append(edge.ask(GOOD).seconds)
            time.sleep(0.05)
            left[int(time.monotonic() - start)] = len(edge.protocol.shared.served)
        is_over.set()
        thread.join()
        assert left[9] >= 800
        assert left[14] <= 201
        assert left[59] >= 200
        assert left[64] <= 1
        assert sorted(waits)[len(waits) * 99 // 100] < max(sorted(quiet)[-1] * 1.5, 0.02)


def test_slow_readers_in_full_size():
    """H7: 100 streams whose clients do not read."""
    with serving() as edge, contextlib.ExitStack() as clients:
        start = time.monotonic()
        for _ in range(100):
            client = clients.enter_context(connect(edge.port, receive_buffer=4096))
            client.sendall(b"GET /stream HTTP/1.1\r\n" + HOST + b"\r\n")
        largest = 0
        while edge.app.num_left < 100 and time.monotonic() < start + 40:
            buffers = [connection._wire.get_write_buffer_size() for connection in list(edge.protocol.shared.served)]
            largest = max([largest, *buffers])
            time.sleep(0.2)
        assert edge.app.num_left == 100
        assert edge.app.num_running == 0
        assert time.monotonic() < start + 32
        assert 0 < largest <= 65536


@contextlib.contextmanager
def elsewhere():
    """A network namespace at the end of a cable to 203.0.113.1."""
    space = f"ramet{os.getpid()}"
    ends = f"{space}a", f"{space}b"
    commands = [
        f"netns add {space}",
        f"link add {ends[0]} type veth peer name {ends[1]} netns {space}",
        f"addr add 203.0.113.1/24 dev {ends[0]}",
        f"link set {ends[0]} up",
        f"-n {space} addr add 203.0.113.2/24 dev {ends[1]}",
        f"-n {space} link set {ends[1]} up",
    ]
    try:
        for command in commands:
            subprocess.run(["ip", *command.split()], check=True)
        yield space, f"-n {space} link set {ends[1]} down"
    finally:
        subprocess.run(["ip", "link", "del", ends[0]], check=False)
        subprocess.run(["ip", "netns", "del", space], check=False)


@pytest.mark.skipif(not shutil.which("ip") or os.geteuid() != 0, reason="a network namespace needs root and ip(8)")
def test_clients_that_vanish():
    """H8: the cable of 100 clients is cut, half of them in the middle of a stream."""
    with elsewhere() as (space, cut), serving(host="203.0.113.1") as edge:
        edge.app.chunk, edge.app.pause_s = b"x" * 50, 0.02
        command = ["ip", "netns", "exec", space, sys.executable, "-c", CLIENTS_ELSEWHERE, str(edge.port)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as clients:
            try:
                assert clients.stdout.readline() == b"up\n"
                assert eventually(lambda: edge.app.num_running == 100)
                subprocess.run(["ip", *cut.split()], check=True)
                assert eventually(lambda: edge.app.num_running == 0, 60)
                assert edge.app.num_left == 100
            finally:
                clients.kill()


def test_a_crowd_does_not_leave_anything_behind():
    """A thousand clients that come, ask and go, or are refused: no connection stays."""
    with serving() as edge:
        for number in range(1000):
            with edge.connect() as client:
                client.sendall((GOOD, b"nonsense\r\n\r\n", b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n", b"")[number % 4])
                if number % 4 < 2:
                    read_all(client)
        assert eventually(lambda: not edge.protocol.shared.served and not edge.protocol.shared.refused)
        assert eventually(lambda: edge.app.num_running == 0)
        assert not edge.protocol.shared.quiet
