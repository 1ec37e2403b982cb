"""`mean_rows`, `unit_rows` and look-ups in plain tables: every set gives the same bits, those of the techniques."""

from __future__ import annotations

import pytest
import torch

from vivace.kernels.ops import stored_weight
from vivace.kernels.quantized import PlainMatrix
from vivace.kernels.select import BoundOps
from vivace.techniques.pooling.base import Parts, unit_length
from vivace.techniques.pooling.mean import Config, make


@pytest.mark.parametrize("width", [1, 7, 16, 384])
def test_means_and_unit_vectors_are_those_of_the_techniques_bit_for_bit(ops: BoundOps, width: int) -> None:
    x = torch.randn(60, width, generator=torch.Generator().manual_seed(width)) * 10
    first, last = torch.tensor([0, 3, 3, 20]), torch.tensor([3, 4, 20, 60])
    means = ops.mean_rows(x, first, last)
    pool = make(Config(), Parts(width))
    for i, (begin, end) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        assert torch.equal(means[i], pool(x[begin:end], 0))
        assert torch.equal(ops.unit_rows(means)[i], unit_length(means[i]))


def test_a_vector_of_zeros_stays_zero_and_nan_stays_in_its_row(ops: BoundOps) -> None:
    x = torch.zeros(2, 5)
    x[1, 2] = float("nan")
    y = ops.unit_rows(x)
    assert torch.equal(y[0], x[0])
    assert y[1].isnan().all()


@pytest.mark.usefixtures("needs_native")
def test_native_means_need_rows() -> None:
    from vivace.kernels.cpu.bind import NativeOps

    x, native = torch.ones(3, 2), NativeOps(None, 1)
    for first, last in ((1, 1), (-1, 1), (0, 4), (2, 1)):
        with pytest.raises(ValueError, match=f"rows {first} to {last} have no mean"):
            native.mean_rows(x, torch.tensor([first]), torch.tensor([last]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_a_table_is_looked_up_exactly(ops: BoundOps, dtype: torch.dtype, scale: float) -> None:
    data = torch.randn(37, 19, generator=torch.Generator().manual_seed(1)).to(dtype)
    ids = torch.tensor([36, 0, 5, 5])
    table = ops.pack_table(stored_weight([PlainMatrix(data)]))
    assert torch.equal(ops.embedding(ids, table, scale), data[ids].float() * scale)
