"""The pooling slot: from one vector per token to one vector per text.

Modes turn the token vectors of one text into a vector; several chosen modes are concatenated in the order of
`techniques.index.POOLING`. Finishers (matryoshka, normalize) change that vector, in that order too. All work on one
text at a time, so that its vector does not depend on its neighbours. Modes are those of sentence-transformers (Reimers
and Gurevych, "Sentence-BERT", EMNLP 2019, arXiv:1908.10084). A mode has no null value, as one must be chosen; the null
value of a finisher is its default, at which the vector stays as it is bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from vivace.techniques.base import Flag, TechniqueConfig, Whole, option

__all__ = [
    "SENTENCE_BERT",
    "Finish",
    "FinishConfig",
    "Flag",
    "ModeConfig",
    "Parts",
    "Pool",
    "Whole",
    "option",
    "ordered_sum",
    "unit_length",
]

SENTENCE_BERT = "Reimers and Gurevych 2019, arXiv:1908.10084"

# rows (tokens, size) float32 and how many of the first tokens to leave out -> (size,) float32.
Pool = Callable[[Tensor, int], Tensor]

# (size,) float32 -> float32 of the size that Parts led to.
Finish = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Parts:
    """What a pooling technique may know when it is made: the numbers of the vector that it is given."""

    size: int


class ModeConfig(TechniqueConfig):
    """Base of the configs of modes: never off."""

    origin: ClassVar[str] = SENTENCE_BERT

    @property
    def is_null(self) -> bool:
        """A mode that is chosen is applied."""
        return False


class FinishConfig(TechniqueConfig):
    """Base of the configs of finishers."""


def ordered_sum(rows: Tensor, weights: Tensor | None = None) -> Tensor:
    """sum_i w_i x_i, in float64 and in the order of the rows. rows (n, size), weights (n,) -> (size,) float64.

    A running sum has no other order than that of the rows, however many threads there are.
    """
    terms = rows.double() if weights is None else rows.double() * weights.double()[:, None]
    return terms.cumsum(0)[-1]


def unit_length(vector: Tensor) -> Tensor:
    """x / max(||x||, 1e-12), the norm in float64. (size,) float32 -> the same."""
    wide = vector.double()
    norm = wide.square().cumsum(0)[-1].sqrt()
    return (wide / norm.clamp(min=1e-12)).float()
