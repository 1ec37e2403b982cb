"""Memory layouts of weights: how a plain matrix is packed for the native kernels, and read back.

"f32_panel16": the outputs are cut into panels of 16, each stored as (inputs, 16), so that one vector register holds the
weights of 16 outputs for one input. data (panels, inputs, 16); the last panel is padded with zeros. "bf16_panel16" and
"f16_panel16" are the same in half precision. Codes are packed by cpu/pack.py.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor

from vivace.kernels.ops import LinearWeight

PANEL = 16
PANEL_FORMATS = MappingProxyType(
    {torch.float32: "f32_panel16", torch.bfloat16: "bf16_panel16", torch.float16: "f16_panel16"}
)


def pack_panels(weight: LinearWeight) -> LinearWeight:
    """Return `weight` with its data in panels; a packed weight is returned unchanged."""
    if weight.format in PANEL_FORMATS.values():
        return weight
    data = _joined(weight)
    outputs, inputs = data.shape
    full, rest = divmod(outputs, PANEL)
    packed = torch.empty((full + (rest > 0), inputs, PANEL), dtype=data.dtype)
    packed[:full].copy_(data[: full * PANEL].view(full, PANEL, inputs).transpose(1, 2))
    if rest:
        packed[full].zero_()
        packed[full, :, :rest].copy_(data[full * PANEL :].t())
    return replace(weight, data=packed, format=PANEL_FORMATS[data.dtype], outputs=outputs, inputs=inputs, stored=())


def to_plain(weight: LinearWeight) -> LinearWeight:
    """A stored weight as a plain float32 matrix; any other one as it is."""
    if weight.format != "stored":
        return weight
    return replace(weight, data=_joined(weight).float(), format="f32", stored=())


def to_rows(weight: LinearWeight) -> LinearWeight:
    """A stored or plain weight as a table for look-ups, in half precision if it is stored so."""
    return replace(weight, data=_joined(weight), format="rows", stored=())


def unpack_panels(weight: LinearWeight) -> LinearWeight:
    """The inverse of `pack_panels`: the plain matrix, for adapters, quantizers and tests."""
    if weight.format == "f32":
        return weight
    assert weight.format in PANEL_FORMATS.values(), f"cannot unpack the format {weight.format}"
    plain: Tensor = weight.data.transpose(1, 2).reshape(-1, weight.inputs)[: weight.outputs].float().contiguous()
    return replace(weight, data=plain, format="f32")


def _joined(weight: LinearWeight) -> Tensor:
    """The values of a plain or stored weight, (outputs, inputs): in half precision if all of it is stored so."""
    if weight.format == "f32":
        return weight.data
    assert weight.format == "stored", f"cannot read the format {weight.format}"
    is_one_type = len({matrix.dtype for matrix in weight.stored}) == 1
    parts = [matrix.plain() if is_one_type else matrix.plain().float() for matrix in weight.stored]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
