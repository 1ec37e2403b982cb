"""The loop: one thread that plans, launches and accepts steps while there are jobs, and sleeps when there are none.

    loop = Loop([pipeline, ...]); loop.start(); loop.submit(job); ...; loop.close()

Sinks are called from the loop's thread, in order, without any lock held: they may call `submit` and `cancel`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic, perf_counter_ns
from types import TracebackType
from typing import Any

from vivace.engine.batch import Batch, Event, Pipeline, Ticket
from vivace.engine.job import Group, Job
from vivace.engine.policy import Policy
from vivace.engine.prefix_explain import Explanation
from vivace.engine.scheduler import Scheduler, SchedulerConfig
from vivace.errors import EngineDied

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Flight:
    batch: Batch
    ticket: Ticket
    launched_ns: int


class Loop:
    """Drives one scheduler over the lanes of some pipelines.

    max_in_flight   steps that may be out at once: with 2 the next step is planned while one computes
    after_events    called when all sinks of a step have been: whoever sends events elsewhere sends them together
    """

    def __init__(
        self,
        pipelines: Iterable[Pipeline],
        config: SchedulerConfig | None = None,
        policy: Policy | None = None,
        *,
        max_in_flight: int = 1,
        after_events: Callable[[], None] | None = None,
    ) -> None:
        assert max_in_flight >= 1
        self.pipelines = {pipeline.lane.name: pipeline for pipeline in pipelines}
        lanes = [pipeline.lane for pipeline in self.pipelines.values()]
        self.scheduler = Scheduler(lanes, config, policy, self._fallback)
        self.max_in_flight = max_in_flight
        self._after_events = after_events
        self._wakeup = threading.Condition()  # guards the scheduler and the two flags below
        self._is_closing = False
        self._error: EngineDied | None = None
        self._flights: deque[_Flight] = deque()  # only the loop's thread touches it
        self._thread: threading.Thread | None = None

    # ---- for any thread

    def submit(self, job: Job) -> None:
        """Take a job in. Raises Overloaded, ContextLengthExceeded, or EngineDied when the loop has ended."""
        with self._wakeup:
            self._refuse_when_closed()
            self.scheduler.add(job)
            self._wakeup.notify_all()

    def submit_group(self, group: Group) -> None:
        """Take in jobs that belong together: all of them or, with an error, none."""
        with self._wakeup:
            self._refuse_when_closed()
            self.scheduler.add_group(group)
            self._wakeup.notify_all()

    def cancel(self, job_id: int) -> bool:
        """End a job and its group; its sink receives the error Cancelled. False if the job is over already."""
        with self._wakeup:
            known = self.scheduler.cancel(job_id)
            self._wakeup.notify_all()
            return known

    def snapshot(self) -> dict[str, Any]:
        """Statistics as plain data."""
        with self._wakeup:
            return self.scheduler.snapshot()

    def explain(self, lane: str, root: bytes, keys: bytes) -> Explanation:
        """Why a prefix is cached as far as it is and no further."""
        with self._wakeup:
            return self.scheduler.explain(lane, root, keys)

    def drop_cache(self) -> None:
        """Forget all cached prefixes."""
        with self._wakeup:
            self.scheduler.drop_cache()

    def start(self) -> None:
        """Start the thread."""
        assert self._thread is None, "the loop runs already"
        self._thread = threading.Thread(target=self._run, name="vivace-engine", daemon=True)
        self._thread.start()

    def close(self, grace_s: float = 0.0) -> None:
        """Take no more jobs, give those that are in `grace_s` seconds, cancel the rest, and end the thread."""
        with self._wakeup:
            self._is_closing = True
            deadline = monotonic() + grace_s
            while self._is_alive() and self.scheduler.has_work and monotonic() < deadline:
                self._wakeup.wait(deadline - monotonic())
            for job_id in list(self.scheduler.jobs):
                self.scheduler.cancel(job_id)
            self._wakeup.notify_all()
        if self._thread is None:
            self.run_until_idle()
        elif self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Loop:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- for a caller without a thread

    def run_until_idle(self) -> None:
        """Run steps in the calling thread until no job is left; for tests and for one-shot use."""
        assert self._thread is None, "the loop's own thread runs it"
        while self._turn():
            pass

    # ---- the loop's thread

    def _run(self) -> None:
        while True:
            try:
                is_busy = self._turn()
            except Exception as error:  # a fault of our own: no job can be trusted any more
                _log.exception("the engine loop ended")
                self._die(error)
                return
            with self._wakeup:
                if is_busy or self.scheduler.has_work:
                    continue
                self._wakeup.notify_all()  # for `close`
                if self._is_closing:
                    return
                self._wakeup.wait()

    def _turn(self) -> bool:
        """Launch what can be launched, then wait for the oldest step. False if there was nothing to do."""
        planned_ns = 0
        while len(self._flights) < self.max_in_flight:
            began = perf_counter_ns()
            with self._wakeup:
                batch = self.scheduler.plan()
                events = self.scheduler.flush()
                is_stuck = batch is None and not self._flights and bool(self.scheduler.jobs)
            assert not is_stuck, "no step is out and none can be planned, but jobs are left"
            planned_ns += perf_counter_ns() - began
            self._deliver(events)
            if batch is None:
                break
            self._launch(batch)
        if not self._flights:
            with self._wakeup:
                return self.scheduler.has_work
        self._land(self._flights.popleft(), planned_ns)
        return True

    def _launch(self, batch: Batch) -> None:
        launched_ns = perf_counter_ns()
        try:
            ticket = self.pipelines[batch.lane].launch(batch)
        except Exception as error:
            self._reject(batch, error)
        else:
            self._flights.append(_Flight(batch, ticket, launched_ns))

    def _land(self, flight: _Flight, planned_ns: int) -> None:
        try:
            outcomes = flight.ticket.outcomes()
        except Exception as error:
            self._reject(flight.batch, error)
            return
        landed_ns = perf_counter_ns()
        with self._wakeup:
            events = self.scheduler.accept(flight.batch, outcomes)
            self.scheduler.stats.step_ns.add(landed_ns - flight.launched_ns)
            self.scheduler.stats.plan_ns.add(planned_ns + perf_counter_ns() - landed_ns)
        self._deliver(events)

    def _reject(self, batch: Batch, error: Exception) -> None:
        _log.warning("step %d of lane '%s' failed and is run again in parts: %r", batch.step, batch.lane, error)
        with self._wakeup:
            events = self.scheduler.reject(batch, error)
        self._deliver(events)

    def _deliver(self, events: list[Event]) -> None:
        """Call the sinks. A sink that raises loses its own job only."""
        for event in events:
            job = event.job
            try:
                if job.sink is not None:
                    job.sink(event)
            except Exception:
                _log.exception("the sink of job %d raised", job.id)
                self.cancel(job.id)
            if event.finished is not None or event.error is not None:
                self._release(job)
        if events and self._after_events is not None:
            self._after_events()

    def _release(self, job: Job) -> None:
        try:
            self.pipelines[job.lane].release(job)
        except Exception:
            _log.exception("the pipeline '%s' could not release job %d", job.lane, job.id)

    def _fallback(self, job: Job) -> int:
        try:
            return self.pipelines[job.lane].fallback(job)
        except Exception:
            _log.exception("the pipeline '%s' names no fallback for job %d", job.lane, job.id)
            return 0

    def _refuse_when_closed(self) -> None:
        if self._error is not None:
            raise EngineDied(self._error.message) from self._error
        if self._is_closing:
            raise EngineDied("the engine is closing and takes no more requests")

    def _is_alive(self) -> bool:
        """Whether waiting for the thread makes sense here."""
        thread = self._thread
        return thread not in (None, threading.current_thread()) and self._error is None

    def _die(self, error: Exception) -> None:
        with self._wakeup:
            died = EngineDied(f"the engine loop ended with {type(error).__name__}: {error}")
            died.__cause__ = error
            self._error = died
            jobs = list(self.scheduler.jobs.values())
            self.scheduler.jobs.clear()
            self._wakeup.notify_all()
        self._deliver([Event(job, error=died) for job in jobs])
