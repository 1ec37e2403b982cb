"""Random schedules of fake jobs: a seed gives lanes, limits, arrivals, faults and cancels; `run` drives the scheduler.

After each step all invariants are checked; at the end every job must have ended as it would have alone, or by an error
that was asked for, and every page must be free.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.engine.fakes import (
    VOCABULARY,
    Beam,
    Diffusion,
    Drafted,
    Encoding,
    FakePipeline,
    FakeTicket,
    Fault,
    Greedy,
    Sampled,
    Windowed,
    beams_alone,
    fake_job,
)
from vivace.engine.batch import Batch, Event, Keep, Lane, Outcome, PageGroup
from vivace.engine.costs import StepCosts
from vivace.engine.job import Group, Job, JobState
from vivace.engine.limits import SchedulerConfig
from vivace.engine.policy import Fair, Fcfs
from vivace.engine.scheduler import Scheduler
from vivace.errors import Cancelled, ContextLengthExceeded, EngineError, InvalidRequest, Overloaded, StepFailed

KINDS = ("decoder", "draft", "window", "recurrent", "beam", "encoder", "diffusion")
MOST_UNITS = 30  # of any fake job
MOST_STEPS = 2000  # of any schedule: more means that something starves


@dataclass
class Crew:
    """Jobs that are added together, and what they must end with."""

    group: Group
    kind: str
    expected: list[list[int]]
    outputs: dict[int, list[int]] = field(default_factory=dict)
    ends: dict[int, Event] = field(default_factory=dict)
    cancelled: bool = False
    again: Callable[[], Group] | None = None  # makes the group once more, for groups that branch off

    def receive(self, event: Event) -> None:
        """The sink of the crew's jobs, which those that branch off inherit."""
        assert event.job.id not in self.ends, "an event came after the last"
        if event.output is not None:
            self.outputs.setdefault(event.job.id, []).extend(event.output)
        if event.finished is not None or event.error is not None:
            self.ends[event.job.id] = event


def make_lane(name: str, kind: str, rng: Random) -> Lane:
    """A lane of that kind with page groups drawn at random and pools that are too small for all jobs together."""
    size = rng.choice((2, 4))
    every = PageGroup("all", 1, size)
    last = PageGroup("last", 1, rng.choice((2, 4)), Keep.LAST, rng.randint(4, 8))
    state = PageGroup("state", 1, 1, Keep.CHECKPOINT, 4)
    whole = PageGroup("whole", 1, 1, Keep.WHOLE)
    groups: list[PageGroup] = [every]
    if kind == "diffusion":
        groups = rng.choice(([], [whole]))
    elif kind == "encoder":
        groups = rng.choice(([], [every]))
    elif kind == "recurrent":
        groups = rng.choice(([state], [every, state], [last, state]))
    elif kind == "beam":
        groups = rng.choice(([every], [every], [every, state]))
    else:
        groups = [every, *([last] if rng.random() < 0.4 else []), *([whole] if rng.random() < 0.2 else [])]
    least = {"all": MOST_UNITS // size + rng.randint(-4, 1), "last": 12 // last.page_size + 2, "state": 2, "whole": 1}
    if kind == "beam":
        least["all"] *= 2
        least["state"] = 6
    if kind == "diffusion":
        least["whole"] = 2
    pages = {group.name: least[group.name] + rng.randint(0, least[group.name]) for group in groups}
    costs = rng.choice((None, StepCosts(5, 2, 3), StepCosts(20, 0, 4, 1, 1)))
    return Lane(name, tuple(groups), pages, 1, kind != "encoder" and rng.random() < 0.9, costs)


class Schedule:
    """One seeded schedule. `tally` counts what happened in it."""

    def __init__(self, seed: int, tally: Counter[str]) -> None:
        self.rng = rng = Random(seed)
        self.tally = tally
        kinds = [rng.choice(KINDS) for _ in range(rng.choice((1, 1, 2)))]
        self.kinds = {f"{kind}{index}": kind for index, kind in enumerate(kinds)}
        faults = rng.choice((0.0, 0.0, 0.05, 0.3))
        self.pipelines = {
            name: FakePipeline(make_lane(name, kind, rng), Random(seed), faults, 1000 + 1000 * index)
            for index, (name, kind) in enumerate(self.kinds.items())
        }
        self.config = SchedulerConfig(
            step_budget=rng.choice((6, 16, 64)),
            chunk_limit=rng.choice((0, 0, 3)),
            max_jobs=rng.choice((2, 4, 64)),
            max_running=rng.choice((3, 256)),
            max_waiting=rng.choice((3, 1024, 1024)),
            watermark=rng.choice((0, 100)),
            gap_limit=rng.choice((0, 40, 90)),
            least_chunk=rng.choice((1, 4)),
        )
        policy = rng.choice((Fcfs, lambda: Fair({"a": 3})))()
        lanes = [pipeline.lane for pipeline in self.pipelines.values()]
        self.scheduler = Scheduler(lanes, self.config, policy, lambda job: self.pipelines[job.lane].fallback(job))
        self.max_in_flight = rng.choice((1, 2))
        self.crews: list[Crew] = []
        self.flights: deque[tuple[Batch, FakeTicket]] = deque()
        self.bases = [[rng.randrange(VOCABULARY) for _ in range(18)] for _ in range(2)]
        self._ids = iter(range(1, 1000))
        self._arrivals = sorted(rng.randint(0, 12) for _ in range(rng.randint(3, 10)))

    def run(self) -> None:
        """Drive the schedule to its end and check everything on the way."""
        rng, scheduler = self.rng, self.scheduler
        for clock in range(MOST_STEPS):
            while self._arrivals and self._arrivals[0] <= clock:
                self._arrivals.pop(0)
                self._arrive()
            if scheduler.jobs and rng.random() < 0.05:
                self._cancel(rng.choice(list(scheduler.jobs)))
            if len(self.flights) < self.max_in_flight:
                batch = scheduler.plan()
                self._receive(scheduler.flush())
                if batch is not None:
                    self._launch(batch)
                elif not self.flights:
                    assert not scheduler.jobs, "jobs are left, but no step is out and none can be planned"
                    if not self._arrivals:
                        break
            if self.flights and (len(self.flights) == self.max_in_flight or rng.random() < 0.5):
                self._land()
            scheduler.check()
        else:
            raise AssertionError(f"the schedule did not end in {MOST_STEPS} steps")
        self._check_end()

    # ---- arrivals and cancels

    def _arrive(self) -> None:
        name = self.rng.choice(list(self.kinds))
        crew = MAKERS[self.kinds[name]](self, name)
        for job in crew.group.members:
            job.sink = crew.receive
        try:
            if len(crew.group.members) == 1 and not crew.group.gang:
                self.scheduler.add(crew.group.members.pop())
            else:
                self.scheduler.add_group(crew.group)
        except Overloaded:
            self.tally["refused: queue full"] += 1
            return
        except ContextLengthExceeded:
            self.tally["refused: never fits"] += 1
            return
        except InvalidRequest:
            self.tally["refused: too many sequences"] += 1
            return
        self.crews.append(crew)

    def _options(self) -> dict[str, Any]:
        return {
            "unit_cost": self.rng.choice((1, 1, 2)),
            "priority": self.rng.choice((0, 0, 1)),
            "tenant": self.rng.choice("ab"),
            "retention": self.rng.choice((0, 0, 1)),
        }

    def prompt(self) -> tuple[bytes, list[int], int]:
        """Root, tokens and the number of tokens wanted; prompts share beginnings."""
        rng = self.rng
        tokens = rng.choice(self.bases)[: rng.randint(1, 18)]
        tokens = tokens + [rng.randrange(VOCABULARY) for _ in range(rng.choice((0, 0, 2, 4)))]
        return rng.choice((b"r0", b"r0", b"r0", b"r1")), tokens, min(len(tokens) + rng.randint(1, 10), MOST_UNITS)

    def blocks(self, length: int) -> tuple[tuple[int, int], ...]:
        """At times, ranges that may not be cut."""
        if self.rng.random() < 0.7 or length < 4:
            return ()
        first = self.rng.randint(0, length - 3)
        return ((first, self.rng.randint(first + 2, length)),)

    def guilt(self, payload: Any, length: int) -> None:
        """At times, a payload that makes its steps fail."""
        if self.rng.random() < 0.08:
            payload.guilty = (self.rng.randrange(length), self.rng.choice(("raise", "raise", "nonsense")))

    def make_sequences(self, name: str, kind: type[Greedy], count: int) -> Crew:
        root, tokens, want = self.prompt()
        # a window that is tried again goes back by one unit into what came before it
        options, blocks = self._options(), self.blocks(len(tokens) - (kind is Windowed))
        group = Group(next(self._ids))
        expected = []
        for _ in range(count):
            payload = kind(root, tokens, want)
            expected.append(payload.alone())
            payload.draft = payload.guess(min(payload.drafts, want - len(tokens)))
            self.guilt(payload, want - 1)
            job = fake_job(next(self._ids), name, payload, blocks=blocks, **options)
            job.goal += len(payload.draft)
            group.members.append(job)
        return Crew(group, self.kinds[name], expected)

    def make_samples(self, name: str) -> Crew:
        root, tokens, want = self.prompt()
        payload = Sampled(root, tokens, want, self.rng.randint(1, 2), self.rng.random() < 0.5)
        expected = payload.all_alone()
        self.guilt(payload, want - 1)
        job = fake_job(next(self._ids), name, payload, **self._options())
        return Crew(Group(next(self._ids), members=[job]), self.kinds[name], expected)

    def make_decoders(self, name: str) -> Crew:
        if self.rng.random() < 0.3:
            return self.make_samples(name)
        return self.make_sequences(name, Greedy, self.rng.choice((1, 1, 1, 2, 3)))

    def make_drafted(self, name: str) -> Crew:
        return self.make_sequences(name, Drafted, self.rng.choice((1, 1, 2)))

    def make_windowed(self, name: str) -> Crew:
        return self.make_sequences(name, Windowed, 1)

    def make_recurrent(self, name: str) -> Crew:
        if self.rng.random() < 0.2:
            return self.make_samples(name)
        return self.make_sequences(name, self.rng.choice((Greedy, Drafted, Windowed)), 1)

    def make_encoding(self, name: str) -> Crew:
        crew = self.make_sequences(name, Encoding, 1)
        job = crew.group.members[0]
        job.blocks = ((0, job.goal),)
        return crew

    def make_beams(self, name: str) -> Crew:
        root, tokens, want = self.prompt()
        options, number = self._options(), next(self._ids)

        def make_group() -> Group:
            return Group(number, gang=True, members=[fake_job(number, name, Beam(root, tokens, want), **options)])

        group = make_group()
        self.guilt(group.members[0].payload, want - 1)
        return Crew(group, "beam", beams_alone(root, tokens, want), again=make_group)

    def make_pair(self, name: str) -> Crew:
        rng = self.rng
        count = rng.randint(2, 9)
        group = Group(next(self._ids), gang=True)
        pair = [Diffusion(rng.randrange(1 << 20), count) for _ in range(2)]
        pair[0].partner, pair[1].partner = pair[1], pair[0]
        self.guilt(pair[0], count)
        options = self._options()
        for payload, cost in zip(pair, rng.choice(((1, 2), (7, 5))), strict=True):
            options["unit_cost"] = cost
            job = Job(next(self._ids), name, count, count, root=b"r%d" % rng.randint(0, 3), payload=payload, **options)
            group.members.append(job)
        return Crew(group, "diffusion", [payload.alone() for payload in pair])

    def _cancel(self, job_id: int) -> None:
        job = self.scheduler.jobs[job_id]
        flying = {span.job.id for batch, _ in self.flights for span in batch.spans}
        state = "waiting" if job.state is JobState.WAITING else "at rest"
        if job.in_flight:
            state = "in flight" if job.id in flying else "to be run again"
        self.tally[f"cancelled: {state}"] += 1
        next(crew for crew in self.crews if job.sink == crew.receive).cancelled = True
        assert self.scheduler.cancel(job_id)
        self._receive(self.scheduler.flush())

    # ---- steps

    def _launch(self, batch: Batch) -> None:
        crews = {id(span.job.group) if span.job.group and span.job.group.gang else span.job.id for span in batch.spans}
        cost = sum(span.count * span.job.unit_cost for span in batch.spans)
        if cost > self.config.step_budget:
            assert len(crews) == 1, "a step is over the budget, and not because of one block, gang or unit"
            self.tally["over budget: " + ("gang alone" if len(batch.spans) > 1 else "block or unit alone")] += 1
        if len(batch.spans) > self.config.max_jobs:
            assert len(crews) == 1
        try:
            ticket = self.pipelines[batch.lane].launch(batch)
        except Fault as fault:
            self._reject(batch, fault, len(crews))
        else:
            self.flights.append((batch, ticket))
            self.tally["steps while one is out"] += len(self.flights) > 1

    def _land(self) -> None:
        batch, ticket = self.flights.popleft()
        try:
            outcomes = ticket.outcomes()
        except Fault as fault:
            self._reject(batch, fault, len(batch.spans))
            return
        self._receive(self.scheduler.accept(batch, outcomes))
        self._look(batch, outcomes)

    def _reject(self, batch: Batch, fault: Fault, crews: int) -> None:
        self.tally["halved steps" if crews > 1 else "steps that failed alone"] += 1
        self._receive(self.scheduler.reject(batch, fault))

    def _look(self, batch: Batch, outcomes: list[Outcome]) -> None:
        """Count what cannot be seen in the statistics, and ask the prefix tree about a job."""
        for span, outcome in zip(batch.spans, outcomes, strict=True):
            job = span.job
            if outcome.rollback and job.state is JobState.RUNNING:
                self.tally["rollbacks"] += 1
                if job.done < span.start + span.count - outcome.rollback:
                    self.tally["rollbacks below their target"] += 1
        self.tally["page copies run"] += len(batch.copies)
        if self.rng.random() < 0.15:
            ended = [event.job for event in self.rng.choice(self.crews).ends.values()]
            self._ask(self.rng.choice([batch.spans[0].job, *ended]))

    def _ask(self, job: Job) -> None:
        """The tree's explanation must agree with what it would give."""
        tree = self.scheduler.lanes[job.lane].tree
        if tree is not None:
            why = self.scheduler.explain(job.lane, job.root, bytes(job.keys))
            hit = tree.match(Job(0, job.lane, 1, 1, root=job.root, keys=job.keys), len(job.keys))
            assert why.hit == (hit.granules * tree.granule if hit else 0), f"explained otherwise: {why}"
            self.tally[f"explained: {why.miss.name}"] += 1

    def _receive(self, events: list[Event]) -> None:
        for event in events:
            assert event.job.sink is not None
            event.job.sink(event)

    # ---- the end

    def _check_end(self) -> None:
        self.scheduler.check_idle()
        for crew in self.crews:
            self._check_crew(crew)
        self.scheduler.drop_cache()
        for lane in self.scheduler.lanes.values():
            for keeper in lane.pages.keepers:
                assert keeper.pool.free_count == keeper.pool.count, f"pages of {keeper.name} are lost"
        stats = self.scheduler.stats
        for name in COUNTED:
            self.tally[name] += getattr(stats, name)

    def _check_crew(self, crew: Crew) -> None:
        ends = list(crew.ends.values())
        assert ends, "a job did not end"
        self.tally[f"crews: {crew.kind}"] += 1
        for event in ends:
            if event.error is not None:
                self._check_error(crew, event)
        if all(event.error is None for event in ends):
            kept = [event.job for event in ends if event.finished != "pruned"]
            found = [job.payload.latents if crew.kind == "diffusion" else job.payload.tokens for job in kept]
            assert sorted(found) == sorted(crew.expected), "a crew ended otherwise than alone"
            self.tally["crews that ended as alone"] += 1
            for job in kept:
                if crew.kind in ("decoder", "draft", "window", "recurrent"):
                    output = job.payload.tokens[job.payload.born :]
                    assert crew.outputs.get(job.id, []) == output, "an output was lost, or came twice"

    def _check_error(self, crew: Crew, event: Event) -> None:
        error = event.error
        if isinstance(error, Cancelled):
            assert crew.cancelled
        elif isinstance(error, StepFailed):
            mates = [end.job for end in crew.ends.values()] if crew.group.gang else [event.job]
            assert any(job.payload.guilty for job in mates), f"an innocent job failed: {error}"
            self.tally["jobs at fault"] += 1
        else:
            assert isinstance(error, EngineError) and len(crew.ends) > 1, f"unexpected {error!r}"
            self.tally["groups that never fit"] += 1
            shares = self.scheduler.lanes[event.job.lane].tree is not None
            if shares and crew.again is not None:
                assert not self._fits_alone(crew.again()), "a preempted group did not get on, but would have alone"

    def _fits_alone(self, group: Group) -> bool:
        """Whether a fresh copy of a group ends without an error when nobody else is there."""
        job = group.members[0]
        lane = self.pipelines[job.lane].lane
        scheduler = Scheduler([lane], self.config)
        pipeline = FakePipeline(lane, Random(0))
        scheduler.add_group(group)
        events: list[Event] = []
        while (batch := scheduler.plan()) is not None:
            events += scheduler.accept(batch, pipeline.launch(batch).outcomes())
        return not any(event.error for event in [*events, *scheduler.flush()])


MAKERS: dict[str, Callable[[Schedule, str], Crew]] = {
    "decoder": Schedule.make_decoders,
    "draft": Schedule.make_drafted,
    "window": Schedule.make_windowed,
    "recurrent": Schedule.make_recurrent,
    "beam": Schedule.make_beams,
    "encoder": Schedule.make_encoding,
    "diffusion": Schedule.make_pair,
}

COUNTED = (
    "steps",
    "units",
    "failed_steps",
    "jobs_added",
    "jobs_forked",
    "admissions",
    "preemptions",
    "displacements",
    "restarts",
    "cached_units",
    "missed_units",
    "rollback_units",
    "cut_spans",
    "copies",
)
