"""The GGUF reader: exact values, and files that lie."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest
from support.memory import allocating_at_most

from ramet.errors import ModelError
from ramet.model.gguf import read_gguf
from ramet.model.quant import dequantize


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return u64(len(data)) + data


def pair(key: str | bytes, code: int, value: bytes) -> bytes:
    return text(key) + u32(code) + value


def entry(name: str = "t", dims: Sequence[int] = (32, 2), code: int = 0, offset: int = 0) -> bytes:
    return text(name) + u32(len(dims)) + b"".join(u64(d) for d in dims) + u32(code) + u64(offset)


def build(
    pairs: Sequence[bytes] = (),
    entries: Sequence[bytes] = (entry(),),
    data: bytes = bytes(256),
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    num_pairs: int | None = None,
    num_tensors: int | None = None,
) -> bytes:
    head = magic + u32(version) + u64(len(entries) if num_tensors is None else num_tensors)
    head += u64(len(pairs) if num_pairs is None else num_pairs) + b"".join(pairs) + b"".join(entries)
    return head + bytes(-len(head) % 32) + data


def read(tmp_path: Path, content: bytes) -> gguf.GGUFReader:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    return read_gguf(path)


def test_every_kind_of_value(tmp_path: Path) -> None:
    numbers = struct.pack("<3i", -1, 0, 7)
    file = read(
        tmp_path,
        build(
            [
                pair("i8", 1, b"\xff"),
                pair("u32", 4, u32(5)),
                pair("f32", 6, struct.pack("<f", 0.5)),
                pair("yes", 7, b"\x01"),
                pair("text", 8, text("grüß")),
                pair("u64", 10, u64(2**63)),
                pair("ints", 9, u32(5) + u64(3) + numbers),
                pair("strings", 9, u32(8) + u64(3) + text("a") + text("") + text("日本")),
                pair("none", 9, u32(8) + u64(0)),
            ],
            version=2,
        ),
    )
    ints = file.metadata.pop("ints")
    assert ints.dtype == np.int32
    assert ints.tolist() == [-1, 0, 7]
    assert file.metadata == {
        "i8": -1,
        "u32": 5,
        "f32": 0.5,
        "yes": True,
        "text": "grüß",
        "u64": 2**63,
        "strings": ["a", "", "日本"],
        "none": [],
    }
    assert file.tensors["t"].shape == (2, 32)


@pytest.mark.parametrize("type_name", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0"])
def test_values_are_those_of_the_gguf_package(type_name: str, tmp_path: Path) -> None:
    type_ = gguf.GGMLQuantizationType[type_name]
    values = np.random.default_rng(3).standard_normal((24, 96)).astype(np.float32)
    values[0, :32] = 0
    values[1] *= 1e-6  # float16 subnormal scales
    stored = gguf.quants.quantize(values, type_)
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("t", stored, raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    weight = read_gguf(path).tensors["t"].weight()
    assert weight.shape == (24, 96)
    expected = gguf.quants.dequantize(stored, type_).reshape(24, 96)
    assert np.array_equal(dequantize(weight), expected)


def test_random_blocks_of_quantised_types_are_exact(tmp_path: Path) -> None:
    """Bytes no quantiser would write: every code and scale, negative and subnormal ones among them."""
    rng = np.random.default_rng(5)
    for type_name, code, scale_halves in (("Q4_0", 2, 1), ("Q4_1", 3, 2), ("Q8_0", 8, 1)):
        block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type_name]][1]
        blocks = rng.integers(0, 256, (64, block_bytes), dtype=np.uint8)
        scales = rng.integers(0, 2**16, (64, scale_halves), dtype=np.uint16) & 0xEFFF  # magnitudes under 2: finite minima
        blocks[:, : 2 * scale_halves] = scales.view(np.uint8)
        file = read(tmp_path, build(entries=[entry(dims=(32 * 8, 8), code=code)], data=blocks.tobytes()))
        found = dequantize(file.tensors["t"].weight())
        expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[type_name]).reshape(8, 256)
        assert np.array_equal(found, expected), type_name


@pytest.mark.parametrize("type_code", [2, 3, 8])
def test_scale_that_is_not_finite(type_code: int, tmp_path: Path) -> None:
    blocks = np.full((2, {2: 18, 3: 20, 8: 34}[type_code]), 0xFF, np.uint8)
    file = read(tmp_path, build(entries=[entry(code=type_code)], data=blocks.tobytes()))
    with pytest.raises(ModelError, match=r"tensor t: .* not finite"):
        file.tensors["t"].weight()


HOSTILE = {
    "empty file": (b"", "is empty"),
    "other magic": (build(magic=b"GGML"), "no GGUF file"),
    "magic alone": (b"GGUF", "version needs 4 bytes"),
    "version 1": (build(version=1), "version 1"),
    "version 4": (build(version=4), "version 4"),
    "big-endian": (build(version=3 << 24), "big-endian"),
    "no tensors": (build(entries=[]), "no tensors"),
    "2^64-1 tensors": (build(num_tensors=2**64 - 1), "number of tensors is 18446744073709551615"),
    "2^63 tensors": (build(num_tensors=2**63), "number of tensors is"),
    "2^32 tensors": (build(num_tensors=2**32), "number of tensors is"),
    "a tensor too many": (build(num_tensors=2, data=b""), "tensor without a name"),
    "2^64-1 pairs": (build(num_pairs=2**64 - 1), "number of metadata keys is"),
    "2^31 pairs": (build(num_pairs=2**31), "number of metadata keys is"),
    "a pair too many": (build([pair("a", 4, u32(1))], num_pairs=2), "length of a tensor name is"),
    "B166 empty key": (build([pair("", 4, u32(1))]), "key '' is empty"),
    "duplicate key": (build([pair("a", 4, u32(1))] * 2), "'a' is there twice"),
    "key of 2^63 bytes": (build([u64(2**63) + b"abc" + u32(4) + u32(1)]), "length of a metadata key is"),
    "key of 70,000 bytes": (build([pair("k" * 70_000, 4, u32(1))]), "over the limit of 65535"),
    "key that is not UTF-8": (build([pair(b"\xff\xfe", 4, u32(1))]), "metadata key is not UTF-8"),
    "unknown value type": (build([pair("a", 13, u32(1))]), "a has value type 13"),
    "value type 2^32-1": (build([pair("a", 2**32 - 1, u32(1))]), "a has value type 4294967295"),
    "truth value 2": (build([pair("a", 7, b"\x02")]), "a is a truth value"),
    "string of 2^64-1 bytes": (build([pair("a", 8, u64(2**64 - 1))]), "length of a is"),
    "string that is not UTF-8": (build([pair("a", 8, text(b"\xc3\x28"))]), "a is not UTF-8"),
    "array of arrays": (build([pair("a", 9, u32(9) + u64(1) + u32(4) + u64(0))]), "a is an array of arrays"),
    "array of unknown type": (build([pair("a", 9, u32(99) + u64(1))]), "a is an array of value type 99"),
    "array of 2^64-1 bytes": (build([pair("a", 9, u32(0) + u64(2**64 - 1))]), "length of a is"),
    "array whose product overflows": (build([pair("a", 9, u32(10) + u64(2**61 + 1))]), "length of a is"),
    "array of 2^61 strings": (build([pair("a", 9, u32(8) + u64(2**61))]), "length of a is"),
    "string in array past the end": (build([pair("a", 9, u32(8) + u64(1) + u64(2**63))]), r"a\[0\] is 9223372036854775808 bytes"),
    "array of strings cut off": (build([pair("a", 9, u32(8) + u64(30) + text("x" * 200) * 3)], data=b"") + bytes(40), r"a\["),
    "string in array not UTF-8": (build([pair("a", 9, u32(8) + u64(1) + text(b"\xff"))]), r"a\[0\] is not UTF-8"),
    "truth values in array": (build([pair("a", 9, u32(7) + u64(2) + b"\x01\x07")]), "a is a truth value"),
    "rank 0": (build(entries=[entry(dims=())]), "0 dimensions"),
    "rank 5": (build(entries=[entry(dims=(1,) * 5)]), "5 dimensions"),
    "rank 2^32-1": (build(entries=[text("t") + u32(2**32 - 1) + bytes(64)]), "4294967295 dimensions"),
    "dimension 0": (build(entries=[entry(dims=(0, 2))]), "no whole number"),
    "dimension -1": (build(entries=[entry(dims=(2**64 - 1, 2))]), "cut off"),
    "dimensions whose product overflows": (build(entries=[entry(dims=(2**32, 2**32))]), "cut off"),
    "dimensions whose product is 0 in 64 bits": (build(entries=[entry(dims=(2**32, 2**16, 2**16))]), "cut off"),
    "half a block of 256": (build(entries=[entry(dims=(128, 2), code=12)]), "no whole number of Q4_K blocks of 256"),
    "blocks whose product overflows": (build(entries=[entry(dims=(2**40, 2**40), code=14)]), "cut off"),
    "blocks whose bytes are 0 in 64 bits": (build(entries=[entry(dims=(2**36, 2**36, 2**8), code=12)]), "cut off"),
    "blocks that overlap": (
        build(entries=[entry("a", (256, 2), 13), entry("b", (256, 1), 14, 320)], data=bytes(1024)),
        "'b' at 320 overlaps",
    ),
    "a block less": (build(entries=[entry(dims=(256, 2), code=10)], data=bytes(167)), "ends at byte 168 of 167"),
    "half a block": (build(entries=[entry(dims=(48, 2), code=8)]), "no whole number of Q8_0 blocks"),
    "offset past the end": (build(entries=[entry(offset=2**63)]), "cut off"),
    "offset 2^64-32": (build(entries=[entry(offset=2**64 - 32)]), "cut off"),
    "offset not aligned": (build(entries=[entry(offset=8)], data=bytes(512)), "no multiple of the alignment 32"),
    "overlap": (build(entries=[entry("a"), entry("b", offset=32)], data=bytes(512)), "'b' at 32 overlaps"),
    "same tensor twice": (build(entries=[entry("a"), entry("a", offset=256)], data=bytes(512)), "'a' is there twice"),
    "unsupported type": (build(entries=[entry(code=15, dims=(256, 1))]), "'t' is of type Q8_K"),
    "unknown type": (build(entries=[entry(code=2**32 - 1)]), "'t' is of type number 4294967295"),
    "B166 truncated data": (build(data=bytes(255)), "ends at byte 256 of 255"),
    "no data": (build(data=b""), "ends at byte 256 of 0"),
    "name of 300 bytes": (build(entries=[entry("n" * 300)]), "over the limit of 256"),
    "alignment 0": (build([pair("general.alignment", 4, u32(0))]), "general.alignment"),
    "alignment 24": (build([pair("general.alignment", 4, u32(24))]), "general.alignment"),
    "alignment 2^31": (build([pair("general.alignment", 4, u32(2**31))]), "general.alignment"),
    "alignment of wrong type": (build([pair("general.alignment", 8, text("32"))]), "general.alignment"),
}


@pytest.mark.parametrize("case", list(HOSTILE))
def test_hostile_file(case: str, tmp_path: Path) -> None:
    """T08: a clean error that names the file and the key, within a second of a core's time, and little is allocated."""
    content, message = HOSTILE[case]
    start = time.process_time()
    with allocating_at_most(len(content) + (64 << 20)), pytest.raises(ModelError, match=message) as caught:
        read(tmp_path, content)
    assert "model.gguf" in str(caught.value)
    assert time.process_time() - start < 1


def test_cut_anywhere_is_a_clean_error(tmp_path: Path) -> None:
    pairs = [pair("general.name", 8, text("x")), pair("list", 9, u32(8) + u64(2) + text("ab") + text("c"))]
    content = build([*pairs, pair("n", 9, u32(4) + u64(1) + u32(9))], [entry("a"), entry("b", offset=256)], bytes(512))
    for size in range(len(content)):
        with pytest.raises(ModelError):
            read(tmp_path, content[:size])


def test_flipped_bytes_never_escape_the_error_tree(tmp_path: Path) -> None:
    pairs = [pair("general.name", 8, text("x")), pair("list", 9, u32(8) + u64(2) + text("ab") + text("c"))]
    content = bytearray(build(pairs, [entry("a", code=8), entry("b", offset=96)], bytes(352)))
    refused = 0
    for at in range(len(content) - 352):
        for value in (0x00, 0x7F, 0x80, 0xFF):
            changed = content.copy()
            changed[at] = value
            try:
                read(tmp_path, bytes(changed))
            except ModelError:
                refused += 1
    assert refused > 300


def test_own_alignment(tmp_path: Path) -> None:
    content = build([pair("general.alignment", 4, u32(64))], data=b"")
    content += bytes(-len(content) % 64) + np.arange(64, dtype=np.float32).tobytes()
    assert np.array_equal(read(tmp_path, content).tensors["t"].weight().data.reshape(-1), np.arange(64))


def test_150_000_strings_open_quickly(tmp_path: Path) -> None:
    tokens = b"".join(text(f"token {i}") for i in range(150_000))
    path = tmp_path / "model.gguf"
    path.write_bytes(build([pair("tokenizer.ggml.tokens", 9, u32(8) + u64(150_000) + tokens)]))
    start = time.process_time()
    tokens_read = read_gguf(path).metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens_read, list)
    assert tokens_read[-1] == "token 149999"
    assert time.process_time() - start < 1.0  # 0.1 s where it was measured; the gguf package: 2.7 s
