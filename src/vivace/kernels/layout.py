"""Memory layouts of weights: how a plain matrix is packed for the native kernels, and read back.

"f32_panel16": the outputs are cut into panels of 16, each stored as (inputs, 16), so that one vector register holds the
weights of 16 outputs for one input. data (panels, inputs, 16); the last panel is padded with zeros.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from vivace.kernels.ops import LinearWeight

PANEL = 16
PANEL_FORMAT = "f32_panel16"


def pack_panels(weight: LinearWeight) -> LinearWeight:
    """Return `weight` with its data in panels; a packed weight is returned unchanged."""
    if weight.format == PANEL_FORMAT:
        return weight
    weight = to_plain(weight)
    assert weight.format == "f32", f"cannot pack the format {weight.format}"
    outputs, inputs = weight.data.shape
    full, rest = divmod(outputs, PANEL)
    packed = torch.empty((full + (rest > 0), inputs, PANEL), dtype=torch.float32)
    packed[:full].copy_(weight.data[: full * PANEL].view(full, PANEL, inputs).transpose(1, 2))
    if rest:
        packed[full].zero_()
        packed[full, :, :rest].copy_(weight.data[full * PANEL :].t())
    return replace(weight, data=packed, format=PANEL_FORMAT, outputs=outputs, inputs=inputs)


def to_plain(weight: LinearWeight) -> LinearWeight:
    """A stored weight as a plain float32 matrix; any other one as it is."""
    if weight.format != "stored":
        return weight
    parts = [matrix.plain().float() for matrix in weight.stored]
    data = parts[0] if len(parts) == 1 else torch.cat(parts)
    return replace(weight, data=data, format="f32", stored=())


def unpack_panels(weight: LinearWeight) -> LinearWeight:
    """The inverse of `pack_panels`: the plain matrix, for adapters, quantizers and tests."""
    if weight.format == "f32":
        return weight
    assert weight.format == PANEL_FORMAT, f"cannot unpack the format {weight.format}"
    plain: Tensor = weight.data.transpose(1, 2).reshape(-1, weight.inputs)[: weight.outputs].contiguous()
    return replace(weight, data=plain, format="f32")
