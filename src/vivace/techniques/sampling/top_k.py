"""Keep the k most likely ids: l_i stays if l_i >= the k-th largest score, else it is excluded.

Fan, Lewis and Dauphin, "Hierarchical Neural Story Generation", ACL 2018. Cost: a partial selection over the vocabulary,
no sort. Use it to cut a long tail at a fixed number; top_p and min_p adapt to the shape of the distribution. Ids whose
score equals the k-th largest are kept with it. The null value is 0: all are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vivace.techniques.sampling.base import Filter, History, Parts, TechniqueConfig, Whole, cut_below, option


@dataclass(frozen=True)
class Config(TechniqueConfig):
    """value: k; 0 is off."""

    name: ClassVar[str] = "top_k"
    origin: ClassVar[str] = "Fan et al. 2018, arXiv:1805.04833"
    value: int = option(0, Whole(low=0))


def make(config: Config, parts: Parts) -> Filter:
    """Excludes what is below the k-th largest score."""

    def cut(scores: Tensor, history: History) -> Tensor:
        if not 0 < config.value < scores.shape[0]:
            return scores
        return cut_below(scores, float(torch.topk(scores, config.value, sorted=True).values[-1]))

    return cut
