"""Weights in the layouts of the native kernels: codes stay codes; only what no integer kernel reads becomes float."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import to_dlpack  # type: ignore[attr-defined]  # public, but not listed in __all__

from vivace.config import ActivationFormat
from vivace.kernels.layout import pack_panels, room_key, row_chunks, to_rows
from vivace.kernels.ops import ExpertWeights, LinearWeight
from vivace.kernels.quantized import Coding, StoredMatrix
from vivace.kernels.rooms import FRESH_MEMORY, Rooms

QUANT_FORMAT = "quant_panel16"
PLANES = {"int14": 2, "int8": 1}

_TABLE_ZERO = 128  # codes of a table are stored as unsigned bytes


def pack_native(weight: LinearWeight, activations: ActivationFormat, rooms: Rooms = FRESH_MEMORY) -> LinearWeight:
    """The weight as native kernels read it: codes and scales if all its matrices have them, else panels of floats.

    activations   the integers that activations become; "f32" turns codes into floats here and now, "auto" starts as
                  int14 until the layers that may be int8 are known
    """
    codings = [matrix.coding for matrix in weight.stored]
    if not _keeps_codes(weight, activations):
        return pack_panels(weight, rooms)
    native: Any = importlib.import_module("vivace.kernels.cpu._native")
    layouts = [_layout(native, coding) for coding in codings if coding is not None]
    sizes = [
        layout.data_bytes(matrix.outputs, matrix.inputs) for layout, matrix in zip(layouts, weight.stored, strict=True)
    ]
    room = rooms.room(room_key(QUANT_FORMAT, weight.stored), sum(sizes))
    matrices = []
    for matrix, layout, data in zip(weight.stored, layouts, torch.split(room.data, sizes), strict=True):
        packed = native.QuantMatrix.over(layout, matrix.outputs, matrix.inputs, to_dlpack(data))
        if not room.is_filled:
            _fill(packed, matrix)
        matrices.append(packed)
    handle = native.QuantWeights.of(matrices, PLANES["int14" if activations == "auto" else activations])
    return replace(weight, data=room.data, format=QUANT_FORMAT, stored=(), handle=handle)


def pack_native_table(weight: LinearWeight, activations: ActivationFormat, rooms: Rooms = FRESH_MEMORY) -> LinearWeight:
    """A table that is only looked up: codes as in `pack_native`, floats row by row, each in one place."""
    return pack_native(weight, activations, rooms) if _keeps_codes(weight, activations) else to_rows(weight)


def activations_of(weight: LinearWeight) -> str:
    """What the inputs of a weight in codes become: int14 or int8."""
    planes: int = weight.handle.planes
    return next(name for name, count in PLANES.items() if count == planes)


def with_activations(weight: LinearWeight, activations: str) -> LinearWeight:
    """A weight in codes with other activations, int14 or int8, over the same data."""
    return replace(weight, handle=weight.handle.with_planes(PLANES[activations]))


def pack_experts(weights: Sequence[LinearWeight]) -> ExpertWeights:
    """Packed weights of one shape as the experts of a grouped linear map; no copy is made."""
    native: Any = importlib.import_module("vivace.kernels.cpu._native")
    assert len({(weight.inputs, weight.outputs) for weight in weights}) == 1, "the experts differ in shape"
    experts = native.Experts.of(weights[0].inputs, weights[0].outputs)
    for weight in weights:
        bias = None if weight.bias is None else to_dlpack(weight.bias)
        if weight.format == QUANT_FORMAT:
            experts.add_quant(weight.handle, bias)
        else:
            experts.add_panels(to_dlpack(weight.data), bias)
    return ExpertWeights(tuple(weights), experts)


def unpack_quant(weight: LinearWeight) -> Tensor:
    """The values of a weight in codes, float32 (outputs, inputs), for adapters and tests."""
    values = torch.empty(weight.outputs, weight.inputs)
    for output, row in enumerate(values):
        weight.handle.read_row(output, to_dlpack(row))
    return values


def _keeps_codes(weight: LinearWeight, activations: ActivationFormat) -> bool:
    has_codes = bool(weight.stored) and all(matrix.coding for matrix in weight.stored)
    return activations != "f32" and has_codes and weight.outputs > 0


def _layout(native: Any, coding: Coding) -> Any:
    table: Sequence[int] = [value + _TABLE_ZERO for value in coding.table]
    return native.QuantLayout.of(
        bits=coding.bits,
        group=coding.group,
        span=coding.span,
        zero=_TABLE_ZERO if coding.table else coding.zero,
        has_minimum=coding.has_minimum,
        has_fine=coding.has_fine,
        is_f32=coding.is_f32,
        table=table,
    )


def _fill(packed: Any, matrix: StoredMatrix) -> None:
    """Take the matrix apart and pack it, some rows at a time."""
    for first, last in row_chunks(matrix):
        rows = matrix.quantized(first, last)
        parts = (rows.codes, rows.coarse, rows.fine, rows.coarse_minimum, rows.fine_minimum)
        packed.pack(first, *(None if part is None else to_dlpack(part.contiguous()) for part in parts))
