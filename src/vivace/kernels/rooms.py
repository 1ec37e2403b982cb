"""Where packed weights stand: in fresh memory, or in what an earlier start packed (weights/packed.py keeps it)."""

from __future__ import annotations

import contextlib
import mmap
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 64  # bytes: kernels read whole cache lines
CHUNK_BYTES = 64 << 20  # asked of the system at a time, given as it is written


@dataclass(frozen=True, eq=False)
class Room:
    """Memory of one packed weight. data (bytes,) uint8, zeros unless `is_filled`: then the weight is there already."""

    data: Tensor
    is_filled: bool = False


class Rooms(Protocol):
    """Gives out rooms, each asked for once."""

    def room(self, key: str, num_bytes: int) -> Room:
        """`key` says all that the contents depend on besides the weight file: two rooms of one key hold the same."""


class FreshMemory:
    """Rooms that are still to be filled, each by itself. The system hands out their memory as it is written."""

    def room(self, key: str, num_bytes: int) -> Room:
        return Room(fresh_bytes(num_bytes))


FRESH_MEMORY = FreshMemory()


class HugePages:
    """Fresh rooms next to each other, for all weights of a model: a huge page holds many small ones, so that a step,
    which reads them all, asks for few address translations."""

    def __init__(self) -> None:
        self._free = torch.empty(0, dtype=torch.uint8)

    def room(self, key: str, num_bytes: int) -> Room:
        if num_bytes > len(self._free):
            self._free = huge_bytes(max(num_bytes, CHUNK_BYTES))
        data, self._free = self._free[:num_bytes], self._free[-(-num_bytes // ALIGNMENT) * ALIGNMENT :]
        return Room(data)


def huge_bytes(num_bytes: int) -> Tensor:
    """Zeros, uint8 (num_bytes,), in huge pages if the system has them."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return fresh_bytes(num_bytes)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a system built without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.from_numpy(np.frombuffer(memory, dtype=np.uint8))


def fresh_bytes(num_bytes: int) -> Tensor:
    """Zeros, uint8 (num_bytes,), at the beginning of a cache line."""
    # numpy's zeros come straight from the system; torch's would be written once more.
    memory = np.zeros(num_bytes + ALIGNMENT, dtype=np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return torch.from_numpy(memory[start : start + num_bytes])
