"""One budget of threads for torch and the native kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from vivace.runtime.threads import ThreadPlan, use_threads


@pytest.fixture(autouse=True)
def _same_threads_after() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_without_native_kernels_torch_gets_all_threads() -> None:
    assert use_threads(2, native=False) == ThreadPlan(torch_threads=2, kernel_threads=1)
    assert torch.get_num_threads() == 2


def test_with_native_kernels_torch_keeps_one_thread() -> None:
    plan = use_threads(2, native=True)
    assert plan == ThreadPlan(torch_threads=1, kernel_threads=2)
    assert torch.get_num_threads() == 1
    assert plan.describe() == "1 torch threads, 2 kernel threads"
