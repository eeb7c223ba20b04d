"""What endpoints have at hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.types import Scope

from ramet.config import ServerConfig
from ramet.core.sampling import SamplingParams
from ramet.errors import GrammarError, shown
from ramet.server.client import EngineClient
from ramet.server.errors import ApiError
from ramet.server.generation import Generation, Prompted
from ramet.server.metrics import Metrics
from ramet.server.translate import Translator

__all__ = ["Services", "generations_of", "services_of"]


@dataclass(frozen=True, slots=True)
class Services:
    """``model_names`` are what the model is called, the first of them its own; ``aliases`` are understood as well, but told to
    nobody, since one may be a path. ``created`` is Unix time of the start.
    """

    client: EngineClient
    translator: Translator
    metrics: Metrics
    config: ServerConfig
    model_names: tuple[str, ...]
    created: int
    version: str
    aliases: frozenset[str] = frozenset()

    def model(self, asked: str | None, param: str = "model") -> str:
        """The name that an answer bears: the one asked for, or the model's own. Raises a 404 for another model's.

        ``param`` is the field that it was asked for in.
        """
        if not asked:
            return self.model_names[0]
        if not (self._is_base(asked) or self.adapter(asked)):
            names = ", ".join([*self.model_names, *(info.name for info in self.client.adapters.listed())])
            raise ApiError(
                404,
                f"there is no model {shown(asked, 100)} here, but {names}; see --served-model-name",
                code="model_not_found",
                param=param,
            )
        return asked

    def adapter(self, asked: str | None) -> str:
        """The adapter that a model's name means, as its own name or as ``model:adapter``; empty for none."""
        if not asked or self._is_base(asked):
            return ""
        base, colon, name = asked.rpartition(":")
        name = name if colon and self._is_base(base) else asked
        return name if name in self.client.adapters else ""

    def _is_base(self, name: str) -> bool:
        return name in self.model_names or name in self.aliases

    def submit(self, scope: Scope, prompts: Sequence[Prompted], request_id: str) -> list[Generation]:
        """Send a request's prompts to the engine, as ``EngineClient.submit`` does. Whatever becomes of the request, what is left
        of them when it is done is aborted: ``generations_of`` knows them from now on.
        """
        generations = self.client.submit(prompts, request_id)
        scope["ramet.generations"] = generations
        return generations

    async def check_grammar(self, sampling: SamplingParams) -> None:
        """Raise ``GrammarError`` naming the field, before anything is sent, where the engine could not hold an output to it."""
        if sampling.grammar is None or self.client.ready is None:
            return
        try:
            await self.translator.check_grammar(sampling.grammar, self.client.ready)
        except GrammarError as error:
            raise GrammarError(str(error), sampling.grammar.param) from None


def generations_of(scope: Scope) -> list[Generation]:
    """What a request has sent to the engine; nothing, where it did not come so far."""
    generations: list[Generation] = scope.get("ramet.generations", [])
    return generations


def services_of(scope: Scope) -> Services:
    """Those of the app that serves this request."""
    services: Services = scope["ramet.services"]
    return services
