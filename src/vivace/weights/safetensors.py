"""Reader of safetensors files: a JSON header with names, types, shapes and byte ranges, then the data.

Format: https://huggingface.co/docs/safetensors. Eight bytes give the header's length (little-endian), then comes the
header {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, "__metadata__": {...}}; offsets count
from its end, and the ranges cover the data exactly, without gaps or overlaps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from vivace.errors import nearest
from vivace.weights.files import MAX_HEADER_BYTES, broken, shown
from vivace.weights.mapped import MappedFile, parse_json_object, shape_problem, typed

DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {
        "BOOL": torch.bool,
        "U8": torch.uint8,
        "I8": torch.int8,
        "F8_E5M2": torch.float8_e5m2,
        "F8_E4M3": torch.float8_e4m3fn,
        "F8_E8M0": torch.float8_e8m0fnu,
        "U16": torch.uint16,
        "I16": torch.int16,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
        "U32": torch.uint32,
        "I32": torch.int32,
        "F32": torch.float32,
        "U64": torch.uint64,
        "I64": torch.int64,
        "F64": torch.float64,
        "C64": torch.complex64,
    }
)


class SafetensorsFile(MappedFile):
    """One .safetensors file. Raises WeightError, which names the place, for a file that breaks the format."""

    format = "safetensors"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        header, self._data_start = self._read_header()
        note = header.pop("__metadata__", {})
        if not isinstance(note, dict) or not all(isinstance(value, str) for value in note.values()):
            raise broken(path, "the header", "__metadata__ must map strings to strings")
        self.metadata = note
        for name, entry in header.items():
            self._add_entry(name, entry)
        self._check_ranges()
        self._check_covered()

    def read(self, name: str, dtype: torch.dtype | None = torch.float32) -> torch.Tensor:
        """The tensor in `dtype`, or as stored if that is None; a view of the mapping where no conversion is needed."""
        info = self.tensors[name]
        stored = typed(self.raw(name), DTYPES[info.type], info.shape)
        return stored if dtype is None else stored.to(dtype)

    def _read_header(self) -> tuple[dict[str, Any], int]:
        size = len(self.data)
        if size < 8:
            raise broken(self.path, "byte 0", f"{size} bytes are too few for a safetensors file")
        length = int.from_bytes(self.data[:8].tobytes(), "little")
        if length > min(size - 8, MAX_HEADER_BYTES):
            raise broken(
                self.path, "byte 0", f"a header of {length} bytes, but the file has {size} (limit {MAX_HEADER_BYTES})"
            )
        header = parse_json_object(self.path, "the header at byte 8", self.data[8 : 8 + length].tobytes())
        return header, 8 + length

    def _add_entry(self, name: str, entry: Any) -> None:
        place = f"tensor {shown(name)}"
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise broken(self.path, place, f"dtype, shape and data_offsets were expected, found {shown(entry)}")
        if any("\ud800" <= letter <= "\udfff" for letter in name):
            raise broken(self.path, place, "the name holds half of a surrogate pair")
        type_name, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(type_name, str) or type_name not in DTYPES:
            raise broken(self.path, place, f"unknown type {shown(type_name)}", hint=nearest(shown(type_name), DTYPES))
        if not _are_counts(shape):
            raise broken(self.path, place, f"a shape is a list of whole numbers, found {shown(shape)}")
        if problem := shape_problem(shape):
            raise broken(self.path, place, problem)
        if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            raise broken(self.path, place, f"data_offsets must be [begin, end], found {shown(offsets)}")
        begin, end = offsets
        nbytes = math.prod(shape) * DTYPES[type_name].itemsize
        if end - begin != nbytes:
            problem = f"{type_name} {shown(shape)} needs {nbytes} bytes, the range has {end - begin}"
            raise broken(self.path, place, problem)
        self._add(name, type_name, tuple(shape), self._data_start + begin, nbytes)

    def _check_covered(self) -> None:
        # Ranges that neither overlap nor leave the file cover it exactly when their sizes add up.
        held, expected = len(self.data) - self._data_start, sum(info.nbytes for info in self.tensors.values())
        if held != expected:
            raise broken(
                self.path, f"byte {self._data_start}", f"{held} bytes of data, but the tensors account for {expected}"
            )


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)
