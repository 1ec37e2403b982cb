"""Jobs of one group with a common beginning compute it once: one leads, the others follow and start from its pages.

Parallel samples start this way, and a group that branched off comes back from a preemption in the memory it had before.
"""

from __future__ import annotations

from vivace.engine.job import Group, Job, JobState
from vivace.engine.limits import first_of_block
from vivace.engine.prefix import PrefixTree


class Followers:
    """Who waits for whom in one lane: by the id of the follower, the leader and the units to wait for."""

    def __init__(self, tree: PrefixTree) -> None:
        self._tree = tree
        self._leaders: dict[int, tuple[Job, int]] = {}

    def __contains__(self, job: Job) -> bool:
        return job.id in self._leaders

    def __bool__(self) -> bool:
        return bool(self._leaders)

    def start(self, group: Group) -> None:
        """Find leaders in a group that has just started: a job follows the earlier one it has most in common with."""
        for index, job in enumerate(group.members):
            units, leader = max(
                ((self._common(other, job), other) for other in group.members[:index] if other.root == job.root),
                key=lambda entry: entry[0],
                default=(0, job),
            )
            if units > job.done:
                self._leaders[job.id] = (leader, units)

    def must_wait(self, job: Job) -> bool:
        """Whether the leader has still to enter what the job waits for."""
        leader, units = self._leaders[job.id]
        return leader.state is JobState.RUNNING and leader.entered < units

    def drop(self, job: Job) -> None:
        """The job follows nobody any more."""
        self._leaders.pop(job.id, None)

    def _common(self, leader: Job, job: Job) -> int:
        """Whole granules, in units, that both have keys for and that both compute before they close their gaps."""
        tree = self._tree
        last = min(first_of_block(leader, leader.goal - 1), job.goal - 1)
        most = min(last * tree.key_bytes, len(leader.keys), len(job.keys)) // tree.run
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if job.keys.startswith(leader.keys[: middle * tree.run]):
                low = middle
            else:
                high = middle - 1
        return low * tree.granule
