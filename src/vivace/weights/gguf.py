"""Reader of GGUF files, versions 2 and 3: typed metadata, tensor descriptions, then aligned tensor data.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Vocabularies make the metadata large, so arrays are
only measured when the file is opened and decoded when first asked for.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Never

import numpy as np
import torch

from vivace.errors import WeightError
from vivace.weights.files import broken, shown
from vivace.weights.gguf_types import TYPES, GgufType, dequantize
from vivace.weights.mapped import Bytes, MappedFile, shape_problem, typed

VERSIONS = (2, 3)
MAX_NAME_BYTES = 65535
MAX_TENSOR_DIMS = 4
DEFAULT_ALIGNMENT = 32

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_STRING, _ARRAY = 8, 9
# Metadata types by their code, as struct and numpy spell them.
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_SMALLEST_ENTRY = 8 + 4 + 1  # the bytes of an empty key, a type and a one-byte value
_SMALLEST_TENSOR = 8 + 4 + 4 + 8  # an empty name, no dimensions, a type and an offset


class GgufFile(MappedFile):
    """One GGUF file. `metadata` maps keys to numbers, strings and lists; raises WeightError for a damaged file."""

    format = "gguf"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        cursor = _Cursor(path, self.data)
        tensor_count, entry_count = _read_header(cursor)
        self.metadata: GgufMetadata = _read_metadata(cursor, entry_count)
        self._kinds: dict[str, GgufType] = {}
        descriptions = _read_descriptions(cursor, tensor_count)
        alignment = self._alignment()
        data_start = -(-cursor.position // alignment) * alignment
        for name, found in descriptions.items():
            if found.offset % alignment:
                raise broken(path, f"tensor {shown(name)}", f"offset {found.offset} is not a multiple of {alignment}")
            nbytes = math.prod(found.shape) // found.kind.block_size * found.kind.block_bytes
            self._add(name, found.kind.name, found.shape, data_start + found.offset, nbytes)
            self._kinds[name] = found.kind
        self._check_ranges()

    def read(self, name: str, dtype: torch.dtype | None = torch.float32) -> torch.Tensor:
        """The tensor in `dtype`, dequantized if it is packed; None keeps a plain type as stored."""
        kind, shape = self._kinds[name], self.tensors[name].shape
        if kind.dtype is not None:
            tensor = typed(self.raw(name), kind.dtype, shape)
        else:
            tensor = dequantize(self.raw(name), kind).reshape(shape)
        return tensor if dtype is None else tensor.to(dtype)

    def close(self) -> None:
        """Let go of the mapping; metadata arrays are decoded first, so that they can still be asked for."""
        self.metadata.decode_all()
        super().close()

    def _alignment(self) -> int:
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise broken(self.path, "general.alignment", f"a power of two was expected, found {shown(alignment)}")
        return alignment


class GgufMetadata(Mapping[str, Any]):
    """The metadata of a file: plain values, and arrays that become lists when first asked for."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if isinstance(value, _Array):
            value = self._values[key] = value.decode()
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def decode_all(self) -> None:
        """Decode the arrays that nobody asked for yet, so that the file is no longer needed."""
        for key in self._values:
            self[key]


@dataclass(frozen=True)
class _Array:
    """An array that is still only a place in the file; its extent has been checked."""

    key: str
    type_code: int
    count: int
    cursor: _Cursor

    def decode(self) -> list[Any]:
        if self.type_code == _STRING:
            what = f"a string of {shown(self.key)}"
            cursor = self.cursor.copy()
            return [cursor.string(what) for _ in range(self.count)]
        kind, start = np.dtype(_SCALARS[self.type_code]), self.cursor.position
        data = self.cursor.data[start : start + self.count * kind.itemsize]
        values: list[Any] = np.frombuffer(data, dtype=kind).tolist()
        return values


class _Cursor:
    """A reading position in the file. Whatever leads beyond the end or is malformed raises WeightError with it."""

    def __init__(self, path: Path, data: Bytes, position: int = 0) -> None:
        self.path = path
        self.data = data
        self.position = position
        self._view = data.data

    @property
    def left(self) -> int:
        return len(self.data) - self.position

    def fail(self, problem: str, *, hint: str = "") -> Never:
        raise broken(self.path, f"byte {self.position}", problem, hint=hint)

    def copy(self) -> _Cursor:
        return _Cursor(self.path, self.data, self.position)

    def number(self, form: struct.Struct) -> Any:
        if form.size > self.left:
            self.fail("the file ends in the middle of its header")
        (value,) = form.unpack_from(self._view, self.position)
        self.position += form.size
        return value

    def string(self, what: str, limit: int | None = None) -> str:
        start = self.position
        length = self.number(_U64)
        if length > self.left or (limit is not None and length > limit):
            self.position = start
            self.fail(f"{what} has {length} bytes, the file has {self.left} left (limit {limit or 'none'})")
        text = self._view[self.position : self.position + length]
        try:
            value = str(text, "utf-8")
        except UnicodeDecodeError as error:
            self.position = start
            self.fail(f"{what} is not UTF-8 ({error.reason} at its byte {error.start})")
        self.position += length
        return value

    def skip_strings(self, count: int) -> None:
        """Step over `count` strings, as fast as Python can: a vocabulary has hundreds of thousands."""
        unpack, view, position = _U64.unpack_from, self._view, self.position
        try:
            for _ in range(count):
                self.position = position
                position += 8 + unpack(view, position)[0]
        except (struct.error, OverflowError):
            self.fail("the file ends in the middle of an array of strings")
        if position > len(self.data):
            self.fail("a string of an array leads beyond the end of the file")
        self.position = position


def _read_header(cursor: _Cursor) -> tuple[int, int]:
    """(tensors, metadata entries) from the first 24 bytes."""
    magic = cursor.data[:4].tobytes()
    if magic != b"GGUF":
        cursor.fail(f"the magic number is {magic!r}, not b'GGUF'")
    cursor.position = 4
    version = cursor.number(_U32)
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        kind = "big-endian" if swapped in VERSIONS else f"GGUF version {version}"
        raise WeightError(
            f"{cursor.path.name} is a {kind} file, only little-endian GGUF of versions 2 and 3 can be read",
            hint="convert the model again with a recent converter",
        )
    tensor_count, entry_count = cursor.number(_U64), cursor.number(_U64)
    return tensor_count, entry_count


def _read_metadata(cursor: _Cursor, count: int) -> GgufMetadata:
    if count * _SMALLEST_ENTRY > cursor.left:
        cursor.fail(f"{count} metadata entries cannot fit into the {cursor.left} bytes that are left")
    values: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.string("a metadata key", MAX_NAME_BYTES)
        if key in values:
            cursor.fail(f"the metadata key {shown(key)} is there twice")
        type_code = cursor.number(_U32)
        if type_code == _ARRAY:
            values[key] = _measure_array(cursor, key)
        elif type_code == _STRING:
            values[key] = cursor.string(f"the value of {shown(key)}")
        else:
            values[key] = cursor.number(_scalar(cursor, key, type_code))
    if values.get("split.count", 0) not in (0, 1):
        raise WeightError(
            f"{cursor.path.name} is one of {shown(values['split.count'])} parts of a split model",
            hint="join the parts once with llama-gguf-split --merge",
        )
    return GgufMetadata(values)


def _measure_array(cursor: _Cursor, key: str) -> _Array:
    """Step over an array and remember where it is."""
    type_code, count = cursor.number(_U32), cursor.number(_U64)
    if type_code == _ARRAY:
        cursor.fail(f"{shown(key)} is an array of arrays, which no model uses")
    size = 8 if type_code == _STRING else _scalar(cursor, key, type_code).size
    if count * size > cursor.left:
        cursor.fail(f"the {count} elements of {shown(key)} lead beyond the end of the file")
    array = _Array(key, type_code, count, cursor.copy())
    if type_code == _STRING:
        cursor.skip_strings(count)
    else:
        cursor.position += count * size
    return array


def _scalar(cursor: _Cursor, key: str, type_code: int) -> struct.Struct:
    if type_code not in _SCALARS:
        cursor.fail(f"{shown(key)} has the unknown type {type_code}")
    return struct.Struct(_SCALARS[type_code])


@dataclass(frozen=True)
class _Description:
    """A tensor as the header describes it; `offset` counts from the start of the data."""

    kind: GgufType
    shape: tuple[int, ...]
    offset: int


def _read_descriptions(cursor: _Cursor, count: int) -> dict[str, _Description]:
    if count * _SMALLEST_TENSOR > cursor.left:
        cursor.fail(f"{count} tensors cannot be described in the {cursor.left} bytes that are left")
    found: dict[str, _Description] = {}
    for _ in range(count):
        name = cursor.string("the name of a tensor", MAX_NAME_BYTES)
        if name in found:
            cursor.fail(f"the tensor {shown(name)} is there twice")
        found[name] = _read_description(cursor, name)
    return found


def _read_description(cursor: _Cursor, name: str) -> _Description:
    dim_count = cursor.number(_U32)
    if dim_count > MAX_TENSOR_DIMS:
        cursor.fail(f"the tensor {shown(name)} has {dim_count} dimensions, at most {MAX_TENSOR_DIMS} are allowed")
    shape = tuple(reversed([cursor.number(_U64) for _ in range(dim_count)]))  # the file has the innermost first
    type_code, offset = cursor.number(_U32), cursor.number(_U64)
    kind = TYPES.get(type_code)
    if kind is None:
        known = ", ".join(known.name for known in TYPES.values())
        cursor.fail(f"the tensor {shown(name)} has the type {type_code}", hint=f"types that can be read: {known}")
    if problem := shape_problem(shape):
        cursor.fail(f"the tensor {shown(name)} has {problem}")
    row = shape[-1] if shape else 1
    if row % kind.block_size:
        cursor.fail(f"the tensor {shown(name)} has rows of {row}, {kind.name} needs a multiple of {kind.block_size}")
    return _Description(kind, shape, offset)
