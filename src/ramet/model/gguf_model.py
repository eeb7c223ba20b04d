"""From a GGUF file's keys to a model: which architecture, which shape, which tensors, which text."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ramet.core.ids import Float32
from ramet.kernels.backend import FloatFormat, Weight, WeightFormat
from ramet.model.families import GGUF_FAMILIES, Expected, check_tensors, expected_tensors
from ramet.model.files import Fields, hash_array, mapped_files, mappings, release_pages
from ramet.model.gguf import GGUFFile, read_gguf
from ramet.model.gguf_config import ROPE_TENSORS, dense_vector, read_gguf_spec
from ramet.model.gguf_split import join_parts
from ramet.model.spec import ALL_ROWS, Checkpoint, ModelSpec, TextSource

__all__ = ["halves_order", "load_gguf"]


def load_gguf(path: Path, served: int | None = None) -> Checkpoint:
    """Open a GGUF model; the weights stay mapped. Raises ``ModelError`` that names the file and the key.

    ``served`` is the longest context that requests may have, where that is not the model's own.
    """
    file = join_parts(read_gguf(path))
    fields = Fields(file.metadata, str(file.path))
    spec = read_gguf_spec(file, fields, served)
    expected = expected_tensors(spec, "gguf")
    shapes = {name: _as_matrix(tensor.shape) for name, tensor in file.tensors.items()}
    check_tensors(expected.values(), shapes, str(path), lambda name: name in ROPE_TENSORS)
    return Checkpoint(
        spec=spec,
        tensors=_GGUFTensors(file, expected, spec),
        text=TextSource(gguf=file.metadata, chat_templates=_chat_templates(fields)),
        generation_defaults={},
        description=f"{path.stem} ({spec.architecture}, {sum(t.blocks.nbytes for t in file.tensors.values()) >> 20} MiB)",
    )


class _GGUFTensors:
    """``Tensors`` over a mapped GGUF file.

    Files of the llama architecture hold q and k with the two members of a rotary pair on neighbouring rows; here they are
    put back half a head apart, the way Ramet (and the original checkpoint) rotates.
    """

    def __init__(self, file: GGUFFile, expected: Mapping[str, Expected], spec: ModelSpec) -> None:
        self._tensors = {name: (one, file.tensors[one.file_name]) for name, one in expected.items()}
        self._mapped = mappings(tensor.blocks for _, tensor in self._tensors.values())
        self._row_orders: dict[str, npt.NDArray[np.intp]] = {}
        if GGUF_FAMILIES[spec.architecture].gguf_interleaved:
            self._row_orders = {
                "q": halves_order(spec.num_heads, spec.head_dim),
                "k": halves_order(spec.num_kv_heads, spec.head_dim),
            }

    def matrix(self, name: str, dense: FloatFormat | None = None, rows: slice = ALL_ROWS) -> Weight:
        place, tensor = self._tensors[name]
        order = self._row_orders.get(name.rpartition(".")[2])
        return tensor.weight(place.part(rows) if order is None else order[rows], dense)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name][0].shape

    def vector(self, name: str) -> Float32:
        values = dense_vector(self._tensors[name][1])
        order = self._row_orders.get(name.rpartition(".")[2].removesuffix("_bias"))
        return values if order is None or not name.endswith("_bias") else values[order]

    def formats(self) -> frozenset[WeightFormat]:
        return frozenset(t.type.format for _, t in self._tensors.values() if len(t.shape) > 1)

    def release(self) -> None:
        release_pages(self._mapped)

    def files(self) -> tuple[Path, ...]:
        return mapped_files(self._mapped)

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for name, tensor in sorted({place.file_name: tensor for place, tensor in self._tensors.values()}.items()):
            digest.update(f"{name} {tensor.type.name} {tensor.shape}\n".encode())
            hash_array(digest, tensor.blocks)
        return digest.hexdigest()


def _as_matrix(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A stack of matrices (experts) is one with all their rows."""
    return (shape[0] * shape[1], shape[2]) if len(shape) == 3 else shape


def halves_order(num_heads: int, head_dim: int) -> npt.NDArray[np.intp]:
    """intp[num_heads * head_dim]: for each row of the half-split layout, the row of the interleaved one."""
    rows = np.arange(num_heads * head_dim).reshape(num_heads, head_dim // 2, 2)
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(-1)


def _chat_templates(fields: Fields) -> dict[str, str]:
    """The default template and the named ones, which stand under their own keys."""
    prefix = "tokenizer.chat_template"
    found = {"default": fields.text(prefix)} if fields.has(prefix) else {}
    names = fields.strings("tokenizer.chat_templates")
    return found | {name: fields.text(f"{prefix}.{name}") for name in names}
