"""HTTP/1.1 with deadlines, and with limits on what one client may make the server hold.

uvicorn's parser (llhttp) is strict and its flow control works; what it lacks is a clock that a client cannot reset by sending
one more byte, a limit on what it collects, and a close that lets a refused client read why. What comes out for odd requests is
in docs/decisions/0041-http-edge.md.

A deadline is a number in the connection, and ``Connections`` goes round them: a request starts no timer.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import math
from typing import Any, ClassVar

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from ramet.server.connections import ClientTransport, Connections, HttpLimits, watch_peer
from ramet.server.errors import Dialect, Problem, error_body

__all__ = ["BoundedHttpProtocol", "bounded_http"]

_logger = logging.getLogger("ramet.server")

_METHODS = frozenset((b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"TRACE", b"QUERY"))
_VERSIONS = ("1.0", "1.1")
_NEVER = math.inf
_FREE_CHUNKS = 1024  # that may be as short as they like; a chunk costs a microsecond or two however short it is,
_MEAN_CHUNK_BYTES = 32  # and a read of 250 kB shall not hold up the event loop for more than some 5 ms
_REFUSED_KEPT = 16  # connections over the limit that may stay for a moment to read their 503; connection_limit spares as many


class _Refused(Exception):
    """The request is not taken; raised inside the parser's callbacks."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class _Phase(enum.Enum):
    """What a connection waits for."""

    REQUEST = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()


_REQUEST, _HEAD, _BODY = _Phase  # to look a member up in its class is slow, and this is asked at every read


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's httptools protocol with the bounds of ``HttpLimits``; ``bounded_http`` makes the class that a server is given.

    One answer at most is under way: that of ``_answering``, the oldest request not answered. ``self.cycle``, uvicorn's, is the
    newest.
    """

    shared: ClassVar[Connections]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.timeout_keep_alive = self.shared.limits.keep_alive_s  # type: ignore[assignment]  # uvicorn only adds it to a time
        self._wire: asyncio.Transport
        self._phase = _REQUEST
        self._deadline = _NEVER
        self._stall_deadline = _NEVER
        self._stalled_bytes = 0
        self._received = 0  # bytes of this head or body, as they came; those of the read in which it began may be left out
        self._body_bytes = 0
        self._num_chunks = 0
        self._is_deaf = False  # whatever still comes is thrown away
        self._is_resuming = False
        self._last_started: RequestResponseCycle | None = None

    # --- coming and going ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        limits = self.shared.limits
        self._wire = transport
        super().connection_made(ClientTransport(transport, self))
        if self.shared.admit(self):
            transport.set_write_buffer_limits(high=limits.max_write_bytes // 2)
            watch_peer(transport.get_extra_info("socket"), limits)
            self.shared.quiet[self] = None
            self._deadline = self.loop.time() + limits.first_byte_s
            return
        self._is_deaf = len(self.shared.refused) <= _REFUSED_KEPT
        self._answer_error(503, f"all {self.shared.max_connections} connections of this server are in use; try again in a second")
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.shared.leave(self)
        self._deadline = self._stall_deadline = _NEVER
        self.pipeline.clear()
        self._tell_disconnected()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def let_go(self) -> None:
        """Ends a connection that has no request."""
        self.shared.quiet.pop(self, None)
        self.transport.close()

    def hang_up(self) -> None:
        """Closes; a client that may still be sending is heard out first, since unread bytes would turn the close into a reset."""
        now = self.loop.time()
        self._deadline = _NEVER
        self._await_drain(now)
        if not (self._is_deaf or self._phase is _BODY):
            self._wire.close()
            return
        self._is_deaf = True
        self._deadline = now + self.shared.limits.linger_s
        self.flow.resume_reading()
        if self._wire.can_write_eof():
            self._wire.write_eof()

    def shutdown(self) -> None:
        if self.transport.is_closing():
            self._wire.abort()
        elif (cycle := self._answering) is not None:
            cycle.keep_alive = False
            self.pipeline.clear()
        else:
            self.transport.close()

    # --- deadlines -------------------------------------------------------------------------------------------------------

    def look_at_clock(self, now: float) -> None:
        if now >= self._stall_deadline:
            self._on_stall(now)
        elif now >= self._deadline:
            self._on_deadline(now)

    def _on_deadline(self, now: float) -> None:
        limits = self.shared.limits
        if self.transport.is_closing():
            self._deadline = _NEVER
            self._on_stall(now)
        elif self.flow.read_paused:
            self._deadline = now + limits.body_s
        elif self._phase is _REQUEST:
            self.let_go()
        else:
            what, seconds = ("headers", limits.head_s) if self._phase is _HEAD else ("body", limits.body_s)
            self._refuse(408, f"the {what} took longer than {seconds:g} s to arrive; send the request again, faster")
            if self.transport.is_closing():
                self._deadline = now + limits.round_s  # it has had its time

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_drain(self.loop.time())

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._stall_deadline = _NEVER

    def _await_drain(self, now: float) -> None:
        self._stalled_bytes = self._wire.get_write_buffer_size()
        self._stall_deadline = now + self.shared.limits.stall_s

    def _on_stall(self, now: float) -> None:
        """A large answer to a slow client may take longer than one period, as long as it moves."""
        limits = self.shared.limits
        if self._stalled_bytes - self._wire.get_write_buffer_size() >= limits.max_write_bytes:
            self._await_drain(now)
        else:
            _logger.debug("a client that did not read for %g s is cut off", limits.stall_s)
            self._wire.abort()

    # --- bytes in --------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        self._unset_keepalive_if_required()
        if self._phase is _REQUEST:
            self._begin_head()
        self._received += len(data)
        try:
            self._feed(data)
            self._check_received()
        except _Refused as refused:
            self._refuse(refused.status, refused.message)
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, _Refused):
                self._refuse(cause.status, cause.message)
            elif isinstance(error, httptools.HttpParserCallbackError) and cause is not None:
                _logger.error("a defect while a request was read", exc_info=cause)
                self._refuse(400, "the request could not be read")
            else:
                self._refuse(
                    400, f"this is not a request of HTTP/1.1 ({error}); check what is between the client and this server"
                )

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade()
            self._feed(data[upgrade.args[0] :])  # as deep as requests may be pipelined

    def _ignore_upgrade(self) -> None:
        """Goes on as if no upgrade had been asked for, which the parser cannot do: a new parser takes up after the headers.

        Java's client asks for h2c with every POST, and expects its body to be read.
        """
        framing = [
            b"%s: %s\r\n" % header for header in self.scope["headers"] if header[0] in (b"content-length", b"transfer-encoding")
        ]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        self._is_resuming = True
        self.parser.feed_data(b"".join([b"POST / HTTP/1.1\r\n", *framing, b"\r\n"]))
        self._is_resuming = False

    def _begin_head(self) -> None:
        self._phase = _HEAD
        self._received = 0
        self._deadline = self.loop.time() + self.shared.limits.head_s
        self.shared.quiet.pop(self, None)

    def _check_received(self) -> None:
        """Bounds what the parser holds but has not yet told: a header that does not end, chunk extensions, trailers."""
        limit = self.shared.limits.max_head_bytes
        if self._phase is _HEAD and self._received > limit:
            raise _head_too_long(limit)
        if self._phase is _BODY and self._received - self._body_bytes > limit + self._body_bytes:
            raise _Refused(400, f"the framing of the chunks is longer than {limit} bytes and than the body; send larger chunks")

    # --- the parser's callbacks ------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._is_resuming:
            return
        if self._phase is not _HEAD:
            self._begin_head()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if self._is_resuming:
            return
        super().on_url(url)
        if len(self.url) > self.shared.limits.max_target_bytes:
            raise _Refused(
                414, f"the request target is longer than {self.shared.limits.max_target_bytes} bytes; send data in the body"
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= self.shared.limits.max_headers:
            raise _Refused(431, f"the request has more than {self.shared.limits.max_headers} headers; send fewer")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_resuming:
            return
        self._check_head()
        super().on_headers_complete()
        self.headers = []  # for trailers, which must not change what was judged by the headers
        self._phase = _BODY
        self._received = self._body_bytes = self._num_chunks = 0
        self._deadline = self.loop.time() + self.shared.limits.body_s

    def _check_head(self) -> None:
        """Refuses what the parser lets through though two readers could take it for two different requests."""
        version, method = self.parser.get_http_version(), self.parser.get_method()
        if version not in _VERSIONS:
            raise _Refused(400, f"the version is HTTP/{version}; use HTTP/1.1")
        if method not in _METHODS:
            raise _Refused(400, f"the method {method.decode('ascii')} is not one that this server knows; use GET or POST")
        _check_target(self.url)
        if version == "1.0":
            self.expect_100_continue = False
        num_hosts = num_bytes = 0
        for name, value in self.headers:
            num_bytes += len(name) + len(value) + 4
            if name == b"host":
                num_hosts += 1
            elif name == b"transfer-encoding" and (version == "1.0" or value.strip(b" \t").lower() != b"chunked"):
                raise _Refused(
                    400, "the transfer encoding is not one that this server knows; use chunked, with HTTP/1.1, or none"
                )
        if num_bytes > self.shared.limits.max_head_bytes:
            raise _head_too_long(self.shared.limits.max_head_bytes)
        if num_hosts > 1 or (num_hosts == 0 and version == "1.1"):
            raise _Refused(400, f"the request has {num_hosts} Host headers; HTTP/1.1 asks for one")
        if len(self.pipeline) >= self.shared.limits.max_pipelined:
            raise _Refused(
                400, f"more than {self.shared.limits.max_pipelined} requests wait on this connection; read the answers first"
            )

    def on_chunk_header(self) -> None:
        self._num_chunks += 1
        if self._num_chunks > _FREE_CHUNKS + self._body_bytes // _MEAN_CHUNK_BYTES:
            raise _Refused(400, f"the chunks of the body have less than {_MEAN_CHUNK_BYTES} bytes on average; send larger ones")

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # the parser takes an upgrade for the end; _ignore_upgrade finds the real one
        self._phase = _REQUEST
        self._deadline = _NEVER
        super().on_message_complete()

    # --- answers ---------------------------------------------------------------------------------------------------------

    @property
    def _answering(self) -> RequestResponseCycle | None:
        cycle = self._last_started
        return None if cycle is None or cycle.response_complete else cycle

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._last_started = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        if self._phase is _BODY and self.cycle is self._last_started:
            self.transport.close()  # answered without its body being read: where the next request begins is not worth finding
        super().on_response_complete()
        if self._phase is _REQUEST and self._answering is None and not self.transport.is_closing():
            self.shared.quiet[self] = None

    def _tell_disconnected(self) -> None:
        if (cycle := self._answering) is not None:
            cycle.disconnected = True
            cycle.message_event.set()

    def _refuse(self, status: int, message: str) -> None:
        """Answers a request that is not taken and closes; if an earlier one is being answered, its answer is the last."""
        self._is_deaf = True
        self._deadline = _NEVER
        self.pipeline.clear()
        self.flow.resume_reading()  # to see it if the client leaves
        cycle = self._answering
        if cycle is not None and not (cycle is self.cycle and self._phase is _BODY):
            cycle.keep_alive = False
            return
        if cycle is None or not cycle.response_started:
            self._answer_error(status, message)
        self._tell_disconnected()
        self.transport.close()

    def _answer_error(self, status: int, message: str) -> None:
        body = error_body(Problem(status, message), Dialect.OPENAI, "")  # it has no dialect yet, and no id
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        if status == 503:
            headers.append((b"retry-after", b"1"))
        self._wire.write(b"".join([STATUS_LINE[status], *(b"%s: %s\r\n" % header for header in headers), b"\r\n", body]))


def _head_too_long(limit: int) -> _Refused:
    return _Refused(431, f"the headers are longer than {limit} bytes; send shorter ones")


def _check_target(target: bytes) -> None:
    """A path, ``*`` or an absolute URI with a path; no fragment. Everything else has no path for the routes to look at."""
    if target[:1] not in (b"/", b"*"):
        with contextlib.suppress(httptools.HttpParserInvalidURLError):
            if httptools.parse_url(target).path is not None:
                target = b"/"
    if b"#" in target or (target[:1] != b"/" and target != b"*"):
        raise _Refused(400, "the request target is not a path; send a path that begins with / and has no #")


def bounded_http(limits: HttpLimits | None = None) -> type[BoundedHttpProtocol]:
    """The protocol class for one server: ``uvicorn.Config(app, http=bounded_http(limits), loop="uvloop", ws="none")``."""
    return type("BoundHttpProtocol", (BoundedHttpProtocol,), {"shared": Connections(limits or HttpLimits())})
