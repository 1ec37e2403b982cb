"""Ratios of interleaved pairs: the median, with an interval that needs no assumption about the noise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import comb
from statistics import median
from typing import Any

COVERAGE = 0.95


@dataclass(frozen=True)
class Ratio:
    """How many times faster Vivace did one work than one peer, over all pairs.

    low, high  bounds of the true median; they hold it with a probability of at least `coverage`
    vivace, peer   median tokens per second of each
    """

    work: str
    vivace_name: str
    peer_name: str
    pairs: int
    median: float
    low: float
    high: float
    coverage: float
    vivace: float
    peer: float


def ratios(rows: Iterable[dict[str, Any]]) -> list[Ratio]:
    """One ratio per work, variant of Vivace and peer, in the order in which they first came."""
    groups: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for row in rows:
        if "peer" in row:
            rates = row["vivace"]["tokens_per_s"], row["peer"]["tokens_per_s"]
            groups.setdefault((row["work"], row["vivace_name"], row["peer_name"]), []).append(rates)
    return [_ratio(names, pairs) for names, pairs in groups.items()]


def best_peers(found: Sequence[Ratio]) -> list[Ratio]:
    """Of each work and variant the ratio to the fastest peer, whatever its format; the prototype is no peer."""
    best: dict[tuple[str, str], Ratio] = {}
    for ratio in found:
        key = ratio.work, ratio.vivace_name
        if not ratio.peer_name.startswith("prototype") and (key not in best or ratio.median < best[key].median):
            best[key] = ratio
    return list(best.values())


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(low, high, coverage): the narrowest pair of order statistics that holds the median with COVERAGE, else all.

    The number of values below the true median is binomial with probability 1/2, whatever their distribution.
    """
    ordered, count = sorted(values), len(values)
    for skip in reversed(range((count + 1) // 2)):
        coverage = 1 - 2 * sum(comb(count, below) for below in range(skip + 1)) / 2**count
        if coverage >= COVERAGE:
            return ordered[skip], ordered[-1 - skip], coverage
    return ordered[0], ordered[-1], max(0.0, 1 - 2 / 2**count)


def _ratio(names: tuple[str, str, str], pairs: Sequence[tuple[float, float]]) -> Ratio:
    values = [vivace / peer for vivace, peer in pairs]
    low, high, coverage = median_interval(values)
    middles = (median(rates) for rates in zip(*pairs, strict=True))
    return Ratio(*names, len(pairs), median(values), low, high, coverage, *middles)
