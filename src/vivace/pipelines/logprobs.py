"""Log-probabilities of tokens: the natural logarithm of softmax over the model's scores, before any sampling filter.

log p_i = l_i - m - ln sum_j exp(l_j - m) with m = max_j l_j, in float64 and one row at a time: the same value whatever
else is computed beside it.
"""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from vivace.errors import StepFailed
from vivace.pipelines.requests import TokenLogprob


def token_logprob(logits: Tensor, token: int, top: int) -> TokenLogprob:
    """The log-probability of `token` and of the `top` most likely ids, best first, the lower id first of equals.

    logits (vocab,) float32. Raises StepFailed when they are no numbers. Ids of probability zero are never listed.
    """
    row = logits.numpy(force=True)
    wide = row.astype(np.float64)
    largest = float(wide.max())
    if not math.isfinite(largest):
        raise StepFailed(f"the model's scores hold {largest}")
    total = largest + math.log(float(np.exp(wide - largest).sum()))
    best = []
    if top:
        threshold = np.partition(row, -top)[-top] if top < len(row) else -np.inf
        (candidates,) = np.nonzero((row >= threshold) & (row > -np.inf))
        order = np.argsort(-row[candidates], kind="stable")[:top]
        best = [(int(key), float(wide[key]) - total) for key in candidates[order]]
    return TokenLogprob(token, float(wide[token]) - total, tuple(best))
