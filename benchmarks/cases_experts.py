"""Mixtures of experts for `benchmarks.ops`: routing, and linear maps of the experts that a step's rows chose.

`bytes` counts the weights of every expert that some row chose once: with few rows that is what binds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases import Case
from vivace.kernels.ops import RouteSpec, f32_weight
from vivace.kernels.select import BoundOps

EXPERTS, COUNT, SIZE, INNER = 32, 4, 512, 256  # as a small mixture has them


def expert_cases(*, is_full: bool) -> Iterator[Case]:
    """Each operation with one row, with some, and in full size with a prompt."""
    for rows in (1, 16, 512) if is_full else (1, 16):
        yield from _routes(rows)
        yield from _layers(rows)


def _routes(rows: int) -> Iterator[Case]:
    specs = {
        f"softmax {EXPERTS}": (EXPERTS, RouteSpec(COUNT)),
        "sigmoid 256 in 8 groups": (
            256,
            RouteSpec(8, "sigmoid", groups=8, kept_groups=4, group_best=2, scale=2.5),
        ),
    }
    for name, (experts, spec) in specs.items():

        def prepare(ops: BoundOps, experts: int = experts, spec: RouteSpec = spec) -> Callable[[], Any]:
            logits, bias = torch.randn(rows, experts), torch.randn(experts) if spec.scoring == "sigmoid" else None
            return lambda: ops.route(logits, spec, bias)

        yield Case(
            "route", f"{rows} of {name}", 4 * rows * experts, 4 * rows * experts + 8 * rows * spec.count, prepare
        )


def _layers(rows: int) -> Iterator[Case]:
    chosen = torch.argsort(torch.rand(rows, EXPERTS, generator=torch.Generator().manual_seed(rows)))[:, :COUNT].int()
    used, pairs = len(chosen.unique()), rows * COUNT
    slices = {"gate": (0, INNER), "up": (INNER, 2 * INNER)}

    def grouped(ops: BoundOps) -> Callable[[], Tensor]:
        x = torch.randn(rows, SIZE)
        weights = ops.pack_experts([f32_weight(torch.randn(INNER, SIZE)) for _ in range(EXPERTS)])
        return lambda: ops.grouped_linear(x, chosen, weights)

    def combine(ops: BoundOps) -> Callable[[], Tensor]:
        x, weights, residual = torch.randn(rows, COUNT, SIZE), torch.rand(rows, COUNT), torch.randn(rows, SIZE)
        return lambda: ops.combine(x, weights, residual)

    def mlp(ops: BoundOps) -> Callable[[], Tensor]:
        x, weights = torch.randn(rows, SIZE), torch.rand(rows, COUNT)
        gate_up = ops.pack_experts([f32_weight(torch.randn(2 * INNER, SIZE), slices=slices) for _ in range(EXPERTS)])
        down = ops.pack_experts([f32_weight(torch.randn(SIZE, INNER)) for _ in range(EXPERTS)])
        return lambda: ops.expert_mlp(x, chosen, weights, gate_up, down, "silu", x)

    shape, moved = f"{rows} x {COUNT} of {EXPERTS}", 4 * rows * SIZE
    products, matrix = 2 * pairs * SIZE * INNER, 4 * used * SIZE * INNER
    yield Case("grouped_linear", shape, products, matrix + moved + 4 * pairs * INNER, grouped)
    yield Case("combine", shape, 2 * pairs * SIZE, (COUNT + 2) * moved, combine)
    yield Case("expert_mlp", shape, 3 * products, 3 * matrix + 3 * moved, mlp)
