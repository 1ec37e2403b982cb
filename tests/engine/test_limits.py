"""What goes into one span, and which limits are refused."""

from __future__ import annotations

from random import Random

import pytest

from vivace.engine.job import Job
from vivace.engine.limits import SchedulerConfig, cut_span, first_of_block, is_inside_block, longest_block
from vivace.errors import ConfigError


def make_job(goal: int, blocks: tuple[tuple[int, int], ...] = (), done: int = 0) -> Job:
    return Job(1, "a", goal, goal, blocks=blocks, done=done)


def test_a_span_is_the_gap_or_what_fits() -> None:
    assert cut_span(make_job(10), 4) == 4
    assert cut_span(make_job(10, done=8), 4) == 2
    assert cut_span(make_job(10, done=10), 4) == 0
    assert cut_span(make_job(10), 0) == 0


def test_a_span_ends_before_a_block_that_it_would_cut_or_takes_all_of_it() -> None:
    job = make_job(20, ((4, 10), (12, 15)))
    assert cut_span(job, 7) == 4
    assert cut_span(job, 10) == 10
    assert cut_span(job, 13) == 12
    job.done = 4
    assert cut_span(job, 1) == 6
    job.done = 10
    assert cut_span(job, 3) == 2


def test_random_spans_never_cut_a_block_and_always_reach_the_goal() -> None:
    rng = Random(0)
    for _ in range(500):
        marks = sorted(rng.sample(range(40), 2 * rng.randint(0, 5)))
        blocks = tuple(zip(marks[::2], marks[1::2], strict=True))
        job = make_job(40, blocks)
        while job.done < job.goal:
            count = cut_span(job, rng.randint(1, 8))
            assert count > 0
            job.done += count
            assert not any(start < job.done < stop for start, stop in blocks)
            assert is_inside_block(job, job.done) is False


def test_the_inside_of_a_block_excludes_its_borders() -> None:
    job = make_job(20, ((4, 10),))
    assert [unit for unit in range(20) if is_inside_block(job, unit)] == [5, 6, 7, 8, 9]
    assert first_of_block(job, 9) == 4 and first_of_block(job, 10) == 10
    assert longest_block(job) == 6 and longest_block(make_job(3)) == 1


def test_senseless_limits_are_refused() -> None:
    with pytest.raises(ConfigError, match="step_budget is 0"):
        SchedulerConfig(step_budget=0)
    with pytest.raises(ConfigError, match="watermark is 1001"):
        SchedulerConfig(watermark=1001)
    assert SchedulerConfig(step_budget=100, chunk_limit=500).job_budget == 100
