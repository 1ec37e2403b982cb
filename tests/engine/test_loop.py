"""The loop: threads, order of events, faults of sinks and pipelines, parking and closing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random

import pytest

from tests.engine.fakes import FakePipeline, FakeTicket, Greedy, Sampled, fake_job
from vivace.engine.batch import Batch, Event, Lane, Outcome, PageGroup
from vivace.engine.job import Group, Job
from vivace.engine.limits import SchedulerConfig
from vivace.engine.loop import Loop
from vivace.errors import Cancelled, EngineDied, Overloaded, StepFailed

LANE = Lane("a", (PageGroup("all", 1, 4),), {"all": 20}, 1)
WAIT_S = 30  # a test that waits so long has failed


class Sink:
    """Keeps events, and lets a test wait for the last one."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ended = threading.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if event.finished is not None or event.error is not None:
            self.ended.set()

    @property
    def tokens(self) -> list[int]:
        return [token for event in self.events for token in event.output or ()]

    def wait(self) -> Event:
        assert self.ended.wait(WAIT_S)
        return self.events[-1]


def make_job(number: int, want: int = 12, **options: object) -> tuple[Job, Sink, list[int]]:
    payload = Greedy(b"r", [number % 3, 1, 2, 0, 1], want)
    expected = payload.alone()[5:]
    sink = Sink()
    job = fake_job(number, "a", payload, **options)
    job.sink = sink
    return job, sink, expected


def make_pipeline() -> FakePipeline:
    return FakePipeline(LANE, Random(0))


class Gated(FakePipeline):
    """A pipeline whose steps wait until the test opens the gate."""

    def __init__(self) -> None:
        super().__init__(LANE, Random(0))
        self.gate = threading.Event()
        self.reached = threading.Event()
        self.launches = 0

    def launch(self, batch: Batch) -> FakeTicket:
        self.launches += 1
        return super().launch(batch)

    def outcomes(self, batch: Batch) -> list[Outcome]:
        self.reached.set()
        assert self.gate.wait(WAIT_S)
        return super().outcomes(batch)


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_jobs_of_many_threads_end_as_alone_and_outputs_keep_their_order(max_in_flight: int) -> None:
    pipeline = make_pipeline()
    jobs = [make_job(number, want=8 + number % 7) for number in range(1, 41)]
    with Loop([pipeline], max_in_flight=max_in_flight) as loop:
        threads = [
            threading.Thread(target=lambda part: [loop.submit(job) for job, _, _ in part], args=(jobs[i::4],))
            for i in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for _, sink, expected in jobs:
            assert sink.wait().finished == "length"
            assert sink.tokens == expected
    loop.scheduler.check_idle()
    assert sorted(pipeline.released) == list(range(1, 41))


def test_a_loop_without_a_thread_runs_until_idle() -> None:
    loop = Loop([make_pipeline()])
    job, sink, expected = make_job(1)
    loop.submit(job)
    loop.run_until_idle()
    assert sink.tokens == expected
    snapshot = loop.snapshot()
    assert snapshot["jobs_finished"] == 1 and snapshot["step_ns"]["count"] == snapshot["steps"] == 7
    assert snapshot["lanes"]["a"]["pages"]["all"]["total"] == 20


def test_a_sink_that_raises_ends_its_own_job_only() -> None:
    def broken(event: Event) -> None:
        raise RuntimeError("broken sink")

    loop = Loop([make_pipeline()])
    bad, _, _ = make_job(1)
    bad.sink = broken
    good, sink, expected = make_job(2)
    loop.submit(bad)
    loop.submit(good)
    loop.run_until_idle()
    assert sink.tokens == expected
    assert loop.scheduler.stats.jobs_cancelled == 1
    loop.scheduler.check_idle()


@pytest.mark.parametrize("fault", ["raise", "nonsense"])
def test_a_step_fault_fails_the_guilty_job_only(fault: str) -> None:
    loop = Loop([make_pipeline()])
    jobs = [make_job(number) for number in range(1, 8)]
    jobs[3][0].payload.guilty = (7, fault)
    for job, _, _ in jobs:
        loop.submit(job)
    loop.run_until_idle()
    for index, (_, sink, expected) in enumerate(jobs):
        if index == 3:
            error = sink.events[-1].error
            assert isinstance(error, StepFailed) and (fault == "nonsense" or error.__cause__ is not None)
        else:
            assert sink.tokens == expected
    loop.scheduler.check_idle()


def test_a_pipeline_that_raises_everywhere_does_not_end_the_loop() -> None:
    class Broken(FakePipeline):
        def launch(self, batch: Batch) -> FakeTicket:
            raise RuntimeError("broken launch")

        def release(self, job: Job) -> None:
            raise RuntimeError("broken release")

        def fallback(self, job: Job) -> int:
            raise RuntimeError("broken fallback")

    other = Lane("b", LANE.groups, LANE.pages, 1)
    loop = Loop([Broken(LANE, Random(0)), FakePipeline(other, Random(0))])
    bad, bad_sink, _ = make_job(1)
    good, sink, expected = make_job(2)
    good.lane = "b"
    loop.submit(bad)
    loop.submit(good)
    loop.run_until_idle()
    assert isinstance(bad_sink.events[-1].error, StepFailed)
    assert sink.tokens == expected


def test_too_few_outcomes_are_a_fault_of_the_step() -> None:
    class Short(FakePipeline):
        def outcomes(self, batch: Batch) -> list[Outcome]:
            return super().outcomes(batch)[:-1] if len(batch.spans) == 1 else []

    loop = Loop([Short(LANE, Random(0))])
    job, sink, _ = make_job(1)
    loop.submit(job)
    loop.run_until_idle()
    assert isinstance(sink.events[-1].error, StepFailed)


def test_a_job_that_is_cancelled_in_flight_ends_when_its_step_comes_back() -> None:
    pipeline = Gated()
    job, sink, _ = make_job(1)
    with Loop([pipeline]) as loop:
        loop.submit(job)
        assert pipeline.reached.wait(WAIT_S)
        assert loop.cancel(1)
        assert not sink.ended.is_set()
        pipeline.gate.set()
        assert isinstance(sink.wait().error, Cancelled)
        assert not loop.cancel(1)
    assert sink.tokens == [] and pipeline.released == [1]


def test_the_next_step_is_planned_while_one_is_out() -> None:
    pipeline = Gated()
    first, first_sink, _ = make_job(1)
    second, second_sink, _ = make_job(2)
    with Loop([pipeline], SchedulerConfig(max_jobs=1), max_in_flight=2) as loop:
        with loop._wakeup:  # both are in before the first plan
            loop.submit(first)
            loop.submit(second)
        assert pipeline.reached.wait(WAIT_S)
        assert pipeline.launches == 2
        pipeline.gate.set()
        first_sink.wait()
        second_sink.wait()


def test_an_idle_loop_parks() -> None:
    loop = Loop([make_pipeline()])
    parked = threading.Semaphore(0)
    wait = loop._wakeup.wait

    def spy(timeout: float | None = None) -> bool:
        assert timeout is None, "a timed wait is a poll"
        parked.release()
        return wait(timeout)

    loop._wakeup.wait = spy  # type: ignore[method-assign]
    loop.start()
    assert parked.acquire(timeout=WAIT_S)
    job, sink, expected = make_job(1)
    loop.submit(job)
    sink.wait()
    assert parked.acquire(timeout=WAIT_S)
    assert sink.tokens == expected
    loop.close()


def test_closing_with_grace_lets_jobs_finish_and_refuses_new_ones() -> None:
    job, sink, expected = make_job(1)
    loop = Loop([make_pipeline()])
    loop.start()
    loop.submit(job)
    loop.close(grace_s=WAIT_S)
    assert sink.tokens == expected
    with pytest.raises(EngineDied, match="closing"):
        loop.submit(make_job(2)[0])


def test_closing_without_grace_cancels() -> None:
    pipeline = Gated()
    job, sink, _ = make_job(1)
    loop = Loop([pipeline])
    loop.start()
    loop.submit(job)
    assert pipeline.reached.wait(WAIT_S)
    closer = threading.Thread(target=loop.close)
    closer.start()
    pipeline.gate.set()
    closer.join(WAIT_S)
    assert isinstance(sink.wait().error, Cancelled) or sink.wait().finished


def test_a_fault_of_the_engine_itself_ends_every_job_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop([make_pipeline()])
    monkeypatch.setattr(loop.scheduler, "accept", lambda *_: 1 // 0)
    job, sink, _ = make_job(1)
    loop.start()
    loop.submit(job)
    error = sink.wait().error
    assert isinstance(error, EngineDied) and isinstance(error.__cause__, ZeroDivisionError)
    with pytest.raises(EngineDied):
        loop.submit(make_job(2)[0])
    loop.close()


def test_overload_is_raised_where_the_job_is_submitted() -> None:
    loop = Loop([make_pipeline()], SchedulerConfig(max_waiting=1))
    loop.submit(make_job(1)[0])
    with pytest.raises(Overloaded, match="1 requests wait already, the limit is 1"):
        loop.submit(make_job(2)[0])
    loop.close()


def test_jobs_that_branch_off_inherit_the_sink_and_their_group_ends_with_a_cancel() -> None:
    payload = Sampled(b"r", [0, 1, 2], 10, 2, grouped=True)
    job = fake_job(1, "a", payload)
    ends: list[Event] = []
    loop = Loop([make_pipeline()])

    def sink(event: Event) -> None:
        if event.job.id != 1 and not ends:
            loop.cancel(1)  # a sink may call the loop
        if event.error or event.finished:
            ends.append(event)

    job.sink = sink
    loop.submit_group(Group(7, members=[job]))
    loop.run_until_idle()
    assert len({event.job.id for event in ends}) == 3
    assert all(isinstance(event.error, Cancelled) for event in ends)
    loop.scheduler.check_idle()


def test_random_cancels_from_another_thread_leave_nothing_behind() -> None:
    pipeline = FakePipeline(LANE, Random(1), fault_rate=0.1)
    rng = Random(2)
    jobs = [make_job(number, want=20) for number in range(1, 61)]
    cancel: Callable[[int], bool]
    with Loop([pipeline], max_in_flight=2) as loop:
        cancel = loop.cancel
        for job, _, _ in jobs:
            loop.submit(job)
            if rng.random() < 0.5:
                cancel(rng.randint(1, job.id))
        for _, sink, expected in jobs:
            if sink.wait().error is None:
                assert sink.tokens == expected
    loop.scheduler.check_idle()
    assert sorted(pipeline.released) == list(range(1, 61))
