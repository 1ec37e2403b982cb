"""The vector of the last token: v = x_n.

Origin: decoders as embedders, such as Wang et al., "Improving Text Embeddings with Large Language Models", ACL 2024.
Cost: none. Use it where the model's files say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from vivace.techniques.pooling.base import ModeConfig, Parts, Pool


@dataclass(frozen=True)
class Config(ModeConfig):
    """No fields."""

    name: ClassVar[str] = "lasttoken"


def make(config: Config, parts: Parts) -> Pool:
    """Takes the last row."""

    def pool(rows: Tensor, skip: int) -> Tensor:
        return rows[-1].float()

    return pool
