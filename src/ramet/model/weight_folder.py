"""A folder of this user's own, in which files are found by plain names, none is followed, and the least used ones are deleted.

Files are written under other names and renamed when whole, so that of two processes that write the same one each writes its own,
and the last one stays. A file that is deleted while another process reads it is read to its end.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from ramet.errors import ConfigError

__all__ = ["NewFile", "OwnFolder", "TooLarge"]

_log = logging.getLogger("ramet.model")

_SUFFIX, _NOTE, _PART = ".weights", ".note", ".part"
_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_MAX_NOTES, _MAX_NOTE_BYTES = 256, 256


class TooLarge(OSError):
    """A file does not fit into the folder's limit, even when it is alone there."""


class OwnFolder:
    """Files of weights by key, and notes. ``cap_bytes`` bounds all files of weights together, the one being written too.

    Raises ``ConfigError`` where the folder cannot be made, is a link, or is open to other users.
    """

    def __init__(self, path: Path, cap_bytes: int) -> None:
        self.path = path
        self._cap_bytes = cap_bytes
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(f"cannot use the folder {path}: {error.strerror} (--weight-cache)") from None
        status = os.fstat(self._fd)
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            os.close(self._fd)
            whose = "belongs to another user" if status.st_uid != os.geteuid() else "can be written to by others; chmod 700 it"
            raise ConfigError(f"the folder {path} {whose} (--weight-cache)")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._fd)

    @contextlib.contextmanager
    def reading(self, key: str) -> Iterator[int]:
        """A descriptor of the weights under this key, which count as used now. Raises ``OSError``: none, a link, of others."""
        fd = os.open(key + _SUFFIX, os.O_RDONLY | _OPEN, dir_fd=self._fd)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
                raise PermissionError("it is no file of this user alone")
            with contextlib.suppress(OSError):  # where nothing can be written, files are as good to read
                os.utime(fd)
            yield fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def writing(self, key: str) -> Iterator[NewFile]:
        """A new file of weights, to be kept under this key (``NewFile.keep``) or to be gone. Raises ``OSError``."""
        self._sweep()
        name = f"{key}.{secrets.token_hex(8)}{_PART}"
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN, 0o600, dir_fd=self._fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)  # for as long as it is written: see _sweep
            yield NewFile(self, fd, name, key + _SUFFIX)
        finally:
            os.close(fd)
            with contextlib.suppress(FileNotFoundError):  # renamed
                os.unlink(name, dir_fd=self._fd)

    def delete(self, key: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(key + _SUFFIX, dir_fd=self._fd)

    def note(self, name: str) -> str | None:
        """A short text that was left under this name; None where there is none."""
        try:
            fd = os.open(name + _NOTE, os.O_RDONLY | _OPEN, dir_fd=self._fd)
            with os.fdopen(fd, "rb") as file:
                return file.read(_MAX_NOTE_BYTES).decode("ascii")
        except (OSError, ValueError):
            return None

    def leave_note(self, name: str, text: str) -> None:
        """Raises ``OSError``."""
        for old in self._names(_NOTE)[_MAX_NOTES - 1 :]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(old, dir_fd=self._fd)
        part = f"{name}.{secrets.token_hex(8)}{_PART}"
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o600, dir_fd=self._fd)
        try:
            os.write(fd, text.encode("ascii"))
        finally:
            os.close(fd)
        self.rename(part, name + _NOTE)

    def rename(self, name: str, to: str) -> None:
        os.rename(name, to, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def make_room(self, num_bytes: int) -> None:
        """Delete the least used weights until there is room for so many bytes beside the others. Raises ``TooLarge``."""
        if num_bytes > self._cap_bytes:
            raise TooLarge(f"{num_bytes >> 20} MiB are over the limit of {self._cap_bytes >> 20} (--weight-cache-size)")
        left = self._cap_bytes - num_bytes
        for name in self._names(_SUFFIX):  # the last used first
            size = self._size(name)
            if size <= left:
                left -= size
            else:
                left = 0  # and those that were used before it go too
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=self._fd)

    def _names(self, suffix: str) -> list[str]:
        """The last used first."""
        found = []
        for name in os.listdir(self._fd):
            if name.endswith(suffix):
                with contextlib.suppress(FileNotFoundError):
                    found.append((os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_mtime_ns, name))
        return [name for _, name in sorted(found, reverse=True)]

    def _size(self, name: str) -> int:
        try:
            return os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_size
        except FileNotFoundError:
            return 0

    def _sweep(self) -> None:
        """Delete what processes that are gone have left unfinished: files that nobody has locked."""
        for name in self._names(_PART):
            try:
                fd = os.open(name, os.O_RDONLY | _OPEN, dir_fd=self._fd)
            except OSError:
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(name, dir_fd=self._fd)
            except OSError:
                pass  # it is being written
            finally:
                os.close(fd)


class NewFile:
    """A file that is being written; ``fd`` is the folder's to close."""

    def __init__(self, folder: OwnFolder, fd: int, name: str, kept_name: str) -> None:
        self.fd = fd
        self._folder = folder
        self._name = name
        self._kept_name = kept_name

    def room(self, num_bytes: int) -> None:
        """See to it that the file may have so many bytes. Raises ``OSError``."""
        self._folder.make_room(num_bytes)

    def keep(self) -> None:
        self._folder.rename(self._name, self._kept_name)
