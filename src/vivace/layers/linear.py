"""Linear maps: loaded by name, packed for the operations, with their split over ranks stated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from vivace.kernels.ops import LinearWeight, Ops, Split, f32_weight
from vivace.layers.context import Context


class WeightSource(Protocol):
    """Tensors under a model's own names; weights.load.Weights is one. Every tensor may be taken once."""

    def has(self, name: str) -> bool: ...

    def take(self, name: str, shape: Sequence[int] | None = None) -> Tensor: ...

    def take_optional(self, name: str, shape: Sequence[int] | None = None) -> Tensor | None: ...

    def take_shared(self, name: str, source: str, shape: Sequence[int] | None = None) -> Tensor: ...

    def take_fused(
        self, names: Sequence[str], shapes: Sequence[Sequence[int]] | None = None
    ) -> tuple[Tensor, dict[str, slice]]: ...


@dataclass(frozen=True, eq=False)
class Loader:
    """Where layers get their weights: tensors by name, the operations that pack them, and the device they go to."""

    weights: WeightSource
    ops: Ops
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def take(self, name: str, *shape: int) -> Tensor:
        """A float32 weight on the device."""
        return self.weights.take(name, shape).to(self.device)

    def pack(
        self, data: Tensor, bias: Tensor | None, split: Split, slices: Mapping[str, tuple[int, int]] | None = None
    ) -> LinearWeight:
        """A matrix (outputs, inputs) and its bias as the operations want them."""
        on_device = None if bias is None else bias.to(self.device)
        return self.ops.pack_linear(f32_weight(data.to(self.device), on_device, slices, split))


@dataclass(frozen=True, eq=False)
class Linear:
    """y = x W^T + b. A fused projection keeps its parts as named slices of the outputs."""

    weight: LinearWeight

    @classmethod
    def load(
        cls, loader: Loader, name: str, outputs: int, inputs: int, *, split: Split, has_bias: bool = False
    ) -> Linear:
        """Takes `name`.weight (outputs, inputs) and, if it has one, `name`.bias (outputs,)."""
        data = loader.weights.take(f"{name}.weight", (outputs, inputs))
        bias = loader.weights.take(f"{name}.bias", (outputs,)) if has_bias else None
        return cls(loader.pack(data, bias, split))

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
        names = [f"{name}.weight" for name, _ in parts.values()]
        data, rows = loader.weights.take_fused(names, [(outputs, inputs) for _, outputs in parts.values()])
        slices = {part: (rows[name].start, rows[name].stop) for part, name in zip(parts, names, strict=True)}
        bias = None
        if has_bias:
            biases = [f"{name}.bias" for name, _ in parts.values()]
            bias, _ = loader.weights.take_fused(biases, [(outputs,) for _, outputs in parts.values()])
        return cls(loader.pack(data, bias, split, slices))

    def __call__(self, x: Tensor, ctx: Context) -> Tensor:
        """(rows, inputs) -> (rows, outputs)."""
        return ctx.ops.linear(x, self.weight)

    def add_to(self, residual: Tensor, x: Tensor, ctx: Context) -> Tensor:
        """residual + this map of x: (rows, inputs) -> (rows, outputs)."""
        return ctx.ops.linear_add(x, self.weight, residual)
