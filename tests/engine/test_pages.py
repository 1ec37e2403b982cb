"""Pools and block tables: layout, growth, copy on write, windows, checkpoints, forks and rollback."""

from __future__ import annotations

from array import array

import pytest

from vivace.engine.batch import Keep, Lane, PageCopy, PageGroup
from vivace.engine.job import Job
from vivace.engine.pages import LanePages
from vivace.engine.pool import PagePool
from vivace.errors import ConfigError


def make(keep: Keep, size: int = 4, span: int = 0, count: int = 10) -> tuple[LanePages, Job]:
    pages = LanePages(Lane("a", (PageGroup("g", 1, size, keep, span),), {"g": count}))
    job = Job(1, "a", 1, 100)
    pages.open(job)
    return pages, job


def advance(pages: LanePages, job: Job, stop: int, done: int | None = None) -> list[PageCopy]:
    """Run a step up to `stop` of which `done` units count."""
    assert not pages.shortage([(job, job.done, stop)])
    copies = pages.grow([(job, job.done, stop)]).get(job.id, [])
    start, target = job.done, stop if done is None else done
    job.done = target if target == stop else pages.resumable(job, start, stop, target)
    pages.settle(job, start, stop, job.done)
    pages.give_back(job)
    return copies


def table(job: Job) -> list[int]:
    return list(job.tables["g"])


def free(pages: LanePages) -> int:
    return pages.pool("g").free_count


def test_a_pool_gives_every_page_once_and_never_page_0() -> None:
    pool = PagePool(5)
    taken = [pool.take() for _ in range(5)]
    assert sorted(taken) == [1, 2, 3, 4, 5] and pool.free_count == 0
    for page in taken:
        pool.drop(page)
    assert pool.free_count == 5


def test_a_page_is_idle_while_only_the_tree_refers_to_it() -> None:
    pool = PagePool(2)
    page = pool.take()
    pool.cache(page)
    assert pool.idle_count == 0
    pool.drop(page)
    assert pool.idle_count == 1 and pool.is_idle(page) and pool.free_count == 1
    pool.share(page)
    assert pool.idle_count == 0
    pool.drop(page)
    pool.uncache(page)
    assert pool.idle_count == 0 and pool.free_count == 2


def test_a_double_free_is_caught() -> None:
    pool = PagePool(2)
    page = pool.take()
    pool.drop(page)
    with pytest.raises(AssertionError, match="dropped more often"):
        pool.drop(page)


def test_a_table_is_an_array_of_c_ints() -> None:
    pages, job = make(Keep.ALL)
    advance(pages, job, 9)
    assert isinstance(job.tables["g"], array) and job.tables["g"].typecode == "i"
    assert memoryview(job.tables["g"]).itemsize == 4


def test_all_keeps_a_page_for_every_unit_and_truncates_on_rollback() -> None:
    pages, job = make(Keep.ALL)
    advance(pages, job, 9)
    assert len(table(job)) == 3
    advance(pages, job, 13, done=8)
    assert job.done == 8 and len(table(job)) == 2 and free(pages) == 8


def test_shortage_counts_pages_of_all_stretches_together() -> None:
    pages, job = make(Keep.ALL, count=3)
    other = Job(2, "a", 1, 100)
    pages.open(other)
    assert not pages.shortage([(job, 0, 12)])
    [(keeper, missing)] = pages.shortage([(job, 0, 8), (other, 0, 5)])
    assert keeper.name == "g" and missing == 1


def test_last_gives_pages_back_behind_the_window() -> None:
    pages, job = make(Keep.LAST, size=4, span=6)
    for stop in range(1, 41):
        advance(pages, job, stop)
        first = max(0, stop - 6) // 4
        assert [page > 0 for page in table(job)] == [index >= first for index in range(-(-stop // 4))]
        assert free(pages) == 10 - sum(page > 0 for page in table(job))


def test_last_starts_over_when_its_window_has_gone() -> None:
    pages, job = make(Keep.LAST, size=4, span=4)
    advance(pages, job, 20)
    advance(pages, job, 21, done=19)
    assert job.done == 0 and table(job) == [] and free(pages) == 10
    advance(pages, job, 20)
    advance(pages, job, 24, done=21)
    assert job.done == 21  # rejected drafts within the step are never behind the window


def test_a_shared_page_is_copied_before_it_is_written() -> None:
    pages, job = make(Keep.ALL)
    advance(pages, job, 6)
    child = Job(2, "a", 1, 100)
    child.done = pages.fork(job, child, 6)
    assert child.done == 6 and table(child) == table(job)
    source = table(child)[1]
    copies = advance(pages, child, 7)
    assert copies == [PageCopy("g", source, table(child)[1])] and table(child)[1] != source
    assert pages.pool("g").refs[source] == 2  # the parent's, and the step's until its copies are dropped
    pages.drop_sources(copies)
    assert advance(pages, job, 7) == []  # nobody else holds it now
    assert table(job)[0] == table(child)[0]


def test_a_fork_at_a_page_border_copies_nothing() -> None:
    pages, job = make(Keep.ALL)
    advance(pages, job, 8)
    child = Job(2, "a", 1, 100)
    child.done = pages.fork(job, child, 4)
    assert advance(pages, child, 9) == []
    assert table(child)[0] == table(job)[0] and table(child)[1] != table(job)[1]


def test_checkpoint_reads_one_state_and_writes_another() -> None:
    pages, job = make(Keep.CHECKPOINT, size=1, span=4)
    pages.grow([(job, 0, 3)])
    read, written = table(job)[:2]
    assert read == 0 and written > 0  # the initial state has no page
    pages.settle(job, 0, 3, 3)
    job.done = 3
    assert table(job) == [written, 0]
    pages.grow([(job, 3, 6)])
    assert table(job)[0] == written and 0 < table(job)[1] != written and table(job)[2] > 0
    after = table(job)[1]
    pages.settle(job, 3, 6, 6)
    assert table(job)[:2] == [after, written]  # swapped, and the old one is written next


def test_checkpoint_keeps_the_state_before_a_step_that_is_taken_back() -> None:
    pages, job = make(Keep.CHECKPOINT, size=1, span=100)
    advance(pages, job, 3)
    state = table(job)[0]
    advance(pages, job, 7, done=5)
    assert job.done == 3 and table(job)[0] == state


def test_checkpoint_goes_on_from_a_mark_inside_the_step() -> None:
    pages, job = make(Keep.CHECKPOINT, size=1, span=4)
    advance(pages, job, 3)
    advance(pages, job, 10, done=9)
    assert job.done == 8
    assert table(job)[0] == table(job)[3] > 0  # reads the checkpoint itself: it is never written
    advance(pages, job, 9)
    assert table(job)[0] != table(job)[3]
    advance(pages, job, 11, done=6)
    assert job.done == 4


def test_checkpoints_are_spared_and_never_needed() -> None:
    pages, job = make(Keep.CHECKPOINT, size=1, span=2, count=4)
    advance(pages, job, 9)
    assert table(job) == [table(job)[0], 0, *table(job)[2:5], 0] and free(pages) == 0  # three marks found a page
    assert pages.shortage([(job, 9, 10)])
    assert pages.spare([job]) == 3
    advance(pages, job, 10)
    assert job.done == 10


def test_a_fork_shares_the_state_or_a_checkpoint() -> None:
    pages, job = make(Keep.CHECKPOINT, size=1, span=4)
    advance(pages, job, 6)
    child, early = Job(2, "a", 1, 100), Job(3, "a", 1, 100)
    assert pages.fork(job, child, 6) == 6 and table(child)[0] == table(job)[0]
    assert pages.fork(job, early, 5) == 4 and table(early)[0] == table(job)[2]
    for other in (child, early, job):
        pages.free(other)
    assert free(pages) == 10


def test_whole_is_one_page_whatever_the_units() -> None:
    pages, job = make(Keep.WHOLE, size=1)
    advance(pages, job, 5)
    advance(pages, job, 50)
    assert len(table(job)) == 1
    child = Job(2, "a", 1, 100)
    pages.fork(job, child, 50)
    assert table(child) == table(job)
    assert pages.granule == 0 and not pages.is_positional


def test_groups_of_different_page_sizes_share_at_their_common_multiple() -> None:
    groups = (PageGroup("x", 1, 4), PageGroup("y", 1, 6, Keep.LAST, 12), PageGroup("z", 1, 1, Keep.CHECKPOINT, 8))
    assert LanePages(Lane("a", groups, {"x": 1, "y": 1, "z": 1})).granule == 24


def test_a_limit_that_never_fits_is_named() -> None:
    groups = (PageGroup("x", 1, 4), PageGroup("y", 1, 4, Keep.LAST, 8))
    pages = LanePages(Lane("a", groups, {"x": 10, "y": 3}))
    assert pages.unfit(40, 1) is None  # the window never needs more than its own pages
    assert pages.unfit(41, 1) == ("x", 11, 10)
    assert pages.unfit(40, 8) == ("y", 5, 3)


def test_a_lane_without_a_page_count_is_refused() -> None:
    with pytest.raises(ConfigError, match="no page count for its group 'g'"):
        LanePages(Lane("a", (PageGroup("g", 1, 4),), {}))
