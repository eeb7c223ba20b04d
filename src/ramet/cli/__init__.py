"""The ``ramet`` command. Heavy modules load when a command runs, so that ``--help`` answers at once."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper

import click

from ramet.cli.bench import bench
from ramet.cli.chat import chat
from ramet.cli.generate import generate
from ramet.errors import RametError

__all__ = ["app", "main"]

_EXAMPLES = """\b
Examples:
  ramet generate --chat "What is the capital of France?" --temperature 0
  ramet chat
  ramet generate "Once upon a time" --model ./Qwen2.5-0.5B-Instruct --json
"""


def _version(ctx: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        click.echo(f"ramet {version('ramet')}")
        ctx.exit()


@click.group(epilog=_EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version.")
def app() -> None:
    """An LLM serving engine whose KV cache is a tree. What is still in memory is not computed again, and the same request
    gives the same bits, whatever else runs.
    """


for _command in (generate, chat, bench):
    app.add_command(_command)


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
        click.echo(f"ramet: {error}", err=True)
        sys.exit(1)
    except OSError as error:  # a full disk, a terminal that is gone; a reader that has left (EPIPE) is no error to click
        click.echo(f"ramet: {error}", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still in the buffer cannot be written either
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
