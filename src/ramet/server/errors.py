"""Every error that a client reads, whatever dialect it speaks: one function makes the bodies of all.

A body has the words of our own errors and nothing else: no representation of an object, no path, no trace. What is no error of
ours is told by the request's id, under which the log has the rest.
"""

from __future__ import annotations

import enum
import logging
import os
import traceback
from dataclasses import dataclass

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from ramet.errors import ContextTooLong, EngineDead, InvalidRequest, Overloaded, RametError, RequestFailed, Unavailable

__all__ = [
    "ApiError",
    "Dialect",
    "Problem",
    "dialect_of",
    "error_body",
    "error_event",
    "error_response",
    "log_failure",
    "problem_of",
]

_log = logging.getLogger("ramet.server")

_FRAMES_TOLD = 6

_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}
_RETRY_AFTER_S = {429: 1, 503: 2}
_MAX_MESSAGE_CHARS = 1000  # a message may quote what was sent, but no request is told back whole
_MAX_PARAM_CHARS = 200
_PHRASES = {404: "there is nothing at this path", 405: "this path does not take this method"}


class Dialect(enum.Enum):
    """Whose shapes a path speaks. The native endpoints have OpenAI's error bodies."""

    OPENAI = enum.auto()
    ANTHROPIC = enum.auto()


class ApiError(RametError):
    """A fault that only HTTP knows: its status, and OpenAI's ``code`` and ``param`` where they help."""

    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


@dataclass(frozen=True, slots=True)
class Problem:
    """What went wrong, before any dialect; in few words, whatever was sent. ``allow``, of a 405: the methods that are taken."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    allow: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", _cut(self.message, _MAX_MESSAGE_CHARS))
        if self.param is not None:
            object.__setattr__(self, "param", _cut(self.param, _MAX_PARAM_CHARS))

    @property
    def retry_after_s(self) -> int | None:
        return _RETRY_AFTER_S.get(self.status)


def dialect_of(path: str) -> Dialect:
    return Dialect.ANTHROPIC if path.startswith("/v1/messages") else Dialect.OPENAI


def problem_of(error: BaseException, request_id: str) -> Problem:
    """What a client is told of an error."""
    match error:
        case ApiError():
            return Problem(error.status, str(error), error.code, error.param)
        case ContextTooLong():
            return Problem(400, str(error), "context_length_exceeded", error.param)
        case InvalidRequest():
            return Problem(400, str(error), "invalid_value", error.param)
        case Overloaded():
            return Problem(429, str(error), "queue_full")
        case Unavailable():
            return Problem(503, str(error), "unavailable")
        case EngineDead():
            return Problem(503, str(error), "engine_restarted")
        case HTTPException():
            phrase = _PHRASES.get(error.status_code, "the request cannot be served")
            return Problem(error.status_code, phrase, allow=(error.headers or {}).get("Allow"))
        case RequestFailed():
            return Problem(500, f"this request met a defect of the server's (request {request_id})", "request_failed")
    return Problem(500, f"the server met a defect (request {request_id})", "internal_error")


def log_failure(error: BaseException, problem: Problem, request_id: str) -> None:
    """One line for a request that failed by no fault of its own. A defect is told by its kind and place: its message could hold
    the text of a request.
    """
    if problem.status < 500:
        return
    where = f" ({type(error).__name__} at {_place(error)})" if problem.status == 500 else ""
    _log.error("request %s: %s%s", request_id, problem.message, where)


def _place(error: BaseException) -> str:
    """The innermost frames, the last one first."""
    frames = reversed(traceback.extract_tb(error.__traceback__, -_FRAMES_TOLD))
    return " < ".join(f"{os.path.basename(frame.filename)}:{frame.lineno} {frame.name}" for frame in frames)


def error_body(problem: Problem, dialect: Dialect, request_id: str) -> bytes:
    """The one maker of error bodies."""
    if dialect is Dialect.ANTHROPIC:
        kind = _ANTHROPIC_TYPES.get(problem.status, "invalid_request_error")
        return msgspec.json.encode(
            {"type": "error", "error": {"type": kind, "message": problem.message}, "request_id": request_id}
        )
    kind = _OPENAI_TYPES.get(problem.status, "invalid_request_error")
    return msgspec.json.encode(
        {"error": {"message": problem.message, "type": kind, "param": problem.param, "code": problem.code}}
    )


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def error_response(problem: Problem, dialect: Dialect, request_id: str) -> Response:
    headers = {"retry-after": str(problem.retry_after_s)} if problem.retry_after_s else {}
    if problem.status == 401:
        headers["www-authenticate"] = "Bearer"
    if problem.allow is not None:
        headers["allow"] = problem.allow
    if dialect is Dialect.ANTHROPIC:
        headers["request-id"] = request_id
    body = error_body(problem, dialect, request_id)
    return Response(body, problem.status, headers, media_type="application/json")


def error_event(problem: Problem, dialect: Dialect, request_id: str) -> bytes:
    """The server-sent event that ends a stream which cannot go on."""
    name = b"event: error\n" if dialect is Dialect.ANTHROPIC else b""
    return name + b"data: " + error_body(problem, dialect, request_id) + b"\n\n"
