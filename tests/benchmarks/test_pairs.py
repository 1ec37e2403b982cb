"""Ratios of pairs: medians, and an interval that holds the median as often as it says."""

from __future__ import annotations

import random
from statistics import median
from typing import Any

from benchmarks.pairs import best_peers, median_interval, ratios


def rows(peer: str, pairs: list[tuple[float, float]], work: str = "decode 1") -> list[dict[str, Any]]:
    names = {"work": work, "vivace_name": "vivace", "peer_name": peer}
    return [{**names, "vivace": {"tokens_per_s": a}, "peer": {"tokens_per_s": b}} for a, b in pairs]


def test_a_ratio_is_the_median_of_its_pairs_not_the_ratio_of_medians() -> None:
    [ratio] = ratios(rows("llama.cpp", [(10, 10), (20, 10), (90, 30)]))
    assert (ratio.median, ratio.pairs) == (2.0, 3)
    assert (ratio.vivace, ratio.peer) == (20, 10)
    assert (ratio.low, ratio.high) == (1.0, 3.0)


def test_readings_without_a_peer_make_no_ratio() -> None:
    assert ratios([{"work": "decode 1", "vivace_name": "vivace", "vivace": {"tokens_per_s": 1.0}}]) == []


def test_seven_pairs_give_an_interval_of_all_and_more_pairs_a_narrower_one() -> None:
    assert median_interval([5, 1, 2, 3, 4, 6, 7]) == (1, 7, 1 - 2 / 128)
    low, high, coverage = median_interval(range(1, 22))
    assert (low, high) == (6, 16)
    assert coverage >= 0.95
    assert median_interval([3.0]) == (3.0, 3.0, 0.0)


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    # 2,000 skewed samples of 9: the share that holds the true median lies within 4 standard errors of its coverage.
    draws, held = random.Random(0), 0
    for _ in range(2000):
        sample = [draws.expovariate(1.0) for _ in range(9)]
        low, high, coverage = median_interval(sample)
        held += low <= 0.6931 <= high
    assert abs(held / 2000 - coverage) < 4 * (coverage * (1 - coverage) / 2000) ** 0.5


def test_the_best_peer_is_the_one_with_the_lowest_ratio_and_never_the_prototype() -> None:
    found = ratios(
        rows("llama.cpp Q4_0", [(10, 5)])
        + rows("OpenVINO GenAI as it is", [(10, 8)])
        + rows("prototype int8", [(1, 9)])
    )
    [best] = best_peers(found)
    assert best.peer_name == "OpenVINO GenAI as it is"
    assert median([ratio.median for ratio in found]) == 1.25
