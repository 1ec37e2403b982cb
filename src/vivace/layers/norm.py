"""Normalisation layers. The weight is the effective one: Gemma's offset of one is added when it is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vivace.layers.context import Context
from vivace.layers.linear import Loader


@dataclass(frozen=True, eq=False)
class RmsNorm:
    """x / rms(x) * w (Zhang and Sennrich, 2019)."""

    weight: Tensor  # (size,)
    eps: float

    @classmethod
    def load(cls, loader: Loader, name: str, size: int, eps: float) -> RmsNorm:
        """Takes `name`.weight (size,)."""
        return cls(loader.take(f"{name}.weight", size), eps)

    def __call__(self, x: Tensor, ctx: Context) -> Tensor:
        """(rows, size) -> (rows, size)."""
        return ctx.ops.rms_norm(x, self.weight, self.eps)


@dataclass(frozen=True, eq=False)
class LayerNorm:
    """(x - mean(x)) / std(x) * w + b (Ba et al., 2016)."""

    weight: Tensor  # (size,)
    bias: Tensor  # (size,)
    eps: float

    @classmethod
    def load(cls, loader: Loader, name: str, size: int, eps: float) -> LayerNorm:
        """Takes `name`.weight and `name`.bias (size,)."""
        return cls(loader.take(f"{name}.weight", size), loader.take(f"{name}.bias", size), eps)

    def __call__(self, x: Tensor, ctx: Context) -> Tensor:
        """(rows, size) -> (rows, size)."""
        return ctx.ops.layer_norm(x, self.weight, self.bias, self.eps)
