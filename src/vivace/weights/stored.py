"""Matrices in the packed types of GGUF files, cut into rows and handed to kernels as codes and scales."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vivace.kernels.quantized import IN_MEMORY, Coding, Origin, Quantized
from vivace.weights.gguf_types import GgufType, dequantize, split_blocks


@dataclass(frozen=True, eq=False)
class GgufMatrix:
    """raw (outputs, bytes of a row) uint8, of a packed type."""

    raw: Tensor
    kind: GgufType
    origin: Origin = IN_MEMORY

    @property
    def outputs(self) -> int:
        return self.raw.shape[0]

    @property
    def inputs(self) -> int:
        return self.raw.shape[1] // self.kind.block_bytes * self.kind.block_size

    @property
    def coding(self) -> Coding | None:
        return self.kind.coding

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    def plain(self) -> Tensor:
        """All values, dequantized: float32 (outputs, inputs)."""
        return dequantize(self.raw, self.kind).view(self.outputs, self.inputs)

    def quantized(self, first: int, last: int) -> Quantized:
        """The codes, scales and minima of rows first .. last - 1."""
        blocks = split_blocks(self.raw[first:last].reshape(-1, self.kind.block_bytes), self.kind)

        def rows(part: Tensor | None) -> Tensor | None:
            return None if part is None else part.reshape(last - first, -1)

        return Quantized(
            blocks.codes.reshape(last - first, -1),
            blocks.coarse.reshape(last - first, -1),
            rows(blocks.fine),
            rows(blocks.coarse_minimum),
            rows(blocks.fine_minimum),
        )
