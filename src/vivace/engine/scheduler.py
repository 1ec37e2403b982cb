"""The scheduler: which units of which jobs make the next step, and what counts once the step is back.

    add -> WAITING -> plan (admission, spans, pages) -> Batch -> accept (outcomes) or reject (the step raised)

It only ever sees integers. It is not thread-safe: the loop that drives it holds one lock around every call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vivace.engine.batch import Batch, Event, Fork, Lane, Outcome, PageCopy, Span
from vivace.engine.invariants import check_idle, check_lane
from vivace.engine.job import Group, Job, JobState
from vivace.engine.lane import Draft, LaneState
from vivace.engine.limits import SchedulerConfig
from vivace.engine.policy import Clock, Fcfs, Policy
from vivace.engine.prefix_explain import Explanation, Miss, explain
from vivace.engine.refuse import outcome_fault, refuse_group
from vivace.engine.stats import Stats
from vivace.errors import Cancelled, EngineError, StepFailed, VivaceError

__all__ = ["Scheduler", "SchedulerConfig"]


@dataclass(slots=True)
class _Flight:
    """Spans that are out, or wait to be run again, with the copies that each job needs before them."""

    lane: str
    spans: list[Span]
    copies: dict[int, list[PageCopy]] = field(default_factory=dict)  # by job id

    def part(self, spans: list[Span]) -> _Flight:
        """The same for some of the spans."""
        ids = {span.job.id for span in spans}
        return _Flight(self.lane, spans, {key: copies for key, copies in self.copies.items() if key in ids})


class Scheduler:
    """Plans the steps of several lanes that share one machine.

    fallback   asked with each job that is preempted: the `done` it falls back to (Pipeline.fallback). What a job holds
               in pages by position is lost and found again through the prefix tree, whatever the answer.
    """

    def __init__(
        self,
        lanes: Iterable[Lane],
        config: SchedulerConfig | None = None,
        policy: Policy | None = None,
        fallback: Callable[[Job], int] | None = None,
    ) -> None:
        self.config = config or SchedulerConfig()
        self.policy: Policy = policy or Fcfs()
        self.stats = Stats()
        self.jobs: dict[int, Job] = {}
        self.lanes: dict[str, LaneState] = {}
        for lane in lanes:
            assert lane.name not in self.lanes, f"two lanes are called {lane.name!r}"
            self.lanes[lane.name] = LaneState(lane, self.config, self.policy, self.stats, fallback or _from_zero)
        self.step = 0
        self._clock = Clock()  # lanes take turns by cost served
        self._arrivals = 0
        self._flights: dict[int, _Flight] = {}
        self._again: deque[_Flight] = deque()
        self._events: list[Event] = []

    # ---- jobs come and go

    def add(self, job: Job) -> None:
        """Take a job in. Raises Overloaded (queue full) or ContextLengthExceeded (its limit never fits the pools)."""
        group = job.group or Group(job.id)
        if job not in group.members:
            group.members.append(job)
        self.add_group(group)

    def add_group(self, group: Group) -> None:
        """Take in jobs that belong together: all of them or, with an error, none."""
        lane = self.lanes[group.members[0].lane]
        waiting = sum(len(state.queue) for state in self.lanes.values())
        try:
            refuse_group(group, lane, self.jobs, waiting, self.config)
        except VivaceError:
            self.stats.jobs_refused += 1
            raise
        if not lane.has_work:
            self._clock.wake(lane.lane.name)
        for job in group.members:
            job.group = group
            self._arrivals += 1
            job.arrival = self._arrivals
            self.jobs[job.id] = job
            self.stats.jobs_added += 1
        lane.queue.push(group)

    def cancel(self, job_id: int) -> bool:
        """End a job and its group, in any state; what is in flight ends when its step comes back. False if unknown."""
        job = self.jobs.get(job_id)
        if job is None:
            return False
        assert job.group is not None
        for member in list(job.group.members):
            if member.in_flight:
                member.cancelled = True
            else:
                self._end(member, error=_cancelled(member))
        return True

    # ---- steps

    @property
    def has_work(self) -> bool:
        """Whether any job is not over yet, or an event was not fetched."""
        return bool(self.jobs) or bool(self._events)

    def plan(self) -> Batch | None:
        """The next step, or None if no job can get on before a step comes back or a job is added.

        May be called while steps are out: jobs in flight are not granted again and keep their pages.
        """
        while self._again:
            batch = self._plan_again(self._again.popleft())
            if batch is not None:
                return batch
        names = [name for name, lane in self.lanes.items() if lane.has_work]
        is_bound = any(job.is_level for name in names for job in self.lanes[name].running.values())
        gap_limit = self.config.gap_limit // len(names) if is_bound else 0  # lanes take turns within a gap
        for name in sorted(names, key=self._clock.turn):
            draft = self._draft(self.lanes[name], gap_limit)
            if draft.spans:
                self._clock.pick(name)
                return self._send(_Flight(name, draft.spans, draft.copies))
        return None

    def accept(self, batch: Batch, outcomes: Sequence[Outcome]) -> list[Event]:
        """A step is back: its units count now. Returns the events since the last call that returned some."""
        if len(outcomes) != len(batch.spans):
            expected = f"{len(outcomes)} outcomes came back for {len(batch.spans)} spans"
            return self.reject(batch, StepFailed(expected))
        flight = self._flights.pop(batch.step)
        lane = self.lanes[flight.lane]
        born: set[int] = set()
        answers = list(zip(flight.spans, outcomes, strict=True))
        faults = [outcome_fault(lane, span, outcome, self.jobs, born) for span, outcome in answers]
        for span in flight.spans:
            span.job.in_flight = False
        self._count(flight)
        for (span, outcome), fault in zip(answers, faults, strict=True):
            job = span.job
            if job.state is JobState.FINISHED:
                continue  # its gang has failed
            if job.cancelled:
                self._end(job, error=_cancelled(job))
            elif fault:
                self._fail(job, StepFailed(f"the pipeline's outcome for job {job.id} makes no sense: {fault}"))
            else:
                self._commit(lane, span, outcome)
        for copies in flight.copies.values():
            lane.pages.drop_sources(copies)
        self._end_idle_gangs(flight)
        return self.flush()

    def reject(self, batch: Batch, error: Exception) -> list[Event]:
        """A step raised: nothing of it counts. Its halves are run again until the job at fault is alone and fails."""
        flight = self._flights.pop(batch.step)
        self.stats.failed_steps += 1
        was_alone = len(_crews(flight.spans)) == 1
        crews = _crews(self._without_cancelled(flight).spans)
        if crews and was_alone:
            for span in crews[0]:
                self._drop_copies(flight, span.job)
                span.job.in_flight = False
            failed = StepFailed(f"the step failed with {type(error).__name__}: {error}")
            failed.__cause__ = error
            for span in crews[0]:
                if span.job.state is not JobState.FINISHED:
                    self._fail(span.job, failed)
        else:
            half = len(crews) // 2
            for part in (crews[:half], crews[half:]):
                if part:
                    self._again.append(flight.part([span for crew in part for span in crew]))
        return self.flush()

    def flush(self) -> list[Event]:
        """The events that were not fetched yet, in order: those of `cancel`, and failures found by `plan`."""
        events, self._events = self._events, []
        return events

    # ---- looking in

    def explain(self, lane: str, root: bytes, keys: bytes) -> Explanation:
        """Why a prefix is cached as far as it is and no further."""
        tree = self.lanes[lane].tree
        return Explanation(0, Miss.NEVER, 0) if tree is None else explain(tree, root, keys)

    def drop_cache(self) -> None:
        """Forget all cached prefixes."""
        for lane in self.lanes.values():
            if lane.tree is not None:
                lane.tree.clear()

    def check(self) -> None:
        """Assert all invariants; takes time in proportion to the pools."""
        for name, lane in self.lanes.items():
            flights = [flight for flight in (*self._flights.values(), *self._again) if flight.lane == name]
            held = [copy for flight in flights for copies in flight.copies.values() for copy in copies]
            check_lane(lane, [span.job for flight in flights for span in flight.spans], held)
        running = sum(len(lane.running) for lane in self.lanes.values())
        waiting = sum(len(group.members) for lane in self.lanes.values() for group in lane.queue.groups())
        assert running + waiting == len(self.jobs), f"{running} run, {waiting} wait, {len(self.jobs)} are known"

    def check_idle(self) -> None:
        """Assert that no job is left and that every page is free or idle in a prefix tree."""
        self.check()
        assert not self.jobs and not self._flights and not self._again, "jobs or steps are left"
        for lane in self.lanes.values():
            check_idle(lane)

    def snapshot(self) -> dict[str, Any]:
        """The statistics, the queues and the pools as plain data."""
        lanes = {}
        for name, lane in self.lanes.items():
            pools = {keeper.name: keeper.pool for keeper in lane.pages.keepers}
            lanes[name] = {
                "running": len(lane.running),
                "waiting": sum(len(group.members) for group in lane.queue.groups()),
                "pages": {
                    group: {"total": pool.count, "free": pool.free_count, "cached": pool.idle_count}
                    for group, pool in pools.items()
                },
                "counts": dict(lane.counts),
            }
        return {**self.stats.snapshot(), "in_flight": len(self._flights), "lanes": lanes}

    # ---- private

    def _draft(self, lane: LaneState, gap_limit: int) -> Draft:
        draft = lane.draft(self.step + 1, gap_limit)
        while lane.stuck:
            self._end_stuck(lane, lane.stuck.pop())
            draft = lane.draft(self.step + 1, gap_limit)
        return draft

    def _send(self, flight: _Flight) -> Batch:
        self.step += 1
        self._flights[self.step] = flight
        copies = tuple(copy for span in flight.spans for copy in flight.copies.get(span.job.id, ()))
        return Batch(flight.lane, tuple(flight.spans), copies, self.step)

    def _plan_again(self, flight: _Flight) -> Batch | None:
        rest = self._without_cancelled(flight)
        return self._send(rest) if rest.spans else None

    def _without_cancelled(self, flight: _Flight) -> _Flight:
        """End the cancelled jobs of a step that will be run again or not at all; return the rest."""
        for span in flight.spans:
            if span.job.cancelled:
                self._drop_copies(flight, span.job)
                span.job.in_flight = False
                self._end(span.job, error=_cancelled(span.job))
        return flight.part([span for span in flight.spans if not span.job.cancelled])

    def _drop_copies(self, flight: _Flight, job: Job) -> None:
        self.lanes[flight.lane].pages.drop_sources(flight.copies.pop(job.id, ()))

    def _commit(self, lane: LaneState, span: Span, outcome: Outcome) -> None:
        job, stop = span.job, span.start + span.count
        target = stop - outcome.rollback
        if outcome.rollback:
            self.stats.rollback_units += outcome.rollback
            del job.keys[target * lane.lane.key_bytes :]
        job.keys += outcome.keys
        job.is_level = job.is_level or stop >= job.goal
        job.goal = outcome.goal
        lane.counts.update(outcome.counts or {})
        lane.commit(job, span.start, stop, target)
        for fork in outcome.forks:
            self._fork(lane, job, fork)
        finished = outcome.finished
        assert job.group is not None
        if finished is None and job.gap <= 0 and not job.group.gang:
            finished = "done"
        if finished is not None:
            self._end(job, output=outcome.output, finished=finished)
        elif outcome.output is not None:
            self._events.append(Event(job, outcome.output))

    def _fork(self, lane: LaneState, parent: Job, fork: Fork) -> None:
        child = fork.job
        if child.group is None:
            child.group = Group(child.id)
        if child not in child.group.members:
            child.group.members.append(child)
        child.arrival = parent.arrival
        child.granted = parent.granted
        child.sink = child.sink or parent.sink
        if not child.keys:
            child.keys = parent.keys[: fork.at * lane.lane.key_bytes]
        self.jobs[child.id] = lane.fork(parent, fork)
        self.stats.jobs_forked += 1

    def _count(self, flight: _Flight) -> None:
        stats = self.stats
        total = 0
        for span in flight.spans:
            job = span.job
            cost = span.count * job.unit_cost
            total += cost
            stats.units += span.count
            if span.start + span.count < job.goal:
                stats.cut_spans += 1
            self.policy.charge(job, cost)
        stats.copies += sum(len(copies) for copies in flight.copies.values())
        stats.steps += 1
        stats.cost += total
        stats.step_jobs.add(len(flight.spans))
        stats.step_cost.add(total)
        self._clock.charge(flight.lane, total)

    def _end_idle_gangs(self, flight: _Flight) -> None:
        """A gang of which no member wants anything any more is done."""
        for span in flight.spans:
            group = span.job.group
            assert group is not None
            if group.gang and all(job.gap <= 0 and not job.in_flight for job in group.members):
                for job in list(group.members):
                    self._end(job, finished="done")

    def _fail(self, job: Job, error: EngineError) -> None:
        """End a job by an error, and its gang with it."""
        assert job.group is not None
        for member in list(job.group.members) if job.group.gang else [job]:
            assert not member.in_flight
            self._end(member, error=error)

    def _end_stuck(self, lane: LaneState, group: Group) -> None:
        for job in list(group.members):
            pools = ", ".join(f"{keeper.pool.count} of '{keeper.name}'" for keeper in lane.pages.keepers)
            message = f"job {job.id} cannot go on from unit {job.done}: there are only {pools} pages"
            self._end(job, error=EngineError(message, hint="ask for fewer sequences at once, or for shorter ones"))

    def _end(
        self, job: Job, *, output: Any = None, finished: str | None = None, error: Exception | None = None
    ) -> None:
        self.lanes[job.lane].end(job)
        del self.jobs[job.id]
        if finished is not None:
            self.stats.jobs_finished += 1
        elif isinstance(error, Cancelled):
            self.stats.jobs_cancelled += 1
        else:
            self.stats.jobs_failed += 1
        self._events.append(Event(job, output, finished, error))


def _crews(spans: Sequence[Span]) -> list[list[Span]]:
    """The spans that cannot be parted: those of one gang, or one."""
    crews: dict[tuple[bool, int], list[Span]] = {}
    for span in spans:
        group = span.job.group
        assert group is not None
        crews.setdefault((group.gang, id(group) if group.gang else span.job.id), []).append(span)
    return list(crews.values())


def _cancelled(job: Job) -> Cancelled:
    return Cancelled(f"job {job.id} was cancelled")


def _from_zero(job: Job) -> int:
    return 0
