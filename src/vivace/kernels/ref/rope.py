"""Reference of `rope` and `rope_angles`: rotary position embedding (RoFormer, arXiv 2104.09864, equation 34)."""

from __future__ import annotations

import torch
from torch import Tensor

from vivace.kernels.ops import Pairing


def rope_angles(position: Tensor, variant: Tensor, frequencies: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """cos and sin of position[r, 0] * frequencies[variant[r]], times scale: (rows, d) each.

    position (rows, axes) int64, variant (rows,) int32, frequencies (variants, d). Positions are rounded to float32.
    """
    angle = position[:, :1].float() * frequencies[variant.long()]
    return angle.cos() * scale, angle.sin() * scale


def rope(x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing) -> Tensor:
    """Rotate the first 2 * d dims of each head by the row's angles; dims beyond them pass unchanged.

    x (rows, heads, dim); cos, sin (rows, d). For a pair (a, b): a' = a cos - b sin, b' = b cos + a sin.
    Products and sums are rounded one by one, so the result does not depend on what stands in other rows.
    """
    d = cos.shape[-1]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)  # (rows, 1, d)
    if pairing == "half":
        a, b = x[..., :d], x[..., d : 2 * d]
        rotated = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    else:
        a, b = x[..., 0 : 2 * d : 2], x[..., 1 : 2 * d : 2]
        rotated = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    return rotated if 2 * d == x.shape[-1] else torch.cat((rotated, x[..., 2 * d :]), -1)
