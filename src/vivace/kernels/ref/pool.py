"""Reference of `mean_rows` and `unit_rows`: running sums in float64, whose order is that of their terms."""

from __future__ import annotations

import torch
from torch import Tensor


def mean_rows(x: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """y[i] = the mean of the rows first[i] .. last[i] - 1. x (.., width), first, last (n,) int64 -> (n, width)."""
    parts = [x[begin:end].double() for begin, end in zip(first.tolist(), last.tolist(), strict=True)]
    means = [(part.cumsum(0)[-1] / part.shape[0]).float() for part in parts]
    return torch.stack(means) if means else x.new_empty(0, x.shape[1])


def unit_rows(x: Tensor) -> Tensor:
    """y = x / max(||x||, 1e-12). x (rows, width) -> the same."""
    wide = x.double()
    norms = wide.square().cumsum(1)[:, -1:].sqrt()
    return (wide / norms.clamp(min=1e-12)).float()
