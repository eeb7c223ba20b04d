"""What an output must look like, as the caller says it: plain data, checked for its shape alone; ``structured`` has the rest."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from ramet.errors import GrammarError, shown

__all__ = ["MAX_GRAMMAR_BYTES", "GrammarKind", "GrammarSpec"]

GrammarKind: TypeAlias = Literal["json", "json_object", "regex", "choice", "grammar"]

MAX_GRAMMAR_BYTES = 256 * 1024
_MAX_CHOICES = 5_000
_KINDS: tuple[str, ...] = get_args(GrammarKind)


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """One constraint. ``text`` is a JSON Schema for ``json``, a pattern that the whole output matches for ``regex``, a JSON list
    of strings for ``choice``, Lark or EBNF for ``grammar``, and empty for ``json_object`` (any JSON object).
    """

    kind: GrammarKind
    text: str = ""

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise GrammarError(f"a constraint is one of {', '.join(_KINDS)}, not {shown(self.kind)}")
        if not isinstance(self.text, str) or (not self.text and self.kind != "json_object"):
            raise GrammarError(f"{self.kind} is a text that is not empty, not {shown(self.text)}")
        try:
            size = len(self.text.encode())
        except UnicodeEncodeError:
            raise GrammarError(f"{self.kind} holds a lone surrogate, which no output can contain") from None
        if size > MAX_GRAMMAR_BYTES:
            raise GrammarError(f"{self.kind} is {size:,} bytes; at most {MAX_GRAMMAR_BYTES:,} are taken. Make it smaller")

    @classmethod
    def of(cls, value: object) -> GrammarSpec:
        """From what callers write: a mapping with exactly one of ``json`` (a schema, as a mapping or as text), ``json_object``
        (true), ``regex``, ``choice`` (a list of strings) and ``grammar``; or one of ``kind`` and ``text``, a spec's own fields.
        Raises ``GrammarError``.
        """
        if isinstance(value, GrammarSpec):
            return value
        if not isinstance(value, Mapping):
            raise GrammarError(f"structured_outputs maps one of {', '.join(_KINDS)} to its value, not {shown(value)}")
        if value.keys() == {"kind", "text"}:
            return cls(value["kind"], value["text"])
        for name in value:
            if name not in _KINDS:
                near = difflib.get_close_matches(name, _KINDS, n=1) if isinstance(name, str) else []
                hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(_KINDS)}"
                raise GrammarError(f"structured_outputs has {shown(name)}; {hint}")
        given = [name for name in _KINDS if value.get(name) is not None]
        if len(given) != 1:
            raise GrammarError(
                f"structured_outputs needs exactly one of {', '.join(_KINDS)}; it has {', '.join(given) or 'none'}"
            )
        return _OF[given[0]](value[given[0]])


def _json(schema: Any) -> GrammarSpec:
    if isinstance(schema, str):
        return GrammarSpec("json", schema)
    if not isinstance(schema, (Mapping, bool)):
        raise GrammarError(f"json is a schema: an object, true, or the text of one, not {shown(schema)}")
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except RecursionError:
        raise GrammarError("the JSON schema is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise GrammarError(f"the JSON schema cannot be written as JSON: {shown(str(error), 100)}") from None
    return GrammarSpec("json", text)


def _json_object(wanted: Any) -> GrammarSpec:
    if wanted is not True:
        raise GrammarError(f"json_object is true or left out, not {shown(wanted)}")
    return GrammarSpec("json_object")


def _choice(choices: Any) -> GrammarSpec:
    if not isinstance(choices, (list, tuple)) or not 0 < len(choices) <= _MAX_CHOICES:
        raise GrammarError(f"choice is a list of 1 to {_MAX_CHOICES:,} strings, not {shown(choices)}")
    for one in choices:
        if not isinstance(one, str):
            raise GrammarError(f"each choice is a string, not {shown(one)}")
    return GrammarSpec("choice", json.dumps(list(choices), ensure_ascii=False, separators=(",", ":")))


_OF: Mapping[str, Callable[[Any], GrammarSpec]] = {
    "json": _json,
    "json_object": _json_object,
    "choice": _choice,
    "regex": lambda text: GrammarSpec("regex", text),
    "grammar": lambda text: GrammarSpec("grammar", text),
}
