"""Reference of `activation` and `soft_cap`: elementwise functions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vivace.kernels.ops import Activation


def activation(x: Tensor, kind: Activation) -> Tensor:
    """silu: x sigmoid(x); gelu: x Phi(x); gelu_tanh: its tanh approximation; relu; relu2: relu(x)^2; tanh."""
    match kind:
        case "silu":
            return F.silu(x)
        case "gelu":
            return F.gelu(x)
        case "gelu_tanh":
            return F.gelu(x, approximate="tanh")
        case "relu":
            return F.relu(x)
        case "relu2":
            return F.relu(x).square()
        case "tanh":
            return torch.tanh(x)


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """y = cap * tanh(x / cap) (Gemma 2, arXiv 2408.00118, section 2)."""
    return torch.tanh(x / cap) * cap
