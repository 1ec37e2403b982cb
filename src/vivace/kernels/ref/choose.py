"""Reference of `take_rows`, `argmax` and `draw`: which rows go on to the head, and which id is taken."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vivace.kernels.ops import DrawSpec

SMALLEST = 2.0**-126  # the smallest normal float32: below it a divisor would become 0


def take_rows(x: Tensor, rows: Tensor) -> Tensor:
    """y[i] = x[rows[i]]. x (.., width), rows (n,) int64 -> (n, width)."""
    return x[rows]


def argmax(x: Tensor) -> Tensor:
    """The place of the largest element of each row, the lowest one of equals; a NaN counts as the largest."""
    return torch.argmax(x, -1)


def draw(x: Tensor, spec: DrawSpec, uniforms: Tensor) -> Tensor:
    """One id of each row, by a full sort. x (rows, width), uniforms (rows,) float64 -> (rows,) int64."""
    drawn = [
        _draw(row, spec, float(uniform), place) for place, (row, uniform) in enumerate(zip(x, uniforms, strict=True))
    ]
    return torch.tensor(drawn, dtype=torch.int64)


def _draw(row: Tensor, spec: DrawSpec, uniform: float, place: int) -> int:
    scores = torch.where(row.isnan(), -math.inf, row)
    largest = scores.max()
    if not largest.isfinite():
        raise ValueError(f"no id can be drawn from row {place}, expected a largest score that is finite")
    if spec.temperature != 1.0:
        scores = (scores - largest) / max(spec.temperature, SMALLEST)
    ordered = scores.sort(descending=True).values
    top, least = ordered[0].double(), torch.tensor(-math.inf)
    if 0 < spec.top_k < len(row):
        least = ordered[spec.top_k - 1]
    if spec.top_p < 1.0:
        covered = torch.where(ordered >= least, (ordered.double() - top).exp(), 0.0).cumsum(0)
        place = int(torch.searchsorted(covered, spec.top_p * covered[-1]))
        least = torch.maximum(least, ordered[min(place, len(row) - 1)])
    if spec.min_p > 0.0:
        least = torch.maximum(least, (top + math.log(spec.min_p)).float())
    weights = torch.where(scores >= least, (scores.double() - top).exp(), 0.0).cumsum(0)
    place = int(torch.searchsorted(weights, uniform * weights[-1], right=True))
    # u * total may round up to the total: then the last id that has any weight is meant.
    return min(place, int(torch.searchsorted(weights, weights[-1])))
