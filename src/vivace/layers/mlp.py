"""Feed-forward layers: gated (Shazeer, 2020) and plain (Vaswani et al., 2017)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor

from vivace.errors import UnsupportedModel, nearest
from vivace.kernels.ops import Activation
from vivace.layers.context import Context
from vivace.layers.linear import Linear, Loader

# Published names of activations; "gelu_new" and "gelu_pytorch_tanh" are two ways to write one formula.
ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {
        "silu": "silu",
        "swish": "silu",
        "gelu": "gelu",
        "gelu_new": "gelu_tanh",
        "gelu_fast": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "relu": "relu",
        "relu2": "relu2",
        "tanh": "tanh",
    }
)


def activation_named(name: str) -> Activation:
    """The operation's name of a published activation; raises UnsupportedModel with the nearest known one."""
    if name not in ACTIVATIONS:
        raise UnsupportedModel(f"activation '{name}' is not known", hint=nearest(name, ACTIVATIONS))
    return ACTIVATIONS[name]


@dataclass(frozen=True, eq=False)
class GatedMlp:
    """y = (act(x Wg^T) * (x Wu^T)) Wd^T."""

    gate_up: Linear
    down: Linear
    kind: Activation

    @classmethod
    def load(
        cls, loader: Loader, name: str, size: int, inner: int, *, kind: Activation, has_bias: bool = False
    ) -> GatedMlp:
        """Takes `name`.gate_proj and `name`.up_proj (inner, size) and `name`.down_proj (size, inner)."""
        parts = {"gate": (f"{name}.gate_proj", inner), "up": (f"{name}.up_proj", inner)}
        gate_up = Linear.load_fused(loader, parts, size, split="columns", has_bias=has_bias)
        down = Linear.load(loader, f"{name}.down_proj", size, inner, split="rows", has_bias=has_bias)
        return cls(gate_up, down, kind)

    def __call__(self, x: Tensor, ctx: Context, residual: Tensor | None = None) -> Tensor:
        """(rows, size) -> (rows, size), added to the residual if there is one."""
        return ctx.ops.gated_mlp(x, self.gate_up.weight, self.down.weight, self.kind, residual)


@dataclass(frozen=True, eq=False)
class Mlp:
    """y = act(x W1^T + b1) W2^T + b2."""

    up: Linear
    down: Linear
    kind: Activation

    def __call__(self, x: Tensor, ctx: Context, residual: Tensor) -> Tensor:
        """residual + the layer: (rows, size) -> (rows, size)."""
        return self.down.add_to(residual, ctx.ops.activation(self.up(x, ctx), self.kind), ctx)
