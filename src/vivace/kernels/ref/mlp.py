"""Reference of `gated_mlp`: the composition of linear, activation and linear_add."""

from __future__ import annotations

from torch import Tensor

from vivace.kernels.ops import Activation, LinearWeight, Ops


def gated_mlp(
    ops: Ops, x: Tensor, gate_up: LinearWeight, down: LinearWeight, kind: Activation, residual: Tensor | None
) -> Tensor:
    """y = residual + (act(x Wg^T) * (x Wu^T)) Wd^T (GLU variants, arXiv 2002.05202) -> (rows, outputs).

    Without a residual nothing is added.
    """
    both = ops.linear(x, gate_up)
    gate = both[:, slice(*gate_up.slices["gate"])].contiguous()
    up = both[:, slice(*gate_up.slices["up"])]
    hidden = ops.activation(gate, kind) * up
    return ops.linear(hidden, down) if residual is None else ops.linear_add(hidden, down, residual)
