"""Linear maps: loaded by name, packed for the operations, with their split over ranks stated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from vivace.kernels.ops import LinearWeight, Ops, Split, stored_weight
from vivace.kernels.quantized import PlainMatrix, StoredMatrix
from vivace.kernels.rooms import FRESH_MEMORY, Rooms
from vivace.layers.context import Context


class WeightSource(Protocol):
    """Tensors under a model's own names; weights.load.Weights is one. Every tensor may be taken once."""

    def has(self, name: str) -> bool: ...

    def take(self, name: str, shape: Sequence[int] | None = None) -> Tensor: ...

    def take_optional(self, name: str, shape: Sequence[int] | None = None) -> Tensor | None: ...

    def take_stored(self, name: str, shape: tuple[int, int]) -> StoredMatrix: ...

    def take_own(self, name: str, source: str, shape: tuple[int, int]) -> StoredMatrix | None: ...

    def take_fused(
        self, names: Sequence[str], shapes: Sequence[Sequence[int]] | None = None
    ) -> tuple[Tensor, dict[str, slice]]: ...


@dataclass(frozen=True, eq=False)
class Loader:
    """Where layers get their weights: tensors by name, the operations that pack them, the device they go to, and
    the rooms that packed ones stand in."""

    weights: WeightSource
    ops: Ops
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    rooms: Rooms = FRESH_MEMORY

    def take(self, name: str, *shape: int) -> Tensor:
        """A float32 weight on the device."""
        return self.weights.take(name, shape).to(self.device)

    def pack(
        self,
        matrices: Sequence[StoredMatrix],
        bias: Tensor | None,
        split: Split,
        slices: Mapping[str, tuple[int, int]] | None = None,
    ) -> LinearWeight:
        """Matrices of the same inputs, one below the other, and their bias, as the operations want them."""
        bias = None if bias is None else bias.to(self.device)
        return self.ops.pack_linear(stored_weight(self._placed(matrices), bias, slices, split), self.rooms)

    def pack_table(self, matrix: StoredMatrix, split: Split) -> LinearWeight:
        """A matrix whose rows are only looked up."""
        return self.ops.pack_table(stored_weight(self._placed([matrix]), None, None, split), self.rooms)

    def _placed(self, matrices: Sequence[StoredMatrix]) -> Sequence[StoredMatrix]:
        if self.device.type == "cpu":
            return matrices
        return [PlainMatrix(matrix.plain().to(self.device)) for matrix in matrices]


@dataclass(frozen=True, eq=False)
class Linear:
    """y = x W^T + b. A fused projection keeps its parts as named slices of the outputs."""

    weight: LinearWeight

    @classmethod
    def load(
        cls, loader: Loader, name: str, outputs: int, inputs: int, *, split: Split, has_bias: bool = False
    ) -> Linear:
        """Takes `name`.weight (outputs, inputs) and, if it has one, `name`.bias (outputs,)."""
        matrix = loader.weights.take_stored(f"{name}.weight", (outputs, inputs))
        bias = loader.weights.take(f"{name}.bias", (outputs,)) if has_bias else None
        return cls(loader.pack([matrix], bias, split))

    @classmethod
    def load_fused(
        cls,
        loader: Loader,
        parts: Mapping[str, tuple[str, int]],
        inputs: int,
        *,
        split: Split,
        has_bias: bool = False,
    ) -> Linear:
        """Several maps of one input as one. `parts`, in the order of the outputs: slice -> (weight name, outputs)."""
        matrices, slices, start = [], {}, 0
        for part, (name, outputs) in parts.items():
            matrices.append(loader.weights.take_stored(f"{name}.weight", (outputs, inputs)))
            slices[part] = (start, start + outputs)
            start += outputs
        bias = None
        if has_bias:
            biases = [f"{name}.bias" for name, _ in parts.values()]
            bias, _ = loader.weights.take_fused(biases, [(outputs,) for _, outputs in parts.values()])
        return cls(loader.pack(matrices, bias, split, slices))

    def __call__(self, x: Tensor, ctx: Context) -> Tensor:
        """(rows, inputs) -> (rows, outputs)."""
        return ctx.ops.linear(x, self.weight)

    def add_to(self, residual: Tensor, x: Tensor, ctx: Context) -> Tensor:
        """residual + this map of x: (rows, inputs) -> (rows, outputs)."""
        return ctx.ops.linear_add(x, self.weight, residual)
