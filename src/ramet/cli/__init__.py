"""The ``ramet`` command. Heavy modules load when a command runs, so that ``--help`` answers at once."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from ramet.cli import bench, chat, generate
from ramet.errors import RametError

__all__ = ["app", "main"]

_ABOUT = """Ramet: an LLM serving engine whose KV cache is a tree. What is still in memory is not computed again, and the
same request gives the same bits, whatever else runs."""

_EXAMPLES = """Examples:\n
  ramet generate --chat "What is the capital of France?" --temperature 0\n
  ramet chat\n
  ramet generate "Once upon a time" --model ./Qwen2.5-0.5B-Instruct --json
"""

app = typer.Typer(
    name="ramet",
    help=_ABOUT,
    epilog=_EXAMPLES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.add_typer(bench.app, name="bench")


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"ramet {version('ramet')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


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
        app()
        sys.stdout.flush()
    except RametError as error:
        typer.echo(f"ramet: {error}", err=True)
        sys.exit(1)
    except OSError as error:  # a full disk, a terminal that is gone; a reader that has left (EPIPE) is no error to typer
        typer.echo(f"ramet: {error}", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still in the buffer cannot be written either
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
