"""The scheduler alone: seeded schedules of fake jobs, invariants after each step, ends as if undisturbed.

    python -m tests.engine.prove_scheduler --size small|full

Decoders and samples that branch off, uncuttable encoders, drafts with rollback, beam gangs with forks, diffusion pairs
of unequal cost, recurrent lanes with checkpoints and windows that are tried again run in one or two lanes with pools
that are too small, with faults, cancels, priorities, groups, and one or two steps in flight. Every read is checked.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter
from random import Random

from tests.engine.schedules import COUNTED, KINDS, Schedule
from tests.proof import Proof
from vivace.engine.batch import Keep, Lane, Outcome, PageGroup
from vivace.engine.costs import StepCosts
from vivace.engine.job import Job
from vivace.engine.scheduler import Scheduler, SchedulerConfig

SCHEDULES = {"small": 1_000, "full": 10_000}

# What must have happened at least so often per 1,000 schedules: without it, a passed run would say little.
AT_LEAST = {
    "preemptions": 500,
    "displacements": 200,
    "restarts": 20,
    "cached_units": 4_000,
    "missed_units": 10_000,
    "cut_spans": 5_000,
    "jobs_forked": 300,
    "rollbacks": 800,
    "rollbacks below their target": 200,
    "copies": 300,
    "halved steps": 300,
    "steps that failed alone": 100,
    "jobs at fault": 200,
    "steps while one is out": 2_000,
    "cancelled: waiting": 200,
    "cancelled: at rest": 200,
    "cancelled: in flight": 100,
    "cancelled: to be run again": 10,
    "refused: never fits": 50,
    "refused: queue full": 50,
    "over budget: block or unit alone": 200,
    "over budget: gang alone": 200,
    "explained: DIFFERS": 50,
    "explained: EVICTED": 30,
    "explained: GRANULE": 100,
    "explained: GROUP": 50,
    "explained: NEVER": 100,
    "explained: OTHER_ROOT": 10,
    "crews that ended as alone": 2_000,
    **{f"crews: {kind}": 300 for kind in KINDS},
}


def run_schedules(first: int, count: int) -> Counter[str]:
    """Run that many seeds; an error names its seed."""
    tally: Counter[str] = Counter()
    for seed in range(first, first + count):
        try:
            Schedule(seed, tally).run()
        except Exception as error:
            raise AssertionError(f"schedule {seed} failed: {error}") from error
    return tally


def shortfalls(tally: Counter[str], count: int) -> list[str]:
    """The events that happened too rarely in `count` schedules."""
    wanted = {name: least * count // 1000 for name, least in AT_LEAST.items()}
    return [f"{name}: {tally[name]} of {least}" for name, least in wanted.items() if tally[name] < least]


def step_times(num_jobs: int, steps: int) -> list[int]:
    """Processor time in ns, sorted, that planning and accepting took per decode step of that many jobs."""
    groups = (PageGroup("all", 1, 16), PageGroup("last", 1, 16, Keep.LAST, 256))
    pages = 64 * num_jobs
    lane = Lane("lane", groups, {"all": pages, "last": pages}, costs=StepCosts(5000, 150, 100))
    scheduler = Scheduler([lane], SchedulerConfig(gap_limit=100_000))
    rng = Random(0)
    for number in range(num_jobs):
        scheduler.add(Job(number + 1, "lane", 512, 1000, keys=bytearray(rng.randbytes(4 * 512))))
    times: list[int] = []
    while len(times) < steps:
        began = time.thread_time_ns()
        batch = scheduler.plan()
        planned = time.thread_time_ns()
        assert batch is not None
        ends = [span.start + span.count for span in batch.spans]
        outcomes = [
            Outcome(span.job.goal) if end < span.job.goal else Outcome(end + 1, keys=rng.randbytes(4), output=end)
            for span, end in zip(batch.spans, ends, strict=True)
        ]
        launched = time.thread_time_ns()
        scheduler.accept(batch, outcomes)
        if len(batch.spans) == num_jobs and all(span.count == 1 for span in batch.spans):
            times.append(planned - began + time.thread_time_ns() - launched)
    return sorted(times)


def main() -> None:
    with Proof("scheduler", __doc__) as proof:
        count = SCHEDULES[proof.options.size]
        began, wall = time.process_time(), time.perf_counter()
        gc.freeze()
        tally = run_schedules(0, count)
        seconds, wall = time.process_time() - began, time.perf_counter() - wall
        for name in (*COUNTED, *sorted(set(tally) - set(COUNTED))):
            proof.say(f"{tally[name]:>9} {name}")
        times = step_times(64, 400)
        micros = [times[len(times) * share // 100] // 1000 for share in (50, 99)]
        proof.say(f"a step of 64 jobs with 2 page groups: median {micros[0]} us, p99 {micros[1]} us to plan and accept")
        proof.demand(True, f"{count} schedules ended as alone, invariants held after each of {tally['steps']} steps")
        missing = shortfalls(tally, count)
        proof.demand(not missing, "; ".join(["every kind of event happened often enough", *missing]))
        # processor time: other work on the machine says nothing about the scheduler
        proof.demand(seconds < 60, f"it took {seconds:.0f} s of one core, under a minute ({wall:.0f} s on the clock)")


if __name__ == "__main__":
    sys.exit(main())
