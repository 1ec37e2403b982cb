"""Counters and histograms."""

from __future__ import annotations

import json

from vivace.engine.stats import Histogram, Stats


def test_a_histogram_counts_in_powers_of_two() -> None:
    histogram = Histogram()
    for value in (0, 1, 2, 3, 4, 1000, -5):
        histogram.add(value)
    assert histogram.snapshot()["buckets"] == {0: 2, 1: 1, 3: 2, 7: 1, 1023: 1}
    assert histogram.count == 7 and histogram.quantile(500) == 3 and histogram.quantile(1000) == 1023


def test_an_empty_histogram_has_quantile_0_and_huge_values_are_kept() -> None:
    histogram = Histogram()
    assert histogram.quantile(990) == 0
    histogram.add(1 << 200)
    assert histogram.count == 1 and sum(histogram.buckets) == 1


def test_a_snapshot_is_plain_data() -> None:
    stats = Stats()
    stats.step_ns.add(5)
    assert json.loads(json.dumps(stats.snapshot()))["step_ns"]["count"] == 1
