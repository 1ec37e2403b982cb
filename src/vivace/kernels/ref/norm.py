"""Reference of `rms_norm` and `layer_norm`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """y = x / sqrt(mean(x^2) + eps) * w over the last dimension (Zhang and Sennrich, arXiv 1910.07467)."""
    mean_square = x.pow(2).mean(-1, keepdim=True)
    return x * torch.rsqrt(mean_square + eps) * weight


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """y = (x - mean(x)) / sqrt(var(x) + eps) * w + b over the last dimension (Ba et al., arXiv 1607.06450)."""
    return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)
