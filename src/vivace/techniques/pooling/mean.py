"""The mean of the token vectors: v = (1/n) sum_i x_i.

Reimers and Gurevych, "Sentence-BERT", EMNLP 2019. Cost: one pass over the rows. The usual mode of sentence encoders.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from vivace.techniques.pooling.base import ModeConfig, Parts, Pool, ordered_sum


@dataclass(frozen=True)
class Config(ModeConfig):
    """No fields."""

    name: ClassVar[str] = "mean"


def make(config: Config, parts: Parts) -> Pool:
    """Averages the rows."""

    def pool(rows: Tensor, skip: int) -> Tensor:
        kept = rows[skip:]
        return (ordered_sum(kept) / kept.shape[0]).float()

    return pool
