"""`linear`, `linear_add` and `embedding` of every set: right, and where promised the same bits in any batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.kernels.bounds import assert_dot_close
from tests.kernels.conftest import ISAS
from vivace.kernels.layout import pack_panels, unpack_panels
from vivace.kernels.ops import LinearWeight, f32_weight, stored_weight
from vivace.kernels.quantized import PlainMatrix
from vivace.kernels.select import BoundOps, resolve

# rows, inputs, outputs: none, one, odd, around a panel (16), a panel group (48), a stretch (256), a row block (64), and
# few rows (up to 4), which read strips of panels.
SHAPES = [(0, 5, 7), (1, 1, 1), (3, 17, 15), (2, 33, 16), (5, 64, 17), (9, 255, 47), (8, 256, 48), (11, 257, 49)]
SHAPES += [(65, 20, 100), (130, 300, 31), (4, 0, 20), (1, 40, 1000), (4, 33, 2100), (5, 33, 2100)]


@pytest.mark.parametrize(("rows", "inputs", "outputs"), SHAPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_linear_matches_float64(ops: BoundOps, rows: int, inputs: int, outputs: int, has_bias: bool) -> None:
    x, weight = _draw(rows, inputs, outputs, has_bias)
    y = ops.linear(x, ops.pack_linear(weight))
    assert_dot_close(y, x, weight.data, weight.bias)


@pytest.mark.parametrize(("rows", "inputs", "outputs"), SHAPES)
def test_linear_add_is_linear_then_one_sum(ops: BoundOps, rows: int, inputs: int, outputs: int) -> None:
    x, weight = _draw(rows, inputs, outputs, has_bias=True)
    packed = ops.pack_linear(weight)
    residual = torch.randn(rows, outputs, generator=torch.Generator().manual_seed(3))
    assert torch.equal(ops.linear_add(x, packed, residual), residual + ops.linear(x, packed))


@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (37, 50), (300, 97), (576, 48)])
def test_a_row_is_the_same_bits_in_any_batch_at_any_place(invariant_ops: BoundOps, inputs: int, outputs: int) -> None:
    x, weight = _draw(150, inputs, outputs, has_bias=True)
    packed = invariant_ops.pack_linear(weight)
    whole = invariant_ops.linear(x, packed)
    for first, last in ((0, 1), (149, 150), (1, 3), (5, 12), (7, 15), (3, 68), (40, 150)):
        assert torch.equal(invariant_ops.linear(x[first:last], packed), whole[first:last])


@pytest.mark.usefixtures("needs_native")
@pytest.mark.parametrize("outputs", [1, 16, 17, 130, 1000, 2100])
def test_a_row_is_the_same_bits_on_any_number_of_threads(outputs: int) -> None:
    x, weight = _draw(9, 300, outputs, has_bias=True)
    results = []
    for threads in (1, 2, 3, 5):
        ops = resolve(choice="native", threads=threads)
        packed = ops.pack_linear(weight)
        results += [torch.cat([ops.linear(x[i : i + n], packed) for i in range(0, 9, n)]) for n in (1, 2, 4, 9)]
    assert all(torch.equal(result, results[0]) for result in results)


def test_a_row_is_the_same_bits_wherever_it_lies_in_memory(invariant_ops: BoundOps) -> None:
    x, weight = _draw(1, 61, 40, has_bias=False)
    packed = invariant_ops.pack_linear(weight)
    expected = invariant_ops.linear(x, packed)
    for offset in range(1, 16):
        buffer = torch.zeros(61 + offset)
        buffer[offset:] = x[0]
        assert torch.equal(invariant_ops.linear(buffer[offset:].view(1, -1), packed), expected)


def test_embedding_reads_the_table_that_the_head_uses(ops: BoundOps) -> None:
    _, weight = _draw(0, 24, 53, has_bias=False)
    ids = torch.tensor([52, 0, 15, 16, 17, 0])
    table = ops.pack_linear(weight)
    assert torch.equal(ops.embedding(ids, table), weight.data[ids])
    assert torch.equal(ops.embedding(ids, table, 1.5), weight.data[ids] * 1.5)
    assert ops.embedding(ids[:0], table).shape == (0, 24)


@pytest.mark.parametrize("outputs", [1, 15, 16, 17, 64])
def test_packing_is_undone_by_unpacking(outputs: int) -> None:
    _, weight = _draw(0, 13, outputs, has_bias=True)
    packed = pack_panels(weight)
    assert packed.data.shape == ((outputs + 15) // 16, 13, 16)
    assert (packed.outputs, packed.inputs, packed.bias) == (outputs, 13, weight.bias)
    assert torch.equal(unpack_panels(packed).data, weight.data)
    assert pack_panels(packed) is packed


@pytest.mark.usefixtures("needs_native")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), SHAPES)
def test_half_precision_weights_give_the_bits_of_their_float32_copies(
    dtype: torch.dtype, rows: int, inputs: int, outputs: int
) -> None:
    x, weight = _draw(rows, inputs, outputs, has_bias=True)
    half, ids = weight.data.to(dtype), torch.tensor([outputs - 1, 0])
    for isa in ISAS:
        ops = resolve(choice="native", isa=isa, threads=1)
        packed = ops.pack_linear(stored_weight([PlainMatrix(half)], weight.bias))
        copy = ops.pack_linear(f32_weight(half.float(), weight.bias))
        assert packed.data.dtype == dtype
        assert torch.equal(ops.linear(x, packed), ops.linear(x, copy))
        assert torch.equal(ops.embedding(ids, packed), half.float()[ids])


@pytest.mark.usefixtures("needs_native")
def test_matrices_of_several_precisions_become_float32() -> None:
    matrices = [PlainMatrix(torch.randn(5, 8).to(dtype)) for dtype in (torch.bfloat16, torch.float32)]
    packed = resolve(choice="native", threads=1).pack_linear(stored_weight(matrices))
    assert packed.data.dtype == torch.float32
    assert torch.equal(unpack_panels(packed).data, torch.cat([matrix.data.float() for matrix in matrices]))


def _draw(rows: int, inputs: int, outputs: int, has_bias: bool) -> tuple[Tensor, LinearWeight]:
    generator = torch.Generator().manual_seed(rows * 7919 + inputs * 31 + outputs)
    bias = torch.randn(outputs, generator=generator) if has_bias else None
    weight = f32_weight(torch.randn(outputs, inputs, generator=generator), bias)
    return torch.randn(rows, inputs, generator=generator), weight
