"""Take one id from filtered scores: the most likely one, or a draw with counter-based random numbers.

Random numbers come from Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3",
SC 2011): a pure function of (seed, position, stream), so that a request's ids depend on nothing else and a step that is
run again draws the same. One number is used per id, by inversion of the cumulative distribution in id order:

    id = min { i : sum_{j<=i} exp(l_j) > u * sum_j exp(l_j) }

Sums are in float64 and run in id order in one thread: bitwise the same whatever stands beside the row.
"""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)  # golden ratio and sqrt(3) - 1, as 32-bit fractions
WORD = 0xFFFFFFFF

Words = tuple[int, int, int, int]


def greedy(scores: Tensor) -> int:
    """The id with the largest score, the lowest one of equals. scores (vocab,) float32, no NaN."""
    return int(scores.numpy(force=True).argmax())


def categorical(scores: Tensor, seed: int, position: int) -> int:
    """One id drawn from softmax(scores). scores (vocab,) float32, excluded ids at minus infinity."""
    row = scores.numpy(force=True)
    largest = row.max()
    assert math.isfinite(largest), "scores hold NaN or exclude every id"
    (kept,) = np.nonzero(row > -np.inf)
    cumulative = np.cumsum(np.exp(row[kept].astype(np.float64) - float(largest)))
    place = int(np.searchsorted(cumulative, uniform(seed, position) * cumulative[-1], side="right"))
    # u * total may round up to the total: then the last id that has any weight is meant.
    last = int(np.searchsorted(cumulative, cumulative[-1]))
    return int(kept[min(place, last)])


def uniform(seed: int, position: int, stream: int = 0) -> float:
    """A number in [0, 1) with 53 random bits. seed is taken modulo 2^64; stream tells uses at one position apart."""
    counter = (position & WORD, position >> 32 & WORD, stream & WORD, 0)
    high, low, _, _ = philox(counter, (seed & WORD, seed >> 32 & WORD))
    return ((high >> 5) * 2**26 + (low >> 6)) / 2**53


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """Philox4x32-10: four 32-bit words from a counter of four and a key of two."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        product0, product1 = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (product1 >> 32) ^ c1 ^ k0,
            product1 & WORD,
            (product0 >> 32) ^ c3 ^ k1,
            product0 & WORD,
        )
        k0, k1 = (k0 + KEY_STEPS[0]) & WORD, (k1 + KEY_STEPS[1]) & WORD
    return c0, c1, c2, c3
