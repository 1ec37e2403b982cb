"""Reference of `linear`, `add` and `linear_add`."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from vivace.kernels.ops import LinearWeight, Ops


def linear(x: Tensor, weight: LinearWeight) -> Tensor:
    """y = x W^T + b. x (rows, inputs) -> (rows, outputs)."""
    assert weight.format == "f32", f"the reference reads plain weights, not the format {weight.format}"
    y = F.linear(x, weight.data)
    return y if weight.bias is None else y.add_(weight.bias)


def add(x: Tensor, y: Tensor) -> Tensor:
    """x + y, of one shape."""
    return x + y


def linear_add(ops: Ops, x: Tensor, weight: LinearWeight, residual: Tensor) -> Tensor:
    """y = residual + linear(x). residual (rows, outputs) -> (rows, outputs)."""
    return residual + ops.linear(x, weight)
