"""Keep the nucleus: the smallest set of most likely ids whose probability together is at least p.

With scores sorted so that l_1 >= l_2 >= ...: n = min { n : sum_{i<=n} exp(l_i) >= p * sum_j exp(l_j) }, and l_i stays
if l_i >= l_n.

Holtzman, Buys, Du, Forbes and Choi, "The Curious Case of Neural Text Degeneration", ICLR 2020. Cost: one exponential
per id and a partial selection that grows only when the nucleus is wide. Use 0.9 to 0.95 with a temperature near 1.
Sums are in float64; ids whose score equals the last one kept are kept with it. The null value is 1: all are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vivace.techniques.sampling.base import EXCLUDED, Filter, History, Parts, Real, TechniqueConfig, cut_below, option

FIRST_LOOK = 256  # most nuclei are this small; each further look is 16 times as wide


@dataclass(frozen=True)
class Config(TechniqueConfig):
    """value: p; 1 is off."""

    name: ClassVar[str] = "top_p"
    origin: ClassVar[str] = "Holtzman et al. 2020, arXiv:1904.09751"
    value: float = option(1.0, Real(above=0.0, high=1.0))


def make(config: Config, parts: Parts) -> Filter:
    """Excludes what is below the least likely id of the nucleus."""

    def cut(scores: Tensor, history: History) -> Tensor:
        return scores if config.value == 1.0 else cut_below(scores, nucleus_threshold(scores, config.value))

    return cut


def nucleus_threshold(scores: Tensor, p: float) -> float:
    """The lowest score of the nucleus. scores (vocab,) float32, on any scale."""
    largest = float(scores.max())
    wanted = p * float(_weights(scores, largest).sum())
    size, width = scores.shape[0], FIRST_LOOK
    while True:
        best = torch.topk(scores, min(width, size)).values  # descending
        covered = np.cumsum(_weights(best, largest))
        if covered[-1] >= wanted:
            return float(best[int(np.searchsorted(covered, wanted))])
        if width >= size:  # the two sums differ in their last bits: everything is needed
            return EXCLUDED
        width *= 16


def _weights(scores: Tensor, largest: float) -> npt.NDArray[np.float64]:
    return np.exp(scores.cpu().numpy().astype(np.float64) - largest)
