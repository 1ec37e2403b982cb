"""Exclude the ids that would end the answer until it has m tokens: l_e = -infinity for every end id e while n < m.

Origin: minimum length of machine translation decoders. Cost: a few writes per step until the number is reached. Use it
when an empty or very short answer is useless; the model may ramble. The null value is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vivace.techniques.sampling.base import EXCLUDED, Filter, History, Parts, TechniqueConfig, Whole, option


@dataclass(frozen=True)
class Config(TechniqueConfig):
    """value: tokens that an answer has at least; 0 is off."""

    name: ClassVar[str] = "min_tokens"
    origin: ClassVar[str] = "machine translation decoders; vLLM's SamplingParams"
    value: int = option(0, Whole(low=0))


def make(config: Config, parts: Parts) -> Filter:
    """Excludes the end ids while the answer is shorter than the value."""
    end_ids = torch.tensor(parts.end_ids, dtype=torch.int64)

    def exclude(scores: Tensor, history: History) -> Tensor:
        if history.generated.numel() < config.value:
            scores[end_ids] = EXCLUDED
        return scores

    return exclude
