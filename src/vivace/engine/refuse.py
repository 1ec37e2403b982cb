"""What the scheduler does not accept: jobs that can never be served, and outcomes that make no sense."""

from __future__ import annotations

from collections.abc import Container

from vivace.engine.batch import Outcome, Span
from vivace.engine.job import Group, Job, JobState
from vivace.engine.lane import LaneState
from vivace.engine.limits import SchedulerConfig, longest_block
from vivace.errors import ContextLengthExceeded, InvalidRequest, Overloaded


def refuse_group(group: Group, lane: LaneState, known: Container[int], waiting: int, config: SchedulerConfig) -> None:
    """Raise what forbids taking the group in: Overloaded, InvalidRequest or ContextLengthExceeded.

    known    ids of the jobs that wait or run
    waiting  groups in all queues
    """
    if waiting >= config.max_waiting:
        raise Overloaded(f"{waiting} requests wait already, the limit is {config.max_waiting}", hint="try again later")
    if len(group.members) > config.max_running:
        asked = f"the request asks for {len(group.members)} sequences at once"
        raise InvalidRequest(f"{asked}, at most {config.max_running} can run", hint="ask for fewer")
    for job in group.members:
        assert job.lane == lane.lane.name, "a group lives in one lane"
        assert job.id not in known, f"job id {job.id} is in use"
        assert job.state is JobState.WAITING and 0 <= job.done < job.goal <= job.limit, f"job {job.id} is malformed"
        assert len(job.keys) % lane.lane.key_bytes == 0, f"job {job.id} has a part of a key"
        _refuse_size(lane, job)


def _refuse_size(lane: LaneState, job: Job) -> None:
    unfit = lane.pages.unfit(job.limit, longest_block(job))
    if unfit is not None:
        group, need, have = unfit
        raise ContextLengthExceeded(
            f"a request of up to {job.limit} units needs {need} pages of '{group}', there are {have}",
            hint="ask for a shorter answer, shorten the input, or give the engine more memory",
        )


def outcome_fault(lane: LaneState, span: Span, outcome: Outcome, known: Container[int], born: set[int]) -> str | None:
    """What is wrong with an outcome, or None. `born` collects the ids of the forks of the step's outcomes."""
    job, stop = span.job, span.start + span.count
    target = stop - outcome.rollback
    if not 0 <= outcome.rollback <= stop:
        return f"it rolls back {outcome.rollback} of {stop} units"
    if outcome.finished is None and not target <= outcome.goal <= job.limit:
        return f"its goal is {outcome.goal}, expected {target} .. {job.limit}"
    if len(outcome.keys) % lane.lane.key_bytes:
        return f"{len(outcome.keys)} bytes are no whole number of keys of {lane.lane.key_bytes} bytes"
    for fork in outcome.forks:
        child = fork.job
        if child.id in known or child.id in born or child.state is not JobState.WAITING or child.lane != job.lane:
            return f"fork {child.id} is not a new job of lane {job.lane!r}"
        if not 0 <= fork.at <= target or not fork.at < child.goal <= child.limit:
            return f"fork {child.id} at {fork.at} of {target} units has goal {child.goal} and limit {child.limit}"
        if lane.pages.unfit(child.limit, longest_block(child)) is not None:
            return f"fork {child.id} with limit {child.limit} does not fit the pools"
        born.add(child.id)
    return None
