"""The ``ramet`` command. Commands load when they are named, and heavy modules when they run: ``--help`` answers at once."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from io import TextIOWrapper

import click

from ramet.errors import RametError

__all__ = ["app", "main"]

_COMMANDS = {  # each is what its module under ramet.cli has of its name
    "serve": "Serve a model over HTTP, with OpenAI's and Anthropic's API.",
    "chat": "Talk to a model.",
    "generate": "Complete one prompt.",
    "bench": "Measure the machine, an engine, a server.",
    "doctor": "Show versions, machine and limits, for a bug report.",
}
_FRONT = """\
Ramet is an LLM serving engine whose KV cache is a tree: what is in memory is
not computed again, and the same request gives the same bits.

  ramet chat                             talk to a small demo model
  ramet serve ./Qwen2.5-0.5B-Instruct    OpenAI's API on http://127.0.0.1:8000
  ramet generate --chat "What is a ramet?" --temperature 0

Commands:
"""


def _version(ctx: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        click.echo(f"ramet {version('ramet')}")
        ctx.exit()


class _Front(click.Group):
    """What ``ramet`` alone says: what it is, how it is used, and its commands, on less than a screen."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(_FRONT)
        for name, text in _COMMANDS.items():
            formatter.write(f"  {name:<10}{text}\n")
        formatter.write("ramet COMMAND --help shows its flags; ramet --version.\n")

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command = getattr(import_module(f"ramet.cli.{name}"), name)
        return command if isinstance(command, click.Command) else None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in _COMMANDS and not ctx.resilient_parsing:
            ctx.fail(f"No such command: {args[0]}. There are {', '.join(_COMMANDS)}.")
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Front,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version.")
@click.pass_context
def app(ctx: click.Context) -> None:
    """An LLM serving engine whose KV cache is a tree."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def _settle_streams() -> None:
    """Streams that were closed become empty ones, and no text breaks them: what a locale cannot print becomes a question mark,
    and bytes that are no text become lone surrogates, which every prompt is checked for.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace")):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=errors)


def main() -> None:
    """Entry point: errors are one line on stderr and exit code 1, Ctrl-C is 130."""
    _settle_streams()
    try:
        app(prog_name="ramet")
        sys.stdout.flush()
    except RametError as error:
        click.echo(f"ramet: {error}", err=True)
        sys.exit(1)
    except OSError as error:  # a full disk, a terminal that is gone; a reader that has left (EPIPE) is no error to click
        click.echo(f"ramet: {error}", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still in the buffer cannot be written either
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
