"""Fetching a model folder from the Hugging Face hub: the files Ramet reads and no others, all of one commit."""

from __future__ import annotations

from pathlib import Path

from ramet.errors import ModelError
from ramet.model.folder import TEXT_FILES, TOKENIZER_FILES
from ramet.model.safetensors import INDEX_NAME, SINGLE_NAME, read_index
from ramet.model.spec import Progress

__all__ = ["fetch_from_hub"]


def fetch_from_hub(repo_id: str, revision: str | None, progress: Progress) -> Path:
    """The snapshot folder of a repository, in the hub's own cache (HF_HOME and HF_HUB_OFFLINE are honoured).

    The first file fixes the commit for all the others. Raises ``ModelError``: no such repository, no access, no network.
    """
    config = _fetch(repo_id, "config.json", revision)
    if config is None:
        raise ModelError(f"{repo_id} has no config.json; for a repository of GGUF files, download one and pass its path")
    folder = config.parent
    commit = folder.name
    index = _fetch(repo_id, INDEX_NAME, commit)
    shards = sorted(set(read_index(index).values())) if index else [SINGLE_NAME]
    any(_fetch(repo_id, name, commit) for name in TOKENIZER_FILES)  # the first that is there
    names = [*TEXT_FILES, *shards]
    for i, name in enumerate(names):
        progress(f"fetching {repo_id}", i, len(names))
        if _fetch(repo_id, name, commit) is None and name in shards:
            raise ModelError(f"{repo_id} has no {name}; Ramet reads safetensors only")
    progress(f"fetching {repo_id}", len(names), len(names))
    return folder


def _fetch(repo_id: str, name: str, revision: str | None) -> Path | None:
    """The local path of one file, fetched unless cached; None where the repository does not have it."""
    from huggingface_hub import constants, errors, hf_hub_download, logging  # takes long to import; most runs need none of it

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # it tells of each retry; what comes of them is told below
    where = f"{repo_id}, revision {revision}" if revision else repo_id
    try:
        return Path(hf_hub_download(repo_id, name, revision=revision))
    except errors.GatedRepoError:
        raise ModelError(f"{where} is gated: accept its licence on the hub and log in (hf auth login)") from None
    except errors.RepositoryNotFoundError:
        raise ModelError(f"{where} is not on the hub, or is private (hf auth login)") from None
    except errors.RevisionNotFoundError:
        raise ModelError(f"{where}: the hub has no such revision (--revision)") from None
    except errors.LocalEntryNotFoundError:
        if constants.HF_HUB_OFFLINE and revision is not None:
            return None  # the commit is cached, this file is no part of it
        state = "the hub is switched off (HF_HUB_OFFLINE)" if constants.HF_HUB_OFFLINE else "the hub cannot be reached"
        raise ModelError(f"{where}: {name} is not cached and {state}") from None
    except errors.EntryNotFoundError:
        return None
    except (errors.HfHubHTTPError, errors.HFValidationError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(f"{where}: cannot fetch {name}: {reason}") from None
