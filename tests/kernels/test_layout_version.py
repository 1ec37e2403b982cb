"""Packed weights outlive a version of the code on the disk: another layout must have another number."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.kernels.test_quant import CODINGS
from vivace.kernels.cpu.pack import pack_native
from vivace.kernels.layout import LAYOUT_VERSION, pack_panels
from vivace.kernels.ops import stored_weight
from vivace.kernels.quantized import IN_MEMORY, Coding, PlainMatrix, Quantized

# version -> digest of what it makes of the matrices below
KNOWN = {2: "a87b253f14762bb93b0610b93c98daa6b948598c72e81ca600f154176562bd9d"}


class Counted:
    """A matrix whose codes and scales are counted up."""

    dtype, origin, outputs, inputs = torch.float32, IN_MEMORY, 100, 512

    def __init__(self, coding: Coding) -> None:
        self.coding = coding

    def plain(self) -> Tensor:
        return self.quantized(0, self.outputs).values(self.coding)

    def quantized(self, first: int, last: int) -> Quantized:
        coding = self.coding

        def counted(step: int, most: int, shift: int = 0) -> Tensor:
            whole = torch.arange(self.outputs * self.inputs // step).view(self.outputs, -1)[first:last]
            return (whole * 7 + shift) % most

        def coarse(shift: int) -> Tensor:
            return (counted(coding.span, 255, shift) / 64).to(torch.float32 if coding.is_f32 else torch.float16)

        def fine(shift: int) -> Tensor | None:
            return counted(coding.group, 127, shift).to(torch.int8) if coding.has_fine else None

        minima = (coarse(3), fine(5)) if coding.has_minimum else (None, None)
        return Quantized(counted(1, 2**coding.bits).to(torch.uint8), coarse(1), fine(2), *minima)


@pytest.mark.usefixtures("needs_native")
def test_the_version_names_the_bytes_that_packing_makes() -> None:
    digest = hashlib.sha256()
    for coding in CODINGS.values():
        digest.update(pack_native(stored_weight([Counted(replace(coding))]), "int14").data.numpy().data)
    numbers = torch.arange(100 * 48).view(100, 48) % 251 / 8
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        packed = pack_panels(stored_weight([PlainMatrix(numbers.to(dtype))]))
        digest.update(packed.data.view(torch.uint8).numpy().data)
    assert digest.hexdigest() == KNOWN[LAYOUT_VERSION], "the layout is another: raise LAYOUT_VERSION, note the digest"
