"""Who goes first: the order of waiting jobs, and who gives way when pages run out."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Protocol

from vivace.engine.job import Group, Job
from vivace.errors import ConfigError

Rank = tuple[int, int, int]

_SHARE = 1 << 16  # fixed point of a turn: cost over weight in integers, so that order never depends on rounding
_CLOCKS = 4096  # names that a clock tracks before it looks for those that are not ahead, and forgets them


def rank(job: Job) -> Rank:
    """A total order, lower is better: priority, then arrival. It never changes while a job lives, so of two jobs that
    want the same pages one always gives way to the other, and the best one always gets on."""
    return (-job.priority, job.arrival, job.id)


def group_rank(group: Group) -> Rank:
    """The rank of the best member."""
    return min(rank(job) for job in group.members)


class Clock:
    """Virtual time per name: cost served over weight. The lowest turn goes first.

    A name that was idle starts at the turn that was last picked: idling earns no credit.
    """

    def __init__(self, weights: Mapping[str, int] | None = None) -> None:
        self._weights = dict(weights or {})
        self._turns: dict[str, int] = {}
        self._now = 0
        self._most = _CLOCKS
        for name, weight in self._weights.items():
            if weight < 1:
                raise ConfigError(f"weight of '{name}' is {weight}, expected 1 or more")

    def turn(self, name: str) -> int:
        """The turn of a name; lower goes first."""
        return max(self._turns.get(name, 0), 0)

    def wake(self, name: str) -> None:
        """A name has work again."""
        if self._turns.get(name, 0) < self._now:
            self._turns[name] = self._now

    def pick(self, name: str) -> None:
        """A name has been served now."""
        self._now = max(self._now, self.turn(name))

    def charge(self, name: str, cost: int) -> None:
        """Add a cost that was served."""
        self._turns[name] = self.turn(name) + cost * _SHARE // self._weights.get(name, 1)
        if len(self._turns) > self._most:
            self._turns = {known: turn for known, turn in self._turns.items() if turn > self._now}
            self._most = max(_CLOCKS, 2 * len(self._turns))


class Policy(Protocol):
    """Jobs wait in buckets. The bucket of the lowest turn goes first; in a bucket the lowest `rank` does."""

    def bucket(self, job: Job) -> str: ...

    def turn(self, bucket: str) -> int: ...

    def wake(self, bucket: str) -> None: ...

    def pick(self, bucket: str) -> None: ...

    def charge(self, job: Job, cost: int) -> None: ...


class Fcfs:
    """First come, first served: priority first, then arrival."""

    def bucket(self, job: Job) -> str:
        return ""

    def turn(self, bucket: str) -> int:
        return 0

    def wake(self, bucket: str) -> None:
        """Nothing to note: there is one bucket."""

    def pick(self, bucket: str) -> None:
        """Nothing to note: there is one bucket."""

    def charge(self, job: Job, cost: int) -> None:
        """Nothing to note: cost does not matter."""


class Fair:
    """Tenants take turns by cost served over their weight (1 unless given); within a tenant as Fcfs.

    Paper: Sheng et al., Fairness in Serving Large Language Models, 2024 (virtual token counter).
    """

    def __init__(self, weights: Mapping[str, int] | None = None) -> None:
        self._clock = Clock(weights)

    def bucket(self, job: Job) -> str:
        return job.tenant

    def turn(self, bucket: str) -> int:
        return self._clock.turn(bucket)

    def wake(self, bucket: str) -> None:
        self._clock.wake(bucket)

    def pick(self, bucket: str) -> None:
        self._clock.pick(bucket)

    def charge(self, job: Job, cost: int) -> None:
        self._clock.charge(job.tenant, cost)


class WaitingQueue:
    """The waiting groups of one lane, in the order of the policy."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._buckets: dict[str, list[tuple[Rank, Group]]] = {}

    def __len__(self) -> int:
        return sum(len(heap) for heap in self._buckets.values())

    def __bool__(self) -> bool:
        return bool(self._buckets)

    def push(self, group: Group) -> None:
        """Add a group, new or preempted."""
        bucket = self._policy.bucket(group.members[0])
        heap = self._buckets.get(bucket)
        if heap is None:
            heap = self._buckets[bucket] = []
            self._policy.wake(bucket)
        heapq.heappush(heap, (group_rank(group), group))

    def peek(self) -> Group | None:
        """The group that goes next, or None."""
        if not self._buckets:
            return None
        return self._buckets[self._next_bucket()][0][1]

    def pop(self) -> Group:
        """Remove and return the group that goes next."""
        bucket = self._next_bucket()
        self._policy.pick(bucket)
        _, group = heapq.heappop(self._buckets[bucket])
        if not self._buckets[bucket]:
            del self._buckets[bucket]
        return group

    def remove(self, group: Group) -> None:
        """Remove a group that waits: it was cancelled."""
        bucket = self._policy.bucket(group.members[0])
        heap = [entry for entry in self._buckets[bucket] if entry[1] is not group]
        assert len(heap) == len(self._buckets[bucket]) - 1
        heapq.heapify(heap)
        if heap:
            self._buckets[bucket] = heap
        else:
            del self._buckets[bucket]

    def groups(self) -> list[Group]:
        """All waiting groups, for the invariants."""
        return [group for heap in self._buckets.values() for _, group in heap]

    def _next_bucket(self) -> str:
        return min(self._buckets, key=lambda bucket: (self._policy.turn(bucket), bucket))
