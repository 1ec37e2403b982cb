"""Lower the score of an id by how often it was generated: l_i - value * count_i.

Origin: the OpenAI API. Prompt tokens do not count. Cost: one sort of the generated ids. Use small positive values
against loops; unlike presence_penalty it grows with each repeat. The null value is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vivace.techniques.sampling.base import Filter, History, Parts, Real, TechniqueConfig, option


@dataclass(frozen=True)
class Config(TechniqueConfig):
    """value: what is subtracted per occurrence; 0 is off."""

    name: ClassVar[str] = "frequency_penalty"
    origin: ClassVar[str] = "OpenAI API reference"
    value: float = option(0.0, Real(low=-2.0, high=2.0))


def make(config: Config, parts: Parts) -> Filter:
    """Subtracts value * count from the score of each generated id."""

    def lower(scores: Tensor, history: History) -> Tensor:
        if config.value != 0.0 and history.generated.numel():
            seen, counts = torch.unique(history.generated, return_counts=True)
            scores[seen] -= config.value * counts
        return scores

    return lower
