"""The mean with weights that grow with the position: v = sum_i i x_i / sum_i i.

Muennighoff, "SGPT: GPT Sentence Embeddings for Semantic Search", 2022, arXiv:2202.08904. Cost: one pass over the rows.
For decoders, whose later tokens have seen more. Tokens after a left-out prompt keep the weights of their positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vivace.techniques.pooling.base import ModeConfig, Parts, Pool, ordered_sum


@dataclass(frozen=True)
class Config(ModeConfig):
    """No fields."""

    name: ClassVar[str] = "weightedmean"


def make(config: Config, parts: Parts) -> Pool:
    """Averages the rows, weighted by their positions from 1."""

    def pool(rows: Tensor, skip: int) -> Tensor:
        weights = torch.arange(skip + 1, rows.shape[0] + 1, dtype=torch.float64, device=rows.device)
        return (ordered_sum(rows[skip:], weights) / weights.sum()).float()

    return pool
