"""What the scheduler hands to a pipeline and what comes back: spans, batches, tickets, outcomes, lanes."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from vivace.engine.costs import StepCosts
from vivace.engine.job import Job


class Keep(enum.Enum):
    """What a page group keeps of a job's past."""

    ALL = "all"  # every unit: full attention
    LAST = "last"  # the last `span` units: a sliding window; older pages are given back as the job moves on
    CHECKPOINT = "checkpoint"  # a state after every `span` units, plus the live state: recurrent layers
    WHOLE = "whole"  # one object that is written once: cross-attention, an image


@dataclass(frozen=True, slots=True)
class PageGroup:
    """One kind of memory that a model needs per job, as data.

    name        key of Job.tables and of Batch.copies
    unit_bytes  bytes a unit takes over all layers of the group (bytes of one state or object for CHECKPOINT and WHOLE)
    page_size   units a page holds; a CHECKPOINT or WHOLE page holds one state or object
    keep, span  what is kept: see Keep
    """

    name: str
    unit_bytes: int
    page_size: int
    keep: Keep = Keep.ALL
    span: int = 0


@dataclass(frozen=True, slots=True)
class Lane:
    """One model in one pipeline: the data that the scheduler plans with.

    pages       number of usable pages per page group name, page 0 (the null page) not counted
    key_bytes   bytes of one content key
    can_share   whether prefixes may be shared through the tree (false for bidirectional models)
    costs       what its steps take; without it their size is not bounded by SchedulerConfig.gap_limit
    """

    name: str
    groups: tuple[PageGroup, ...] = ()
    pages: dict[str, int] | None = None
    key_bytes: int = 4
    can_share: bool = True
    costs: StepCosts | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """Units start .. start + count of a job, granted in one step."""

    job: Job
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Copy one page of a group before the step: copy on write."""

    group: str
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Batch:
    """One step of one lane. Copies come first, then the spans, which do not depend on each other."""

    lane: str
    spans: tuple[Span, ...]
    copies: tuple[PageCopy, ...] = ()
    step: int = 0


@dataclass(frozen=True, slots=True)
class Fork:
    """A new job that shares the first `at` units of the job whose outcome names it (pages shared, copied on write).

    It joins the group that it names, and inherits the sink and the first keys unless it brings its own.
    """

    job: Job
    at: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one span led to. Nothing of it counts before the scheduler accepts it.

    A job that names no reason ends by itself ("done") once its gap is closed; in a gang, once all gaps are.
    After a rollback to a unit where a group holds no state (see keep.py), the job is granted some units again.

    goal        the goal from now on: unchanged after a chunk, done + 1 for the next unit, done + 1 + k with a draft
    rollback    units to take back from start + count: rejected drafts, or a whole window that is tried again
    keys        content keys of units that became known, appended to job.keys (after those of units rolled back are cut)
    finished    the reason when the job ends with this step, else None
    forks       jobs that branch off here, at most at the units that count now
    output      handed to the job's sink when accepted; the engine does not look inside
    counts      numbers that are added to the lane's statistics when accepted
    """

    goal: int
    rollback: int = 0
    keys: bytes = b""
    finished: str | None = None
    forks: tuple[Fork, ...] = ()
    output: Any = None
    counts: Mapping[str, int] | None = None


class Ticket(Protocol):
    """A step in flight."""

    def outcomes(self) -> Sequence[Outcome]:
        """Wait for the step; one outcome per span, in the batch's order. Raises what the step raised."""
        ...


class Pipeline(Protocol):
    """What the engine needs of a pipeline. A step is a transaction: until its outcomes are accepted nothing counts,
    so the same spans may be launched again (in halves, to find a job that makes the step fail)."""

    @property
    def lane(self) -> Lane: ...

    def launch(self, batch: Batch) -> Ticket: ...

    def fallback(self, job: Job) -> int:
        """The `done` that a preempted job falls back to: 0, a checkpoint, or job.done if it loses nothing.

        It may lower `job.goal` to the units that are known: a job waits for room for what it must do, not for guesses.
        """
        ...

    def release(self, job: Job) -> None:
        """The job is over (finished, failed or cancelled): drop what the pipeline holds for it."""
        ...


@dataclass(frozen=True, slots=True)
class Event:
    """What a job's sink receives: an accepted output, and at the end the reason (or the error) and the usage."""

    job: Job
    output: Any = None
    finished: str | None = None
    error: Exception | None = None
