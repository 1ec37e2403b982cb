"""A job: one request as the engine sees it, a number of units done and a number of units to reach.

Units are whatever the pipeline counts. The scheduler grants spans of units until `done` reaches `goal`, and the
pipeline may raise the goal after every span. `payload` belongs to the pipeline; the engine never looks inside.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class JobState(enum.Enum):
    """WAITING jobs own no pages (a preempted job waits again), RUNNING ones do, FINISHED ones are gone."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Group:
    """Jobs that are admitted, preempted and cancelled together; the jobs of a gang also step together.

    Stepping together means: a gang has one step out at a time, and its members' gaps close in the same step, so that
    the outcomes that may raise goals always come together.

    A job that is added alone gets a group of its own. `members` are those that have not ended. If a job of a gang
    fails, the gang fails; other groups go on without it.
    """

    id: int
    gang: bool = False
    members: list[Job] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Job:
    """One request. All counts are units of its lane; `unit_cost` is what one unit costs in the budget's integers.

    id          unique within the engine
    lane        name of the lane (one model in one pipeline) that serves it
    goal        units wanted so far; done < goal means that the job wants a span
    limit       the highest goal it can ever reach; a job whose limit cannot fit the pools is refused
    blocks      ascending, disjoint ranges (start, stop) that no span may cut
    root        where its prefix tree hangs: weights digest, adapter, KV format, position rule, tenant
    keys        content keys of the units known so far, `lane.key_bytes` bytes a unit; compared, not only hashed
    tables      one block table per page group of the lane: page numbers in unit order, 0 is the null page
    cached      units taken from the prefix tree at the last admission
    retention   its prefix is evicted after those of lower retention
    sink        called with each event of this job (engine.batch.Event), in order, from the loop's thread

    Fields below `sink` belong to the scheduler, and pipelines read them at most:

    entered     units that this job has entered into the prefix tree since its admission
    granted     the last step that held a span of this job
    is_level    it has closed its gap since it was admitted: from then on somebody waits for each of its units
    stalled     `done` when it last gave its pages back although no other job ran; -1: it has got further since
    cancelled   the job ends when its step comes back
    """

    id: int
    lane: str
    goal: int
    limit: int
    unit_cost: int = 1
    priority: int = 0
    tenant: str = ""
    blocks: tuple[tuple[int, int], ...] = ()
    root: bytes = b""
    keys: bytearray = field(default_factory=bytearray)
    group: Group | None = None
    payload: Any = None
    retention: int = 0
    sink: Callable[[Any], None] | None = None

    done: int = 0
    state: JobState = JobState.WAITING
    arrival: int = 0
    cached: int = 0
    preemptions: int = 0
    in_flight: bool = False
    entered: int = 0
    granted: int = 0
    is_level: bool = False
    stalled: int = -1
    cancelled: bool = False
    tables: dict[str, array[int]] = field(default_factory=dict)

    @property
    def gap(self) -> int:
        """Units still to be granted."""
        return self.goal - self.done
