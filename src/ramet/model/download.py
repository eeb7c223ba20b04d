"""One file over HTTP: resumed where it broke off, counted, hashed, and only then put where it belongs.

What has come so far is in PATH.part, under a lock, so that of two processes one fetches and the other waits. Connections, proxies
and certificates are those of huggingface_hub's session, which sends a token to no other host that an answer leads to.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import httpx2
from huggingface_hub import get_session
from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

from ramet.errors import ModelError

__all__ = ["Wanted", "fetch"]

_log = logging.getLogger("ramet.model")

_CHUNK_BYTES = 1 << 20
_TIMEOUT = httpx2.Timeout(20.0, connect=8.0)
_TRIES, _FIRST_PAUSE_S, _MAX_PAUSE_S = 5, 1.0, 8.0  # in a row that bring nothing; a byte that comes makes them new
_TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_LOCK_POLL_S = 0.2
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file as the hub lists it: ``digest`` is the hex SHA-256 of its bytes, or the SHA-1 that git gives them."""

    name: str
    url: str
    size: int
    digest: str

    def new_hash(self) -> hashlib._Hash:
        if len(self.digest) == 64:
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)


def fetch(wanted: Wanted, headers: Mapping[str, str], path: Path, progress: Callable[[int], None]) -> None:
    """Put the file at ``path``, unless one of its size is there. ``progress`` is told how many bytes have come.

    Raises ``ModelError`` where its size or hash is another, or where it does not come in several tries; ``httpx2.HTTPError`` (of
    which the hub's own errors are) for an answer that says no; ``OSError`` where it cannot be written.
    """
    if _is_there(wanted, path):
        return
    part = path.with_name(f"{path.name}.part")
    with _locked(part, lambda: progress(0)) as out:
        if _is_there(wanted, path):  # another process was faster
            part.unlink(missing_ok=True)
            return
        have, digest = _read_so_far(out, wanted)
        resumed_at = have
        have, digest = _receive(wanted, headers, out, have, digest, progress)
        if digest.hexdigest() != wanted.digest and resumed_at:  # what there was is damaged: once more, whole
            have, digest = _receive(wanted, headers, out, *_restart(out, wanted), progress)
        if digest.hexdigest() != wanted.digest:
            part.unlink(missing_ok=True)
            raise ModelError(f"{wanted.name}: what came has the hash {digest.hexdigest()}, not {wanted.digest}; it is not kept")
        os.replace(part, path)


def _is_there(wanted: Wanted, path: Path) -> bool:
    return path.is_file() and path.stat().st_size == wanted.size


def _receive(
    wanted: Wanted,
    headers: Mapping[str, str],
    out: BinaryIO,
    have: int,
    digest: hashlib._Hash,
    progress: Callable[[int], None],
) -> tuple[int, hashlib._Hash]:
    """Fill ``out`` up to the size that is wanted, in as many requests as it takes."""
    tries_left = _TRIES
    while have < wanted.size:
        before, reason, pause_s = have, "the answer broke off", None
        try:
            with get_session().stream("GET", wanted.url, headers=_asking(headers, have), timeout=_TIMEOUT) as response:
                status = response.status_code
                if status == 416 or (status == 206 and not _begins_at(response, have)):  # no such place: from the start
                    have, digest = _restart(out, wanted)
                    reason = f"the server does not resume at byte {before}"
                elif status in _TRY_AGAIN:
                    reason, pause_s = f"the server says {status}", _retry_after(response)
                else:
                    hf_raise_for_status(response)
                    if status != 206 and have:
                        have, digest = _restart(out, wanted)
                    for chunk in response.iter_bytes():  # as they come: what is gathered first is lost when it breaks off
                        have += len(chunk)
                        if have > wanted.size:
                            out.truncate(0)
                            raise ModelError(f"{wanted.name}: more than the {wanted.size} bytes that the hub says it has came")
                        out.write(chunk)
                        digest.update(chunk)
                        progress(have)
        except httpx2.TransportError as error:
            reason = str(error).strip() or type(error).__name__
        if have >= wanted.size:
            break
        tries_left = _TRIES if have > before else tries_left - 1
        if tries_left == 0:
            raise ModelError(f"{wanted.name}: {reason}; {have} of {wanted.size} bytes are kept for the next time")
        pause_s = min(_MAX_PAUSE_S, pause_s or _FIRST_PAUSE_S * 2 ** (_TRIES - 1 - min(tries_left, _TRIES - 1)))
        _log.warning("%s: %s, at %d of %d bytes; trying again in %g s", wanted.name, reason, have, wanted.size, pause_s)
        time.sleep(pause_s)
    out.flush()
    return have, digest


def _asking(headers: Mapping[str, str], have: int) -> dict[str, str]:
    """As it is stored: a compressed answer could not be resumed."""
    return {**headers, "accept-encoding": "identity", **({"range": f"bytes={have}-"} if have else {})}


def _begins_at(response: httpx2.Response, have: int) -> bool:
    found = _RANGE.fullmatch(response.headers.get("content-range", ""))
    return found is not None and int(found[1]) == have


def _retry_after(response: httpx2.Response) -> float | None:
    text = response.headers.get("retry-after", "")
    return float(text) if text.isdigit() else None


def _read_so_far(out: BinaryIO, wanted: Wanted) -> tuple[int, hashlib._Hash]:
    """How much there is from before, and its hash so far; ``out`` stands at its end."""
    have, digest = 0, wanted.new_hash()
    out.seek(0)
    while chunk := out.read(_CHUNK_BYTES):
        have += len(chunk)
        digest.update(chunk)
    return (have, digest) if have <= wanted.size else _restart(out, wanted)


def _restart(out: BinaryIO, wanted: Wanted) -> tuple[int, hashlib._Hash]:
    out.seek(0)
    out.truncate()
    return 0, wanted.new_hash()


@contextmanager
def _locked(part: Path, waiting: Callable[[], None]) -> Iterator[BinaryIO]:
    """The unfinished file, for this process alone. ``waiting`` is called while another one has it."""
    while True:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        with os.fdopen(os.open(part, flags, 0o666), "r+b") as out:
            while True:
                try:
                    fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    waiting()
                    time.sleep(_LOCK_POLL_S)
            try:
                is_it = os.path.samestat(os.fstat(out.fileno()), os.stat(part, follow_symlinks=False))
            except FileNotFoundError:
                is_it = False
            if is_it:  # and not one that was finished, and renamed, while this process waited
                yield out
                return
