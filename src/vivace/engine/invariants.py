"""What must hold of a lane between any two calls of its scheduler. For tests: it looks at every page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from vivace.engine.batch import PageCopy
from vivace.engine.job import Job, JobState
from vivace.engine.keep import Keeper, KeepUnits
from vivace.engine.lane import LaneState


def check_lane(lane: LaneState, in_flight: Sequence[Job], copies: Sequence[PageCopy]) -> None:
    """Assert the invariants of one lane; `in_flight` and `copies` are those of its steps that are out."""
    flying = {job.id for job in in_flight}
    assert len(flying) == len(in_flight), "a job is in two steps"
    for job in lane.running.values():
        assert job.state is JobState.RUNNING
        assert 0 <= job.done <= job.goal <= job.limit, f"job {job.id}: {job.done} of {job.goal}, limit {job.limit}"
        assert job.in_flight == (job.id in flying), f"job {job.id} is in flight: {job.in_flight}"
        assert job.entered <= job.done
        assert job.group is not None and job in job.group.members
        assert all(member.state is JobState.RUNNING for member in job.group.members), "a group is running in part"
        if not job.in_flight:
            check_tables(lane, job)
    for group in lane.queue.groups():
        for job in group.members:
            assert job.state is JobState.WAITING and not job.in_flight and not job.tables
    for keeper in lane.pages.keepers:
        check_pool(lane, keeper, [copy.source for copy in copies if copy.group == keeper.name])


def check_tables(lane: LaneState, job: Job) -> None:
    """Assert that a job at rest holds the pages of its `done` units and no others."""
    for keeper in lane.pages.keepers:
        table = job.tables[keeper.name]
        if isinstance(keeper, KeepUnits):
            assert len(table) == -(-job.done // keeper.size), f"job {job.id} holds {len(table)} pages of {keeper.name}"
        assert keeper.can_resume(table, job.done, job.done, job.done)


def check_pool(lane: LaneState, keeper: Keeper, sources: Iterable[int]) -> None:
    """Assert that references are exactly those of tables, tree and copies, and that free pages have none."""
    pool = keeper.pool
    cached: Counter[int] = Counter()
    if lane.tree is not None:
        if keeper in lane.tree.keepers:
            index = lane.tree.keepers.index(keeper)
            for node in lane.tree.nodes():
                assert len(node.pages[index]) * lane.tree.run == len(node.edge) * lane.tree.strides[index]
                cached.update(node.pages[index])
        else:
            cached.update(root.whole.get(keeper.name, 0) for root in lane.tree.roots.values())
    del cached[0]
    refs = Counter(cached)
    refs.update(sources)
    for job in lane.running.values():
        refs.update(job.tables[keeper.name])
    del refs[0]
    free = pool.free_pages()
    assert len(set(free)) == len(free) and 0 not in free, "a page is free twice"
    assert not any(page in refs for page in free), f"a page of {keeper.name} is free and in use"
    for page in range(pool.count + 1):
        found, counted = refs[page], pool.refs[page]
        assert counted == found, f"page {page} of {keeper.name} has {found} references, {counted} were counted"
        assert pool.cached[page] == cached[page], f"page {page} of {keeper.name} is miscounted in the tree"
    assert len(free) + len(refs) == pool.count, f"pages of {keeper.name} are lost"
    idle = sum(1 for page, count in cached.items() if refs[page] == count)
    assert pool.idle_count == idle, f"{pool.idle_count} != {idle} idle pages of {keeper.name}"


def check_idle(lane: LaneState) -> None:
    """Assert that a lane without jobs has all its pages free or idle in the prefix tree."""
    assert not lane.running and not lane.queue
    for keeper in lane.pages.keepers:
        used = keeper.pool.count - keeper.pool.free_count - keeper.pool.idle_count
        assert used == 0, f"{used} pages of {keeper.name} are still in use"
