"""How much a step, a queue and a pool may hold, and what of a job's gap goes into one span."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from vivace.engine.job import Job
from vivace.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of the scheduler.

    step_budget  cost that a step may have; a block, a gang or a unit that costs more runs alone
    chunk_limit  cost that one job may have in a step (0: the step budget)
    max_jobs     jobs in a step; a gang of more runs alone
    max_running  jobs that own pages
    max_waiting  jobs in all queues; more are refused as Overloaded
    watermark    share of a pool, in thousandths, that an admission leaves free for the jobs that run
    gap_limit    most that a step may take by its lane's StepCosts while any job is level (0: no limit); jobs that are
                 not get what level ones leave of it
    least_chunk  units that the first of them gets in any case
    """

    step_budget: int = 2048
    chunk_limit: int = 0
    max_jobs: int = 64
    max_running: int = 256
    max_waiting: int = 1024
    watermark: int = 10
    gap_limit: int = 0
    least_chunk: int = 16

    def __post_init__(self) -> None:
        for name in ("step_budget", "max_jobs", "max_running", "max_waiting", "least_chunk"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected 1 or more")
        for name, most in (("chunk_limit", None), ("gap_limit", None), ("watermark", 1000)):
            value = getattr(self, name)
            if value < 0 or (most is not None and value > most):
                raise ConfigError(f"{name} is {value}, expected {'0 or more' if most is None else f'0 .. {most}'}")

    @property
    def job_budget(self) -> int:
        """Cost that one job may have in a step."""
        return min(self.chunk_limit or self.step_budget, self.step_budget)


def cut_span(job: Job, units: int) -> int:
    """Units of the job's next span: at most `units` (0 if that is less than 1), unless it begins with a block, which is
    never cut and may be longer."""
    start = job.done
    stop = min(start + units, job.goal)
    if stop <= start:
        return 0
    if job.blocks:
        index = bisect_left(job.blocks, stop, key=_block_start) - 1  # the last block that begins before stop
        if index >= 0:
            first, last = job.blocks[index]
            if stop < last:
                stop = first if first > start else min(last, job.goal)
    return stop - start


def longest_block(job: Job) -> int:
    """The fewest units that the job can be granted at its worst place."""
    return max((stop - start for start, stop in job.blocks), default=1)


def first_of_block(job: Job, unit: int) -> int:
    """The first unit of the block that `unit` is inside of, or `unit`."""
    if not is_inside_block(job, unit):
        return unit
    return job.blocks[bisect_left(job.blocks, unit, key=_block_start) - 1][0]


def is_inside_block(job: Job, unit: int) -> bool:
    """Whether a span that ends or begins at `unit` would cut a block."""
    if not job.blocks:
        return False
    index = bisect_left(job.blocks, unit, key=_block_start) - 1
    return index >= 0 and unit < job.blocks[index][1]


def _block_start(block: tuple[int, int]) -> int:
    return block[0]
