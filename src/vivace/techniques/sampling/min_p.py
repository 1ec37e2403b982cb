"""Keep ids at least p times as likely as the most likely one: l_i stays if l_i >= max_j l_j + ln p.

Nguyen, Baker, Neo, Roush, Kirsch and Shwartz-Ziv, "Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM
Outputs", ICLR 2025. Cost: one maximum over the vocabulary, no exponential and no sort. Use 0.05 to 0.1 with a
temperature above 1: it cuts hard where the model is sure and little where it is not. The null value is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from vivace.techniques.sampling.base import Filter, History, Parts, Real, TechniqueConfig, cut_below, option


@dataclass(frozen=True)
class Config(TechniqueConfig):
    """value: p; 0 is off."""

    name: ClassVar[str] = "min_p"
    origin: ClassVar[str] = "Nguyen et al. 2025, arXiv:2407.01082"
    value: float = option(0.0, Real(low=0.0, high=1.0))


def make(config: Config, parts: Parts) -> Filter:
    """Excludes what is below max + ln p."""

    def cut(scores: Tensor, history: History) -> Tensor:
        return scores if config.value == 0.0 else cut_below(scores, float(scores.max()) + math.log(config.value))

    return cut
