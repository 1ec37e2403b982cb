"""Counters of one scheduler: plain integers, written by whoever holds the scheduler, read as a snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


class Histogram:
    """Integers in buckets of powers of two: bucket b counts values v with v.bit_length() == b, that is v < 2**b."""

    __slots__ = ("buckets", "count", "total")

    def __init__(self) -> None:
        self.buckets = [0] * 64
        self.count = 0
        self.total = 0

    def add(self, value: int) -> None:
        """Count a value; below zero counts as zero, beyond the last bucket as the last."""
        self.buckets[min(max(value, 0).bit_length(), 63)] += 1
        self.count += 1
        self.total += value

    def quantile(self, thousandths: int) -> int:
        """An upper bound of that quantile, exact to a factor of two; 0 when nothing was counted."""
        left = -(-self.count * thousandths // 1000)
        for bit, number in enumerate(self.buckets):
            left -= number
            if left <= 0:
                return (1 << bit) - 1
        return 0

    def snapshot(self) -> dict[str, Any]:
        """Count, total and the buckets that are not empty, as {upper bound: number}."""
        filled = {(1 << bit) - 1: number for bit, number in enumerate(self.buckets) if number}
        return {"count": self.count, "total": self.total, "buckets": filled}


@dataclass(slots=True)
class Stats:
    """What has happened since the start.

    steps, units, cost       accepted steps and what they held
    failed_steps             steps that raised; their parts are run again
    jobs_*                   jobs taken, and how they ended
    admissions, preemptions  jobs that got pages, and jobs that gave them back before their end
    displacements, restarts  preempted groups: for a higher priority that waited, and to find room for themselves
    cached_units             units that admissions found in the prefix tree
    missed_units             units with known keys that they did not find
    cut_spans                spans that were shorter than the job's gap
    copies                   pages copied on write
    step_ns                  from launch to outcomes, per step (written by the loop)
    plan_ns                  planning and accepting, per step (written by the loop)
    """

    steps: int = 0
    units: int = 0
    cost: int = 0
    failed_steps: int = 0
    jobs_added: int = 0
    jobs_forked: int = 0
    jobs_finished: int = 0
    jobs_failed: int = 0
    jobs_cancelled: int = 0
    jobs_refused: int = 0
    admissions: int = 0
    preemptions: int = 0
    displacements: int = 0
    restarts: int = 0
    cached_units: int = 0
    missed_units: int = 0
    rollback_units: int = 0
    cut_spans: int = 0
    copies: int = 0
    step_jobs: Histogram = field(default_factory=Histogram)
    step_cost: Histogram = field(default_factory=Histogram)
    step_ns: Histogram = field(default_factory=Histogram)
    plan_ns: Histogram = field(default_factory=Histogram)

    def snapshot(self) -> dict[str, Any]:
        """All of it as plain integers and dicts."""
        values: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            values[item.name] = value.snapshot() if isinstance(value, Histogram) else value
        return values
