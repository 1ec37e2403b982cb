"""Linear maps of weights that stay packed: GGUF types against integer activations, and half precision.

`operations` counts the products of the equation, two for each product and its sum. With int14 a product takes two
products of bytes, so its ceiling is half that of int8. `bytes` counts the weights as their file packs them, and each
input and output once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benchmarks.cases import Case
from vivace.config import ActivationFormat
from vivace.kernels.cpu.pack import PLANES, pack_native
from vivace.kernels.layout import to_plain
from vivace.kernels.ops import LinearWeight, stored_weight
from vivace.kernels.quantized import PlainMatrix, StoredMatrix
from vivace.kernels.select import BoundOps
from vivace.weights.gguf_types import TYPES
from vivace.weights.stored import GgufMatrix

_TYPES = {kind.name: kind for kind in TYPES.values()}
_SHAPES = ((1536, 576), (576, 1536), (49152, 576))  # (outputs, inputs) of a small model
_K_SHAPES = ((576, 1536), (2048, 2048))  # rows of whole 256-blocks


def packed_cases(*, is_full: bool) -> Iterator[Case]:
    """Small size: the two types of SmolLM2. Full size: a type of every layout, both activation formats."""
    if not is_full:
        for kind, outputs, inputs in (("Q4_1", 1536, 576), ("Q8_0", 4096, 576)):
            for rows in (1, 16, 128):
                yield _quantized(kind, "int14", rows, outputs, inputs)
        yield _half(torch.bfloat16, 16, 1536, 576)
        return
    for kind, shapes in (
        ("Q4_1", _SHAPES),
        ("Q8_0", _SHAPES),
        ("Q5_0", _SHAPES),
        ("Q4_K", _K_SHAPES),
        ("Q6_K", _K_SHAPES),
    ):
        for outputs, inputs in shapes:
            for rows in (1, 4, 16, 64, 512):
                for activations in PLANES:
                    yield _quantized(kind, activations, rows, outputs, inputs)
    for dtype in (torch.bfloat16, torch.float16):
        for rows in (1, 16, 512):
            yield _half(dtype, rows, 1536, 576)


def _quantized(kind: str, activations: ActivationFormat, rows: int, outputs: int, inputs: int) -> Case:
    row_bytes = inputs // _TYPES[kind].block_size * _TYPES[kind].block_bytes

    def prepare(ops: BoundOps) -> Callable[[], Tensor]:
        # Bytes below 64 make scales of small positive numbers.
        raw = torch.randint(0, 64, (outputs, row_bytes), dtype=torch.uint8)
        weight, x = _packed(ops, GgufMatrix(raw, _TYPES[kind]), activations), torch.randn(rows, inputs)
        return lambda: ops.linear(x, weight)

    moved = outputs * row_bytes + 4 * rows * (inputs + outputs)
    shape = f"{kind} {activations} {rows}x{inputs} -> {outputs}"
    return Case("linear", shape, 2 * rows * inputs * outputs, moved, prepare, PLANES[activations])


def _half(dtype: torch.dtype, rows: int, outputs: int, inputs: int) -> Case:
    def prepare(ops: BoundOps) -> Callable[[], Tensor]:
        weight = _packed(ops, PlainMatrix(torch.randn(outputs, inputs).to(dtype)), "f32")
        x = torch.randn(rows, inputs)
        return lambda: ops.linear(x, weight)

    moved = 2 * outputs * inputs + 4 * rows * (inputs + outputs)
    shape = f"{str(dtype).removeprefix('torch.')} {rows}x{inputs} -> {outputs}"
    return Case("linear", shape, 2 * rows * inputs * outputs, moved, prepare)


def _packed(ops: BoundOps, matrix: StoredMatrix, activations: ActivationFormat) -> LinearWeight:
    weight = stored_weight([matrix])
    is_native = ops.bound["linear"].name.startswith("native")
    return pack_native(weight, activations) if is_native else to_plain(weight)
