"""Deadlines, flow in both directions, pipelining and closing, with deadlines of a fraction of a second."""

from __future__ import annotations

import contextlib
import socket
import sys
import time

import pytest
from support.edge_server import GOOD, Reply, eventually, read_all, read_until, serving

from ramet.server.connections import HttpLimits, connection_limit

HOST = b"Host: localhost\r\n"
QUICK = HttpLimits(first_byte_s=0.3, head_s=0.3, body_s=0.3, keep_alive_s=0.3, linger_s=0.3, stall_s=0.8)
PATIENT = HttpLimits()


def post(headers=b"", body=b"", path=b"/echo"):
    return b"POST " + path + b" HTTP/1.1\r\n" + HOST + headers + b"\r\n" + body


@pytest.fixture(scope="module")
def quick():
    with serving(QUICK) as edge:
        yield edge


@pytest.fixture(scope="module")
def patient():
    with serving(PATIENT) as edge:
        yield edge


def dribble(client, data, pause_s=0.05):
    """Sends byte by byte until the server closes; tells what it answered and when."""
    start = time.monotonic()
    client.settimeout(pause_s)
    for byte in data:
        with contextlib.suppress(TimeoutError):
            if not client.recv(1, socket.MSG_PEEK):
                break
            client.settimeout(5)
            return read_all(client, start)
        client.sendall(bytes([byte]))
    return Reply(b"", time.monotonic() - start)


# --- deadlines -----------------------------------------------------------------------------------------------------------


def test_a_silent_connection_is_closed(quick):
    with quick.connect() as client:
        reply = read_all(client)
    assert reply.data == b""
    assert 0.2 < reply.seconds < 3


@pytest.mark.parametrize(
    ("start", "byte"),
    [
        (b"", b"\r\n"),
        (b"GET /", b"x"),
        (b"GET /echo HTTP/1.1\r\nX: ", b"x"),
        (b"GET /echo HTTP/1.1\r\n", b"X: y\r\n"),
        (post(b"Content-Length: 1000\r\n"), b"x"),
        (post(b"Transfer-Encoding: chunked\r\n", b"300\r\n"), b"x"),
        (post(b"Transfer-Encoding: chunked\r\n", b"1"), b"1"),
    ],
)
def test_a_byte_does_not_move_a_deadline(quick, start, byte):
    with quick.connect() as client:
        client.sendall(start)
        reply = dribble(client, byte * 100)
    assert reply.status == 408
    assert reply.seconds < 3
    assert reply.json["error"]["type"] == "invalid_request_error"
    assert eventually(lambda: quick.app.num_running == 0)
    assert quick.is_well()


def test_the_application_hears_that_a_body_will_not_come(quick):
    left = quick.app.num_left
    assert quick.ask(post(b"Content-Length: 10\r\n", b"abc")).status == 408
    assert eventually(lambda: quick.app.num_left == left + 1)


def test_an_idle_connection_is_closed_and_kept_until_then(quick):
    request = b"GET /echo HTTP/1.1\r\n" + HOST + b"\r\n"
    with quick.connect() as client:
        for _ in range(3):
            time.sleep(0.15)
            client.sendall(request)
            read_until(client, b"}")
        reply = read_all(client)
    assert reply.data == b""
    assert 0.2 < reply.seconds < 3


def test_the_second_request_has_deadlines_too(quick):
    with quick.connect() as client:
        client.sendall(b"GET /echo HTTP/1.1\r\n" + HOST + b"\r\n")
        read_until(client, b"}")
        reply = dribble(client, post(b"X: " + b"y" * 1000))
    assert reply.status == 408
    assert reply.seconds < 3


def test_an_answer_has_no_deadline(quick):
    with quick.connect() as client:
        client.sendall(b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n")
        client.settimeout(1)
        with pytest.raises(TimeoutError):
            client.recv(1)
        assert quick.app.num_running == 1
    assert eventually(lambda: quick.app.num_running == 0)


def test_a_body_that_the_server_does_not_read_has_no_deadline(quick):
    quick.app.is_held = True
    with quick.connect() as client:
        client.sendall(post(b"Content-Length: 500000\r\n", b"x" * 300_000))
        time.sleep(1)
        quick.app.is_held = False
        client.sendall(b"x" * 200_000)
        assert b"500000" in read_until(client, b"}")


def test_many_slow_clients_are_all_closed_and_harm_nobody(quick):
    """H6 with 0.3 s for 10 s."""
    clients = [quick.connect() for _ in range(200)]
    starts = (b"G", b"", post(b"Content-Length: 9\r\n"))
    for number, client in enumerate(clients):
        client.sendall(starts[number % 3])
    end = time.monotonic() + 1.5
    waits = []
    while time.monotonic() < end:
        waits.append(quick.ask(GOOD).seconds)
        time.sleep(0.02)
    assert sorted(waits)[len(waits) // 2] < 1
    assert eventually(lambda: not quick.protocol.shared.served, 3)
    for client in clients:
        with client:
            assert read_all(client).seconds < 3


# --- answers given early -------------------------------------------------------------------------------------------------


def test_a_refused_client_that_goes_on_sending_can_read_why(patient):
    for request in (
        post(b"Content-Length: 20000000\r\n", b"x" * 20_000_000, b"/early"),
        post(b"Connection: close\r\nContent-Length: 20000000\r\n", b"x" * 20_000_000, b"/early"),
        post(b"X: " + b"y" * 5_000_000),
    ):
        with patient.connect() as client:
            client.sendall(request)
            reply = read_all(client)
        assert reply.status in (413, 431)


def test_a_refused_client_is_not_heard_for_ever(quick):
    start = time.monotonic()
    with quick.connect() as client, contextlib.suppress(ConnectionError):
        client.sendall(post(b"Content-Length: 1000000000\r\n", path=b"/early"))
        while time.monotonic() < start + 3:
            client.sendall(b"x" * 10_000)
            time.sleep(0.01)
    assert time.monotonic() < start + 1.5


def test_continue_is_sent_when_the_body_is_wanted_and_only_then(patient):
    with patient.connect() as client:
        client.sendall(post(b"Content-Length: 5\r\nExpect: 100-continue\r\n"))
        assert read_until(client, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"abcde")
        assert b"abcde" in read_until(client, b"}")
    reply = patient.ask(post(b"Content-Length: 5\r\nExpect: 100-continue\r\n", path=b"/early"))
    assert reply.status == 413
    assert reply.seconds < 3
    reply = patient.ask(b"POST /echo HTTP/1.0\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nabcde")
    assert reply.status == 200


# --- pipelining ----------------------------------------------------------------------------------------------------------


def test_pipelined_requests_are_answered_in_order(patient):
    requests = [b"GET /echo?%d HTTP/1.1\r\n%s\r\n" % (number, HOST) for number in range(6)]
    reply = patient.ask(b"".join(requests) + GOOD)
    assert [f'"query": "{number}"'.encode() in reply.data for number in range(7)] == [True] * 6 + [False]
    assert reply.data.count(b"HTTP/1.1 200") == 7


def test_too_many_pipelined_requests_cost_all_but_the_first(patient):
    patient.app.scopes.clear()
    reply = patient.ask((b"GET /echo HTTP/1.1\r\n" + HOST + b"\r\n") * 5000)
    assert reply.data.count(b"HTTP/1.1 ") == 1
    assert reply.status == 200
    assert len(patient.app.scopes) == 1


def test_nonsense_behind_a_request_does_not_spoil_its_answer(patient):
    patient.app.is_held = True
    with patient.connect() as client:
        client.sendall(b"GET /echo HTTP/1.1\r\n" + HOST + b"\r\nnonsense\r\n\r\n")
        time.sleep(0.05)
        patient.app.is_held = False
        reply = read_all(client)
    assert reply.status == 200
    assert reply.data.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("path", [b"/wait", b"/stream"])
def test_who_leaves_with_requests_pipelined_is_noticed(patient, path):
    left = patient.app.num_left
    with patient.connect() as client:
        client.sendall(b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"\r\n" + GOOD + GOOD)
        assert eventually(lambda: patient.app.num_running == 1)
    assert eventually(lambda: patient.app.num_left == left + 1)
    assert patient.app.num_running == 0


# --- bytes out -----------------------------------------------------------------------------------------------------------


def write_buffers(edge):
    return [connection._wire.get_write_buffer_size() for connection in edge.protocol.shared.served]


def test_a_client_that_does_not_read_holds_little_and_is_cut_off(quick):
    """H7 with 0.8 s for 25 s; the application waits in ``send`` and then hears of it."""
    app, left = quick.app, quick.app.num_left

    def is_waiting():
        sent = app.num_chunks
        time.sleep(0.1)
        return app.num_chunks == sent > 0 and app.num_left == left

    app.num_chunks = 0
    with contextlib.ExitStack() as clients:
        for _ in range(20):
            client = clients.enter_context(quick.connect(receive_buffer=4096))
            client.sendall(b"GET /stream HTTP/1.1\r\n" + HOST + b"\r\n")
        assert eventually(lambda: is_waiting() and len(write_buffers(quick)) == 20 and min(write_buffers(quick)) > 30_000)
        assert max(write_buffers(quick)) <= QUICK.max_write_bytes
        assert app.num_chunks * len(app.chunk) < 20 * 400_000
        assert eventually(lambda: app.num_left == left + 20)
        assert app.num_running == 0


def test_a_slow_reader_that_gets_on_keeps_its_answer(quick):
    with quick.connect(receive_buffer=65536) as client:
        client.sendall(b"GET /big HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n")
        start, size = time.monotonic(), 0
        while piece := client.recv(65536):
            size += len(piece)
            time.sleep(0.02)
        assert size > 4_000_000
        assert time.monotonic() - start > 1


def test_a_client_that_never_reads_its_last_answer_is_cut_off(quick):
    for closing in (b"Connection: close\r\n", b""):
        with quick.connect(receive_buffer=4096) as client:
            client.sendall(b"GET /big HTTP/1.1\r\n" + closing + HOST + b"\r\n")
            assert eventually(lambda: len(quick.protocol.shared.served) == 1)
            assert eventually(lambda: not quick.protocol.shared.served, 2.5)


@pytest.mark.skipif(sys.platform != "linux", reason="the names of the options are Linux's")
def test_the_kernel_watches_the_peer(patient):
    with patient.connect() as client:
        client.sendall(b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n")
        assert eventually(lambda: len(patient.protocol.shared.served) == 1)
        (connection,) = patient.protocol.shared.served
        sock = connection._wire.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
        idle, interval, probes = (
            sock.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert idle + interval * probes <= 60


# --- too many ------------------------------------------------------------------------------------------------------------


def test_connections_over_the_limit_are_told_so_and_idle_ones_make_room():
    with serving(HttpLimits(max_connections=4)) as edge, contextlib.ExitStack() as clients:
        idle = [clients.enter_context(edge.connect()) for _ in range(4)]
        assert eventually(lambda: len(edge.protocol.shared.served) == 4)
        busy = [clients.enter_context(edge.connect()) for _ in range(4)]
        for client in busy:
            client.sendall(b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n")
        assert eventually(lambda: edge.app.num_running == 4)
        assert [read_all(client).data for client in idle] == [b""] * 4
        for _ in range(40):
            reply = edge.ask(GOOD)
            assert reply.status == 503
            assert reply.seconds < 5
            assert b"\r\nretry-after: 1" in reply.head
            assert reply.json["error"]["type"] == "service_unavailable_error"
        assert edge.app.num_running == 4
        busy[0].close()
        assert eventually(lambda: edge.app.num_running == 3)
        assert edge.is_well()
        busy[1].close()
        assert eventually(edge.is_well)


def test_the_limit_leaves_files_to_the_rest_of_the_process():
    assert [connection_limit(files) for files in (10, 64, 128, 1024, 20_000)] == [1, 32, 96, 768, 4096]


# --- the end -------------------------------------------------------------------------------------------------------------


def test_a_server_that_stops_finishes_what_it_answers_and_nothing_else():
    with serving() as edge:
        edge.app.is_held = True
        clients = [edge.connect() for _ in range(3)]
        clients[0].sendall(b"GET /echo HTTP/1.1\r\n" + HOST + b"\r\n" + GOOD)
        clients[1].sendall(b"GET /echo HTTP/1.1\r\n")
        assert eventually(lambda: edge.app.num_running == 1)
        edge.stop()
        assert read_all(clients[1]).seconds < 3
        assert read_all(clients[2]).seconds < 3
        edge.app.is_held = False
        reply = read_all(clients[0])
        assert reply.status == 200
        assert reply.data.count(b"HTTP/1.1 ") == 1
        for client in clients:
            client.close()
