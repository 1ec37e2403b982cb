"""Sharpen or flatten the distribution: l_i / t; at 0 the most likely id is taken.

p_i = exp(l_i / t) / sum_j exp(l_j / t)

Origin: the temperature of the Boltzmann distribution; for networks, Ackley, Hinton and Sejnowski, "A Learning Algorithm
for Boltzmann Machines", Cognitive Science 9, 1985. Cost: one pass over the vocabulary. Use 0 for one reproducible
answer, 0.2 to 0.8 for facts and code, about 1 for the model's own distribution. The null value is 0: no draw at all.
Any positive value is used as it is: scores are shifted so that the largest is 0 before the division, and a tiny
temperature sends the others to minus infinity instead of overflowing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from vivace.techniques.sampling.base import Filter, History, Parts, Real, TechniqueConfig, option

SMALLEST = 2.0**-126  # the smallest normal float32: below it a divisor would become 0


@dataclass(frozen=True)
class Config(TechniqueConfig):
    """value: t; 0 is greedy."""

    name: ClassVar[str] = "temperature"
    origin: ClassVar[str] = "Ackley et al. 1985"
    value: float = option(0.0, Real(low=0.0, high=100.0))


def make(config: Config, parts: Parts) -> Filter:
    """scores / t; at the values 0 and 1 the scores stay as they are."""

    def divide(scores: Tensor, history: History) -> Tensor:
        if config.value in (0.0, 1.0):
            return scores
        return scores.sub_(scores.max()).div_(max(config.value, SMALLEST))

    return divide
