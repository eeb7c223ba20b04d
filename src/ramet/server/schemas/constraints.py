"""The fields of a request that say what its output must look like, by the names that users of other servers type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ramet.core.grammar import GrammarSpec
from ramet.errors import InvalidRequest, shown
from ramet.server.schemas.sampling import SamplingFields

__all__ = ["ConstraintFields", "constraint_of_schema", "one_constraint"]

_KINDS = {  # a field, and what it is called in structured_outputs
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
    "grammar": "grammar",
    "structural_tag": "structural_tag",
}
_BACKENDS = ("auto", "guidance")


class ConstraintFields(SamplingFields, kw_only=True):
    """``structured_outputs`` and the older ``guided_*`` are vLLM's; ``regex``, ``ebnf``, ``json_schema`` and ``structural_tag``
    SGLang's; ``grammar`` and ``json_schema`` llama.cpp's. At most one may be sent.
    """

    structured_outputs: dict[str, Any] | None = None
    guided_json: str | dict[str, Any] | bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    guided_decoding_backend: str | None = None
    json_schema: str | dict[str, Any] | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | dict[str, Any] | None = None
    grammar: str | None = None
    grammar_lazy: bool | None = None
    grammar_triggers: list[Any] | None = None

    def constraint(self, forms: Mapping[str, object]) -> GrammarSpec | None:
        """The one that was sent; ``forms`` are further ones, by the names of their fields, as ``GrammarSpec.of`` takes them.
        Raises ``InvalidRequest`` naming the field.
        """
        if self.guided_decoding_backend not in (None, *_BACKENDS):
            raise InvalidRequest(
                f"guided_decoding_backend is {' or '.join(_BACKENDS)}, not {shown(self.guided_decoding_backend)}: there is one "
                "here; leave it out",
                "guided_decoding_backend",
            )
        if self.grammar_lazy or self.grammar_triggers:
            name = "grammar_lazy" if self.grammar_lazy else "grammar_triggers"
            raise InvalidRequest(f"{name} is not supported; send a structural_tag, which begins at its triggers", name)
        wanted: dict[str, object] = {name: {kind: getattr(self, name)} for name, kind in _KINDS.items()}
        if self.guided_whitespace_pattern is not None:
            if self.guided_json is None:
                raise InvalidRequest("guided_whitespace_pattern goes with guided_json; send both", "guided_whitespace_pattern")
            wanted["guided_json"] = {"json": self.guided_json, "whitespace_pattern": self.guided_whitespace_pattern}
        sent = {name: value for name, value in wanted.items() if getattr(self, name) is not None}
        if self.structured_outputs is not None:
            sent["structured_outputs"] = self.structured_outputs
        return one_constraint({**sent, **forms})


def one_constraint(sent: Mapping[str, object]) -> GrammarSpec | None:
    """Of what was sent by the names of its fields; None for nothing. Raises ``InvalidRequest`` for more than one."""
    if len(sent) > 1:
        raise InvalidRequest(f"{', '.join(sent)} each say what the output must look like; send one of them", next(iter(sent)))
    for name, value in sent.items():
        return GrammarSpec.of(value, name)
    return None


def constraint_of_schema(described: object, where: str, param: str) -> dict[str, object]:
    """What OpenAI's ``json_schema``, and its like, asks for: a ``schema``, and with ``strict`` one that is closed wherever it
    does not say otherwise. Raises ``InvalidRequest`` for ``param`` where there is no schema at ``where``.
    """
    described = described if isinstance(described, Mapping) else {}
    if described.get("schema") is None:
        raise InvalidRequest(f"{where}.schema is missing", param)
    if not isinstance(strict := described.get("strict"), bool | None):
        raise InvalidRequest(f"{where}.strict is true or false, not {shown(strict)}", param)
    return {"json": described["schema"], "disable_additional_properties": strict}
