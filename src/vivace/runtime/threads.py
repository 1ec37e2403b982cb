"""Who computes with how many threads: one budget, shared by torch and the native kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class ThreadPlan:
    """Threads of torch and of the native kernels' own pool."""

    torch_threads: int
    kernel_threads: int

    def describe(self) -> str:
        return f"{self.torch_threads} torch threads, {self.kernel_threads} kernel threads"


def use_threads(count: int, *, native: bool) -> ThreadPlan:
    """Set torch's threads for a budget of `count`, and return who has how many.

    With native kernels torch keeps one thread: two pools on the same cores would take turns at waking up.
    Call this before the kernels are resolved, because the pool starts with them.
    """
    assert count >= 1, f"a budget of {count} threads"
    plan = ThreadPlan(1, count) if native else ThreadPlan(count, 1)
    set_torch_threads(plan.torch_threads)
    return plan


def set_torch_threads(count: int) -> None:
    """Set torch's thread count where it differs (setting it anew restarts torch's own pool)."""
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
