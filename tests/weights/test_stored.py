"""Matrices in packed types: cut into rows, packed for the native kernels and read back without losing a bit."""

from __future__ import annotations

import pytest
import torch

from vivace.kernels.cpu import bind
from vivace.kernels.cpu.pack import pack_native, unpack_quant
from vivace.kernels.layout import to_plain
from vivace.kernels.ops import stored_weight
from vivace.weights.gguf_types import TYPES, GgufType, dequantize
from vivace.weights.stored import GgufMatrix

PACKED = [kind for kind in TYPES.values() if kind.coding is not None]
REASON = bind.why_missing()


@pytest.mark.parametrize("kind", PACKED, ids=lambda kind: kind.name)
def test_rows_are_those_of_the_whole_matrix(kind: GgufType) -> None:
    matrix, values = _random(kind, outputs=37), None
    assert (matrix.outputs, matrix.inputs, matrix.dtype) == (37, 512, torch.float32)
    values = dequantize(matrix.raw, kind).view(37, 512)
    assert _are_equal(matrix.plain(), values)
    assert matrix.coding is not None
    assert _are_equal(matrix.quantized(5, 21).values(matrix.coding), values[5:21])


@pytest.mark.skipif(REASON is not None, reason=f"no native kernels: {REASON}")
@pytest.mark.parametrize("kind", PACKED, ids=lambda kind: kind.name)
@pytest.mark.parametrize("outputs", [1, 100])
def test_packed_matrices_read_back_as_they_dequantize(kind: GgufType, outputs: int) -> None:
    matrix = _random(kind, outputs)
    packed = pack_native(stored_weight([matrix]), "int14")
    assert packed.handle is not None
    assert _are_equal(unpack_quant(packed), dequantize(matrix.raw, kind).view(outputs, 512))


@pytest.mark.skipif(REASON is not None, reason=f"no native kernels: {REASON}")
@pytest.mark.parametrize("kind", PACKED, ids=lambda kind: kind.name)
def test_packed_matrices_take_little_more_than_their_file(kind: GgufType) -> None:
    matrix = _random(kind, outputs=96)
    size = pack_native(stored_weight([matrix]), "int14").data.nbytes / matrix.raw.nbytes
    # 2 and 3 bits become 4, and the byte scales of MXFP4 floats; every other type keeps its bits.
    limit = {"Q2_K": 1.96, "Q3_K": 1.35, "MXFP4": 1.18, "Q4_K": 1.03, "Q5_K": 1.03, "IQ4_XS": 1.02}
    assert size <= limit.get(kind.name, 1.0)


def test_stored_weights_become_plain_ones_below_each_other() -> None:
    kinds = {kind.name: kind for kind in PACKED}
    matrices = [_random(kinds["Q4_K"], 3), _random(kinds["Q6_K"], 5)]
    weight = to_plain(stored_weight(matrices))
    assert (weight.format, weight.data.shape) == ("f32", (8, 512))
    assert _are_equal(weight.data, torch.cat([matrix.plain() for matrix in matrices]))


def _random(kind: GgufType, outputs: int) -> GgufMatrix:
    """Random bytes: every code, and scales of any size, infinities and NaN among them."""
    row_bytes = 512 // kind.block_size * kind.block_bytes
    draw = torch.Generator().manual_seed(kind.code)
    return GgufMatrix(torch.randint(0, 256, (outputs, row_bytes), generator=draw, dtype=torch.uint8), kind)


def _are_equal(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Bit for bit; NaN equals NaN."""
    is_same = (found.view(torch.int32) == expected.view(torch.int32)) | (found.isnan() & expected.isnan())
    return bool(is_same.all())
