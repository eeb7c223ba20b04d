"""Jinja templates of models, rendered as ``transformers`` renders them, by a sandbox with bounds.

A template comes with a model file, so it is a stranger's program. Three walls stand around it:

* **No way out.** Jinja's immutable sandbox, and any attribute that the sandbox calls unsafe is an error at once, not an
  undefined value. No loader, so no other file. Only plain data goes in.
* **Time.** Each turn of a loop, call, filter, test, comparison and output looks at the clock; after ``MAX_SECONDS`` the rendering
  ends. What happens between two looks is bounded by the sizes below.
* **Size.** Strings and lists are measured where they are made: before the operation where a small input can give a
  large result, else after it. One value has at most ``MAX_SIZE`` characters, an item counting as eight and nested ones each
  time they appear; all of a rendering's together at most ``MAX_TOTAL`` and 64 times its input.

Filters whose result can outgrow their input and that no chat template needs (``center``, ``batch``, ``wordwrap`` ...) are
left out; a template that uses one is refused when it is compiled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import wraps
from typing import Any, cast

import jinja2
from jinja2 import filters, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import EvalContext
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from ramet.core.ports import Clock
from ramet.errors import InvalidRequest, ModelError
from ramet.text.meter import Meter

__all__ = ["MAX_SOURCE", "CompiledTemplate"]

MAX_SOURCE = 1 << 18
_MAX_MESSAGE = 500
_DROPPED_FILTERS = (
    "batch", "center", "filesizeformat", "pprint", "random", "slice", "urlize", "wordwrap", "xmlattr",
)  # fmt: skip
_meter: ContextVar[Meter] = ContextVar("meter")


class _Raised(jinja2.TemplateError):
    """The template called ``raise_exception``."""


class CompiledTemplate:
    """One template, compiled once; any number of threads may render it. Raises ``ModelError`` where it does not compile.

    ``functions`` are what the template can call besides Jinja's own.
    """

    def __init__(self, source: str, functions: Mapping[str, Callable[..., Any]]) -> None:
        if len(source) > MAX_SOURCE:
            raise ModelError(f"the chat template has {len(source)} characters; at most {MAX_SOURCE} are read")
        environment = _Environment()
        environment.globals.update(functions)
        try:
            self.syntax = environment.parse(source)
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(f"the chat template is wrong in line {error.lineno}: {error.message}") from error
        except Exception as error:  # nesting too deep for the parser or for Python's compiler, odd literals
            raise ModelError(f"the chat template cannot be compiled: {_told(error)}") from error

    def render(self, variables: Mapping[str, object], clock: Clock) -> str:
        """The text for these variables, which are plain data. Raises ``InvalidRequest``, with the template's own words where it
        refuses.
        """
        token = _meter.set(Meter(clock, variables))
        try:
            return "".join(self._pieces(variables))
        except _Raised as error:
            raise InvalidRequest(f"the chat template refuses these messages: {_told(error)}", "messages") from error
        except Exception as error:  # a template can make Python raise nearly anything
            raise InvalidRequest(f"the chat template cannot render these messages: {_told(error)}", "messages") from error
        finally:
            _meter.reset(token)

    def _pieces(self, variables: Mapping[str, object]) -> Iterator[str]:
        put_out = _meter.get().put_out
        for piece in self._template.generate(variables):
            put_out(len(piece))
            yield piece


def _told(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= _MAX_MESSAGE else text[:_MAX_MESSAGE] + "..."


def _raise_exception(message: object) -> None:
    raise _Raised(str(message))


class _Dict:
    """``dict`` for templates: what makes dicts, and not the type itself."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """Jinja's ``namespace`` that keeps no name with an underscore in front, since those reach into Python objects."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # no `self`, so that a template may store that name
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _Namespace._check(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _Namespace._check(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"  # Jinja's shows all it holds, a size that nothing measures

    @staticmethod
    def _check(name: object) -> None:
        if str(name).startswith("_"):
            raise SecurityError(f"a namespace keeps no name that begins with an underscore: {name!r}")


class _Generation(Extension):
    """``{% generation %} ... {% endgeneration %}``: marks the assistant's own text for training; here only a scope."""

    tags = {"generation"}  # noqa: RUF012  # Jinja's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


@jinja2.pass_context
def _finalize(context: Context, value: Any) -> Any:
    """Each value that is put out, in macros and captured blocks too. Takes the context so that nothing is folded early."""
    _meter.get().written(value)
    return value


def _each(values: Any) -> Iterator[Any]:
    tick = _meter.get().tick
    for value in values:
        tick()
        yield value


def _looked(value: Any) -> Any:
    _meter.get().tick()
    return value


def _made(value: Any) -> Any:
    _meter.get().made(value)
    return value


def _concat(values: list[Any]) -> str:
    """The ``~`` operator."""
    _meter.get().written(values)
    return "".join(map(str, values))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """``transformers``' filter: no HTML escapes, the keywords of ``json.dumps``. Piece by piece, since indents can make much
    of little.
    """
    meter = _meter.get()
    meter.written(value)
    meter.allow(meter.size(indent))
    meter.allow(indent if isinstance(indent, int) else 0)
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    if indent is None:
        return encoder.encode(value)
    pieces, size = [], 0
    for piece in encoder.iterencode(value):
        size += len(piece)
        meter.allow(size)
        pieces.append(piece)
    return "".join(pieces)


@jinja2.pass_eval_context
def _replace(context: EvalContext, text: str, old: str, new: str, count: int | None = None) -> str:
    _meter.get().before_replace(str(text), old, new)
    return filters.do_replace(context, text, old, new, count)


@jinja2.pass_eval_context
def _join(context: EvalContext, values: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    values = [*values]
    _meter.get().before_join(str(d), values)
    return filters.sync_do_join(context, values, d, attribute)


def _indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    size = width if isinstance(width, int) else len(width)
    _meter.get().allow(len(s) + (s.count("\n") + 1) * size)
    return filters.do_indent(s, width, first, blank)


def _format(value: str, *args: Any, **kwargs: Any) -> str:
    _meter.get().before_operator("%", str(value), kwargs or args)
    return filters.do_format(value, *args, **kwargs)


_FILTERS: dict[str, Callable[..., Any]] = {
    "format": _format, "indent": _indent, "join": _join, "replace": _replace, "tojson": _tojson,
}  # fmt: skip
_EACH, _LOOKED, _MADE, _CONCAT = "each item", "one look", "one literal", "one text"  # no template can spell these


class _Metered(NodeTransformer):
    """Puts the measuring filters into a parsed template."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = _through(_EACH, node.iter)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _through(_LOOKED, node.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _through(_MADE, node) if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _through(_MADE, node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _through(_MADE, node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _through(_MADE, node) if node.ctx == "load" else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _through(_CONCAT, nodes.List(node.nodes, lineno=node.lineno))


def _through(name: str, node: nodes.Node) -> nodes.Filter:
    return nodes.Filter(cast(nodes.Expr, node), name, [], [], None, None, lineno=node.lineno)


def _measured(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter or test that looks at the clock and has its result measured."""

    @wraps(function)
    def measured(*args: Any, **kwargs: Any) -> Any:
        meter = _meter.get()
        meter.tick()
        result = function(*args, **kwargs)
        meter.made(result)
        return result

    return measured


class _Environment(ImmutableSandboxedEnvironment):
    """``transformers``' settings, and the meters."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, loopcontrols],
            finalize=_finalize,
            optimized=False,  # nothing of a template runs while it is compiled
        )
        for name in _DROPPED_FILTERS:
            del self.filters[name]
        offered: dict[str, Callable[..., Any]] = {**self.filters, **_FILTERS}
        self.filters = {name: _measured(function) for name, function in offered.items()}
        self.filters |= {_EACH: _each, _LOOKED: _looked, _MADE: _made, _CONCAT: _concat}
        self.tests = {name: _measured(cast(Callable[..., Any], function)) for name, function in self.tests.items()}
        del self.globals["lipsum"]
        self.globals.update(dict=_Dict(), namespace=_Namespace, raise_exception=_raise_exception)

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        metered = _Metered().visit(source).set_environment(self)
        return super()._generate(metered, *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        if attribute.startswith("__"):
            return self.unsafe_undefined(obj, attribute)  # an object that lacks it now may have it in another release
        return super().getattr(obj, attribute)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        raise SecurityError(f"access to attribute {attribute!r} of a {type(obj).__name__} is unsafe")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        meter = _meter.get()
        meter.before_operator(operator, left, right)
        result = super().call_binop(context, operator, left, right)
        if operator == "+":
            meter.joined(left, right, result)
        else:
            meter.made(result)
        return result

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  # as the sandbox
        meter = _meter.get()
        meter.tick()
        result = super().call(__context, __obj, *meter.before_call(__obj, args, kwargs), **kwargs)
        meter.made(result)
        return result
