"""Make every id of the prompt and the answer so far less likely: l_i / value if l_i > 0, else l_i * value.

Keskar, McCann, Varshney, Xiong and Socher, "CTRL: A Conditional Transformer Language Model for Controllable
Generation", 2019, extended to negative scores as usual. Cost: one sort of the ids so far. Use 1.05 to 1.2 against loops
of small models; it also punishes words that must repeat. The null value is 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vivace.techniques.sampling.base import Filter, History, Parts, Real, TechniqueConfig, option


@dataclass(frozen=True)
class Config(TechniqueConfig):
    """value: the divisor; 1 is off, below 1 favours repeats."""

    name: ClassVar[str] = "repetition_penalty"
    origin: ClassVar[str] = "Keskar et al. 2019, arXiv:1909.05858"
    value: float = option(1.0, Real(above=0.0, high=10.0))


def make(config: Config, parts: Parts) -> Filter:
    """Scales the score of each id that stands in the text towards unlikely."""

    def scale(scores: Tensor, history: History) -> Tensor:
        if config.value != 1.0 and history.ids.numel():
            seen = torch.unique(history.ids)
            old = scores[seen]
            scores[seen] = torch.where(old > 0, old / config.value, old * config.value)
        return scores

    return scale
