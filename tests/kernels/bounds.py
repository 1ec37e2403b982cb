"""Error bounds that follow from rounding, so that a tolerance is a proof and not a guess."""

from __future__ import annotations

import torch
from torch import Tensor

UNIT = 2.0**-24  # half the distance from 1 to the next float32


def assert_dot_close(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    """y = x W^T + b within n * unit * (|x| |W|^T + |b|) for n inputs, whatever the order of the sum.

    Every term passes at most n + 1 roundings, each of relative size `unit` (Higham, Accuracy and Stability of Numerical
    Algorithms, 2nd edition, section 3.1); 2 more cover the second-order terms.
    """
    exact = x.double() @ weight.double().t()
    size = x.double().abs() @ weight.double().abs().t()
    if bias is not None:
        exact, size = exact + bias.double(), size + bias.double().abs()
    bound = (x.shape[1] + 3) * UNIT * size
    assert y.shape == exact.shape and y.dtype == torch.float32
    assert ((y.double() - exact).abs() <= bound).all()
