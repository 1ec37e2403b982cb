"""Memory layouts of weights: how a plain matrix is packed for the native kernels, and read back.

"f32_panel16": the outputs are cut into panels of 16, each stored as (inputs, 16), so that one vector register holds the
weights of 16 outputs for one input. data (panels, inputs, 16); the last panel is padded with zeros. "bf16_panel16" and
"f16_panel16" are the same in half precision. Codes are packed by cpu/pack.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor

from vivace.kernels.ops import LinearWeight
from vivace.kernels.quantized import PlainMatrix, StoredMatrix, rows_of
from vivace.kernels.rooms import FRESH_MEMORY, Rooms

PANEL = 16
LAYOUT_VERSION = 2  # of everything that `pack_linear` makes: raise it with any change of the bytes, here or in cpu/
CHUNK_ELEMENTS = 1 << 17  # of a matrix that are packed at a time: they stay in the cache
PANEL_FORMATS = MappingProxyType(
    {torch.float32: "f32_panel16", torch.bfloat16: "bf16_panel16", torch.float16: "f16_panel16"}
)


def pack_panels(weight: LinearWeight, rooms: Rooms = FRESH_MEMORY) -> LinearWeight:
    """Return `weight` with its data in panels; a packed weight is returned unchanged."""
    if weight.format in PANEL_FORMATS.values():
        return weight
    assert weight.format in ("f32", "stored"), f"cannot read the format {weight.format}"
    matrices: tuple[StoredMatrix, ...] = weight.stored or (PlainMatrix(weight.data),)
    dtype = _dtype(matrices)
    shape = (-(-weight.outputs // PANEL), weight.inputs, PANEL)
    room = rooms.room(room_key(PANEL_FORMATS[dtype], matrices), math.prod(shape) * dtype.itemsize)
    packed = room.data.view(dtype).view(shape)
    if not room.is_filled:
        first = 0
        for matrix in matrices:
            for begin, end in row_chunks(matrix):
                _put_rows(packed, first + begin, rows_of(matrix, begin, end))
            first += matrix.outputs
    return replace(weight, data=packed, format=PANEL_FORMATS[dtype], stored=())


def row_chunks(matrix: StoredMatrix) -> Iterator[tuple[int, int]]:
    """The rows of a matrix, first and last + 1 of some at a time, whole panels but for the end. Those that were read
    are let go: neither a second copy of a matrix nor all of its file is ever in memory."""
    step = max(1, CHUNK_ELEMENTS // (max(1, matrix.inputs) * PANEL)) * PANEL
    for first in range(0, matrix.outputs, step):
        last = min(first + step, matrix.outputs)
        yield first, last
        matrix.origin.let_go(first, last)


def room_key(format_name: str, matrices: tuple[StoredMatrix, ...]) -> str:
    """What a packed weight consists of; "" if some of it comes from no file."""
    if not all(matrix.origin.name for matrix in matrices):
        return ""
    parts = [
        f"{matrix.origin.name} {matrix.outputs}x{matrix.inputs} {matrix.coding or matrix.dtype}" for matrix in matrices
    ]
    return "; ".join([format_name, *parts])


def to_plain(weight: LinearWeight) -> LinearWeight:
    """A stored weight as a plain float32 matrix; any other one as it is."""
    if weight.format != "stored":
        return weight
    return replace(weight, data=_joined(weight).float(), format="f32", stored=())


def to_rows(weight: LinearWeight) -> LinearWeight:
    """A stored or plain weight as a table for look-ups, in half precision if it is stored so."""
    return replace(weight, data=_joined(weight), format="rows", stored=())


def unpack_panels(weight: LinearWeight) -> LinearWeight:
    """The inverse of `pack_panels`: the plain matrix, for adapters, quantizers and tests."""
    if weight.format == "f32":
        return weight
    assert weight.format in PANEL_FORMATS.values(), f"cannot unpack the format {weight.format}"
    plain: Tensor = weight.data.transpose(1, 2).reshape(-1, weight.inputs)[: weight.outputs].float().contiguous()
    return replace(weight, data=plain, format="f32")


def _joined(weight: LinearWeight) -> Tensor:
    """The values of a plain or stored weight, (outputs, inputs)."""
    if weight.format == "f32":
        return weight.data
    assert weight.format == "stored", f"cannot read the format {weight.format}"
    dtype = _dtype(weight.stored)
    parts = [matrix.plain().to(dtype) for matrix in weight.stored]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _dtype(matrices: tuple[StoredMatrix, ...]) -> torch.dtype:
    """Half precision if all of them are stored so, else float32."""
    found = {matrix.dtype for matrix in matrices}
    return found.pop() if len(found) == 1 else torch.float32


def _put_rows(packed: Tensor, first: int, rows: Tensor) -> None:
    """Write the rows of outputs first, first + 1, ... into their panels. packed (panels, inputs, 16)."""
    while len(rows):
        panel, lane = divmod(first, PANEL)
        whole = 0 if lane else len(rows) // PANEL
        if whole:
            part = rows[: whole * PANEL]
            packed[panel : panel + whole].copy_(part.view(whole, PANEL, -1).transpose(1, 2))
        else:
            part = rows[: PANEL - lane]
            packed[panel, :, lane : lane + len(part)].copy_(part.t())
        first, rows = first + len(part), rows[len(part) :]
