"""GGUF models in several files: ``name-00001-of-00003.gguf`` and so on, each a whole GGUF file, metadata in the first.

Any of them may be named; all must be there, say so themselves (``split.no``, ``split.count``), and hold no tensor twice.
"""

from __future__ import annotations

import re
from pathlib import Path

from ramet.errors import ModelError
from ramet.model.files import Fields, few
from ramet.model.gguf import GGUFFile, GGUFTensor, read_gguf

__all__ = ["join_parts"]

_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_MAX_PARTS = 65_535  # the key has 16 bits


def join_parts(file: GGUFFile) -> GGUFFile:
    """The file itself, or, where it is one of several, all their tensors under the first one's metadata.

    Raises ``ModelError`` that names the missing file, or the key that contradicts the file's name.
    """
    fields = Fields(file.metadata, str(file.path))
    num_parts = fields.integer("split.count", high=_MAX_PARTS) if fields.has("split.count") else 1
    if num_parts == 1:
        return file
    parts = [file if path == file.path else read_gguf(path) for path in _paths(file.path, num_parts)]
    tensors: dict[str, GGUFTensor] = {}
    for number, part in enumerate(parts):
        _check(part, number, num_parts)
        if twice := tensors.keys() & part.tensors.keys():
            raise ModelError(f"{part.path}: tensors that another part has too: {few(sorted(twice))}")
        tensors |= part.tensors
    first = Fields(parts[0].metadata, str(parts[0].path))
    if first.has("split.tensors.count") and (wanted := first.integer("split.tensors.count")) != len(tensors):
        raise first.fail("split.tensors.count", f"is {wanted}, but the {num_parts} files hold {len(tensors)}")
    if not tensors:
        raise ModelError(f"{file.path}: none of the {num_parts} files holds a tensor")
    return GGUFFile(parts[0].path, parts[0].metadata, tensors)


def _paths(path: Path, num_parts: int) -> list[Path]:
    match = _NAME.fullmatch(path.name)
    if match is None or int(match[3]) != num_parts:
        raise ModelError(
            f"{path}: split.count says this is one of {num_parts} files, named like x-00001-of-{num_parts:05}.gguf; "
            "give it its name back, or join them with gguf-split --merge"
        )
    paths = [path.with_name(f"{match[1]}-{number:05}-of-{num_parts:05}.gguf") for number in range(1, num_parts + 1)]
    if missing := [p.name for p in paths if not p.exists()]:
        raise ModelError(f"{path} is one of {num_parts} files, of which {few(missing)} is not beside it")
    return paths


def _check(part: GGUFFile, number: int, num_parts: int) -> None:
    fields = Fields(part.metadata, str(part.path))
    for key, wanted in (("split.count", num_parts), ("split.no", number)):
        if (found := fields.integer(key, low=0, high=_MAX_PARTS)) != wanted:
            raise fields.fail(key, f"is {found}, but by the file's name it is {wanted}")
