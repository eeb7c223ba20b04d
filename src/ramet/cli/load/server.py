"""A server that speaks OpenAI's API, seen from outside: what it serves, and one answer after another into its record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import msgspec

from ramet.cli.load.connection import Address, HttpClient
from ramet.cli.load.figures import Record
from ramet.cli.load.workloads import Message
from ramet.errors import ConfigError, shown

__all__ = ["Asking", "Server", "open_server"]

_LIST_S = 10.0  # for the list of models
_FIRST_S = 60.0  # for the first token, which may wait for kernels or weights
_MAX_BODY_BYTES = 4 << 20  # of an answer that is no stream
_MAX_EVENT_BYTES = 1 << 20
_ERROR_CHARS = 200
_NAMES = {"system": "System", "user": "User", "assistant": "Assistant"}


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Event(msgspec.Struct, gc=False):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: object = None


class _Model(msgspec.Struct, gc=False):
    id: str


class _Models(msgspec.Struct, gc=False):
    data: list[_Model]


_decode_event = msgspec.json.Decoder(_Event).decode


@dataclass(frozen=True, slots=True)
class Asking:
    """How every request of a run is put. ``endpoint`` is ``chat`` or ``completions``; ``timeout_s`` is for a whole answer."""

    model: str
    endpoint: str
    max_tokens: int
    timeout_s: float
    is_eos_ignored: bool = False

    @property
    def path(self) -> str:
        """Of the endpoint."""
        return "/v1/chat/completions" if self.endpoint == "chat" else "/v1/completions"

    def body(self, messages: Sequence[Message]) -> bytes:
        """The request, greedy and streamed, with usage in its last chunk."""
        text = {"messages": messages} if self.endpoint == "chat" else {"prompt": _as_prompt(messages)}
        extra = {"ignore_eos": True} if self.is_eos_ignored else {}
        usage = {"include_usage": True}
        common = {"model": self.model, "max_tokens": self.max_tokens, "temperature": 0, "stream": True, "stream_options": usage}
        return msgspec.json.encode(common | text | extra)


class Server:
    """Answers lists of messages, and writes down what it saw."""

    def __init__(self, client: HttpClient, asking: Asking, clock: Callable[[], float]) -> None:
        self.asking = asking
        self._client = client
        self._clock = clock

    async def answer(self, messages: Sequence[Message], record: Record) -> str:
        """The text of one answer. Whatever goes wrong is in ``record.error``; only cancelling raises."""
        stream = _AnswerStream(record)
        body = self.asking.body(messages)
        record.sent_s = self._clock()
        try:
            async with asyncio.timeout(self.asking.timeout_s):
                status = await self._client.request("POST", self.asking.path, body, stream)
            stream.finish(status)
        except TimeoutError:
            stream.fail("timeout", f"no whole answer within {self.asking.timeout_s:g} s (--timeout)")
        except ConnectionRefusedError as error:
            stream.fail("not reachable", str(error))
        except ConnectionError as error:
            stream.fail("connection lost", str(error))
        except OSError as error:
            stream.fail("not reachable", str(error))
        record.end_s = self._clock()
        return "".join(stream.texts)


@asynccontextmanager
async def open_server(address: Address, api_key: str | None, asking: Asking, clock: Callable[[], float]) -> AsyncIterator[Server]:
    """The server, once it has shown that it answers: its models are asked for, and one token. An empty ``asking.model`` becomes
    the first model of its list. Raises ``ConfigError``, which says what to change.
    """
    client = HttpClient(address, api_key, clock)
    try:
        yield await _checked(client, address, asking, clock)
    finally:
        client.close()


async def _checked(client: HttpClient, address: Address, asking: Asking, clock: Callable[[], float]) -> Server:
    served = await _served_models(client, address)
    if not asking.model and not served:
        raise ConfigError(f"{address.url}/v1/models lists no model; name one with --model")
    asking = replace(asking, model=asking.model or served[0])
    first = replace(asking, max_tokens=1, timeout_s=min(_FIRST_S, asking.timeout_s))
    record = Record(0.0, 0.0)
    await Server(client, first, clock).answer([{"role": "user", "content": "Hello"}], record)
    told = f": {record.error_text}" if record.error_text else ""
    match record.error:
        case None | "HTTP 429":
            return Server(client, asking, clock)
        case "HTTP 401" | "HTTP 403":
            raise _wants_key(address, record.error)
        case "HTTP 404" if served and asking.model not in served:
            names = ", ".join(served[:8])
            raise ConfigError(f"{address.url} does not serve {shown(asking.model, 80)}; it serves {names} (--model)")
        case "HTTP 404":
            raise ConfigError(f"{address.url} has no {asking.path} for this model (404{told}); try --endpoint or --model")
        case "HTTP 503":
            raise _not_ready(address, record.error_text)
    raise ConfigError(f"{address.url} does not answer a first request ({record.error}{told}); try --endpoint, --model or --url")


async def _served_models(client: HttpClient, address: Address) -> list[str]:
    """Ids of ``/v1/models``; none where the server has no such list."""
    body = _Body()
    try:
        async with asyncio.timeout(_LIST_S):
            status = await client.request("GET", "/v1/models", b"", body)
    except TimeoutError:
        raise ConfigError(
            f"{address.url} takes connections but did not answer within {_LIST_S:g} s; is this its --url?"
        ) from None
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(f"no server answers at {address.url} ({why}); start one (ramet serve) or give its --url") from None
    if status in (401, 403):
        raise _wants_key(address, f"HTTP {status}")
    if status == 503:
        raise _not_ready(address, _error_text(body.data))
    try:
        return [model.id for model in msgspec.json.decode(body.data, type=_Models).data]
    except msgspec.MsgspecError:
        return []


def _wants_key(address: Address, error: str) -> ConfigError:
    return ConfigError(f"{address.url} refuses the key, or wants one ({error}); give it by --api-key or OPENAI_API_KEY")


def _not_ready(address: Address, text: str) -> ConfigError:
    return ConfigError(f"{address.url} is not ready (503{f': {text}' if text else ''}); try again when it is")


def _as_prompt(messages: Sequence[Message]) -> str:
    """Messages as one text for the completions endpoint, such that a longer history begins with the shorter one. A message alone
    is the prompt itself.
    """
    if len(messages) == 1:
        return messages[0]["content"]
    told = "".join(f"{_NAMES[message['role']]}:{_spaced(message['content'])}\n\n" for message in messages)
    return f"{told}Assistant:"


def _spaced(text: str) -> str:
    """Answers bring their own space, or none."""
    return text if text[:1].isspace() else f" {text}"


class _Body:
    """Keeps a body, up to a size that no list of models has."""

    def __init__(self) -> None:
        self.data = b""

    def on_body(self, status: int, piece: bytes, now_s: float) -> None:
        if len(self.data) < _MAX_BODY_BYTES:
            self.data += piece


class _AnswerStream:
    """Reads server-sent events into a record. A body of another status is kept for its message."""

    def __init__(self, record: Record) -> None:
        self.texts: list[str] = []
        self._record = record
        self._rest = b""
        self._is_ended = False

    def on_body(self, status: int, piece: bytes, now_s: float) -> None:
        if status != 200:
            self._rest = (self._rest + piece)[:_MAX_BODY_BYTES]
            return
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._on_event(line[5:].strip(), now_s)
        if len(self._rest) > _MAX_EVENT_BYTES:
            self.fail("malformed answer", f"an event of more than {_MAX_EVENT_BYTES} bytes")
            self._rest = b""

    def finish(self, status: int) -> None:
        """The answer is at its end: is it all there?"""
        if status != 200:
            self.fail(f"HTTP {status}", _error_text(self._rest))
        elif not self._is_ended:
            self.fail("ended early", "the stream has no [DONE] and no finish_reason")

    def fail(self, kind: str, text: str) -> None:
        """The first fault is the one that counts."""
        if self._record.error is None:
            self._record.error, self._record.error_text = kind, text

    def _on_event(self, data: bytes, now_s: float) -> None:
        if data == b"[DONE]":
            self._is_ended = True
            return
        try:
            event = _decode_event(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self.fail("malformed answer", str(error))
            return
        if event.error is not None:
            self.fail("error in stream", _error_text(data))
        has_text = False
        for choice in event.choices:
            delta = choice.delta or _Delta()
            if text := choice.text or delta.content:
                self.texts.append(text)
                has_text = True
            elif delta.reasoning_content or delta.reasoning:
                has_text = True
            self._is_ended = self._is_ended or choice.finish_reason is not None
        if has_text:
            self._record.chunk_s.append(now_s)
        if event.usage is not None:
            self._take(event.usage)

    def _take(self, usage: _Usage) -> None:
        record = self._record
        record.prompt_tokens, record.output_tokens = usage.prompt_tokens, usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            record.cached_tokens = usage.prompt_tokens_details.cached_tokens


def _error_text(body: bytes) -> str:
    """What the body of an error says, on one line and cut. Servers put it in ``error.message``, ``message`` or ``detail``."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        found = body.decode("utf-8", "replace")
    while isinstance(found, dict):
        found = next((found[key] for key in ("error", "message", "detail") if key in found), "")
    text = " ".join("".join(char if char.isprintable() else " " for char in str(found)).split())
    return text if len(text) <= _ERROR_CHARS else text[: _ERROR_CHARS - 3] + "..."
