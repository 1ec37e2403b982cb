"""The sampling slot: a filter changes the scores of the next token before one id is drawn from them.

Filters work on one row at a time, so that a request's ids do not depend on its neighbours. They run in the order of
`techniques.index.SAMPLING`: first those that edit scores by what is known of the text (logit_bias, repetition_penalty,
frequency_penalty, presence_penalty, min_tokens), then the temperature, then those that cut the tail (top_k, top_p,
min_p), each of which sees only what the one before it left, as probabilities that add up to one again.
Every null value is the default of its Config: such a filter leaves each score as it is, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from vivace.techniques.base import Flag, Real, TechniqueConfig, Whole, option

__all__ = ["EXCLUDED", "Filter", "Flag", "History", "Parts", "Real", "TechniqueConfig", "Whole", "cut_below", "option"]

EXCLUDED = -math.inf  # the score of an id that cannot be drawn


@dataclass(frozen=True)
class Parts:
    """What a filter may know when a request starts: the vocabulary, and the ids that would end the answer."""

    vocab_size: int
    end_ids: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class History:
    """The text so far. ids (n,) int64: the prompt, then what was generated; `prompt` counts the ids of the prompt."""

    ids: Tensor
    prompt: int

    @property
    def generated(self) -> Tensor:
        """(n - prompt,) int64."""
        return self.ids[self.prompt :]


# A filter owns the scores it is given, (vocab_size,) float32: it may write into them, and returns the new ones.
Filter = Callable[[Tensor, History], Tensor]


def cut_below(scores: Tensor, threshold: float) -> Tensor:
    """Exclude every score below the threshold, in place. Scores equal to it stay: equal scores share one fate."""
    return scores.masked_fill_(scores < threshold, EXCLUDED)
