"""The draw: known answers of the generator, the distribution, and that a draw depends on seed and position alone."""

import math

import numpy as np
import pytest
import torch

from tests.techniques.sampling.reference import distance, probabilities, random_logits
from vivace.techniques.sampling.draw import categorical, greedy, philox, uniform

# The first three lines of Random123's known-answer file for philox4x32 with 10 rounds.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_gives_the_published_words(counter, key, words) -> None:
    assert philox(counter, key) == words


def test_uniform_numbers_fill_the_unit_interval_evenly() -> None:
    numbers = np.array([uniform(5, position) for position in range(4000)])
    counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
    chi_square = ((counts - 200.0) ** 2 / 200.0).sum()
    assert chi_square < 50  # 19 degrees of freedom: above it once in 10,000 seeds


def test_seed_position_and_stream_all_matter() -> None:
    numbers = {
        uniform(seed, place, stream) for seed in (0, 1, 2**32, -1) for place in (0, 1, 2**32) for stream in (0, 1)
    }
    assert len(numbers) == 24


def test_draws_follow_the_distribution() -> None:
    scores = random_logits(30, width=1.5)
    scores[::4] = -math.inf
    draws = 20000
    counts = np.bincount([categorical(scores, 1, position) for position in range(draws)], minlength=30)
    exact = probabilities(scores.tolist())
    expected = 0.5 * np.sqrt(2 * exact * (1 - exact) / (math.pi * draws)).sum()  # mean distance of a perfect sampler
    assert distance(counts / draws, exact) < 2 * expected
    assert counts[::4].sum() == 0


def test_a_draw_does_not_depend_on_neighbouring_rows() -> None:
    rows = torch.stack([random_logits(5000, seed) for seed in range(8)])
    alone = [categorical(row.clone(), 3, 17) for row in rows]
    assert [categorical(row, 3, 17) for row in rows] == alone


def test_excluded_ids_at_both_ends_are_never_drawn() -> None:
    scores = torch.full((1000,), -math.inf)
    scores[500] = -1e30
    assert {categorical(scores, 0, position) for position in range(50)} == {500}


@pytest.mark.parametrize("size", [3, 64, 1000, 49152])
def test_greedy_takes_the_lowest_id_of_equals(size: int) -> None:
    scores = torch.zeros(size)
    scores[size // 2 :] = 1.0
    assert greedy(scores) == size // 2
