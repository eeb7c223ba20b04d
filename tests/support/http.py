"""A whole HTTP server over a tiny model, in threads of the test's own process; and calls to an app without any socket."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.types import ASGIApp, Message
from tiny_models import TINY_MODELS, write_folder

from ramet.config import CacheConfig, EngineConfig, LoraConfig, ModelConfig, RunnerConfig, SchedulerConfig, ServerConfig
from ramet.engine.build import build_engine, build_text
from ramet.engine.clock import MonotonicClock
from ramet.engine.engine import Engine, EngineStats
from ramet.engine.wire import Ready
from ramet.model.source import open_model
from ramet.server.app import build_app
from ramet.server.client import EngineClient
from ramet.server.engine_process import ready_event
from ramet.server.gate import Keys
from ramet.server.links import ThreadLink
from ramet.server.metrics import Metrics
from ramet.server.services import Services
from ramet.server.translate import Translator

CONTEXT = 2048  # tokens, of the tiny model that is served; its tokens are bytes
MODEL_NAME = "tiny"
TOOLS_TEMPLATE = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{% for call in m['tool_calls'] or [] %}<call>{{ call['function'] | tojson }}</call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny(folder: Path, *, chat_template: str | None = None) -> Path:
    """The tiny llama with a longer context, and a chat template of the caller's where one is given."""
    model = TINY_MODELS["llama"]
    write_folder(replace(model, config={**model.config, "max_position_embeddings": CONTEXT}), folder)
    if chat_template is not None:
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": chat_template}))
    return folder


@dataclass(frozen=True)
class Served:
    """A server that runs. ``http`` has its address and takes no longer than a minute for anything."""

    url: str
    http: httpx.Client
    services: Services
    app: ASGIApp
    loop: asyncio.AbstractEventLoop

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        """``body`` is JSON to be, or bytes as they are; underscores in the names of headers are hyphens."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.http.post(path, content=content, headers={"content-type": "application/json"} | named)

    def run(self, work: Any) -> Any:
        """Wait for a coroutine on the server's own loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def call(self, path: str, body: Any = None, **options: Any) -> Called:
        """``call`` on the server's own loop."""
        result: Called = self.run(call(self.app, path, body, **options))
        return result

    def until_idle(self, seconds: float = 10.0) -> EngineStats | None:
        """Wait until no request runs, neither here nor in the engine, which may hear of an end later; gives the engine's numbers
        then, None before its first step. Raises ``TimeoutError`` where some go on.
        """

        async def idle() -> EngineStats | None:
            client = self.services.client
            async with asyncio.timeout(seconds):
                while client.generations or (client.stats is not None and client.stats.num_open_requests):
                    await asyncio.sleep(0.005)
            return client.stats

        stats: EngineStats | None = self.run(idle())
        return stats


@contextmanager
def serve_tiny(
    folder: Path,
    config: ServerConfig | None = None,
    *,
    page_size: int = 4,
    kv_cache_memory: str = "8MiB",
    scheduler: SchedulerConfig | None = None,
    lora: LoraConfig | None = None,
) -> Iterator[Served]:
    """A server on a free port of 127.0.0.1 over the model in ``folder``; stopped in the end, whatever happened."""
    options = EngineConfig(
        model=ModelConfig(model=str(folder)),
        cache=CacheConfig(page_size=page_size, kv_cache_memory=kv_cache_memory),
        scheduler=scheduler or SchedulerConfig(),
        runner=RunnerConfig(threads=1),
        lora=lora or LoraConfig(),
    )
    started: Future[tuple[Served, uvicorn.Server]] = Future()
    thread = threading.Thread(
        target=lambda: asyncio.run(_serve(options, config or ServerConfig(), started)), name="server", daemon=True
    )
    thread.start()
    served, server = started.result(60)
    try:
        with served.http:
            yield served
    finally:
        server.should_exit = server.force_exit = True
        thread.join(30)


async def _serve(options: EngineConfig, config: ServerConfig, started: Future[tuple[Served, uvicorn.Server]]) -> None:
    try:
        services, running = await _services(options, config)
    except Exception as error:
        started.set_exception(error)
        return
    try:
        app = build_app(services, Keys(config.api_key, config.admin_api_key, share_cache=config.share_cache))
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            sock.listen()  # from here on connections wait until they are taken
            url = f"http://127.0.0.1:{sock.getsockname()[1]}"
            server = uvicorn.Server(uvicorn.Config(app, lifespan="off", ws="none", log_config=None, loop="asyncio"))
            http = httpx.Client(base_url=url, timeout=60)
            started.set_result((Served(url, http, services, app, asyncio.get_running_loop()), server))
            await server.serve(sockets=[sock])
    finally:
        await services.client.close()
        await asyncio.gather(running, return_exceptions=True)
        services.translator.close()


async def _services(options: EngineConfig, config: ServerConfig) -> tuple[Services, asyncio.Task[None]]:
    def make() -> tuple[Engine, Ready]:
        parts = build_engine(options)
        return parts.engine, ready_event(parts)

    text = build_text(open_model(options.model))
    metrics = Metrics()
    client = EngineClient(
        lambda: ThreadLink(make),
        text.tokenizer,
        MonotonicClock(),
        max_queued_requests=options.scheduler.max_queued_requests,
        seed=0,
        observer=metrics,
    )
    running = asyncio.create_task(client.run())
    up = asyncio.create_task(client.until_ready())
    await asyncio.wait([up, running], return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        up.cancel()
        await running
    translator = Translator(text, tool_call_parser=config.tool_call_parser, reasoning_parser=config.reasoning_parser)
    services = Services(client, translator, metrics, config, (MODEL_NAME,), 1_700_000_000, "0.0")
    return services, running


@dataclass
class Called:
    """What an app answered. ``pieces`` are the bodies of its messages, in order."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[bytes] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


async def call(
    app: ASGIApp,
    path: str,
    body: Any = None,
    *,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
    peer: str = "127.0.0.1",
    leave_after: int | None = None,
) -> Called:
    """One request to an ASGI app. With ``leave_after`` the client is gone once it has that many pieces of the body."""
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    named = {"host": "127.0.0.1", "content-type": "application/json"} | dict(headers or {})
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in named.items()],
        "client": (peer, 50000),
        "server": ("127.0.0.1", 80),
    }
    answer = Called()
    left = asyncio.Event()
    if leave_after == 0:
        left.set()
    messages: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode(): value.decode("latin-1") for name, value in message["headers"]}
        elif message["body"]:
            answer.pieces.append(message["body"])
        if leave_after is not None and len(answer.pieces) >= leave_after:
            left.set()

    await app(scope, receive, send)
    return answer


def events(text: str) -> list[tuple[str | None, str]]:
    """Server-sent events as (name, data); comments are left out."""
    found = []
    for block in text.split("\n\n"):
        lines = [line.partition(": ") for line in block.split("\n") if line and not line.startswith(":")]
        if lines:
            name = next((value for key, _, value in lines if key == "event"), None)
            found.append((name, "\n".join(value for key, _, value in lines if key == "data")))
    return found


def chunks(text: str) -> list[dict[str, Any]]:
    """The JSON of an OpenAI stream, which has to end as one does."""
    data = [data for _, data in events(text)]
    assert data[-1] == "[DONE]", f"the stream ends with {data[-1]}"
    return [json.loads(one) for one in data[:-1]]


def texts(found: Sequence[Mapping[str, Any]], index: int = 0) -> str:
    """What an OpenAI stream says in one choice, put together."""
    parts = [choice for chunk in found for choice in chunk["choices"] if choice["index"] == index]
    return "".join(part["text"] if "text" in part else part["delta"].get("content") or "" for part in parts)
