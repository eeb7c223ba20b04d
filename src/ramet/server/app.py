"""The routes, and the gate in front of them."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from ramet.server import admin, completions, messages, native, openai_chat, responses
from ramet.server.gate import Gate, Keys, request_id_of
from ramet.server.openapi import openapi_route
from ramet.server.services import Services, generations_of
from ramet.server.status import log_prompts, log_request
from ramet.server.stream import prompts_of, usage_of

__all__ = ["ROUTES", "build_app"]

ROUTES = (
    Route("/", admin.welcome, methods=["GET"]),
    Route("/health", admin.health, methods=["GET"]),
    Route("/metrics", admin.metrics, methods=["GET"]),
    Route("/version", admin.version, methods=["GET"]),
    Route("/server_info", admin.server_info, methods=["GET"]),
    Route("/flush_cache", admin.flush_cache, methods=["POST"]),
    Route("/abort_request", admin.abort_request, methods=["POST"]),
    Route("/v1/load_lora_adapter", admin.load_lora_adapter, methods=["POST"]),
    Route("/v1/unload_lora_adapter", admin.unload_lora_adapter, methods=["POST"]),
    Route("/v1/models", admin.list_models, methods=["GET"]),
    Route("/v1/models/{model:path}", admin.get_model, methods=["GET"]),
    Route("/v1/chat/completions", openai_chat.chat_completions, methods=["POST"]),
    Route("/v1/completions", completions.completions, methods=["POST"]),
    Route("/v1/responses", responses.create_response, methods=["POST"]),
    Route("/v1/messages", messages.create_message, methods=["POST"]),
    Route("/v1/messages/count_tokens", messages.count_tokens, methods=["POST"]),
    Route("/tokenize", native.tokenize, methods=["POST"]),
    Route("/detokenize", native.detokenize, methods=["POST"]),
    Route("/generate", native.generate, methods=["POST"]),
)

_UNLOGGED = frozenset({"/health", "/metrics"})  # what monitors ask every few seconds


def build_app(services: Services, keys: Keys) -> Gate:
    """The ASGI app of a server. The gate turns every error that a route raises into an answer."""
    routes = ROUTES if keys.has_users or keys.has_admin else (*ROUTES, openapi_route(ROUTES))
    router = Router(routes, redirect_slashes=False, default=_nothing_here)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["ramet.services"] = services
        scope["app"] = app  # a router that finds this raises for a wrong method, where alone it would answer in plain text
        try:
            await router(scope, receive, send)
        finally:
            for generation in generations_of(scope):
                generation.abort()  # a no-op where it has ended

    def on_end(scope: Scope, status: int, seconds: float) -> None:
        if status:
            services.metrics.responded(status)
        if scope["path"] not in _UNLOGGED:
            log_request(request_id_of(scope), scope["method"], scope["path"], status, seconds, usage_of(scope))
        if services.config.log_requests:
            log_prompts(request_id_of(scope), prompts_of(scope))

    return Gate(app, services.config, keys, on_end)


async def _nothing_here(scope: Scope, receive: Receive, send: Send) -> None:
    raise HTTPException(404)
