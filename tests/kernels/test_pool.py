"""The thread pool: every item once, whoever is late; at rest it costs nothing; a forked child works alone."""

from __future__ import annotations

import os
import time

import pytest
import torch

from tests.kernels.test_tape import PARTS, check, recorded
from vivace.kernels.cpu.bind import NativeOps
from vivace.kernels.tape import Replay
from vivace.runtime.device import probe_hardware

pytestmark = pytest.mark.usefixtures("needs_native")

REST_S = 0.5


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_every_item_is_computed_once(threads: int) -> None:
    """Many short calls after one another: a worker that is late for one must not touch the next."""
    native = NativeOps(None, threads)
    x = torch.arange(60_000, dtype=torch.float32).view(60, 1000)
    for turn in range(400):
        y = native.add(x[: 1 + turn % 60], x[: 1 + turn % 60])
        assert torch.equal(y, 2 * x[: 1 + turn % 60])


def test_more_threads_than_cores_give_the_same_bits_and_end() -> None:
    native = NativeOps(None, 4 * (os.cpu_count() or 1))
    replay = Replay(recorded(native), PARTS, native)
    for turn in range(20):
        check(replay, native, 1 + turn, turn % 8)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not bind threads to cores")
def test_seven_threads_on_one_core_give_the_same_bits_and_end() -> None:
    """Every worker that another one waits for has to be let onto the core first."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        native = NativeOps(None, 7)  # its workers inherit the core
        replay = Replay(recorded(native), PARTS, native)
        for turn in range(30):
            check(replay, native, 1 + turn, turn % 8)
    finally:
        os.sched_setaffinity(0, cores)


def test_a_pool_at_rest_takes_no_processor_time() -> None:
    native = NativeOps(None, 4)
    replay = Replay(recorded(native), PARTS, native)
    check(replay, native, 40, 7)
    time.sleep(0.05)  # workers look for more work for well under a millisecond, then sleep
    before = time.process_time()
    time.sleep(REST_S)
    # Three spinning workers would take REST_S or more; this thread alone takes microseconds.
    assert time.process_time() - before < 0.02 * REST_S


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_forked_child_replays_alone() -> None:
    native = NativeOps(None, 2)
    replay = Replay(recorded(native), PARTS, native)
    check(replay, native, 12, 3)
    expected = replay.results["scores"][:3].clone()
    child = os.fork()
    if child == 0:
        replay.run(12, 3, 0)
        is_right = torch.equal(replay.results["scores"][:3], expected)
        del replay, native
        os._exit(0 if is_right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    check(replay, native, 12, 3)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot bind threads to cores")
@pytest.mark.parametrize("threads", [2, 5])
def test_one_core_under_several_threads_gives_the_same_bits_and_ends(threads: int) -> None:
    """All threads of the pool take turns on one core: whoever waits has to give it away."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert probe_hardware().cores == 1
        native = NativeOps(None, threads)  # its threads inherit the core
        replay = Replay(recorded(native), PARTS, native)
        for turn in range(10):
            check(replay, native, 1 + turn, turn % 8)
    finally:
        os.sched_setaffinity(0, before)
