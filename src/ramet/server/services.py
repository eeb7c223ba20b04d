"""What endpoints have at hand."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import Scope

from ramet.config import ServerConfig
from ramet.server.client import EngineClient
from ramet.server.metrics import Metrics
from ramet.server.translate import Translator

__all__ = ["Services", "services_of"]


@dataclass(frozen=True, slots=True)
class Services:
    """``model_names`` are what requests may call the model, the first being its own; ``created`` is Unix time of the start."""

    client: EngineClient
    translator: Translator
    metrics: Metrics
    config: ServerConfig
    model_names: tuple[str, ...]
    created: int
    version: str


def services_of(scope: Scope) -> Services:
    """Those of the app that serves this request."""
    services: Services = scope["ramet.services"]
    return services
