"""The vector of the first token: v = x_1.

Devlin et al., "BERT", NAACL 2019: the [CLS] token is trained to stand for the text. Cost: none. Use it where the
model's files say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from vivace.techniques.pooling.base import ModeConfig, Parts, Pool


@dataclass(frozen=True)
class Config(ModeConfig):
    """No fields."""

    name: ClassVar[str] = "cls"


def make(config: Config, parts: Parts) -> Pool:
    """Takes the first row that is not left out."""

    def pool(rows: Tensor, skip: int) -> Tensor:
        return rows[skip].float()

    return pool
