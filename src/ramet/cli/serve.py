"""``ramet serve``: the model behind an HTTP server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from ramet.cli.help import GroupedCommand
from ramet.cli.options import with_engine_options, with_named_model, with_server_options
from ramet.cli.progress import loading_progress
from ramet.config import EngineConfig, ServerConfig, is_key
from ramet.errors import ConfigError

__all__ = ["serve"]


@click.command(cls=GroupedCommand)
@click.argument("model_name", metavar="[MODEL]", required=False)
@with_engine_options
@with_server_options
def serve(*, model_name: str | None, config: EngineConfig, server: ServerConfig) -> None:
    """Serve MODEL, or the demo model, with OpenAI's and Anthropic's API."""
    engine = with_named_model(config, model_name)
    server = _with_file_keys(server)
    from ramet.server.serve import run

    click.get_current_context().exit(run(engine=engine, server=server, loading=loading_progress))


def _with_file_keys(server: ServerConfig) -> ServerConfig:
    """The keys of ``api_key_file`` put with the others. Raises ``ConfigError``, in which no key is."""
    name = server.api_key_file
    if name is None:
        return server
    try:
        lines = Path(name).expanduser().read_text("utf-8").splitlines()
    except UnicodeDecodeError:
        raise ConfigError(f"{name} is no text in UTF-8 (--api-key-file)") from None
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"cannot read {name}: {getattr(error, 'strerror', None) or error} (--api-key-file)") from None
    found = {number: line.strip() for number, line in enumerate(lines, start=1)}
    keys = {number: line for number, line in found.items() if line and not line.startswith("#")}
    if not keys:
        raise ConfigError(f"{name} has no key in it; write one a line (--api-key-file)")
    for number, key in keys.items():
        if not is_key(key):
            raise ConfigError(f"{name}, line {number}: a key is ASCII letters, digits and signs without spaces (--api-key-file)")
    return replace(server, api_key=(*server.api_key, *keys.values()), api_key_file=None)
