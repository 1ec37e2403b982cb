"""Reference of `embedding`: rows of a table, from a plain or a packed weight."""

from __future__ import annotations

from torch import Tensor

from vivace.kernels.layout import PANEL, PANEL_FORMATS
from vivace.kernels.ops import LinearWeight


def embedding(ids: Tensor, weight: LinearWeight, scale: float = 1.0) -> Tensor:
    """y[r] = scale * W[ids[r]]. ids (rows,) int64 -> (rows, inputs).

    Reads packed weights too, so that a table shared with the output projection is kept once.
    """
    if weight.format in PANEL_FORMATS.values():
        y = weight.data[ids // PANEL, :, ids % PANEL].float()
    else:
        assert weight.format in ("f32", "rows"), f"embedding cannot read the format {weight.format}"
        y = weight.data[ids].float()
    return y if scale == 1.0 else y * scale
