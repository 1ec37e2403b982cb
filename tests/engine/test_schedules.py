"""The scheduler under random schedules, and proof that the fakes see it when something in the engine is broken."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.prove_scheduler import run_schedules, shortfalls
from tests.engine.schedules import Schedule
from vivace.engine.keep import KeepCheckpoints, KeepUnits
from vivace.engine.lane import LaneState
from vivace.engine.pages import LanePages
from vivace.engine.pool import PagePool
from vivace.engine.prefix import PrefixTree
from vivace.engine.scheduler import Scheduler

FIRST, COUNT = 100_000, 1_000  # other seeds than those of `make prove-scheduler`


def test_a_thousand_schedules_end_as_alone_and_nothing_rare_is_missing() -> None:
    tally = run_schedules(FIRST, COUNT)
    print(dict(tally))
    assert not shortfalls(tally, COUNT)


def _no_copies(self: LanePages, stretches: Any) -> dict[int, list[Any]]:
    for copies in GROW(self, stretches).values():
        self.drop_sources(copies)
    return {}


def _write_in_place(self: KeepUnits, table: array[int], start: int, stop: int, copies: list[Any]) -> None:
    for _ in range(-(-stop // self.size) - len(table)):
        table.append(self.pool.take())


def _window_moves_early(self: KeepUnits, table: array[int], done: int) -> None:
    GIVE_BACK(self, table, done + self.size if self.span else done)


def _never_swaps(self: KeepCheckpoints, table: array[int], start: int, stop: int, done: int) -> None:
    SETTLE_STATE(self, table, start, start, min(done, start))


def _keeps_rejected(self: LaneState, job: Any, start: int, stop: int, target: int) -> None:
    COMMIT(self, job, start, stop, min(stop, target + 1))


def _forgets_root(self: PrefixTree, job: Any, limit: int) -> Any:
    root, job.root = job.root, next(iter(self.roots), b"")
    try:
        return MATCH(self, job, limit)
    finally:
        job.root = root


def _compares_beginnings_only(self: PrefixTree, edge: bytes, keys: Any, at: int, total: int) -> int:
    return min(len(edge) // self.run, total - at)


def _victims_in_flight(self: LaneState, group: Any) -> Any:
    others = [job.group for job in self.running.values() if job.group is not group]
    return others[0] if others else None


def _cancels_in_flight(self: Scheduler, job_id: int) -> bool:
    for member in list(self.jobs[job_id].group.members):  # type: ignore[union-attr]
        member.in_flight = False
    return CANCEL(self, job_id)


def _shares_without_counting(self: PagePool, page: int) -> None:
    """Nobody notes the new reference."""


GROW, GIVE_BACK, SETTLE_STATE = LanePages.grow, KeepUnits.give_back, KeepCheckpoints.settle
COMMIT, MATCH, CANCEL = LaneState.commit, PrefixTree.match, Scheduler.cancel

DAMAGES: list[tuple[type, str, Callable[..., Any]]] = [
    (LanePages, "grow", _no_copies),
    (KeepUnits, "grow", _write_in_place),
    (KeepUnits, "give_back", _window_moves_early),
    (KeepUnits, "can_resume", lambda *_: True),
    (KeepCheckpoints, "settle", _never_swaps),
    (KeepCheckpoints, "can_resume", lambda *_: True),
    (LaneState, "commit", _keeps_rejected),
    (LaneState, "_victim", _victims_in_flight),
    (PrefixTree, "match", _forgets_root),
    (PrefixTree, "can_end", lambda *_: True),
    (PrefixTree, "_common", _compares_beginnings_only),
    (PagePool, "share", _shares_without_counting),
    (Scheduler, "cancel", _cancels_in_flight),
]


@pytest.mark.parametrize(("part", "name", "damage"), DAMAGES)
def test_schedules_see_damage(
    part: type, name: str, damage: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, name, damage)
    monkeypatch.setattr(Scheduler, "check", lambda self: None)  # the fakes alone must see it
    for seed in range(FIRST, FIRST + 300):
        try:
            Schedule(seed, Counter()).run()
        except Exception:
            return
    pytest.fail("no schedule noticed")
