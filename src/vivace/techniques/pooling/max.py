"""The largest value over the tokens: v_d = max_i x_id.

Reimers and Gurevych, "Sentence-BERT", EMNLP 2019. Cost: one pass over the rows. Use it where the model's files say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from vivace.techniques.pooling.base import ModeConfig, Parts, Pool


@dataclass(frozen=True)
class Config(ModeConfig):
    """No fields."""

    name: ClassVar[str] = "max"


def make(config: Config, parts: Parts) -> Pool:
    """Takes the maximum per dimension."""

    def pool(rows: Tensor, skip: int) -> Tensor:
        return rows[skip:].float().amax(0)

    return pool
