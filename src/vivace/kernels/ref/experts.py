"""Reference of the expert operations: `route`, `grouped_linear`, `combine` and `expert_mlp`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vivace.kernels.ops import Activation, ExpertWeights, LinearWeight, Ops, RouteSpec
from vivace.kernels.ref.linear import linear

TINY = 1e-20  # keeps a sum of weights that are all zero from dividing by zero, as DeepSeek-V3 does


def pack_experts(ops: Ops, weights: Sequence[LinearWeight]) -> ExpertWeights:
    """The weights of all experts, each packed as a linear map is."""
    return ExpertWeights(tuple(ops.pack_linear(weight) for weight in weights))


def route(logits: Tensor, spec: RouteSpec, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Experts and weights of each row, the best first. logits (rows, experts) -> two of (rows, count).

    DeepSeek-V3 (arXiv 2412.19437, equations 12 to 16) has all of it: s = sigmoid(logits); ranks s + bias choose first
    the groups, by the sum of their best ranks, then the experts within them; s, not the ranks, make the weights.
    """
    scores = torch.softmax(logits, -1) if spec.scoring == "softmax" else torch.sigmoid(logits)
    ranks = scores if bias is None else scores + bias
    if spec.kept_groups < spec.groups:
        grouped = ranks.view(len(ranks), spec.groups, -1)  # (rows, groups, members)
        best = grouped.sort(dim=-1, descending=True).values[..., : spec.group_best].sum(-1)
        kept = torch.zeros_like(best, dtype=torch.bool).scatter_(-1, _best(best, spec.kept_groups), True)
        order = _best(ranks, ranks.shape[-1])
        # A stable sort that moves the experts of other groups behind all that may be chosen.
        is_out = ~kept.repeat_interleave(grouped.shape[-1], -1).gather(-1, order)
        chosen = order.gather(-1, torch.argsort(is_out.int(), dim=-1, stable=True))[:, : spec.count]
    else:
        chosen = _best(ranks, spec.count)
    weights = scores.gather(-1, chosen)
    if spec.is_normalized:
        total = weights[:, :1] + TINY
        for place in range(1, spec.count):
            total = total + weights[:, place : place + 1]
        weights = weights / total
    return chosen.int(), weights * spec.scale


def grouped_linear(x: Tensor, chosen: Tensor, weights: ExpertWeights) -> Tensor:
    """y[r, j] = W_e x[r] + b_e with e = chosen[r, j]; x (rows, inputs), or (rows, count, inputs): then of x[r, j]."""
    rows, count = chosen.shape
    outputs = weights.experts[0].outputs
    pairs = x.reshape(-1, x.shape[-1]) if x.dim() == 3 else x.repeat_interleave(count, 0)
    y = x.new_empty(rows * count, outputs)
    for expert, weight in enumerate(weights.experts):
        mine = (chosen.flatten() == expert).nonzero()[:, 0]
        y[mine] = linear(pairs[mine], weight)
    return y.view(rows, count, outputs)


def combine(x: Tensor, weights: Tensor, residual: Tensor | None) -> Tensor:
    """y[r] = residual[r] + sum_j weights[r, j] * x[r, j], each product and sum rounded, j in order."""
    y = x[:, 0] * weights[:, :1]
    for place in range(1, x.shape[1]):
        y = y + x[:, place] * weights[:, place : place + 1]
    return y if residual is None else residual + y


def expert_mlp(
    ops: Ops,
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    gate_up: ExpertWeights,
    down: ExpertWeights,
    kind: Activation,
    residual: Tensor | None,
) -> Tensor:
    """y[r] = residual[r] + sum_j weights[r, j] * gated_mlp of expert chosen[r, j] (x[r]) -> (rows, outputs)."""
    slices = gate_up.experts[0].slices
    both = ops.grouped_linear(x, chosen, gate_up)
    gate, up = both[..., slice(*slices["gate"])], both[..., slice(*slices["up"])]
    hidden = ops.activation(gate.contiguous(), kind) * up
    return ops.combine(ops.grouped_linear(hidden, chosen, down), weights, residual)


def _best(values: Tensor, count: int) -> Tensor:
    """Places of the largest, the lowest place of equals first; a NaN counts as the largest."""
    return torch.sort(values, dim=-1, descending=True, stable=True).indices[..., :count]
