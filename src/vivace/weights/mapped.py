"""What readers of untrusted weight files share: the mapping, bounded shapes and ranges, JSON without surprises."""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vivace.errors import WeightError
from vivace.weights.files import TensorInfo, broken, shown

MAX_DIMS = 16
MAX_DIM = 1 << 48  # far above any real size, low enough that torch's 64-bit arithmetic cannot overflow on one
PAGES_BYTES = max(1 << 21, mmap.PAGESIZE)  # what systems may map at once around the byte that is read

Bytes = npt.NDArray[np.uint8]


class MappedFile:
    """Base of the readers: a file mapped into memory and the byte range of each of its tensors."""

    format = ""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tensors: dict[str, TensorInfo] = {}
        self.metadata: Mapping[str, Any] = {}
        self._map: mmap.mmap | None = map_file(path)
        self._bytes: Bytes | None = np.frombuffer(self._map, dtype=np.uint8)
        self._starts: dict[str, int] = {}

    def raw(self, name: str) -> torch.Tensor:
        """The stored bytes of a tensor, uint8 (nbytes,), without a copy."""
        info, start = self.tensors[name], self._starts[name]
        return torch.from_numpy(self.data[start : start + info.nbytes])

    def let_go(self, name: str, begin: int, end: int) -> None:
        """Bytes begin .. end - 1 of a tensor will not be read again soon: they leave this process's memory, and come
        back from the system's copy of the file if they are read after all."""
        if self._map is None or not hasattr(mmap, "MADV_DONTNEED"):
            return
        first = (self._starts[name] + begin) // PAGES_BYTES * PAGES_BYTES
        length = self._starts[name] + end - first
        if length > 0:
            self._map.madvise(mmap.MADV_DONTNEED, first, length)

    def close(self) -> None:
        """Let go of the mapping; tensors already handed out keep it alive."""
        self._map = self._bytes = None

    @property
    def data(self) -> Bytes:
        """The whole file, uint8 (size,)."""
        assert self._bytes is not None, f"{self.path.name} is closed"
        return self._bytes

    def _add(self, name: str, type_name: str, shape: tuple[int, ...], start: int, nbytes: int) -> None:
        self.tensors[name] = TensorInfo(name, type_name, shape, nbytes, f"{self.path.name} at byte {start}")
        self._starts[name] = start

    def _check_ranges(self) -> None:
        """Every tensor lies within the file and no two share a byte, else WeightError."""
        spans = [(start, start + self.tensors[name].nbytes, name) for name, start in self._starts.items()]
        last_end, last_name = 0, ""
        for begin, end, name in sorted(spans):
            if end > len(self.data):
                raise broken(
                    self.path, f"tensor {shown(name)}", f"bytes {begin}..{end} lie beyond the file's {len(self.data)}"
                )
            if begin < last_end and begin < end:
                raise broken(self.path, f"tensor {shown(name)}", f"overlaps {shown(last_name)} at byte {begin}")
            if begin < end:
                last_end, last_name = end, name


def map_file(path: Path) -> mmap.mmap:
    """A file mapped privately: nothing writes to it, and could not change the file if it did.

    Views keep the mapping alive, so they outlive whoever made it. The file must not shrink meanwhile (the system
    ends a process that reads what is gone): replace files, do not rewrite them. WeightError for an empty file."""
    size = path.stat().st_size
    if size == 0:
        raise broken(path, "byte 0", "the file is empty")
    try:
        with path.open("rb") as stream:
            return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise WeightError(f"cannot map {path.name} ({size} bytes): {error}") from error


def typed(raw: torch.Tensor, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """Stored bytes (nbytes,) as a tensor of `dtype` and `shape`: a view, or a copy if they lie at an odd address."""
    if dtype == torch.bool:
        return raw.ne(0).reshape(tuple(shape))
    if raw.data_ptr() % dtype.itemsize:
        raw = raw.clone()
    return raw.view(dtype).reshape(tuple(shape))


def shape_problem(shape: Sequence[int]) -> str:
    """What is wrong with a shape read from a file, or "" if nothing is."""
    if len(shape) > MAX_DIMS:
        return f"{len(shape)} dimensions, at most {MAX_DIMS} are allowed"
    for size in shape:
        if not 0 <= size <= MAX_DIM:
            return f"a dimension is {shown(size)}, outside 0..2^48"
    return ""


def parse_json_object(path: Path, place: str, data: bytes) -> dict[str, Any]:
    """A JSON object from UTF-8 bytes. WeightError for anything else, a repeated key, or nesting too deep to read."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            seen: set[str] = set()
            repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise broken(path, place, f"the name {shown(repeated)} is there twice")
        return found

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=unique)
    except UnicodeDecodeError as error:
        raise broken(path, place, f"not UTF-8 at byte {error.start} of it") from None
    except RecursionError:
        raise broken(path, place, "JSON nested too deep") from None
    except ValueError as error:
        raise broken(path, place, f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise broken(path, place, f"a JSON object was expected, found {type(value).__name__}")
    return value
