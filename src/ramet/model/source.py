"""From what a person types for a model to an open ``Checkpoint``: nothing (the demo model), a file, a folder, or a hub id."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from ramet.config import ModelConfig
from ramet.errors import ConfigError, ModelError
from ramet.model.demo import DEMO_DEFAULTS, fetch_demo_model
from ramet.model.folder import load_folder
from ramet.model.gguf_model import load_gguf
from ramet.model.hub import commit_of, fetch_from_hub
from ramet.model.quant import convert
from ramet.model.spec import Checkpoint, Progress, silent

__all__ = ["open_model", "pinned", "resolve"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILE = re.compile(rf"({_HUB_ID.pattern})/((?:[A-Za-z0-9][\w.-]*/)*[A-Za-z0-9][\w.-]*\.gguf)")


def open_model(config: ModelConfig, progress: Progress = silent) -> Checkpoint:
    """Find, fetch where needed, and open the model. Raises ``ModelError`` and ``ConfigError`` with one-line messages."""
    path = resolve(config.model, config.revision, progress, is_offline=config.offline)
    load = load_folder if path.is_dir() else load_gguf
    checkpoint = load(path, config.max_model_len)
    if config.model is None:
        checkpoint = replace(checkpoint, generation_defaults=DEMO_DEFAULTS)
    return convert(checkpoint, config.dtype, config.quantization)


def pinned(config: ModelConfig, progress: Progress = silent) -> ModelConfig:
    """The same model, fetched where needed, for whoever opens it again: one of the hub with its commit for a revision.

    So a process that is started later has the weights of the tokenizer that is in use, whatever the branch has become. Raises as
    ``open_model``.
    """
    path = resolve(config.model, config.revision, progress, is_offline=config.offline)
    is_here = config.model is None or Path(config.model).expanduser().exists()
    return config if is_here else replace(config, revision=commit_of(path))


def resolve(model: str | None, revision: str | None = None, progress: Progress = silent, *, is_offline: bool = False) -> Path:
    """The .gguf file or the folder that ``model`` means; what is here wins over the hub."""
    if model is None:
        _refuse_revision(revision, "the demo model")
        return fetch_demo_model(progress, is_offline=is_offline)
    try:
        path = Path(model).expanduser()
        exists = path.exists()
    except (OSError, RuntimeError) as error:  # too long, or no permission on the way; or ~name of nobody
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelError(f"cannot look up {model[:200]!r}: {reason}") from None
    if exists:
        _refuse_revision(revision, model)
        if not path.is_dir() and path.suffix != ".gguf":
            raise ModelError(f"{model} is neither a .gguf file nor a folder with config.json and safetensors")
        return path
    if path.suffix != ".gguf" and _HUB_ID.fullmatch(model):
        return fetch_from_hub(model, revision, progress, is_offline=is_offline)
    if match := _HUB_FILE.fullmatch(model):
        return fetch_from_hub(match[1], revision, progress, file=match[2], is_offline=is_offline)
    raise ModelError(
        f"there is no file or folder {model[:200]!r}, and it is no Hugging Face id (organisation/name, or with a file of it: "
        "organisation/name/file.gguf)"
    )


def _refuse_revision(revision: str | None, model: str) -> None:
    if revision is not None:
        raise ConfigError(f"revision {revision!r} is for Hugging Face ids, not for {model} (--revision)")
