"""What endpoints have at hand."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import Scope

from ramet.config import ServerConfig
from ramet.errors import shown
from ramet.server.client import EngineClient
from ramet.server.errors import ApiError
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

    def model(self, asked: str | None) -> str:
        """The name that an answer bears: the one asked for, or the model's own. Raises a 404 for another model's."""
        if not asked:
            return self.model_names[0]
        if asked not in self.model_names:
            names = ", ".join(self.model_names)
            raise ApiError(
                404,
                f"there is no model {shown(asked, 100)} here, but {names}; see --served-model-name",
                code="model_not_found",
                param="model",
            )
        return asked


def services_of(scope: Scope) -> Services:
    """Those of the app that serves this request."""
    services: Services = scope["ramet.services"]
    return services
