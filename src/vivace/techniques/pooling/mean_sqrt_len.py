"""The sum of the token vectors over the root of their number: v = (1/sqrt(n)) sum_i x_i.

Origin: sentence-transformers, after Cer et al., "Universal Sentence Encoder", EMNLP 2018. Cost: one pass over the rows.
Longer texts get longer vectors. Use it where the model's files say so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from vivace.techniques.pooling.base import ModeConfig, Parts, Pool, ordered_sum


@dataclass(frozen=True)
class Config(ModeConfig):
    """No fields."""

    name: ClassVar[str] = "mean_sqrt_len"


def make(config: Config, parts: Parts) -> Pool:
    """Sums the rows and divides by the root of their number."""

    def pool(rows: Tensor, skip: int) -> Tensor:
        kept = rows[skip:]
        return (ordered_sum(kept) / math.sqrt(kept.shape[0])).float()

    return pool
