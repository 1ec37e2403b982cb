"""The scheduler's single decisions: budgets, blocks, groups, gangs, lanes, pages, cancels, faults and refusals."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.engine.fakes import Beam, Diffusion, FakePipeline, Greedy, fake_job
from vivace.engine.batch import Batch, Event, Fork, Keep, Lane, Outcome, PageGroup
from vivace.engine.costs import StepCosts
from vivace.engine.job import Group, Job, JobState
from vivace.engine.limits import SchedulerConfig
from vivace.engine.policy import Fair
from vivace.engine.scheduler import Scheduler
from vivace.errors import (
    Cancelled,
    ConfigError,
    ContextLengthExceeded,
    EngineError,
    InvalidRequest,
    Overloaded,
    StepFailed,
)

PAGED = Lane("a", (PageGroup("all", 1, 4),), {"all": 100}, 1)
BARE = Lane("a")


def make(lane: Lane = BARE, **limits: Any) -> Scheduler:
    return Scheduler([lane], SchedulerConfig(**limits))


def simple(number: int, goal: int, limit: int = 0, **options: Any) -> Job:
    return Job(number, options.pop("lane", "a"), goal, limit or goal, **options)


def spans(batch: Batch | None) -> list[tuple[int, int, int]]:
    assert batch is not None
    return [(span.job.id, span.start, span.count) for span in batch.spans]


def accept(scheduler: Scheduler, batch: Batch | None, **changes: Outcome) -> list[Event]:
    """Accept a step in which every job keeps its goal, but for the outcomes given as j<id>."""
    assert batch is not None
    outcomes = [changes.get(f"j{span.job.id}", Outcome(span.job.goal)) for span in batch.spans]
    events = scheduler.accept(batch, outcomes)
    scheduler.check()
    return events


# ---- budgets and blocks


def test_a_long_job_is_cut_into_chunks_and_short_ones_go_first() -> None:
    scheduler = make(step_budget=10)
    scheduler.add(simple(1, 25))
    batch = scheduler.plan()
    assert spans(batch) == [(1, 0, 10)]
    scheduler.add(simple(2, 3, 10))
    accept(scheduler, batch)
    batch = scheduler.plan()
    assert spans(batch) == [(1, 10, 10)]  # running jobs come first
    accept(scheduler, batch)
    batch = scheduler.plan()
    assert spans(batch) == [(1, 20, 5), (2, 0, 3)]
    scheduler.add(simple(3, 100))
    accept(scheduler, batch, j2=Outcome(4))
    batch = scheduler.plan()
    assert spans(batch) == [(2, 3, 1), (3, 0, 9)]
    accept(scheduler, batch, j2=Outcome(5))
    assert spans(scheduler.plan()) == [(2, 4, 1), (3, 9, 9)]  # the smaller gap first


def bound(**limits: Any) -> Scheduler:
    """A scheduler of a lane whose steps take 10, each span 2 and each unit 1, and one level job with number 1."""
    lane = Lane("a", PAGED.groups, {"all": 1000}, 1, can_share=False, costs=StepCosts(10, 2, 1))
    scheduler = Scheduler([lane], SchedulerConfig(**limits))
    scheduler.add(simple(1, 1, 500))
    accept(scheduler, scheduler.plan(), j1=Outcome(2))
    return scheduler


def test_chunks_leave_a_step_within_the_limit_while_others_wait_for_each_unit() -> None:
    scheduler = bound(gap_limit=63, step_budget=100)
    scheduler.add(simple(2, 60))
    scheduler.add(simple(3, 60))
    batch = scheduler.plan()
    assert spans(batch) == [(1, 1, 1), (2, 0, 48)]  # 10 + 3 + (2 + 48)
    accept(scheduler, batch, j1=Outcome(3))
    assert scheduler.snapshot()["lanes"]["a"]["waiting"] == 1  # no room for it, so it takes no pages either
    batch = scheduler.plan()
    assert spans(batch) == [(1, 2, 1), (2, 48, 12), (3, 0, 34)]  # 10 + 3 + (2 + 12) + (2 + 34)
    accept(scheduler, batch, j1=Outcome(3, finished="stop"), j2=Outcome(60, finished="stop"))
    scheduler.add(simple(4, 500))
    assert spans(scheduler.plan()) == [(3, 34, 26), (4, 0, 74)]  # nobody waits for units: the whole budget


def test_a_chunk_of_the_least_size_is_granted_however_many_wait() -> None:
    scheduler = bound(gap_limit=5, step_budget=100, least_chunk=8)
    scheduler.add(simple(2, 20))
    scheduler.add(simple(3, 20))
    for number, expected in enumerate(([(2, 0, 8)], [(2, 8, 8)], [(2, 16, 4)], [(3, 0, 8)])):
        batch = scheduler.plan()
        assert spans(batch) == [(1, 1 + number, 1), *expected]
        accept(scheduler, batch, j1=Outcome(3 + number), j2=Outcome(20, finished="stop" if number == 2 else None))


def test_lanes_share_the_limit_and_one_without_costs_knows_none() -> None:
    lanes = [Lane("a", costs=StepCosts(0, 0, 1)), Lane("b", costs=StepCosts(0, 0, 1)), Lane("c")]
    scheduler = Scheduler(lanes, SchedulerConfig(gap_limit=90, step_budget=100))
    scheduler.add(simple(1, 1, 50))
    accept(scheduler, scheduler.plan(), j1=Outcome(2))
    scheduler.add(simple(2, 80, lane="b"))
    scheduler.add(simple(3, 80, lane="c"))
    batches = [scheduler.plan() for _ in range(3)]
    assert sorted(span for batch in batches for span in spans(batch)) == [(1, 1, 1), (2, 0, 30), (3, 0, 80)]


def test_a_preempted_job_is_not_level_until_it_is_back() -> None:
    scheduler = bound(gap_limit=40, step_budget=100)
    job = scheduler.jobs[1]
    assert job.is_level
    assert job.group is not None
    scheduler.lanes["a"].preempt(job.group)
    assert not job.is_level
    assert spans(scheduler.plan()) == [(1, 0, 2)]


@pytest.mark.parametrize("start", [0, 7, 1000])
@pytest.mark.parametrize("costs", [StepCosts(10, 2, 1), StepCosts(4000, 90, 450, 5, 1), StepCosts(0, 0, 0)])
def test_most_units_never_cost_more_than_there_is_left(costs: StepCosts, start: int) -> None:
    for left in (0, 1, 50, 5000, 10**6):
        units = costs.most_units(start, left)
        assert units == 0 or costs.of_span(start, units) <= left
    # Exactly as units come one by one.
    assert costs.of_span(5, 3) - costs.span - 5 * costs.reach == sum(costs.unit + u * costs.past for u in (5, 6, 7))


def test_a_limit_below_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="gap_limit is -1, expected 0 or more"):
        SchedulerConfig(gap_limit=-1)


def test_the_budget_counts_cost_not_units() -> None:
    scheduler = make(step_budget=10, chunk_limit=6)
    scheduler.add(simple(1, 20, unit_cost=3))
    scheduler.add(simple(2, 20))
    assert spans(scheduler.plan()) == [(1, 0, 2), (2, 0, 4)]


def test_a_block_over_the_budget_runs_alone_and_soon() -> None:
    scheduler = make(step_budget=10)
    scheduler.add(simple(1, 3, 100))
    scheduler.add(simple(2, 30, blocks=((0, 25),)))
    batch = scheduler.plan()
    assert spans(batch) == [(1, 0, 3)]
    accept(scheduler, batch, j1=Outcome(4))
    batch = scheduler.plan()
    assert spans(batch) == [(2, 0, 25)]
    accept(scheduler, batch)
    assert spans(scheduler.plan()) == [(1, 3, 1), (2, 25, 5)]


def test_a_unit_that_costs_more_than_the_budget_runs_alone() -> None:
    scheduler = make(step_budget=10)
    scheduler.add(simple(1, 2, unit_cost=50))
    scheduler.add(simple(2, 5))
    batch = scheduler.plan()
    assert spans(batch) == [(1, 0, 1)]
    accept(scheduler, batch)
    batch = scheduler.plan()
    assert spans(batch) == [(1, 1, 1)]
    accept(scheduler, batch)
    assert spans(scheduler.plan()) == [(2, 0, 5)]


def test_jobs_in_flight_are_not_granted_again() -> None:
    scheduler = make(max_jobs=1)
    scheduler.add(simple(1, 3))
    scheduler.add(simple(2, 4))
    first, second = scheduler.plan(), scheduler.plan()
    assert spans(first) == [(1, 0, 3)] and spans(second) == [(2, 0, 4)]
    assert scheduler.plan() is None
    assert [event.finished for event in accept(scheduler, second)] == ["done"]
    assert [event.finished for event in accept(scheduler, first)] == ["done"]
    scheduler.check_idle()


# ---- groups and gangs


def test_a_gang_closes_its_gaps_in_the_same_step() -> None:
    scheduler = make(step_budget=12)
    group = Group(9, gang=True, members=[simple(1, 20, 40), simple(2, 2, 40)])
    scheduler.add_group(group)
    seen = []
    while True:
        batch = scheduler.plan()
        seen.append(spans(batch))
        assert batch is not None
        if all(span.start + span.count == span.job.goal for span in batch.spans):
            break
        accept(scheduler, batch)
    assert seen == [[(1, 0, 6), (2, 0, 1)], [(1, 6, 6)], [(1, 12, 6)], [(1, 18, 2), (2, 1, 1)]]


def test_a_gang_over_the_budget_runs_alone_rather_than_starving() -> None:
    lane = Lane("a", key_bytes=1)
    pipeline = FakePipeline(lane, Random(0))
    scheduler = make(lane, step_budget=10)
    pair = [Diffusion(seed, 3) for seed in (1, 2)]
    pair[0].partner, pair[1].partner = pair[1], pair[0]
    members = [simple(n, 3, unit_cost=cost, payload=p) for n, cost, p in ((1, 7, pair[0]), (2, 5, pair[1]))]
    first = members[0]
    scheduler.add(simple(3, 5, 60, payload=Greedy(b"", [0] * 5, 60)))
    scheduler.add_group(Group(9, gang=True, members=members))
    steps = []
    while first.state is not JobState.FINISHED:
        batch = scheduler.plan()
        assert batch is not None
        steps.append([span.job.id for span in batch.spans])
        scheduler.accept(batch, pipeline.launch(batch).outcomes())
    assert steps == [[3], [1, 2], [3], [1, 2], [3], [1, 2]]


def test_a_group_is_admitted_together_or_not_at_all() -> None:
    scheduler = make(PAGED, max_running=3, max_jobs=10)
    scheduler.add(simple(1, 8, 20))
    scheduler.add(simple(2, 8, 20))
    scheduler.add_group(Group(9, members=[simple(3, 8, 20), simple(4, 8, 20)]))
    batch = scheduler.plan()
    assert [number for number, _, _ in spans(batch)] == [1, 2]
    accept(scheduler, batch, j1=Outcome(8, finished="stop"), j2=Outcome(9))
    batch = scheduler.plan()
    assert [number for number, _, _ in spans(batch)] == [2, 3, 4]


def test_a_gang_fails_together_and_a_group_does_not() -> None:
    for gang, failed in ((True, 2), (False, 1)):
        scheduler = make()
        scheduler.add_group(Group(9, gang=gang, members=[simple(1, 2), simple(2, 2)]))
        events = accept(scheduler, scheduler.plan(), j1=Outcome(99))
        assert sum(isinstance(event.error, StepFailed) for event in events) == failed


# ---- lanes, priorities, tenants


def test_lanes_take_turns_by_cost_served() -> None:
    scheduler = Scheduler([Lane("a"), Lane("b")], SchedulerConfig(step_budget=100))
    scheduler.add(simple(1, 1000, unit_cost=30))
    scheduler.add(simple(2, 1000, unit_cost=10, lane="b", limit=1000))
    served = {"a": 0, "b": 0}
    for _ in range(60):
        batch = scheduler.plan()
        assert batch is not None
        served[batch.lane] += sum(span.count * span.job.unit_cost for span in batch.spans)
        accept(scheduler, batch)
    assert abs(served["a"] - served["b"]) <= 100


def test_a_lane_that_was_idle_does_not_catch_up() -> None:
    scheduler = Scheduler([Lane("a"), Lane("b")], SchedulerConfig(step_budget=10))
    scheduler.add(simple(1, 1000))
    for _ in range(20):
        accept(scheduler, scheduler.plan())
    scheduler.add(simple(2, 1000, lane="b", limit=1000))
    lanes = []
    for _ in range(10):
        batch = scheduler.plan()
        assert batch is not None
        lanes.append(batch.lane)
        accept(scheduler, batch)
    assert lanes.count("a") >= 4


def test_a_higher_priority_displaces_a_running_job_and_an_equal_one_waits() -> None:
    scheduler = Scheduler([BARE], SchedulerConfig(max_running=1), fallback=lambda job: job.done - 2)
    scheduler.add(simple(1, 5, 50))
    accept(scheduler, scheduler.plan(), j1=Outcome(6))
    scheduler.add(simple(2, 5))
    batch = scheduler.plan()
    assert spans(batch) == [(1, 5, 1)]
    accept(scheduler, batch, j1=Outcome(7))
    scheduler.add(simple(3, 5, priority=1))
    batch = scheduler.plan()
    assert spans(batch) == [(3, 0, 5)] and scheduler.stats.displacements == 1
    accept(scheduler, batch)
    assert spans(scheduler.plan()) == [(1, 4, 3)]  # from where the pipeline said, and before the later job


def test_a_higher_priority_is_admitted_although_running_jobs_fill_every_step() -> None:
    scheduler = make(max_jobs=2)
    for number in (1, 2):
        scheduler.add(simple(number, 2, 50))
    accept(scheduler, scheduler.plan(), j1=Outcome(3), j2=Outcome(3))
    scheduler.add(simple(3, 5))
    scheduler.add(simple(4, 5, priority=1))
    batch = scheduler.plan()
    assert spans(batch) == [(4, 0, 5), (1, 2, 1)]
    accept(scheduler, batch, j1=Outcome(4))
    assert spans(scheduler.plan()) == [(2, 2, 1), (1, 3, 1)]


def test_tenants_share_by_cost() -> None:
    scheduler = Scheduler([Lane("a")], SchedulerConfig(max_running=1), Fair())
    for number in range(1, 9):
        scheduler.add(simple(number, 10 if number % 2 else 30, tenant="light" if number % 2 else "heavy"))
    order = []
    while scheduler.jobs:
        batch = scheduler.plan()
        assert batch is not None
        order.append(batch.spans[0].job.tenant)
        accept(scheduler, batch)
    assert order[:5].count("light") >= 3


# ---- pages


def run(scheduler: Scheduler, pipeline: FakePipeline) -> None:
    while (batch := scheduler.plan()) is not None:
        scheduler.accept(batch, pipeline.launch(batch).outcomes())
        scheduler.check()


def test_the_latest_job_gives_way_and_comes_back_through_the_prefix_tree() -> None:
    lane = Lane("a", PAGED.groups, {"all": 12}, 1)
    pipeline = FakePipeline(lane, Random(0))
    scheduler = make(lane, watermark=0)
    jobs = []
    for number in (1, 2, 3):
        payload = Greedy(b"", [0, 1, 2, 0, 1, 1, 2, 2, number % 3, number % 2], 24)
        jobs.append((payload.alone(), fake_job(number, "a", payload)))
        scheduler.add(jobs[-1][1])
    run(scheduler, pipeline)
    assert [job.payload.tokens for _, job in jobs] == [tokens for tokens, _ in jobs]
    assert jobs[0][1].preemptions == 0 and jobs[2][1].preemptions > 0
    assert scheduler.stats.cached_units > 0
    scheduler.check_idle()


def test_a_job_that_fills_the_pool_alone_is_served_and_one_more_unit_is_refused() -> None:
    lane = Lane("a", PAGED.groups, {"all": 6}, 1)
    pipeline = FakePipeline(lane, Random(0))
    scheduler = make(lane)
    payload = Greedy(b"", [0, 1, 2], 24)
    scheduler.add(fake_job(1, "a", payload))
    run(scheduler, pipeline)
    assert len(payload.tokens) == 24
    with pytest.raises(ContextLengthExceeded, match="up to 25 units needs 7 pages of 'all', there are 6") as caught:
        scheduler.add(simple(2, 3, 25))
    assert caught.value.code == "context_length_exceeded" and caught.value.hint
    scheduler.check_idle()


def test_a_group_that_can_never_get_on_ends_with_the_reason() -> None:
    lane = Lane("a", PAGED.groups, {"all": 6}, 1, can_share=False)
    pipeline = FakePipeline(lane, Random(0))
    scheduler = make(lane)
    members = [fake_job(n, "a", Beam(b"", [n, n, n], 24)) for n in (1, 2)]
    scheduler.add_group(Group(9, gang=True, members=members))
    run(scheduler, pipeline)
    errors = [event.error for event in scheduler.flush() if event.error]
    assert scheduler.stats.restarts >= 1
    assert len(errors) == Beam.width and all(isinstance(error, EngineError) for error in errors)
    assert "there are only 6 of 'all' pages" in str(errors[0])
    scheduler.check_idle()


def test_a_second_request_finds_what_the_first_has_computed() -> None:
    pipeline = FakePipeline(PAGED, Random(0))
    scheduler = make(PAGED)
    prompt = [0, 1, 2, 0, 1, 2, 2, 2, 1, 0]
    scheduler.add(fake_job(1, "a", Greedy(b"", prompt, 14)))
    run(scheduler, pipeline)
    job = fake_job(2, "a", Greedy(b"", prompt, 14))
    scheduler.add(job)
    run(scheduler, pipeline)
    assert job.cached == 8
    scheduler.drop_cache()
    job = fake_job(3, "a", Greedy(b"", prompt, 14))
    scheduler.add(job)
    run(scheduler, pipeline)
    assert job.cached == 0


def test_jobs_of_a_group_compute_their_common_beginning_once() -> None:
    scheduler = make(PAGED, step_budget=8)
    prompt = bytearray(b"aaaabbbbccccdd")
    scheduler.add_group(Group(9, members=[simple(n, 14, 30, keys=bytearray(prompt)) for n in (1, 2, 3)]))
    seen = []
    for _ in range(3):
        batch = scheduler.plan()
        seen.append(spans(batch))
        accept(scheduler, batch, **{f"j{n}": Outcome(15) for n in (1, 2, 3) if batch and scheduler.jobs[n].gap <= 8})
    assert seen == [[(1, 0, 8)], [(1, 8, 6)], [(2, 12, 2), (3, 12, 2), (1, 14, 1)]]
    assert scheduler.stats.cached_units == 24


def test_a_chunk_shrinks_to_the_window_pool_and_spares_the_cache() -> None:
    lane = Lane("a", (PageGroup("last", 1, 4, Keep.LAST, 8),), {"last": 5}, 1)
    pipeline = FakePipeline(lane, Random(0))
    scheduler = make(lane)
    payload = Greedy(b"", [n % 3 for n in range(100)], 110)
    expected = payload.alone()
    scheduler.add(fake_job(1, "a", payload))
    run(scheduler, pipeline)
    assert payload.tokens == expected


# ---- outcomes


def test_a_rollback_forgets_keys_and_forks_share_them() -> None:
    scheduler = make(PAGED)
    scheduler.add(simple(1, 8, 40, keys=bytearray(b"aaaabbbb")))
    batch = scheduler.plan()
    child = simple(2, 9, 40)
    accept(scheduler, batch, j1=Outcome(7, 2, b"X", forks=(Fork(child, 5),), output="text"))
    job = scheduler.jobs[1]
    assert (job.done, job.goal, job.keys) == (6, 7, b"aaaabbX")
    assert (child.done, child.keys, child.state) == (5, b"aaaab", JobState.RUNNING)
    assert child.group is not job.group and child.arrival == job.arrival
    assert spans(scheduler.plan()) == [(1, 6, 1), (2, 5, 4)]


@pytest.mark.parametrize(
    ("outcome", "fault"),
    [
        (Outcome(41), "its goal is 41, expected 8 .. 40"),
        (Outcome(3), "its goal is 3, expected 8 .. 40"),
        (Outcome(8, rollback=9), "rolls back 9 of 8"),
        (Outcome(8, rollback=-1), "rolls back -1 of 8"),
        (Outcome(9, forks=(Fork(Job(1, "a", 9, 40), 3),)), "fork 1 is not a new job"),
        (Outcome(9, forks=(Fork(Job(5, "a", 9, 40), 9),)), "fork 5 at 9 of 8 units"),
        (Outcome(9, forks=(Fork(Job(5, "a", 9, 4000), 3),)), "limit 4000 does not fit"),
    ],
)
def test_an_outcome_that_makes_no_sense_fails_its_job(outcome: Outcome, fault: str) -> None:
    scheduler = make(PAGED)
    scheduler.add(simple(1, 8, 40))
    scheduler.add(simple(2, 8, 40))
    events = accept(scheduler, scheduler.plan(), j1=outcome, j2=Outcome(9, output="fine"))
    assert isinstance(events[0].error, StepFailed) and fault in str(events[0].error)
    assert events[1].output == "fine" and list(scheduler.jobs) == [2]


def test_a_failed_step_is_run_again_in_halves_and_counts_nothing() -> None:
    scheduler = make()
    for number in range(1, 9):
        scheduler.add(simple(number, 2))
    ends: list[Event] = []
    sizes = []
    while scheduler.jobs:
        batch = scheduler.plan()
        assert batch is not None
        sizes.append(len(batch.spans))
        if any(span.job.id == 6 for span in batch.spans):
            ends += scheduler.reject(batch, RuntimeError("job 6"))
        else:
            ends += accept(scheduler, batch)
        scheduler.check()
    assert sizes == [8, 4, 4, 2, 2, 1, 1]
    failed = [event for event in ends if event.error]
    assert [event.job.id for event in failed] == [6] and isinstance(failed[0].error.__cause__, RuntimeError)
    assert scheduler.stats.units == scheduler.stats.cost == 14 and scheduler.stats.failed_steps == 4
    scheduler.check_idle()


def test_a_job_whose_neighbours_are_cancelled_in_a_failed_step_gets_another_try() -> None:
    scheduler = make()
    scheduler.add(simple(1, 2))
    scheduler.add(simple(2, 2))
    batch = scheduler.plan()
    scheduler.cancel(1)
    assert batch is not None
    [event] = scheduler.reject(batch, RuntimeError("perhaps because of job 1"))
    assert isinstance(event.error, Cancelled)
    again = scheduler.plan()
    assert spans(again) == [(2, 0, 2)]
    assert [event.finished for event in accept(scheduler, again)] == ["done"]


# ---- cancels


@pytest.mark.parametrize("state", ["waiting", "at rest", "in flight", "to be run again"])
def test_a_cancel_ends_a_job_in_any_state(state: str) -> None:
    scheduler = make(PAGED)
    scheduler.add(simple(1, 8, 40))
    scheduler.add(simple(2, 8, 40))
    batch = None
    if state != "waiting":
        batch = scheduler.plan()
        assert batch is not None
    if state == "at rest":
        accept(scheduler, batch, j1=Outcome(9), j2=Outcome(9))
    if state == "to be run again":
        scheduler.reject(batch, RuntimeError())  # type: ignore[arg-type]
    assert scheduler.cancel(1)
    events = scheduler.flush()
    scheduler.check()
    if state == "in flight":
        assert not events
        events = accept(scheduler, batch, j1=Outcome(9, output="lost"), j2=Outcome(9))
    elif state == "to be run again":
        assert not events
        assert spans(scheduler.plan()) == [(2, 0, 8)]
        events = scheduler.flush()
    assert [(event.job.id, type(event.error), event.output) for event in events] == [(1, Cancelled, None)]
    assert not scheduler.cancel(1) and list(scheduler.jobs) == [2]
    scheduler.check()


def test_a_cancel_ends_the_whole_group() -> None:
    scheduler = make()
    scheduler.add_group(Group(9, members=[simple(1, 2), simple(2, 2)]))
    scheduler.cancel(2)
    assert {event.job.id for event in scheduler.flush()} == {1, 2}
    scheduler.check_idle()


# ---- refusals


def test_a_full_queue_and_too_many_sequences_are_refused_with_numbers() -> None:
    scheduler = make(max_waiting=2, max_running=3)
    scheduler.add(simple(1, 2))
    scheduler.add(simple(2, 2))
    with pytest.raises(Overloaded, match="2 requests wait already, the limit is 2"):
        scheduler.add(simple(3, 2))
    accept(scheduler, scheduler.plan())
    with pytest.raises(InvalidRequest, match="4 sequences at once, at most 3 can run"):
        scheduler.add_group(Group(9, members=[simple(number, 2) for number in (4, 5, 6, 7)]))
    assert scheduler.stats.jobs_refused == 2
    scheduler.check_idle()
