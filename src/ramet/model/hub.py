"""Fetching a model from the Hugging Face hub: the files Ramet reads and no others, all of one commit, each checked by its hash.

One request resolves the revision to a commit and lists its files with their sizes and hashes; all else is asked of that commit.
Files are laid out as huggingface_hub's own cache has them, so what other programs fetched is found, and the other way round::

    models--org--name/refs/main              the commit
                      snapshots/COMMIT/FILE  -> ../../blobs/HASH
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from ramet.errors import ModelError
from ramet.model.files import Fields, few, parse_json, plain
from ramet.model.folder import TEXT_FILES, TOKENIZER_FILES, read_config
from ramet.model.safetensors import INDEX_NAME, SINGLE_NAME, read_index
from ramet.model.spec import Progress

if TYPE_CHECKING:
    from ramet.model.download import Wanted

__all__ = ["commit_of", "fetch_from_hub"]

_log = logging.getLogger("ramet.model")

_ASKING_S = 10.0  # for the list of files
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_PART = re.compile(r"(.+)-\d{5}-of-(\d{5})\.gguf")
_MAX_TEXT_BYTES = 64 << 20  # of a file that is no weights
_MAX_NAME = 500
_PAUSES_S = (1.0, 2.0)  # before the list is asked for again, where the hub has a fault
_SPARE_BYTES = 64 << 20  # of the disk, that are left free


def fetch_from_hub(
    repo_id: str, revision: str | None, progress: Progress, *, file: str | None = None, is_offline: bool = False
) -> Path:
    """The snapshot folder of a repository, or with ``file``, a .gguf file of it, in the hub's own cache.

    HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE are honoured. Nothing is asked where ``revision`` is a commit
    that is cached; where a branch is wanted and the hub does not answer, the cached commit is taken, and that is said.
    Raises ``ModelError``: no such repository, no access, no network, another hash.
    """
    from huggingface_hub import constants  # takes long to import; most runs need none of it

    cache = _Cache(Path(constants.HF_HUB_CACHE), repo_id)
    cached = cache.snapshot(revision)
    if constants.HF_HUB_OFFLINE or is_offline:
        return cache.whole(cached, file, _where(repo_id, revision))
    if cached is not None and cached.name == revision and not cache.missing(cached, file):
        return cache.whole(cached, file, repo_id)
    host = urlsplit(constants.ENDPOINT).netloc.rpartition("@")[2]
    progress(f"asking {host} for {repo_id}", 0, 0)
    try:
        listing = _list(repo_id, revision)
    except _Unreachable as reason:
        if cached is None or cache.missing(cached, file):
            raise ModelError(f"{_where(repo_id, revision)}: {host} cannot be reached ({reason}) and not all is cached") from None
        _log.warning("%s cannot be reached (%s): %s is taken as cached, commit %s", host, reason, repo_id, cached.name)
        return cache.whole(cached, file, repo_id)
    progress(f"asking {host} for {repo_id}", 1, 1)
    snapshot = cache.begin(listing.commit, revision)
    run = _Run(repo_id, listing, cache, snapshot, progress)
    if file is not None:
        run.fetch(_ggufs(repo_id, file, listing))
        return snapshot / file
    run.fetch(_texts(repo_id, listing))
    read_config(snapshot)  # what is no model, or asks for code, is refused before its weights are fetched
    run.fetch(_weights(repo_id, snapshot, listing))
    return snapshot


def commit_of(path: Path) -> str:
    """The commit of what ``fetch_from_hub`` gave."""
    return next(part for part in reversed(path.parts) if _COMMIT.fullmatch(part))


class _Unreachable(Exception):
    """The hub did not answer, and why."""


@dataclass(frozen=True, slots=True)
class _Listing:
    """The files of one commit."""

    commit: str
    files: Mapping[str, Wanted]


class _Cache:
    """One repository in the hub's cache."""

    def __init__(self, root: Path, repo_id: str) -> None:
        self._repo_id = repo_id
        self.folder = root / f"models--{repo_id.replace('/', '--')}"

    def snapshot(self, revision: str | None) -> Path | None:
        """The folder of a commit, or of the one that a branch or tag was last seen at; None where it is not there."""
        commit = revision or "main"
        if not _COMMIT.fullmatch(commit):
            try:
                commit = self._ref(commit).read_text("ascii").strip()
            except (OSError, ValueError):
                return None
        path = self.folder / "snapshots" / commit
        return path if _COMMIT.fullmatch(commit) and path.is_dir() else None

    def begin(self, commit: str, revision: str | None) -> Path:
        """The folder of a commit, made where it is not there; the branch or tag stands at it from now on."""
        try:
            path = self.folder / "snapshots" / commit
            path.mkdir(parents=True, exist_ok=True)
            (self.folder / "blobs").mkdir(exist_ok=True)
            if revision != commit:
                ref = self._ref(revision or "main")
                ref.parent.mkdir(parents=True, exist_ok=True)
                with _replacing(ref) as new:
                    new.write_text(commit, "ascii")
        except OSError as error:
            raise ModelError(f"cannot write to the hub's cache {self.folder}: {error.strerror} (HF_HOME names another)") from None
        return path

    def missing(self, snapshot: Path, file: str | None) -> list[str]:
        """Files without which nothing can be loaded; those of other names may be there or not."""
        if file is not None:
            names = _parts(file)
        elif (snapshot / INDEX_NAME).is_file():
            names = ["config.json", *sorted(set(read_index(snapshot / INDEX_NAME).values()))]
        else:
            names = ["config.json", SINGLE_NAME]
        return [name for name in names if not (snapshot / name).is_file()]

    def whole(self, snapshot: Path | None, file: str | None, where: str) -> Path:
        """The file or folder, where nothing is to be asked. Raises ``ModelError`` where something is missing."""
        lost = [file or "config.json"] if snapshot is None else self.missing(snapshot, file)
        if snapshot is None or lost:
            raise ModelError(f"{where}: {lost[0]} is not cached and the hub is switched off")
        return snapshot if file is None else snapshot / file

    def _ref(self, name: str) -> Path:
        if not _is_plain(name):
            raise ModelError(f"{plain(name)!r} is no name of a branch, a tag or a commit (--revision)")
        return self.folder / "refs" / name


@dataclass(frozen=True, slots=True)
class _Run:
    """One model being fetched."""

    repo_id: str
    listing: _Listing
    cache: _Cache
    snapshot: Path
    progress: Progress

    def fetch(self, names: Sequence[str]) -> None:
        """Have these files in the snapshot."""
        files = [self.listing.files[name] for name in names if not (self.snapshot / name).is_file()]
        total, done = sum(file.size for file in files), 0
        what = f"fetching {self.repo_id}"
        try:
            _check_room(self.cache.folder, total)
            for file in files:
                self._fetch_one(file, lambda have, before=done: self.progress(what, before + have, total))  # type: ignore[misc]
                done += file.size
                self.progress(what, done, total)
        except _faults() as error:  # the hub's own errors are such, too
            raise _told(f"{self.repo_id}, commit {self.listing.commit}", error) from None

    def _fetch_one(self, file: Wanted, progress: Callable[[int], None]) -> None:
        from ramet.model.download import fetch

        blob, link = self.cache.folder / "blobs" / file.digest, self.snapshot / file.name
        fetch(file, _headers(), blob, progress)
        link.parent.mkdir(parents=True, exist_ok=True)
        with _replacing(link) as new:
            new.symlink_to(os.path.relpath(blob, link.parent))


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A name that nobody else has; what is made there comes to ``path`` in one step, for others may read or write it now."""
    new = path.with_name(f".{uuid.uuid4().hex}.part")
    try:
        yield new
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _list(repo_id: str, revision: str | None) -> _Listing:
    """The commit that the revision is, and its files. Raises ``_Unreachable``, and ``ModelError`` where the hub says no.

    Not by way of ``HfApi``, whose every request tells the hub what program it runs under.
    """
    from huggingface_hub import constants, errors, get_session
    from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

    url = f"{constants.ENDPOINT}/api/models/{repo_id}/revision/{quote(revision or 'main', safe='')}"
    for pause_s in (*_PAUSES_S, None):
        try:
            response = get_session().get(url, params={"blobs": "true"}, headers=_headers(), timeout=_ASKING_S)
            hf_raise_for_status(response)
            return _read_listing(repo_id, parse_json(response.text, f"{repo_id}: the hub's list of files"))
        except errors.HfHubHTTPError as error:
            if error.response.status_code < 500:
                raise _told(_where(repo_id, revision), error) from None
            reason = f"it says {error.response.status_code}"
        except _faults() as error:
            raise _Unreachable(_reason(error)) from None
        if pause_s is not None:
            time.sleep(pause_s)
    raise _Unreachable(reason)


def _headers() -> dict[str, str]:
    """Who asks, and with which token (HF_TOKEN, or that of ``hf auth login``)."""
    from huggingface_hub import constants, get_token

    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    return {"user-agent": "ramet"} | ({"authorization": f"Bearer {token}"} if token else {})


def _read_listing(repo_id: str, found: Mapping[str, object]) -> _Listing:
    """What the hub says, as far as it makes sense; files whose size or hash is not told are left out."""
    from huggingface_hub import constants

    from ramet.model.download import Wanted

    commit, siblings = found.get("sha"), found.get("siblings")
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit) or not isinstance(siblings, list):
        raise ModelError(f"{repo_id}: the hub's list of files names no commit, or no files")
    files: dict[str, Wanted] = {}
    for entry in siblings:
        one = Fields(entry if isinstance(entry, dict) else {}, repo_id)
        large = one.raw("lfs")
        stored = (large.get("size"), large.get("sha256")) if isinstance(large, dict) else (one.raw("size"), one.raw("blobId"))
        match one.raw("rfilename"), *stored:
            case str(name), int(size), str(digest) if _is_plain(name) and size >= 0 and _DIGEST.fullmatch(digest):
                url = f"{constants.ENDPOINT}/{repo_id}/resolve/{commit}/{quote(name)}"
                files[name] = Wanted(name, url, size, digest)
    return _Listing(commit, files)


def _texts(repo_id: str, listing: _Listing) -> list[str]:
    """What is read beside weights, config.json first; of vocabularies the one that would be read."""
    if "config.json" not in listing.files:
        if ggufs := [name for name in listing.files if name.endswith(".gguf")]:
            raise ModelError(f"{repo_id} has GGUF files; name one of them: {few(f'{repo_id}/{name}' for name in ggufs)}")
        raise ModelError(f"{repo_id} has no config.json")
    vocabularies = [*TOKENIZER_FILES, *sorted(name for name in listing.files if name.endswith(".tiktoken"))]
    names = ["config.json", *TEXT_FILES, INDEX_NAME, *[name for name in vocabularies if name in listing.files][:1]]
    found = [name for name in names if name in listing.files]
    for name in found:
        if (size := listing.files[name].size) > _MAX_TEXT_BYTES:
            raise ModelError(f"{repo_id}: {plain(name)} has {size} bytes, over {_MAX_TEXT_BYTES >> 20} MiB")
    return found


def _weights(repo_id: str, snapshot: Path, listing: _Listing) -> list[str]:
    index = snapshot / INDEX_NAME
    names = sorted(set(read_index(index).values())) if index.is_file() else [SINGLE_NAME]
    if lost := [name for name in names if name not in listing.files]:
        raise ModelError(f"{repo_id} has no {few(lost)}; Ramet reads safetensors only")
    return names


def _ggufs(repo_id: str, file: str, listing: _Listing) -> list[str]:
    names = _parts(file)
    if lost := [name for name in names if name not in listing.files]:
        others = [name for name in listing.files if name.endswith(".gguf")]
        raise ModelError(f"{repo_id} has no {few(lost)}; its GGUF files: {few(others) or 'none'}")
    return names


def _parts(file: str) -> list[str]:
    """A .gguf file, or all of which it is one."""
    part = _PART.fullmatch(file)
    return [f"{part[1]}-{n + 1:05}-of-{part[2]}.gguf" for n in range(int(part[2]))] if part else [file]


def _check_room(folder: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if num_bytes + _SPARE_BYTES > free:
        raise ModelError(
            f"{num_bytes >> 20} MiB are to be fetched, but {folder} has {free >> 20} MiB left (HF_HOME names another)"
        )


def _is_plain(name: str) -> bool:
    """Whether it names a file below a folder, and nothing else."""
    parts = name.split("/")
    return len(name) <= _MAX_NAME and name.isprintable() and "\\" not in name and not {"", ".", ".."} & set(parts)


def _where(repo_id: str, revision: str | None) -> str:
    return f"{repo_id}, revision {plain(revision)}" if revision else repo_id


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def _told(where: str, error: Exception) -> ModelError:
    """What the hub or the disk said, to be raised."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return ModelError(f"{where} is gated: accept its licence on the hub and log in (hf auth login, or HF_TOKEN)")
    if isinstance(error, errors.RepositoryNotFoundError):
        return ModelError(f"{where} is not on the hub, or is private (hf auth login, or HF_TOKEN)")
    if isinstance(error, errors.RevisionNotFoundError):
        return ModelError(f"{where}: the hub has no such revision (--revision)")
    return ModelError(f"{where}: cannot be fetched: {_reason(error)}")


def _faults() -> tuple[type[Exception], ...]:
    """Whatever disk, network and hub may raise."""
    import httpx2

    return OSError, ValueError, httpx2.HTTPError, httpx2.InvalidURL
