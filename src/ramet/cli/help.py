"""Options in groups, and the ``--help`` that shows them: those that most people use, all of them, or those that a word finds."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

__all__ = ["GroupedCommand", "GroupedOption", "Shorthand", "nearest"]

_WIDTH = 80
_PAIR = re.compile(r"[\w./-]+=")
_WEAK = "ramet.weak"  # in a context's meta: values by the flags they stand for
_TEXT_AT = 23  # where texts begin, unless a flag is longer


class Shorthand(NamedTuple):
    """What a flag without a value stands for; a weak one says nothing where the option is given, also in the
    environment or in a file.
    """

    value: str
    is_weak: bool = False


class GroupedOption(click.Option):
    """An option of a ``group``. ``--help`` shows the ``common`` ones, a line each: flag, text, default, variable.

    ``more`` is what the line has no room for; ``unset`` says what the option comes to where its default is None; ``shorthands``
    are flags without a value that stand for this option with one. ``accepts`` are the types that a value may have in a file of
    options.
    """

    def __init__(
        self,
        *args: Any,
        group: str,
        common: bool = True,
        more: str = "",
        unset: str = "",
        shorthands: Mapping[str, Shorthand] | None = None,
        accepts: tuple[type, ...] = (str,),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.group = group
        self.common = common
        self.more = more
        self.unset = unset
        self.shorthands = shorthands or {}
        self.accepts = accepts

    @property
    def flag(self) -> str:
        return next(name for name in self.opts if name.startswith("--"))

    @property
    def names(self) -> list[str]:
        """All that a person may type for it."""
        return [*self.opts, *self.secondary_opts, *self.shorthands]

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """A Kubernetes service called ``ramet`` puts ``RAMET_PORT=tcp://...`` into every pod near it: that is no port."""
        value = super().resolve_envvar_value(ctx)
        return None if value is not None and value.startswith(("tcp://", "udp://", "sctp://")) else value

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        value, source = super().consume_value(ctx, opts)
        weak = ctx.meta.get(_WEAK, {})
        if source is ParameterSource.DEFAULT and self.flag in weak:
            return weak[self.flag], ParameterSource.COMMANDLINE
        return value, source

    def line(self) -> str:
        default = self.unset or _as_shown(self.default)
        text = f"{self.help} [{default}]" if default else f"{self.help}"
        left = f"  {self.flag}".ljust(_TEXT_AT - 1) + f" {text}"
        variable = self.envvar if isinstance(self.envvar, str) else ""
        return f"{left} {variable.rjust(_WIDTH - 1 - len(left))}".rstrip()

    def details(self, word: str) -> list[str]:
        """The lines below ``line``: what more there is to say, and the other names that have ``word`` in them."""
        names = [name for name in self.names if name != self.flag and word in name]
        notes = {name: f" (= {short.value})" for name, short in self.shorthands.items()} | dict.fromkeys(
            self.secondary_opts, " (off)"
        )
        told = [name + notes.get(name, "") for name in names]
        texts = [self.more, *([f"Also {', '.join(told)}."] if told else [])]
        indent = " " * _TEXT_AT
        return textwrap.wrap(
            " ".join(text for text in texts if text),
            _WIDTH,
            initial_indent=indent,
            subsequent_indent=indent,
            break_on_hyphens=False,
        )

    def is_about(self, word: str) -> bool:
        return word in f"{self.group}\n{' '.join(self.names)}\n{self.help}\n{self.more}".lower()


class GroupedCommand(click.Command):
    """A command with ``--help``, ``--help=all`` and ``--help=WORD``; an unknown flag is told the two nearest names."""

    _own_help: click.Option | None = None

    def get_help_option(self, ctx: click.Context) -> click.Option:
        if self._own_help is None:
            self._own_help = GroupedOption(
                [*ctx.help_option_names, "help_word"],
                group="other",
                common=False,
                is_flag=False,
                flag_value="",
                is_eager=True,
                expose_value=False,
                callback=self._show_help,
                help="=all, or =WORD to search",
            )
        return self._own_help

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = self._options(ctx)
        shorthands = {name: (short, option.flag) for option in options for name, short in option.shorthands.items()}
        end = args.index("--") if "--" in args else len(args)
        weak: dict[str, str] = ctx.meta.setdefault(_WEAK, {})
        spelled: list[str] = []
        for arg in _apart(args[:end], options):
            short, flag = shorthands.get(arg, (None, ""))
            if short is None:
                spelled.append(arg)
            elif short.is_weak:
                weak[flag] = short.value
            else:
                spelled += [flag, short.value]
        try:
            return super().parse_args(ctx, spelled + args[end:])
        except click.NoSuchOption as error:
            names = nearest(error.option_name, [name for option in options for name in option.names])
            message = f"No such option: {error.option_name}. Nearest: {', '.join(names)}"
            raise click.NoSuchOption(error.option_name, message, ctx=ctx) from None

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = self._options(ctx)
        formatter.write(f"Usage: {ctx.command_path} {' '.join(self.collect_usage_pieces(ctx))}\n\n")
        for paragraph in (self.help or "").split("\n\n"):
            formatter.write(textwrap.fill(" ".join(paragraph.split()), _WIDTH) + "\n\n")
        formatter.write(_listed([option for option in options if option.common]))
        if any(option.flag == "--config" for option in options):
            formatter.write("\nThe name on the right is a variable that sets it; so does --config FILE (YAML).\n")
        else:
            formatter.write("\n")
        formatter.write(f"--help=all for {len(options)} flags, --help=WORD to search\n")

    def _options(self, ctx: click.Context) -> list[GroupedOption]:
        return [param for param in self.get_params(ctx) if isinstance(param, GroupedOption)]

    def _show_help(self, ctx: click.Context, parameter: click.Parameter, word: str | None) -> None:
        if word is None:
            return
        word = word.lstrip("=")  # -h=WORD
        if not word:
            click.echo(ctx.get_help())
        elif word == "all":
            click.echo(_listed(self._options(ctx), word=""), nl=False)
        else:
            click.echo(self._found(ctx, word), nl=False)
        ctx.exit()

    def _found(self, ctx: click.Context, word: str) -> str:
        options = self._options(ctx)
        wanted = word.lower().replace("_", "-")
        found = [option for option in options if option.is_about(wanted)]
        if found:
            return _listed(found, wanted)
        names = nearest(f"--{wanted}", [option.flag for option in options])
        return f"No flag is about {word!r}. Nearest: {', '.join(names)}. --help=all lists all.\n"


def nearest(name: str, known: Iterable[str], count: int = 2) -> list[str]:
    """The ``count`` names of ``known`` that are most like ``name``, best first."""
    return sorted(known, key=lambda other: SequenceMatcher(None, name, other).ratio(), reverse=True)[:count]


def _as_shown(default: object) -> str:
    match default:
        case bool():
            return "on" if default else "off"
        case float():
            return f"{default:g}"
        case int() | str():
            return str(default)
    return ""  # None, an empty list, or click's own mark of nothing


def _listed(options: list[GroupedOption], word: str | None = None) -> str:
    """The options under the names of their groups, ``other`` last; with details where there is a ``word``."""
    groups: dict[str, list[str]] = {}
    for option in sorted(options, key=lambda option: option.group == "other"):
        groups.setdefault(option.group, []).extend([option.line(), *(option.details(word) if word is not None else [])])
    return "\n".join(f"{group}\n" + "".join(f"{line}\n" for line in lines) for group, lines in groups.items())


def _apart(args: list[str], options: Iterable[GroupedOption]) -> list[str]:
    """Each NAME=VALUE behind a flag that may be repeated with the flag in front of it: others take several behind one."""
    flags = {name for option in options if option.multiple for name in option.opts}
    found: list[str] = []
    flag = ""  # the last one, while what follows may be more for it
    for i, arg in enumerate(args):
        if arg.startswith("-"):
            flag = arg if arg in flags else ""
        elif flag and args[i - 1] != flag:
            if _PAIR.match(arg) and _PAIR.match(args[i - 1]):
                found.append(flag)
            else:
                flag = ""
        found.append(arg)
    return found
