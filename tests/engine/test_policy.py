"""The order of waiting jobs: priority, arrival, tenants by cost served."""

from __future__ import annotations

import pytest

from vivace.engine.job import Group, Job
from vivace.engine.policy import Clock, Fair, Fcfs, WaitingQueue
from vivace.errors import ConfigError


def make_group(number: int, priority: int = 0, tenant: str = "") -> Group:
    job = Job(number, "a", 1, 1, priority=priority, tenant=tenant, arrival=number)
    job.group = Group(number, members=[job])
    return job.group


def drain(queue: WaitingQueue) -> list[int]:
    return [queue.pop().id for _ in range(len(queue))]


def test_fcfs_takes_priority_first_then_arrival() -> None:
    queue = WaitingQueue(Fcfs())
    for number, priority in ((1, 0), (2, 5), (3, 0), (4, 5)):
        queue.push(make_group(number, priority))
    assert drain(queue) == [2, 4, 1, 3]


def test_a_preempted_job_keeps_its_place_by_arrival() -> None:
    queue = WaitingQueue(Fcfs())
    groups = [make_group(number) for number in (1, 2, 3)]
    for group in groups:
        queue.push(group)
    first = queue.pop()
    queue.push(first)
    assert drain(queue) == [1, 2, 3]


def test_removing_a_group_keeps_the_order_of_the_others() -> None:
    queue = WaitingQueue(Fcfs())
    groups = [make_group(number) for number in range(1, 8)]
    for group in groups:
        queue.push(group)
    queue.remove(groups[3])
    assert drain(queue) == [1, 2, 3, 5, 6, 7] and not queue and queue.peek() is None


def test_fair_serves_tenants_by_cost_over_weight() -> None:
    policy = Fair({"heavy": 3})
    queue = WaitingQueue(policy)
    for number in range(1, 41):
        queue.push(make_group(number, tenant="heavy" if number % 2 else "light"))
    served = {"heavy": 0, "light": 0}
    for _ in range(20):
        job = queue.pop().members[0]
        served[job.tenant] += 1
        policy.charge(job, 100)
    assert served == {"heavy": 15, "light": 5}


def test_a_tenant_earns_no_credit_by_idling() -> None:
    policy = Fair()
    queue = WaitingQueue(policy)
    for number in range(1, 11):
        queue.push(make_group(number, tenant="busy"))
    for _ in range(9):
        policy.charge(queue.pop().members[0], 100)
    for number in range(11, 21):
        queue.push(make_group(number, tenant="busy" if number % 2 else "late"))
    order = []
    for _ in range(6):
        job = queue.pop().members[0]
        order.append(job.tenant)
        policy.charge(job, 100)
    assert order.count("busy") >= 2


def test_a_clock_forgets_names_that_are_not_ahead() -> None:
    clock = Clock()
    for number in range(10_000):
        clock.charge(str(number), 1)
        clock.charge("ahead", 5)
        clock.pick("ahead")
    assert len(clock._turns) <= 4097
    assert clock.turn("ahead") > clock.turn("0") == 0


def test_a_weight_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="weight of 'a' is 0"):
        Fair({"a": 0})
