"""Reads the header of a GGUF file in one pass over a memory map: metadata, and where each tensor lies.

It does not know what the metadata mean, nor how a block of weights is decoded.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import mmap
import struct
from pathlib import Path
from typing import Any, NoReturn

from graftlm.layers.quantization.block_formats import BLOCK_FORMATS, BlockFormat
from graftlm.models.checkpoints.errors import BrokenCheckpoint, UnsupportedCheckpoint
from graftlm.models.checkpoints.gguf_metadata import check_metadata

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_MAX_NESTING = 8

_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip


FORMATS = {
    number: BLOCK_FORMATS[name]
    for number, name in (
        (0, "F32"), (1, "F16"), (2, "Q4_0"), (3, "Q4_1"), (6, "Q5_0"), (7, "Q5_1"), (8, "Q8_0"), (12, "Q4_K"),
        (14, "Q6_K"), (30, "BF16"),
    )
}  # fmt: skip
_OTHER_FORMATS = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 13: "Q5_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64",
    28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor's place in the file; `shape` is in row-major order, the last axis is contiguous."""

    name: str
    format: BlockFormat
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class GGUFFile:
    """A GGUF file's header; `map` is private to the process and reads pages only when they are touched."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensor]
    map: mmap.mmap


def read_gguf(path: Path | str) -> GGUFFile:
    """Read the header; a second call in one process costs nothing while the file is unchanged."""
    path = Path(path)
    try:
        stat = path.stat()
    except OSError as error:
        raise BrokenCheckpoint(path, problem=error.strerror or str(error), cure="check the path") from error
    return _read(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=4)
def _read(path: Path, _mtime_ns: int, size: int) -> GGUFFile:
    if size < 24:
        raise BrokenCheckpoint(path, problem=f"it has only {size} bytes", cure="fetch it again")
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise BrokenCheckpoint(path, problem=error.strerror or str(error), cure="give a .gguf file") from error
    return _Reader(path, data).read()


class _Reader:
    """A position that walks once over the header."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.size = len(data)
        self.position = 0

    def read(self) -> GGUFFile:
        self.check_magic()
        num_tensors, num_keys = self.scalar("<Q"), self.scalar("<Q")
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self.string()
            metadata[key] = self.value(self.scalar("<I"))
        places: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for _ in range(num_tensors):
            name, shape, kind, offset = self.tensor_place()
            if name in places:
                self.broken(f"it has two tensors {name!r}")
            places[name] = shape, kind, offset
        check_metadata(self.path, metadata)
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            self.broken(f"general.alignment={alignment!r} is no power of two")
        start = -(-self.position // alignment) * alignment
        tensors = {name: self.tensor(name, *place, start=start) for name, place in places.items()}
        return GGUFFile(self.path, metadata, tensors, self.data)

    def check_magic(self) -> None:
        if self.data[:4] != _MAGIC:
            raise BrokenCheckpoint(
                self.path,
                problem=f"it starts with {self.data[:4]!r} instead of {_MAGIC!r}",
                cure="give a GGUF file, or name its format with --load-format",
            )
        self.position = 4
        version = self.scalar("<I")
        if version not in _VERSIONS:
            problem = "it is big-endian" if not version & 0xFFFF else f"its GGUF version is {version}"
            raise UnsupportedCheckpoint(
                self.path, problem=problem, cure=f"convert it to little-endian GGUF of version {_VERSIONS[-1]}"
            )

    def take(self, length: int) -> int:
        """Step over `length` bytes and return where they start."""
        start = self.position
        self.position = start + length
        if self.position > self.size:
            self.broken(f"it is truncated: the header goes beyond its {self.size} bytes")
        return start

    def scalar(self, code: str) -> Any:
        return struct.unpack_from(code, self.data, self.take(struct.calcsize(code)))[0]

    def string(self) -> str:
        length = self.scalar("<Q")
        start = self.take(length)
        try:
            return self.data[start : start + length].decode()
        except UnicodeDecodeError:
            self.broken(f"the text at byte {start} of its header is not UTF-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array(self.scalar("<I"), self.scalar("<Q"))
        if kind not in _SCALARS:
            self.broken(f"its header has a value of unknown kind {kind} before byte {self.position}")
        return self.scalar(_SCALARS[kind])

    def array(self, kind: int, length: int, *, depth: int = 0) -> list[Any]:
        if kind == _STRING:
            return self.strings(length)
        if kind in _SCALARS:
            code = _SCALARS[kind][1]
            start = self.take(length * struct.calcsize(f"<{code}"))
            return list(struct.unpack_from(f"<{length}{code}", self.data, start))
        if kind != _ARRAY or depth >= _MAX_NESTING:
            self.broken(f"its header has an array of unknown kind {kind} before byte {self.position}")
        self.take(length)  # an element takes a byte at least: refuse absurd lengths before looping
        self.position -= length
        return [self.array(self.scalar("<I"), self.scalar("<Q"), depth=depth + 1) for _ in range(length)]

    def strings(self, length: int) -> list[str]:
        # The vocabulary: some hundred thousand strings, so this loop is kept bare.
        self.take(length * 8)
        data, size, position = self.data, self.size, self.position - length * 8
        unpack = struct.Struct("<Q").unpack_from
        texts = []
        try:
            for _ in range(length):
                start = position + 8
                position = start + unpack(data, position)[0]
                if position > size:
                    break
                texts.append(data[start:position].decode())
        except struct.error:
            position = size + 1
        except UnicodeDecodeError:
            self.broken(f"the text at byte {start} of its header is not UTF-8")
        self.position = 0
        self.take(position)
        return texts

    def tensor_place(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.string()
        num_dimensions = self.scalar("<I")
        if num_dimensions > _MAX_DIMENSIONS:
            self.broken(f"tensor {name!r} has {num_dimensions} dimensions")
        dimensions = tuple(self.scalar("<Q") for _ in range(num_dimensions))
        return name, dimensions[::-1], self.scalar("<I"), self.scalar("<Q")

    def tensor(self, name: str, shape: tuple[int, ...], kind: int, offset: int, *, start: int) -> GGUFTensor:
        if kind not in FORMATS:
            raise UnsupportedCheckpoint(
                self.path,
                problem=f"tensor {name!r} is in format {_OTHER_FORMATS.get(kind, f'number {kind}')}",
                cure=f"quantize the model to one of {', '.join(f.name for f in FORMATS.values())}",
            )
        if 0 in shape:
            self.broken(f"tensor {name!r} of shape {list(shape)} has no numbers")
        block = FORMATS[kind]
        columns = shape[-1] if shape else 1
        if columns % block.block_columns:
            self.broken(f"tensor {name!r} has rows of {columns}, not whole {block.name} blocks")
        num_bytes = math.prod(shape[:-1]) * block.bytes_of(columns)
        if start + offset + num_bytes > self.size:
            self.broken(
                f"it is truncated: tensor {name!r} ends at byte {start + offset + num_bytes}, "
                f"the file has {self.size}"
            )
        return GGUFTensor(name, block, shape, start + offset, num_bytes)

    def broken(self, problem: str) -> NoReturn:
        raise BrokenCheckpoint(self.path, problem=problem, cure="fetch or convert it again")
