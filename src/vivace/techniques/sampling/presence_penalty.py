"""Lower the score of every id that was generated already: l_i - value if i stands in the answer so far.

Origin: the OpenAI API. Prompt tokens do not count. Cost: one pass over the generated ids. Use a positive value to push
towards new topics, a negative one to stay on topic. The null value is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vivace.techniques.sampling.base import Filter, History, Parts, Real, TechniqueConfig, option


@dataclass(frozen=True)
class Config(TechniqueConfig):
    """value: what is subtracted once; 0 is off."""

    name: ClassVar[str] = "presence_penalty"
    origin: ClassVar[str] = "OpenAI API reference"
    value: float = option(0.0, Real(low=-2.0, high=2.0))


def make(config: Config, parts: Parts) -> Filter:
    """Subtracts the value from the score of each generated id."""

    def lower(scores: Tensor, history: History) -> Tensor:
        if config.value != 0.0 and history.generated.numel():
            seen = torch.unique(history.generated)
            scores[seen] -= config.value
        return scores

    return lower
