"""The endpoints about the server itself: health, models and adapters, metrics, flush, abort.

The gate has checked keys before any of them; nothing here tells a path, a key or a text of a request.
"""

from __future__ import annotations

from dataclasses import fields

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from ramet.config import ServerConfig
from ramet.errors import InvalidRequest, UnknownAdapter
from ramet.model.adapters import check_adapter_name
from ramet.server.client import EngineClient, EngineState
from ramet.server.errors import ApiError
from ramet.server.gate import Caller, body_of, caller_of, is_draining
from ramet.server.generation import Generation
from ramet.server.schemas.admin import (
    Aborted,
    AbortRequest,
    AdapterLoaded,
    AdapterUnloaded,
    EngineInfo,
    Flushed,
    FlushRequest,
    Health,
    LoadAdapterRequest,
    Model,
    Models,
    ServerInfo,
    UnloadAdapterRequest,
    Version,
    Welcome,
)
from ramet.server.schemas.body import decode_body
from ramet.server.services import Services, services_of

__all__ = [
    "abort_request",
    "flush_cache",
    "get_model",
    "health",
    "list_models",
    "load_lora_adapter",
    "metrics",
    "server_info",
    "unload_lora_adapter",
    "version",
    "welcome",
]

_RETRY_AFTER_S = {EngineState.STARTING: 5, EngineState.HUNG: 5}
_WELCOME = Welcome(
    name="ramet",
    about="A server of a language model, with the APIs of OpenAI, Anthropic, vLLM and SGLang. Send requests to these endpoints.",
    endpoints=[
        "POST /v1/chat/completions",
        "POST /v1/completions",
        "POST /v1/responses",
        "POST /v1/messages",
        "POST /v1/messages/count_tokens",
        "GET /v1/models",
        "POST /generate",
        "POST /tokenize",
        "POST /detokenize",
        "GET /health",
        "GET /metrics",
        "GET /version",
        "GET /server_info",
        "POST /flush_cache",
        "POST /abort_request",
        "POST /v1/load_lora_adapter",
        "POST /v1/unload_lora_adapter",
    ],
)
_SHOWN_OPTIONS = frozenset(  # the others are keys, or name files
    {
        "host",
        "port",
        "share_cache",
        "allowed_hosts",
        "allow_unauthenticated",
        "max_body_size",
        "drain_timeout_s",
        "metrics_compat",
        "log_requests",
        "log_level",
    }
)
_MAX_NAMES = 4096


def _json(told: msgspec.Struct, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(told), status, headers, media_type="application/json")


async def welcome(request: Request) -> Response:
    """GET /: what this is. It is open to all, so it tells nothing of the model."""
    return Response(msgspec.json.format(msgspec.json.encode(_WELCOME)), media_type="application/json")


async def health(request: Request) -> Response:
    """GET /health: 200 where requests are taken, 503 with the reason and when to ask again where not."""
    state = services_of(request.scope).client.state
    if is_draining(request.scope) or state is EngineState.CLOSED:
        return _json(Health("draining"), 503, {"retry-after": "2"})
    if state is EngineState.READY:
        return _json(Health("ok"))
    return _json(Health(state.value), 503, {"retry-after": str(_RETRY_AFTER_S.get(state, 2))})


async def version(request: Request) -> Response:
    """GET /version."""
    return _json(Version(services_of(request.scope).version))


async def list_models(request: Request) -> Response:
    """GET /v1/models: the model, under each name that it is served by, and its adapters."""
    services = services_of(request.scope)
    names = [*services.model_names, *(info.name for info in services.client.adapters.listed())]
    return _json(Models(data=[_model(services, name) for name in names]))


async def get_model(request: Request) -> Response:
    """GET /v1/models/{model}: any name that requests may use."""
    services = services_of(request.scope)
    return _json(_model(services, services.model(request.path_params["model"])))


def _model(services: Services, name: str) -> Model:
    ready = services.client.ready
    limits = services.client.limits if ready is None else ready.limits  # the client's raises where there is none yet
    parent = services.model_names[0] if services.adapter(name) else UNSET
    return Model(id=name, created=services.created, max_model_len=limits.max_model_len, parent=parent)


async def load_lora_adapter(request: Request) -> Response:
    """POST /v1/load_lora_adapter: read an adapter that lies under --lora-root; requests may name it when this answers.

    Those that run go on meanwhile, and also where ``load_inplace`` puts it in the place of one that they have. 404 where there is
    none, or none that may be read.
    """
    services = services_of(request.scope)
    wanted, _ = decode_body(body_of(request.scope), LoadAdapterRequest)
    name = check_adapter_name(wanted.lora_name)
    if name in services.model_names or name in services.aliases:
        raise InvalidRequest(f"the model itself is called {name}; give the adapter another name", "lora_name")
    try:
        await services.client.adapters.load(name, wanted.lora_path, replaces=wanted.load_inplace)
    except UnknownAdapter as error:
        raise ApiError(404, str(error), code="adapter_not_found", param="lora_path") from None
    return _json(AdapterLoaded(id=name, parent=services.model_names[0]))


async def unload_lora_adapter(request: Request) -> Response:
    """POST /v1/unload_lora_adapter: no new request may name it; those that run go on to their end."""
    services = services_of(request.scope)
    wanted, _ = decode_body(body_of(request.scope), UnloadAdapterRequest)
    try:
        await services.client.adapters.unload(wanted.lora_name)
    except UnknownAdapter as error:
        raise ApiError(404, str(error), code="adapter_not_found", param="lora_name") from None
    return _json(AdapterUnloaded(id=wanted.lora_name))


async def metrics(request: Request) -> Response:
    """GET /metrics: Prometheus's text format."""
    services = services_of(request.scope)
    body, content_type = services.metrics.exposition(services.client)
    return Response(body, headers={"content-type": content_type})


async def server_info(request: Request) -> Response:
    """GET /server_info: state, sizes and numbers, and those options that are no secret (T34)."""
    services = services_of(request.scope)
    client = services.client
    info = ServerInfo(
        version=services.version,
        model=services.model_names[0],
        created=services.created,
        state=client.state.value,
        num_engine_starts=client.num_starts,
        num_open_requests=len(client.generations),
        num_waiting_requests=client.num_waiting,
        engine=_engine_info(client),
        config=_shown_config(services.config),
    )
    return _json(info)


def _engine_info(client: EngineClient) -> EngineInfo | None:
    ready = client.ready
    if ready is None:
        return None
    return EngineInfo(
        max_model_len=ready.limits.max_model_len,
        max_total_tokens=ready.limits.max_total_tokens,
        vocab_size=ready.limits.vocab_size,
        num_pages=ready.num_pages,
        page_size=ready.page_size,
        page_bytes=ready.page_bytes,
        threads=ready.threads,
        isa=ready.isa,
        adapters=client.adapters.listed(),
        stats=client.stats,
    )


def _shown_config(config: ServerConfig) -> dict[str, str | int | float | bool | tuple[str, ...]]:
    shown = {f.name: getattr(config, f.name) for f in fields(config) if f.name in _SHOWN_OPTIONS}
    return shown | {"has_api_key": bool(config.api_key), "has_admin_api_key": config.admin_api_key is not None}


async def flush_cache(request: Request) -> Response:
    """POST /flush_cache: forget cached KV and habits. 409 while requests run, unless forced: then what they hold stays."""
    force = _flag(request.query_params.get("force"), "force")
    if body := body_of(request.scope):
        flush, _ = decode_body(body, FlushRequest)
        force = force or flush.force
    try:
        num_pages = await services_of(request.scope).client.flush_cache(force=force)
    except InvalidRequest as error:
        raise ApiError(409, f"{error} (?force=true)", code="busy") from None
    return _json(Flushed(num_pages=num_pages))


def _flag(text: str | None, name: str) -> bool:
    known = {None: False, "": True, "true": True, "1": True, "false": False, "0": False}
    if text not in known:
        raise InvalidRequest(f"{name} is true or false", name)
    return known[text]


async def abort_request(request: Request) -> Response:
    """POST /abort_request: end requests early, by their ids or all. Ids that are unknown, or another caller's, do nothing."""
    caller = caller_of(request.scope)
    wanted, _ = decode_body(body_of(request.scope), AbortRequest)
    if wanted.abort_all and not caller.is_admin:
        raise ApiError(403, "to abort all requests needs the admin key (--admin-api-key)", code="admin")
    names = {*_listed(wanted.names, "rid"), *_listed(wanted.request_id, "request_id")}
    if not names and not wanted.abort_all:
        raise InvalidRequest("which request? send its id as rid or request_id, or abort_all", "rid")
    num_aborted = 0
    for generation in services_of(request.scope).client.generations:
        if _may_abort(caller, generation) and (wanted.abort_all or _is_named(generation, names)):
            generation.abort()
            num_aborted += 1
    return _json(Aborted(num_aborted=num_aborted))


def _listed(names: str | list[str] | None, param: str) -> list[str]:
    listed = [names] if isinstance(names, str) else names or []
    if len(listed) > _MAX_NAMES:
        raise InvalidRequest(f"{param} has {len(listed):,} ids, over {_MAX_NAMES:,}; send fewer at a time", param)
    return listed


def _may_abort(caller: Caller, generation: Generation) -> bool:
    return caller.is_admin or generation.owner == caller.owner


def _is_named(generation: Generation, names: set[str]) -> bool:
    return generation.request.request_id in names or not names.isdisjoint(generation.names)
