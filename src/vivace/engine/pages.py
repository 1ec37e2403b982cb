"""The block tables of the jobs of one lane: one pool and one keeper per page group."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

from vivace.engine.batch import Lane, PageCopy
from vivace.engine.job import Job
from vivace.engine.keep import KeepCheckpoints, Keeper, make_keeper
from vivace.engine.pool import PagePool
from vivace.errors import ConfigError

Stretch = tuple[Job, int, int]  # a job and the units start .. stop that it is about to be granted


class LanePages:
    """Everything that a lane's jobs hold in pages.

    keepers        one per page group, in the lane's order
    granule        units between two places where a shared prefix may end: the least common multiple of the page sizes
                   and checkpoint spans; 0 if the lane keeps nothing by position
    is_positional  whether a job that loses its pages has to compute its units again
    """

    def __init__(self, lane: Lane) -> None:
        counts = lane.pages or {}
        self.keepers: list[Keeper] = []
        for group in lane.groups:
            if group.name not in counts:
                raise ConfigError(f"lane '{lane.name}' gives no page count for its group '{group.name}'")
            self.keepers.append(make_keeper(group, PagePool(counts[group.name])))
        positional = [keeper for keeper in self.keepers if keeper.is_positional]
        self.is_positional = bool(positional)
        steps = [keeper.span if isinstance(keeper, KeepCheckpoints) else keeper.size for keeper in positional]
        self.granule = math.lcm(*steps) if steps else 0
        for keeper in positional:
            keeper.granule = self.granule

    def pool(self, group: str) -> PagePool:
        """The pool of the group of that name."""
        return next(keeper.pool for keeper in self.keepers if keeper.name == group)

    def unfit(self, limit: int, block: int) -> tuple[str, int, int] | None:
        """(group, pages needed, pages there are) of a group that can never hold a job of `limit` units, or None."""
        for keeper in self.keepers:
            need = keeper.worst(limit, block)
            if need > keeper.pool.count:
                return keeper.name, need, keeper.pool.count
        return None

    def open(self, job: Job) -> None:
        """Give an admitted job its empty tables."""
        job.tables = {keeper.name: array("i") for keeper in self.keepers}

    def free(self, job: Job) -> None:
        """Drop all pages of a job."""
        for keeper in self.keepers:
            table = job.tables.get(keeper.name)
            if table is not None:
                keeper.free(table)
        job.tables = {}

    def shortage(self, stretches: Sequence[Stretch]) -> list[tuple[Keeper, int]]:
        """The groups whose pools lack pages for these units, and how many pages each lacks."""
        short = []
        for keeper in self.keepers:
            name = keeper.name
            need = 0
            for job, start, stop in stretches:
                need += keeper.need(job.tables[name], start, stop)
            if need > keeper.pool.free_count:
                short.append((keeper, need - keeper.pool.free_count))
        return short

    def grow(self, stretches: Sequence[Stretch]) -> dict[int, list[PageCopy]]:
        """Make the tables ready for writing these units, for which there was no `shortage`.

        Return the copies to make before the step, by the id of the job that needs them.
        """
        copies: dict[int, list[PageCopy]] = {}
        for job, start, stop in stretches:
            mine: list[PageCopy] = []
            for keeper in self.keepers:
                keeper.grow(job.tables[keeper.name], start, stop, mine)
            if mine:
                copies[job.id] = mine
        for job, _, stop in stretches:
            for keeper in self.keepers:
                keeper.afford(job.tables[keeper.name], stop)
        return copies

    def resumable(self, job: Job, start: int, stop: int, target: int) -> int:
        """The highest unit, at most `target`, from which the job can go on after a step over start .. stop.

        It is `target` itself unless a group has no state there: a recurrent state in the middle of a step exists only
        at checkpoints, and a window that has moved on is gone.
        """
        spans = [keeper.span for keeper in self.keepers if isinstance(keeper, KeepCheckpoints)]
        at = target
        while at and not all(k.can_resume(job.tables[k.name], start, stop, at) for k in self.keepers):
            below = [(at - 1) // span * span for span in spans]
            at = max([start if start < at else 0, *below])
        return at

    def settle(self, job: Job, start: int, stop: int, done: int) -> None:
        """After an accepted step over start .. stop of which `done` units count in all."""
        for keeper in self.keepers:
            keeper.settle(job.tables[keeper.name], start, stop, done)

    def give_back(self, job: Job) -> None:
        """Drop what no group keeps any longer."""
        for keeper in self.keepers:
            keeper.give_back(job.tables[keeper.name], job.done)

    def spare(self, jobs: Sequence[Job]) -> int:
        """Drop what only saves work for these jobs; return how many references went."""
        return sum(keeper.spare(job.tables[keeper.name]) for keeper in self.keepers for job in jobs)

    def fork(self, parent: Job, child: Job, at: int) -> int:
        """Share the first units of a settled parent with a new job; return how many, at most `at`."""
        at = self.resumable(parent, parent.done, parent.done, at)
        child.tables = {
            keeper.name: keeper.fork(parent.tables[keeper.name], parent.done, at) for keeper in self.keepers
        }
        return at

    def drop_sources(self, copies: Sequence[PageCopy]) -> None:
        """Drop the references that a step held on the pages it copied from."""
        for copy in copies:
            self.pool(copy.group).drop(copy.source)
