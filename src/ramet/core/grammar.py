"""What an output must look like, as the caller says it: plain data, checked for its shape alone; ``structured`` has the rest."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_args

from ramet.errors import GrammarError, shown

__all__ = ["MAX_GRAMMAR_BYTES", "GrammarKind", "GrammarSpec"]

GrammarKind: TypeAlias = Literal["json", "json_object", "regex", "choice", "grammar", "structural_tag"]

MAX_GRAMMAR_BYTES = 256 * 1024
_MAX_CHOICES = 5_000
_MAX_PATTERN_CHARS = 256
_KINDS: tuple[str, ...] = get_args(GrammarKind)
_WITH_JSON = ("json", "json_object", "structural_tag", "grammar")
_FLAGS = ("disable_any_whitespace", "disable_additional_properties", "disable_fallback")
_FIELDS = {"kind", "text", "whitespace", "is_closed", "param"}


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """One constraint. ``text`` is a JSON Schema for ``json``, a pattern that the whole output matches for ``regex``, a JSON list
    of strings for ``choice``, Lark or EBNF for ``grammar``, a JSON object for ``structural_tag``, and empty for ``json_object``
    (any JSON object).

    Where there is JSON in the output, ``whitespace`` is a pattern of what may stand between its tokens (none where it is empty;
    None leaves it to the compiler), and an ``is_closed`` schema allows no properties but those it names. ``param`` is what the
    caller calls the constraint, for errors alone.
    """

    kind: GrammarKind
    text: str = ""
    whitespace: str | None = None
    is_closed: bool = False
    param: str = field(default="structured_outputs", compare=False)

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise GrammarError(f"a constraint is one of {', '.join(_KINDS)}, not {shown(self.kind)}")
        if not isinstance(self.text, str) or (not self.text and self.kind != "json_object"):
            raise GrammarError(f"{self.kind} is a text that is not empty, not {shown(self.text)}")
        if self.whitespace is not None and not (
            isinstance(self.whitespace, str) and len(self.whitespace) <= _MAX_PATTERN_CHARS and self.whitespace.isascii()
        ):
            raise GrammarError(f"whitespace_pattern is a text of at most {_MAX_PATTERN_CHARS} characters of ASCII")
        if not isinstance(self.is_closed, bool) or not isinstance(self.param, str):
            raise GrammarError(f"is_closed is true or false and param a name, not {shown(self.is_closed)}, {shown(self.param)}")
        if (self.whitespace is not None or self.is_closed) and self.kind not in _WITH_JSON:
            raise GrammarError(f"options of JSON say nothing of a {self.kind}; leave them out")
        try:
            size = len(self.text.encode())
        except UnicodeEncodeError:
            raise GrammarError(f"{self.kind} holds a lone surrogate, which no output can contain") from None
        if size > MAX_GRAMMAR_BYTES:
            raise GrammarError(f"{self.kind} is {size:,} bytes; at most {MAX_GRAMMAR_BYTES:,} are taken. Make it smaller")

    @property
    def is_document(self) -> bool:
        """Whether the whole output is one JSON document."""
        return self.kind in ("json", "json_object")

    @classmethod
    def of(cls, value: object, param: str = "structured_outputs") -> GrammarSpec:
        """From what callers write: a mapping with exactly one of ``json`` (a schema, as a mapping or as text), ``json_object``
        (true), ``regex``, ``choice`` (a list of strings), ``grammar`` and ``structural_tag`` (as a mapping or as text), and
        vLLM's options of JSON; or a spec's own fields. Raises ``GrammarError``, which names ``param``.
        """
        if isinstance(value, GrammarSpec):
            return value
        try:
            if not isinstance(value, Mapping):
                raise GrammarError(f"structured_outputs maps one of {', '.join(_KINDS)} to its value, not {shown(value)}")
            if {"kind", "text"} <= value.keys() <= _FIELDS:
                return cls(**value)
            return replace(_spec_of(value), param=param)
        except GrammarError as error:
            raise GrammarError(str(error), param) from None


def _spec_of(value: Mapping[Any, Any]) -> GrammarSpec:
    known = (*_KINDS, *_FLAGS, "whitespace_pattern")
    for name in value:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1) if isinstance(name, str) else []
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(_KINDS)}"
            raise GrammarError(f"structured_outputs has {shown(name)}; {hint}")
    given = [name for name in _KINDS if value.get(name) is not None]
    if len(given) != 1:
        raise GrammarError(f"structured_outputs needs exactly one of {', '.join(_KINDS)}; it has {', '.join(given) or 'none'}")
    spec = _OF[given[0]](value[given[0]])
    flags = {name: value.get(name) or False for name in _FLAGS}
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise GrammarError(f"{name} is true or false, not {shown(flag)}")
    whitespace = value.get("whitespace_pattern")
    if flags["disable_any_whitespace"]:
        if whitespace is not None:
            raise GrammarError("disable_any_whitespace and whitespace_pattern say two things of one; send one of them")
        whitespace = ""
    # There is one compiler and nothing it falls back to, whatever disable_fallback says.
    return replace(spec, whitespace=whitespace, is_closed=flags["disable_additional_properties"])


def _json(schema: Any) -> GrammarSpec:
    if not isinstance(schema, (str, Mapping, bool)):
        raise GrammarError(f"json is a schema: an object, true, or the text of one, not {shown(schema)}")
    return GrammarSpec("json", _written(schema, "the JSON schema"))


def _structural_tag(tag: Any) -> GrammarSpec:
    if not isinstance(tag, (str, Mapping)):
        raise GrammarError(f"structural_tag is an object, or the text of one, not {shown(tag)}")
    return GrammarSpec("structural_tag", _written(tag, "structural_tag"))


def _written(value: Any, what: str) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except RecursionError:
        raise GrammarError(f"{what} is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise GrammarError(f"{what} cannot be written as JSON: {shown(str(error), 100)}") from None


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
    "structural_tag": _structural_tag,
    "regex": lambda text: GrammarSpec("regex", text),
    "grammar": lambda text: GrammarSpec("grammar", text),
}
