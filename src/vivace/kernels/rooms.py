"""Where packed weights stand: in fresh memory, or in what an earlier start packed (weights/packed.py keeps it)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 64  # bytes: kernels read whole cache lines


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
    """Rooms that are still to be filled. The system hands out their memory as it is written."""

    def room(self, key: str, num_bytes: int) -> Room:
        return Room(fresh_bytes(num_bytes))


FRESH_MEMORY = FreshMemory()


def fresh_bytes(num_bytes: int) -> Tensor:
    """Zeros, uint8 (num_bytes,), at the beginning of a cache line."""
    # numpy's zeros come straight from the system; torch's would be written once more.
    memory = np.zeros(num_bytes + ALIGNMENT, dtype=np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return torch.from_numpy(memory[start : start + num_bytes])
