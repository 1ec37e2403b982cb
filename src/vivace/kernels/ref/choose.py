"""Reference of `take_rows` and `argmax`: which rows go on to the head, and which id is the best."""

from __future__ import annotations

import torch
from torch import Tensor


def take_rows(x: Tensor, rows: Tensor) -> Tensor:
    """y[i] = x[rows[i]]. x (.., width), rows (n,) int64 -> (n, width)."""
    return x[rows]


def argmax(x: Tensor) -> Tensor:
    """The place of the largest element of each row, the lowest one of equals; a NaN counts as the largest."""
    return torch.argmax(x, -1)
